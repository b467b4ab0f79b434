"""Control variates of SCAFFOLD at a child (Karimireddy et al., 2020, arXiv:1910.06378, algorithm 1, option II).

The server's variate `c` comes with the initial set; the child's own, `c_i`, is private to the site and kept with its heads, so a
repeated initial set and a restart find it as it was. Both are zero at the start of a job.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from child.state import Private
from tasks.encoders import Encoder
from trunkline.errors import Reason, TrainingFailed
from trunkline.sets import SetFile
from trunkline.tensors import Array

PREFIX = "@control/"
"""Of `c_i` among the private tensors; no task's name begins so."""


class Control:
    """The two variates of one job.

    :param server: file with `c/NAME`; None: zero.
    :param private: holds `c_i`, where this job has one.
    """

    def __init__(self, job: str, server: Path | None, private: Private) -> None:
        self.job = job
        self._server: Mapping[str, Array] = {}
        if server is not None:
            with SetFile(server) as file:
                self._server = {name.removeprefix("c/"): array for name, array in file.tensors().items()}
        self._own = private.under(PREFIX) if private.notes.get("control") == job else {}

    def correction(self, encoder: Encoder) -> dict[str, Tensor]:
        """`c - c_i`, which is added to every gradient.

        :raises TrainingFailed: `training`: the encoder is trained by low-rank products, whose gradients are others.
        """
        if encoder.products:
            raise TrainingFailed(
                Reason.TRAINING, "the rule `scaffold` should train whole matrices, found an encoder with `tuning` by products."
            )
        return {
            name: torch.from_numpy(self._of(self._server, name, value) - self._of(self._own, name, value)).to(value.device)
            for name, value in encoder.shared_parameters().items()
        }

    def kept(self, private: Private, encoder: Encoder, base: Callable[[str], Array], distance: float) -> Private:
        """The private state with `c_i` as it is after a training that led from the base to the encoder as it stands.

        :param base: a whole tensor of the base set, by name.
        :param distance: steps times the learning rate.
        """
        if not distance:  # it was told to end before it moved: the variate stays as it was
            return private.replaced(PREFIX, self._own, control=self.job)
        after: dict[str, Array] = {}
        for name, value in encoder.shared_parameters().items():
            moved = base(name) - value.detach().cpu().numpy()
            own = self._of(self._own, name, value) - self._of(self._server, name, value)
            after[name] = np.asarray(own + moved / np.float32(distance), dtype=np.float32)
        return private.replaced(PREFIX, after, control=self.job)

    @staticmethod
    def _of(variates: Mapping[str, Array], name: str, like: Tensor) -> Array:
        return variates[name] if name in variates else np.zeros(tuple(like.shape), np.float32)
