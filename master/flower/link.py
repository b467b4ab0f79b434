"""Flower as the link between a round and its children.

`FlowerLink` pushes and pulls messages itself: nothing here waits without a deadline, and nothing a child sends raises an error.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from master.flower.grid import LostMessage, translated
from master.link import Outgoing, Reply
from trunkline.clock import Clock, Deadline
from trunkline.errors import Fenced, Reason, RefusedValue, Unreachable, WireVersionMismatch
from trunkline.hold import Hold
from trunkline.messages import (
    Confirmation,
    Failure,
    InitialSet,
    Instruction,
    Report,
    ReportRequest,
    Update,
    decode,
)
from trunkline.values import ATTACHMENT, RECORD, TEXT
from trunkline.wire import SPOKEN, Range, common_version

logger = logging.getLogger(__name__)

KINDS: Mapping[str, str] = {Instruction.kind: "query", InitialSet.kind: "train", ReportRequest.kind: "evaluate"}
"""Our messages, and Flower's type for each."""

SLOWEST_POLL = 0.25  # seconds
REFRESH = 0.5  # seconds between two looks at who is there
TTL_MARGIN = 5.0  # seconds a message outlives the deadline, so that asking for its answer is never an error
ABSENT = 3  # times the patience, for a child that was not there to begin with
BATCH = 100  # messages asked for at a time
SEND = 8  # messages sent at a time: a child that has its message asks for the parts of it again and again until they are there

Directory = Callable[[], Mapping[str, int]]
Boots = Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class _Waiting:
    """A child whose answer is still out."""

    outgoing: Outgoing
    wire: int
    pause: float  # seconds until it is sent again
    node: int = 0
    boot: str | None = None
    ids: list[str] = field(default_factory=list)  # every sending of the message that may still be answered
    due: float = 0.0  # monotonic seconds
    gone: float | None = None  # since when the node is away


class FlowerLink:
    """Children at a SuperLink.

    :param directory: node ids of the children that take part, by child name.
    :param boots: id of each child's present process; a change means that what was sent to the one before is lost.
    :param poll: seconds between two looks for answers at first; the longer an exchange takes, the longer they get.
    :param resend: seconds after which a message is sent again, then twice as long each time: a crash loses it silently.
    :param patience: seconds in which a child that went away may come back before it counts as failed.
    :param speaks: wire versions of this side.
    :param hold: of the grid: a look for answers waits for one, where the SuperLink is one of ours.
    """

    def __init__(
        self,
        grid: Grid,
        clock: Clock,
        directory: Directory,
        boots: Boots,
        *,
        poll: float = 0.02,
        resend: float = 30.0,
        patience: float = 30.0,
        speaks: Range = SPOKEN,
        hold: Hold | None = None,
    ) -> None:
        self._hold = hold or Hold()
        self.grid, self.clock, self.directory, self.boots = grid, clock, directory, boots
        self.poll, self.resend, self.patience, self.speaks = poll, resend, patience, speaks
        self._seen: tuple[float, Mapping[str, int]] = (float("-inf"), {})  # when was last looked who is there, and who was

    def children(self) -> Sequence[str]:
        """Names of the children whose nodes are online, sorted."""
        return sorted(self._look(self.clock.monotonic()))

    def _look(self, now: float) -> Mapping[str, int]:
        """Node ids of the children that are online, by name, as of this moment."""
        with _translated():
            online = set(self.grid.get_node_ids())
        self._seen = now, {child: node for child, node in self.directory().items() if node in online}
        return self._seen[1]

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        """See `master.link.Link.exchange`."""
        waiting = {child: _Waiting(outgoing, self.speaks[1], self.resend) for child, outgoing in messages.items()}
        begun, noticed = self.clock.monotonic(), float("-inf")
        while waiting and not deadline.over():
            now = self.clock.monotonic()
            if now - self._seen[0] >= REFRESH:
                self._look(now)
            looked, reachable = self._seen
            if looked > noticed:
                self._notice(waiting, reachable, now)
                noticed = looked
            self._send(waiting, reachable, deadline, now)
            self._hold.seconds = self._patient(waiting, deadline) if len(waiting) <= BATCH else 0.0
            for child, reply, attachment in [*self._answers(waiting), *self._given_up(waiting, now)]:
                if child in waiting and not self._another_version(waiting[child], reply):
                    del waiting[child]
                    yield child, reply, attachment
            if waiting and not self._hold.held:
                wait = min(SLOWEST_POLL, max(self.poll, (self.clock.monotonic() - begun) / 20))
                self.clock.sleep(min(wait, deadline.left()))

    def _patient(self, waiting: Mapping[str, _Waiting], deadline: Deadline) -> float:
        """How long a look for answers may be held: until there is something else to do."""
        now = self.clock.monotonic()
        due = min((one.due - now for one in waiting.values() if one.ids), default=0.0)
        return max(0.0, min(due, self._seen[0] + REFRESH - now, deadline.left()))

    # -- sending -----------------------------------------------------------------------------------------------------

    def _notice(self, waiting: Mapping[str, _Waiting], reachable: Mapping[str, int], now: float) -> None:
        """Look who came back, moved to another node or process, or went away: what was under way to them is lost."""
        boots = self.boots()
        for child, one in waiting.items():
            node = reachable.get(child)
            if node is None:
                if not one.ids and one.gone is None:  # of a message under way the SuperLink itself says that its node went away
                    one.gone = now
                continue
            if (one.gone is not None) or (one.ids and (node != one.node or boots.get(child) != one.boot)):
                one.due, one.gone = now, None
            one.node, one.boot = node, boots.get(child)

    def _send(self, waiting: Mapping[str, _Waiting], reachable: Mapping[str, int], deadline: Deadline, now: float) -> None:
        due = [one for child, one in waiting.items() if child in reachable and now >= one.due]
        for start in range(0, len(due), SEND):
            part = due[start : start + SEND]
            flower = [self._encode(one, deadline) for one in part]
            with _translated():
                ids = list(self.grid.push_messages(flower))
            for one, message_id in zip(part, ids, strict=False):
                if message_id:
                    one.ids.append(message_id)
                one.due, one.pause = now + one.pause, one.pause * 2

    def _encode(self, one: _Waiting, deadline: Deadline) -> Message:
        message = one.outgoing.message
        fields: dict[str, Any] = {TEXT: message.encode(one.wire)}
        if one.outgoing.attachment is not None:
            fields[ATTACHMENT] = one.outgoing.attachment
        return Message(
            RecordDict({RECORD: ConfigRecord(fields)}),
            one.node,
            KINDS[message.kind],
            ttl=deadline.left() + TTL_MARGIN,
            group_id=str(getattr(message, "round", "")),
        )

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answers(self, waiting: Mapping[str, _Waiting]) -> Iterator[tuple[str, Reply, bytes | None]]:
        owner = {message_id: child for child, one in waiting.items() for message_id in one.ids}
        ids = list(owner)
        for start in range(0, len(ids), BATCH):
            for message in self._pull(ids[start : start + BATCH], waiting, owner):
                child = owner.get(message.metadata.reply_to_message_id)
                if child is None:
                    logger.warning("an answer that nobody asked for, from node %s", message.metadata.src_node_id)
                    continue
                one = waiting[child]
                one.ids.remove(message.metadata.reply_to_message_id)
                if message.has_error():
                    if failure := self._error(child, one, message):
                        yield child, failure, None
                elif message.metadata.src_node_id != one.node:
                    logger.warning("an answer of %s from another node, %s", child, message.metadata.src_node_id)
                else:
                    yield child, *read(child, message.content)

    def _pull(self, ids: Sequence[str], waiting: Mapping[str, _Waiting], owner: Mapping[str, str]) -> list[Message]:
        """Answers that are there. An id that the SuperLink lost spoils a whole request, so it is searched for, and sent again."""
        try:
            with _translated():
                return list(self.grid.pull_messages(ids))
        except LostMessage:
            if len(ids) == 1:
                one = waiting[owner[ids[0]]]
                one.ids.remove(ids[0])
                one.due = min(one.due, self.clock.monotonic() + self.resend)
                return []
        half = len(ids) // 2
        return [*self._pull(ids[:half], waiting, owner), *self._pull(ids[half:], waiting, owner)]

    def _error(self, child: str, one: _Waiting, message: Message) -> Failure | None:
        """What Flower says instead of an answer. None: wait on, the message is sent again."""
        code, told = message.error.code, message.error.reason or "no reason given"
        if code == ErrorCode.NODE_UNAVAILABLE:
            one.gone = self.clock.monotonic() if one.gone is None else one.gone
            one.due = float("inf")
            return None
        if code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
            logger.warning("an answer of %s was lost on its way: %s", child, told)
            one.due = self.clock.monotonic()
            return None
        return Failure(child=child, reason=Reason.INTERNAL, detail=f"Flower error {code}: {told}")

    def _given_up(self, waiting: Mapping[str, _Waiting], now: float) -> Iterator[tuple[str, Reply, None]]:
        for child, one in waiting.items():
            # After a restart of the SuperLink a child may be waiting out a pause before it comes back: that takes longer.
            patience = self.patience if one.node else ABSENT * self.patience
            if one.gone is not None and now - one.gone > patience:
                detail = f"its node went away and did not come back within {patience:g} s"
                yield child, Failure(child=child, reason=Reason.SILENT, detail=detail), None

    def _another_version(self, one: _Waiting, reply: Reply) -> bool:
        """Send again in the common wire version, where there is one that was not tried yet."""
        if not isinstance(reply, Failure) or reply.reason != Reason.WIRE:
            return False
        try:
            version = common_version(reply.speaks, self.speaks)
        except WireVersionMismatch:
            return False
        if version >= one.wire:
            return False
        one.wire, one.due = version, self.clock.monotonic()
        return True


def read(child: str, content: RecordDict) -> tuple[Reply, bytes | None]:
    """A child's answer; one that is not of ours becomes a Failure."""
    record = content.get(RECORD)
    text = record.get(TEXT) if isinstance(record, ConfigRecord) else None
    attachment = record.get(ATTACHMENT) if isinstance(record, ConfigRecord) else None
    try:
        message = decode(text if isinstance(text, str) else "")
    except WireVersionMismatch as error:
        return Failure(child=child, reason=Reason.WIRE, detail=error.message), None
    except RefusedValue as error:
        return Failure(child=child, reason=error.reason, detail=error.message), None
    if not isinstance(message, Confirmation | Update | Report | Failure):
        return Failure(child=child, reason=Reason.MALFORMED, detail=f"an answer should be one, found a {message.kind}."), None
    return message, attachment if isinstance(attachment, bytes) else None


@contextmanager
def _translated() -> Iterator[None]:
    """What a grid says, ours or Flower's own, in our words."""
    try:
        with translated():
            yield
    except RunNotRunningException:
        raise Fenced("this run should be running, found that it was ended from outside.") from None
    except LostMessage:
        raise
    except Unreachable as error:  # it keeps nothing: when it is back, it does not know this run, and the master starts another
        raise Fenced(f"this run should have its SuperLink, found that it is gone: {error.message}") from None
