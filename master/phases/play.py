"""One job as its phases see it, and the few things they share."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger import JobLedger, Ledger
from master.link import Link, Outgoing
from master.meeting import Meeting
from master.records import Member, Round, Version
from master.tokens import Direction, Gate
from trunkline.clock import Clock, Deadline
from trunkline.errors import Reason, RefusedValue
from trunkline.messages import (
    Confirmation,
    DeltaRef,
    EncoderRef,
    Failure,
    InitialSet,
    Message,
    Report,
    ReportRequest,
    SetRef,
    Update,
)

Wanted = TypeVar("Wanted", bound=Message)

_ORDER: tuple[type[Message], ...] = (Confirmation, Update, Report)
"""What a round waits for, in this order."""

GRACE = 60.0
"""Seconds a token outlives the deadline of its phase, for transfers that are under way."""


@dataclass(frozen=True, slots=True)
class Play:
    """One job and all that its rounds need."""

    id: str
    spec: JobSpec
    encoder: EncoderRef
    ledger: Ledger
    pen: JobLedger  # every write goes through it, and is refused once another owner has taken over
    link: Link
    blobs: BlobStore
    gate: Gate
    clock: Clock
    stream: Meeting | None = None  # that trains the encoder too

    def again(self, round_: Round) -> Round:
        """The round as the ledger has it now."""
        found = self.pen.round(round_.number)
        assert found is not None, f"round {round_.number} was opened"
        return found

    def terms(self, round_: Round) -> dict[str, Any]:
        """What every message of a round says alike."""
        return {
            "job": self.id,
            "round": round_.number,
            "encoder": self.encoder,
            "transfer": self.spec.transfer,
            "tasks": self.spec.tasks,
        }

    def training_terms(self, round_: Round, base: Version) -> dict[str, Any]:
        """What instruction and initial set say alike: from which set, how, and in which form the update comes back."""
        return {
            **self.terms(round_),
            "base": self.set_ref(base),
            "plan": self.spec.plan(self.fused(round_) + 1),
            "codec": self.spec.codec,
        }

    @property
    def least_wire(self) -> int:
        """The oldest wire version in which what the job asks can be told to a child."""
        return 2 if self.spec.fuse_rule.corrects or self.spec.training.head_steps else 1

    def start(self) -> Version:
        """What the next round starts from: the current version; with a stream, what that has learned, published just now.

        :raises DeadlineExceeded: the stream's server stayed away.
        """
        return self.ledger.version(self.encoder.name) if self.stream is None else self.stream.before_round()

    def version(self, digest: str) -> Version:
        return self.ledger.version_by_digest(digest, self.encoder.name)

    def control(self, round_: Round) -> SetRef | None:
        """The server's control variate that a round starts from, where its rule has one."""
        before = self.pen.last_fused(round_.number) if self.spec.fuse_rule.corrects else None
        if before is None or before.rule_state is None:
            return None
        return SetRef(digest=before.rule_state, size=self.blobs.size(before.rule_state), version=before.version or 0)

    def set_ref(self, version: Version) -> SetRef:
        return SetRef(digest=version.digest, size=version.size, version=version.number)

    def fused(self, before: Round) -> int:
        """Rounds fused before one: schedules count over these, not over rounds that were skipped."""
        return len(self.pen.fused(before.number))

    def members(self, round_: Round) -> dict[str, Member]:
        """The round's members by name, once they are fixed."""
        return {member.child: member for member in self.pen.members(round_.number) if member.state == "member"}

    def exchange(
        self,
        round_: Round,
        wanted: type[Message],
        messages: Mapping[str, Message],
        deadline: Deadline,
        others: Collection[int] = (),
    ) -> Iterator[tuple[str, Message, bytes | None]]:
        """Send, and give each answer as it arrives, but for those to an earlier phase, which come too late to count.

        Where parameters travel inside the messages, they are attached here.

        :param others: earlier rounds whose updates are not too late.
        """
        outgoing = {child: Outgoing(message, self._attachment(message)) for child, message in messages.items()}
        for child, answer, attachment in self.link.exchange(outgoing, deadline):
            awaited = isinstance(answer, Update) and answer.job == self.id and answer.round in others
            if awaited or not self._late(round_, wanted, child, answer):
                yield child, answer, attachment

    def _late(self, round_: Round, wanted: type[Message], child: str, answer: Message) -> bool:
        """Whether an answer belongs to an earlier phase; a late update is written down as refused."""
        if not isinstance(answer, Confirmation | Update | Report) or answer.job != self.id:
            return False
        if (answer.round, _ORDER.index(type(answer))) >= (round_.number, _ORDER.index(wanted)):
            return False
        if isinstance(answer, Update) and child not in {update.child for update in self.pen.updates(answer.round)}:
            self.pen.refuse_update(answer.round, child, Reason.LATE, f"the update came in round {round_.number}")
        return True

    def _attachment(self, message: Message) -> bytes | None:
        if not isinstance(message, InitialSet | ReportRequest) or message.transfer != "inline":
            return None
        reference = message.base if isinstance(message, InitialSet) else message.target
        return self.blobs.path(message.delta.digest if message.delta else reference.digest).read_bytes()

    def opening(self, child: str, round_: Round, version: Version, holds: set[str], seconds: float) -> tuple[DeltaRef | None, str]:
        """How a child gets a version, and the token that lets it."""
        delta = delta_for(version, holds)
        digest, size = (delta.digest, delta.size) if delta else (version.digest, version.size)
        return delta, self.grant(child, round_, digest, size, seconds)

    def grant(self, child: str, round_: Round, digest: str, size: int, seconds: float, direction: Direction = "down") -> str:
        """The token for one transfer: made now, for this child, round and digest.

        :param digest: of what is fetched, or of the set that what is sent was trained from.
        :param size: bytes at most.
        :param seconds: how long the phase lasts.
        """
        return self.gate.issue(child, self.id, round_.number, digest, direction, size, seconds + GRACE)


def confirmation_of(member: Member) -> Confirmation:
    """What a member confirmed."""
    return Confirmation.of_table(member.confirmation)


def delta_for(version: Version, holds: set[str]) -> DeltaRef | None:
    """The difference that leads to a version, for a child that holds what it starts from and not the version itself."""
    delta = version.delta
    return delta if delta is not None and delta.held in holds and version.digest not in holds else None


def expect(kind: type[Wanted], answer: Message) -> Wanted:
    """:raises RefusedValue: the child's own reason, or `malformed`: another kind of message."""
    if isinstance(answer, Failure):
        raise RefusedValue(answer.reason, answer.detail)
    if not isinstance(answer, kind):
        raise RefusedValue(Reason.MALFORMED, f"the answer should be a {kind.kind}, found a {answer.kind}.")
    return answer
