"""Yogi at the server."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.adaptive import Adaptive
from master.rules.rule import Matrix


class Yogi(Adaptive):
    """FedYogi (Reddi et al., 2021, arXiv:2003.00295, algorithm 2): as Adam, but the second moment comes down no faster than it goes
    up."""

    name: ClassVar[str] = "yogi"
    beta2: Annotated[float, Field(ge=0, lt=1, description="Memory of the second moment.")] = 0.99

    def second(self, before: Matrix, moved: Matrix) -> Matrix:
        square = moved**2
        return np.asarray(before - (1 - self.beta2) * square * np.sign(before - square))
