"""What a fuse rule is made of, and the values that go in and out.

A rule is a chain of up to three parts, each chosen by name and options (`clip:norm=1+median+adam`):

    Filter*   updates -> updates            looks at whole updates before they are combined: clips, zeroes
    Combine   base, updates -> Combined     the one value that the updates come to
    Step?     base, Combined, state -> …    what the server makes of it: an optimiser step, with a state of its own

Nothing is held whole. What goes in and out are recipes that compute the rows they are asked for from the same rows of every update,
so the file of the target set is written with one slice of each tensor in memory, however large the model and however many the
children. Arithmetic is float64, rounded once at the end. Rules see float tensors only; see `buffers` for the others.

Legend: n children, T tasks, d elements of a row slice.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trunkline.choices import Choice
from trunkline.codecs import Read
from trunkline.tensors import SetSpec

if TYPE_CHECKING:
    from master.jobs import JobSpec
    from master.rules.fedbuff import FedBuff

Matrix = NDArray[np.float64]

Rows = Callable[[str, slice], Matrix]
"""Rows of a float tensor in float64, by name."""

Notes = Mapping[str, Any]
"""What a part saw and did, as JSON data, for people: chosen children, factors, distances."""


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
    base: Parameters | None = None  # what it was trained from; None: the base of the round
    staleness: int = 0  # rounds fused since that base was published
    distance: float | None = None  # its steps times the job's learning rate, by which SCAFFOLD divides its movement


@dataclass(frozen=True, slots=True)
class State:
    """What a rule remembers from one round to the next."""

    tensors: Parameters
    notes: Notes


@dataclass(frozen=True, slots=True)
class Combined:
    """What the updates come to."""

    read: Rows  # of the float tensors
    weights: Mapping[str, float]  # share of each child, sum to 1: told to people, and used for integers and booleans
    notes: Notes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fused:
    """The outcome of a rule as recipes. The state, if there is one, is written first; the target set is read with its help."""

    weights: Mapping[str, float]
    notes: Notes
    state: State | None
    target: Callable[[Parameters | None], Parameters]  # the written state -> the target set


class Part(Choice):
    """A part of a rule. Its docstring is what `trunkline rule show` prints."""

    @property
    def least(self) -> int:
        """Fewest updates it can work with."""
        return 1

    def objection(self, job: "JobSpec") -> str | None:
        """What a job should be to go with this part, and is not: `KEY should be …, found …`."""
        return None

    def check_installed(self) -> None:
        """Asked where the rounds are fused, when a job is started there.

        :raises SpecError: a library that this part needs is not there.
        """


class Filter(Part):
    """Looks at updates before they are combined."""

    @abstractmethod
    def filter(self, base: Parameters, updates: Sequence[Contribution]) -> tuple[list[Contribution], Notes]:
        """The updates as they should count, in the same order."""


class Combine(Part):
    """Brings the updates to one value."""

    @property
    def buffered(self) -> "FedBuff | None":
        """How rounds are buffered, where they do not wait for everybody."""
        return None

    @abstractmethod
    def combine(self, base: Parameters, updates: Sequence[Contribution], most: float) -> Combined:
        """Combine, with a share of the weight of at most `most` for each child.

        :param updates: in the order of the child ids, at least one.
        :raises TooFewChildren: nobody counts, or too few for this rule.
        """


class Step(Part):
    """What the server does with the combined value."""

    weighs: ClassVar[str] = "samples"
    """What children count by where the rule does not say how they are combined."""

    corrects: ClassVar[bool] = False
    """Whether its state goes to the children, who correct their gradients by it."""

    @abstractmethod
    def remember(self, base: Parameters, updates: Sequence[Contribution], combined: Combined, state: State | None) -> State:
        """The state after this round as a recipe."""

    @abstractmethod
    def move(self, base: Parameters, combined: Combined, state: Parameters) -> Rows:
        """The target set, from the state after this round."""
