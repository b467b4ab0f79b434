"""The five messages of a round, in the order they travel, and the request that comes before them.

    child  -> master   Request            a child asks for training                        (HTTPS API)
    master -> child    Instruction        train an encoder of this type                    (query)
    child  -> master   Confirmation       how many samples, or a refusal with its reason
    master -> child    InitialSet         where the initial parameter set lies             (train)
    child  -> master   Update             where the trained shared parameters lie
    master -> child    ReportRequest      where the target set lies                        (evaluate)
    child  -> master   Report             what the target set scores on the child's own samples

All are frozen, JSON on the wire, and carry the wire version they were written in. Parameter sets are never inside: a message
names them by SHA-256, and the bytes travel beside it (`transfer = "blob"`) or as an attachment (`transfer = "inline"`).

A field that a later wire version adds is marked `since(2)` (see `values`), so two sides that share a version understand each other
(see `wire`).
"""

import json
from typing import Annotated, ClassVar, Self

from pydantic import Field, ValidationError

from trunkline import wire
from trunkline.errors import Reason, RefusedValue
from trunkline.values import (
    Count,
    Decay,
    Digest,
    Finite,
    Moments,
    Name,
    Optimizer,
    Precision,
    Seconds,
    Split,
    Transfer,
    Value,
    since,
)


class Message(Value):
    """A value that travels, and can write and read itself."""

    kind: ClassVar[str]

    def encode(self, version: int | None = None) -> str:
        """This message as JSON, in a wire version (default: the newest)."""
        version = version or wire.NEWEST
        return json.dumps({"wire": version, "kind": self.kind, "body": self.told(version)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        """Read a message of this kind.

        :raises WireVersionMismatch: written in a version this side does not speak.
        :raises RefusedValue: `wire`, `malformed`: not a message of this kind.
        """
        message = decode(text)
        if not isinstance(message, cls):
            raise RefusedValue(Reason.MALFORMED, f"the message should be a {cls.kind}, found a {message.kind}.")
        return message


# -- what messages are made of ----------------------------------------------------------------------------------------


class EncoderRef(Value):
    """An encoder by name and by the digest of its manifest of files (config, tokenizer, frozen weights, no samples)."""

    name: Name
    type: Name
    manifest: Digest


class SetRef(Value):
    """A parameter set by digest."""

    digest: Digest
    size: Count  # bytes
    version: Count  # number of this version of the encoder, for people


class Plan(Value):
    """How a child trains in one round. Everything that decides the resulting numbers stands here."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)]  # batches in this round, over all of the child's tasks
    total_steps: Annotated[int, Field(ge=1)]  # batches in the whole job: the warm-up and decay count over it
    done_steps: Count = 0  # batches before this round
    optimizer: Optimizer = "adamw"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5e-5
    head_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    warmup_steps: Count = 0
    decay: Decay = "none"
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # 0 switches it off
    prox: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # FedProx mu
    batch_size: Annotated[int, Field(ge=1, le=4096)] | None = None  # None: each task's own
    micro_batch: Annotated[int, Field(ge=1)] | None = None  # gradient accumulation: samples a forward pass
    max_length: Annotated[int, Field(ge=1)] | None = None  # tokens; None: each task's own
    precision: Precision = "float32"
    threads: Annotated[int, Field(ge=1)] | None = None  # None: the child's setting
    seed: Count = 0
    head_steps: Count = Field(default=0, json_schema_extra=since(2))  # the first of `steps`, which move the heads alone
    moments: Moments = Field(default="fresh", json_schema_extra=since(2))  # an older child has fresh ones, whatever is said
    corrected: bool = Field(default=False, json_schema_extra=since(2))  # SCAFFOLD: gradients are corrected by control variates


class DeltaRef(Value):
    """A parameter set told as the difference from one that the child holds; what it decodes to is the set itself, bit for bit."""

    held: Digest  # the set to start from
    digest: Digest  # of the file that holds the difference
    size: Count  # bytes
    codec: str


class TaskCount(Value):
    """A task as its child declares it. Label names stay at the child."""

    task: Name
    head: str
    metric: str
    higher_is_better: bool = True
    samples: Count  # distinct training samples


class Machine(Value):
    """What a child runs on."""

    cpus: Count
    memory: Count  # bytes
    gpus: tuple[str, ...] = ()
    precision: tuple[str, ...] = ("float32",)
    python: str = ""
    torch: str = ""
    trunkline: str = ""


class Score(Value):
    """One metric of one task on one split of a child's own samples."""

    task: Name
    split: Split
    metric: str
    value: Finite
    higher_is_better: bool = True
    samples: Count


# -- the messages ------------------------------------------------------------------------------------------------------


class Request(Message):
    """A child asks for training of an encoder (by name) or of an encoder type."""

    kind: ClassVar[str] = "request"
    child: Name
    encoder: Name | None = None
    type: Name | None = None
    tasks: tuple[Name, ...] = ()  # the tasks it is wanted for


class Instruction(Message):
    """Train an encoder of this type."""

    kind: ClassVar[str] = "instruction"
    job: Name
    round: Annotated[int, Field(ge=1)]
    encoder: EncoderRef
    base: SetRef
    plan: Plan
    codec: str = "float32"
    transfer: Transfer = "blob"
    tasks: tuple[Name, ...] = ()  # empty: every task of the type


class Confirmation(Message):
    """A child's answer to an instruction: counts, or a refusal with its reason."""

    kind: ClassVar[str] = "confirmation"
    job: Name
    round: int
    child: Name
    accepted: bool
    reason: Reason | None = None
    detail: str = ""
    tasks: tuple[TaskCount, ...] = ()
    holds: tuple[Digest, ...] = ()  # parameter sets it has already
    machine: Machine | None = None
    speaks: wire.Range = wire.SPOKEN


class InitialSet(Message):
    """The parameter set to start from. Complete in itself, so that a child that restarted can serve it."""

    kind: ClassVar[str] = "initial_set"
    job: Name
    round: Annotated[int, Field(ge=1)]
    child: Name
    encoder: EncoderRef
    base: SetRef
    plan: Plan
    codec: str = "float32"
    transfer: Transfer = "blob"
    tasks: tuple[Name, ...] = ()
    delta: DeltaRef | None = None
    token: str  # to fetch the base set (or the delta): this child, this round, this digest
    control: SetRef | None = Field(default=None, json_schema_extra=since(2))  # the server's control variate, `c/NAME`; None: zero
    control_token: str = Field(default="", json_schema_extra=since(2))  # to fetch it
    upload_token: str  # to send one update: this child, this round


class Update(Message):
    """What a child made of the initial set."""

    kind: ClassVar[str] = "update"
    job: Name
    round: int
    child: Name
    base: Digest
    digest: Digest  # of the file that holds it, as encoded
    size: Count  # bytes
    codec: str
    samples: dict[Name, Count]  # distinct samples applied in this round, by task
    applied: dict[Name, Count]  # deliveries: steps x batch, by task
    losses: dict[Name, Finite]  # mean training loss by task
    seconds: Seconds
    steps: Count = Field(default=0, json_schema_extra=since(2))  # batches that moved the shared parameters; 0: not told


class ReportRequest(Message):
    """Test the target set on your own samples."""

    kind: ClassVar[str] = "report_request"
    job: Name
    round: Annotated[int, Field(ge=1)]
    child: Name
    encoder: EncoderRef
    target: SetRef
    transfer: Transfer = "blob"
    tasks: tuple[Name, ...] = ()
    splits: tuple[Split, ...] = ("validation",)
    delta: DeltaRef | None = None
    token: str
    settle: Plan | None = Field(default=None, json_schema_extra=since(2))  # train the heads alone on the target before


class Report(Message):
    """What the target set scores on the child's own samples."""

    kind: ClassVar[str] = "report"
    job: Name
    round: int
    child: Name
    target: Digest
    scores: tuple[Score, ...]
    seconds: Seconds
    alone: tuple[Score, ...] = Field(default=(), json_schema_extra=since(2))  # what the child reached training by itself


class Failure(Message):
    """A child could not do what the message asked. The form of this message never changes between wire versions."""

    kind: ClassVar[str] = "failure"
    child: str
    reason: Reason
    detail: str
    speaks: wire.Range = wire.SPOKEN


_KINDS: dict[str, type[Message]] = {
    kind.kind: kind for kind in (Request, Instruction, Confirmation, InitialSet, Update, ReportRequest, Report, Failure)
}


def decode(text: str | bytes) -> Message:
    """Read any message.

    :raises WireVersionMismatch: written in a version this side does not speak.
    :raises RefusedValue: `malformed`: not a message of ours.
    """
    try:
        envelope = json.loads(text)
        version, kind, body = envelope["wire"], envelope["kind"], envelope["body"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        found = type(error).__name__  # its text may hold all that came
        raise RefusedValue(Reason.MALFORMED, f"a message should be JSON with wire, kind and body, found {found}.") from None
    if type(version) is not int or not isinstance(kind, str) or kind not in _KINDS or not isinstance(body, dict):
        raise RefusedValue(Reason.MALFORMED, f"a message should be one of {', '.join(_KINDS)}, found {str(kind)[:40]!r}.")
    if kind != Failure.kind:
        wire.check_spoken(version)
    try:
        return _KINDS[kind].model_validate_json(json.dumps(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise RefusedValue(Reason.MALFORMED, f"`{kind}.{where}` is wrong: {first['msg']}.") from None
