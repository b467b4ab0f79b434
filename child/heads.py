"""Heads in a site's private state: where each lies, what its outputs mean, and how it comes back into a head.

tensors   TASK/head/NAME   parameters and buffers of the head
notes     heads            task -> what its head's outputs mean
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from child.state import Private
from tasks.heads import Head
from trunkline.tensors import Array


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the outputs of a head mean. A saved head is taken for another only where both mean the same."""

    kind: str  # as `TaskSpec.head` names it
    labels: tuple[str, ...]  # in the order of the outputs

    def note(self) -> dict[str, Any]:
        """As JSON data."""
        return {"kind": self.kind, "labels": list(self.labels)}


def noted(notes: Mapping[str, Any]) -> dict[str, Outputs]:
    """What the outputs of each head meant when it was trained, by task."""
    return {task: _outputs(note) for task, note in notes.get("heads", {}).items()}


def _outputs(note: str | Mapping[str, Any]) -> Outputs:
    if isinstance(note, str):  # 0.1.0 wrote KIND:LABEL|LABEL; with a bar in a label that is none of the labels there are
        kind, _, labels = note.partition(":")
        return Outputs(kind, tuple(labels.split("|")) if labels else ())
    return Outputs(str(note["kind"]), tuple(note["labels"]))


def kept(task: str, head: Head) -> dict[str, Array]:
    """A head's tensors as they lie in the private state."""
    return {f"{task}/head/{name}": as_array(value) for name, value in head.state_dict().items()}


def put(head: Head, task: str, private: Private) -> bool:
    """Give a head the values that were kept of it; false, and nothing happens, where they have other names or shapes."""
    saved, wanted = tensors_of(private, f"{task}/head/"), head.state_dict()
    if set(saved) != set(wanted) or any(saved[name].shape != wanted[name].shape for name in wanted):
        return False
    head.load_state_dict(saved)
    return True


def tensors_of(private: Private, prefix: str) -> dict[str, Tensor]:
    """Saved tensors under a prefix, as torch tensors of their own."""
    return {name: torch.from_numpy(np.array(array)) for name, array in private.under(prefix).items()}


def as_array(tensor: Tensor) -> Array:
    """A tensor's values in numpy, detached from it."""
    return tensor.detach().cpu().numpy().copy()
