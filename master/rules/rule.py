"""What a fuse rule is: `(parameters, updates) -> parameters`, where parameters are read slice by slice and nothing is held whole.

A rule returns a recipe, not arrays: `Fused.parameters.read` computes the rows it is asked for from the same rows of every update.
So the file of the target set is written with one slice of each tensor in memory, however large the model and however many the
children.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trunkline.codec import Read
from trunkline.tensors import SetSpec


@dataclass(frozen=True, slots=True)
class Parameters:
    """A parameter set that is read by rows."""

    spec: SetSpec
    read: Read


@dataclass(frozen=True, slots=True)
class Contribution:
    """One child's accepted update, decoded as it is read."""

    child: str
    samples: Mapping[str, int]  # distinct samples applied, by task
    applied: Mapping[str, int]  # deliveries, by task
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Fused:
    """The target set as a recipe, and the share each child has in it."""

    parameters: Parameters
    weights: Mapping[str, float]  # sum to 1


Rule = Callable[[Parameters, Sequence[Contribution]], Fused]
"""The base set and the contributions, in the order of the child ids, to the target set."""
