"""Adagrad at the server."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.adaptive import Adaptive
from master.rules.rule import Matrix


class Adagrad(Adaptive):
    """FedAdagrad (Reddi et al., 2021, arXiv:2003.00295, algorithm 2): each coordinate's steps become smaller by all that it has
    moved. Without momentum, as in the paper's trials, unless `beta1` says otherwise.
    """

    name: ClassVar[str] = "adagrad"
    beta1: Annotated[float, Field(ge=0, lt=1, description="Memory of the first moment.")] = 0.0

    def second(self, before: Matrix, moved: Matrix) -> Matrix:
        return np.asarray(before + moved**2)
