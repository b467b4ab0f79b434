"""Adam at the server."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from master.rules.adaptive import Adaptive
from master.rules.rule import Matrix


class Adam(Adaptive):
    """FedAdam: what the children moved by is the gradient of an Adam step (Reddi et al., 2021, arXiv:2003.00295, algorithm 2)."""

    name: ClassVar[str] = "adam"
    beta2: Annotated[float, Field(ge=0, lt=1, description="Memory of the second moment.")] = 0.99

    def second(self, before: Matrix, moved: Matrix) -> Matrix:
        return np.asarray(self.beta2 * before + (1 - self.beta2) * moved**2)
