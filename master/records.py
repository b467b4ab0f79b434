"""What the ledger hands out: frozen values, one a row. Times are seconds since the epoch, sizes bytes, digests SHA-256 in hex."""

from dataclasses import dataclass, field
from typing import Any

from master.states import ENDED_ROUNDS, OPEN_JOBS, JobState, MemberState, NodeState, RoundState
from trunkline.messages import DeltaRef

Data = dict[str, Any]
"""A JSON object."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A shared encoder: its declaration, its files, and what its parameter sets look like."""

    name: str
    type: str
    spec: Data
    manifest: str
    shared: Data  # name -> [shape, dtype]
    created: float


@dataclass(frozen=True, slots=True)
class Version:
    """A published parameter set of an encoder and where it came from."""

    encoder: str
    number: int
    digest: str
    size: int
    kind: str  # initial, round, rollback, snapshot
    parent: str | None  # digest
    parent_number: int | None
    job: str | None
    round: int | None
    weights: dict[str, float]  # child -> share
    delta: DeltaRef | None  # a file that holds the difference from the parent
    data: Data
    created: float


@dataclass(frozen=True, slots=True)
class Job:
    """The training of one encoder over some rounds."""

    id: str
    encoder: str
    name: str | None
    key: str | None
    spec: Data
    requested_by: str | None  # the child whose request started it; None: an operator
    state: JobState
    reason: str
    epoch: int
    owner: str | None
    run_id: str | None
    pid: int | None
    heartbeat: float | None
    created: float
    ended: float | None

    @property
    def open(self) -> bool:
        return self.state in OPEN_JOBS


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a job."""

    job: str
    number: int
    state: RoundState
    base: str
    target: str | None
    version: int | None
    reason: str
    opened: float
    closed: float | None
    rule_state: str | None = None  # digest of what the rule remembers after it
    residual: str | None = None  # digest of what a lossy codec left out of the target
    notes: Data | None = None  # what the rule saw

    @property
    def open(self) -> bool:
        return self.state not in ENDED_ROUNDS


@dataclass(frozen=True, slots=True)
class Memory:
    """What a round leaves to the next beside its target; files by digest."""

    rule_state: str | None = None  # what the rule remembers
    residual: str | None = None  # what a lossy codec left out of the target
    notes: Data = field(default_factory=dict)  # what the rule saw, for people, and its state beside the tensors


@dataclass(frozen=True, slots=True)
class Member:
    """A child's answer to a round's instruction, and what became of it."""

    child: str
    state: MemberState
    confirmation: Data
    reason: str | None
    detail: str
    at: float


@dataclass(frozen=True, slots=True)
class RecordedUpdate:
    """An update that was checked, accepted and stored."""

    child: str
    update: Data
    digest: str
    size: int
    forgotten: bool  # its file may be gone
    at: float
    arrival: int | None = None  # the how-manieth of its round, from 1
    origin: int | None = None  # the round whose initial set it was trained from


@dataclass(frozen=True, slots=True)
class Refusal:
    """An update, or report, that was not accepted."""

    child: str
    reason: str
    detail: str
    data: Data
    at: float


@dataclass(frozen=True, slots=True)
class RecordedReport:
    """What the target set scored at one child."""

    child: str
    report: Data
    at: float


@dataclass(frozen=True, slots=True)
class Node:
    """A child that enrolled."""

    name: str
    public_key: bytes
    token_hash: str
    flower_id: int | None
    boot: str | None  # changes when its daemon restarts
    machine: Data
    tasks: list[Any]
    speaks: tuple[int, int]  # wire versions, oldest and newest
    state: NodeState
    labels: dict[str, str]
    created: float
    seen: float | None


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A child asked for training; `job` says which job answers it."""

    id: int
    child: str
    encoder: str | None
    type: str | None
    tasks: tuple[str, ...]
    at: float
    job: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changed. Ids grow in the order of commits, so a reader that asks for more than it has misses none."""

    id: int
    at: float
    kind: str
    job: str | None
    round: int | None
    child: str | None
    data: Data = field(default_factory=dict)
