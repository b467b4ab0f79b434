"""The rules of `FlowerLink`, against a grid in this process and a clock that does not sleep; `tests/contract` has the real one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from master.flower.grid import LostMessage
from master.flower.link import REFRESH, SEND, TTL_MARGIN, FlowerLink, read
from master.link import Outgoing
from trunkline.clock import Deadline, ManualClock
from trunkline.errors import Fenced, Reason, Unreachable
from trunkline.messages import Confirmation, EncoderRef, Failure, Instruction, Plan, SetRef

DIGEST = "0" * 64
INSTRUCTION = Instruction(
    job="j",
    round=3,
    encoder=EncoderRef(name="e", type="text", manifest=DIGEST),
    base=SetRef(digest=DIGEST, size=1, version=1),
    plan=Plan(steps=1, total_steps=1),
)


@pytest.fixture(autouse=True)
def _a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


@dataclass(frozen=True)
class Sent:
    """A message as the grid saw it."""

    at: float
    node: int
    text: str
    ttl: float
    attachment: Any


Behaviour = Callable[[int, int], "str | Error | bytes | RecordDict | None"]
"""(node, how many it was sent before) to what it answers: text, an error, a record, or nothing."""


@dataclass
class FakeGrid(Grid):
    """A SuperLink in a few lines: what is sent to a node is answered at once, as `behaviour` says."""

    clock: ManualClock
    behaviour: Behaviour
    online: set[int] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    pulls: int = 0
    rejects: bool = False
    lost: set[str] = field(default_factory=set)
    ready: dict[str, Message] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    from_node: int | None = None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            before = sum(1 for one in self.sent if one.node == node)
            record: Any = message.content["trunkline"]
            self.sent.append(Sent(self.clock.seconds, node, record["json"], message.metadata.ttl, record.get("attachment")))
            if self.rejects:
                ids.append("")
                continue
            message_id = f"{node}-{before}"
            message.metadata.__dict__["_message_id"] = message_id
            if (told := self.behaviour(node, before)) is not None:
                self.ready[message_id] = self._reply(message, told)
            ids.append(message_id)
        return ids

    def _reply(self, message: Message, told: Any) -> Message:
        if isinstance(told, Error):
            return Message(told, reply_to=message)
        if isinstance(told, str):
            told = RecordDict({"trunkline": ConfigRecord({"json": told})})
        reply = Message(told, reply_to=message)
        if self.from_node is not None:
            reply.metadata.__dict__["_src_node_id"] = self.from_node
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.pulls += 1
        asked = list(message_ids)
        assert "" not in asked, "the SuperLink took no such message"
        assert not self.delivered & set(asked), "the real SuperLink answers 500 to an id that was answered before"
        if self.lost & set(asked):
            raise LostMessage("gone")
        self.delivered |= self.ready.keys() & set(asked)
        return [self.ready.pop(one) for one in asked if one in self.ready]

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("a link pushes and pulls itself")


def yes(child: str) -> str:
    return Confirmation(job="j", round=3, child=child, accepted=True).encode()


class World:
    """Two children at nodes 1 and 2, a clock, and what happens at which moment."""

    def __init__(self, behaviour: Behaviour = lambda node, before: yes({1: "ada", 2: "bob"}.get(node, "?"))) -> None:
        self.clock = ManualClock(0.0)
        self.grid = FakeGrid(self.clock, behaviour, {1, 2})
        self.nodes, self.boots = {"ada": 1, "bob": 2}, {"ada": "a", "bob": "b"}
        self.looks = 0
        self.events: list[tuple[float, Callable[[], Any]]] = []

    def at(self, seconds: float, happen: Callable[[], Any]) -> None:
        self.events.append((seconds, happen))

    def link(self, **named: Any) -> FlowerLink:
        world = self

        class Clock(ManualClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds)
                world.clock.seconds = self.seconds
                for event in [event for event in world.events if event[0] <= self.seconds]:
                    world.events.remove(event)
                    event[1]()

        def directory() -> dict[str, int]:
            self.looks += 1
            return self.nodes

        return FlowerLink(self.grid, Clock(0.0), directory, lambda: self.boots, **named)

    def exchange(self, seconds: float = 100.0, children: Iterable[str] = ("ada", "bob"), **named: Any) -> list[Any]:
        link = self.link(**named)
        deadline = Deadline(link.clock, seconds, "answers")
        return list(link.exchange({child: Outgoing(INSTRUCTION) for child in children}, deadline))

    def times(self, node: int) -> list[float]:
        return [round(one.at, 1) for one in self.grid.sent if one.node == node]


def test_everybody_is_asked_once_and_answers_once() -> None:
    world = World()
    answers = world.exchange()
    assert [(child, reply.child, attachment) for child, reply, attachment in answers] == [
        ("ada", "ada", None),
        ("bob", "bob", None),
    ]
    assert [one.text for one in world.grid.sent] == [INSTRUCTION.encode()] * 2
    assert world.clock.seconds < 1.0


def test_many_are_asked_in_small_parts() -> None:
    """A child that has its message asks for the parts of it until they are there, and each time costs the SuperLink some."""
    names, parts = [f"c{node:03}" for node in range(100)], list[int]()

    class Counting(FakeGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            ids = super().push_messages(messages)
            parts.append(len(ids))
            return ids

    world = World()
    world.nodes = {name: node for node, name in enumerate(names, start=1)}
    world.grid = Counting(world.clock, lambda node, before: yes(names[node - 1]), set(world.nodes.values()))
    assert sorted(child for child, _, _ in world.exchange(children=names)) == names
    assert sum(parts) == 100
    assert max(parts) <= SEND


def test_attachments_go_both_ways() -> None:
    record = RecordDict({"trunkline": ConfigRecord({"json": yes("ada"), "attachment": b"up"})})
    world = World(lambda node, before: record)
    link = world.link()
    ((_, _, up),) = link.exchange({"ada": Outgoing(INSTRUCTION, b"down")}, Deadline(link.clock, 10, ""))
    assert (up, world.grid.sent[0].attachment) == (b"up", b"down")


def test_a_message_lives_a_little_longer_than_the_wait() -> None:
    world = World()
    world.exchange(seconds=40.0)
    assert {one.ttl for one in world.grid.sent} == {40.0 + TTL_MARGIN}


def test_the_silent_are_waited_for_until_the_deadline_and_no_longer() -> None:
    world = World(lambda node, before: yes("ada") if node == 1 else None)
    answers = world.exchange(seconds=100.0, resend=1e9)
    assert [child for child, _, _ in answers] == ["ada"]
    assert world.clock.seconds == pytest.approx(100.0)
    assert world.grid.pulls < 100 / 0.25 * 1.2  # looked for at most about four times a second
    assert world.looks <= 100 / REFRESH + 1


def test_a_message_is_sent_again_ever_more_seldom() -> None:
    world = World(lambda node, before: None)
    world.exchange(seconds=500.0, children=["ada"])
    assert world.times(1) == pytest.approx([0.0, 30.0, 90.0, 210.0, 450.0], abs=1.0)


def test_only_the_first_answer_counts() -> None:
    world = World(lambda node, before: Confirmation(job="j", round=before, child="ada", accepted=True).encode())
    world.at(0.0, lambda: None)
    held: dict[str, Message] = {}
    world.grid.behaviour = lambda node, before: Confirmation(job="j", round=before + 1, child="ada", accepted=True).encode()

    def hold() -> None:
        held.update(world.grid.ready)
        world.grid.ready.clear()

    push = world.grid.push_messages

    def push_and_hold(messages: Iterable[Message]) -> list[str]:
        ids = push(messages)
        hold()
        return ids

    world.grid.push_messages = push_and_hold  # type: ignore[method-assign]
    world.at(40.0, lambda: world.grid.ready.update(held))
    answers = world.exchange(children=["ada"])
    assert len(world.times(1)) == 2
    assert [(child, reply.round) for child, reply, _ in answers] == [("ada", 1)]


def test_a_new_process_gets_the_message_again_at_once() -> None:
    world = World(lambda node, before: yes("ada") if before else None)
    world.at(5.0, lambda: world.boots.update(ada="new"))
    assert [child for child, _, _ in world.exchange(children=["ada"])] == ["ada"]
    assert world.times(1) == pytest.approx([0.0, 5.0], abs=REFRESH + 0.3)


def test_a_node_that_was_registered_anew_gets_the_message_again() -> None:
    world = World(lambda node, before: yes("ada") if node == 9 else None)

    def move() -> None:
        world.nodes["ada"] = 9
        world.grid.online = {9}

    world.at(5.0, move)
    assert [child for child, _, _ in world.exchange(children=["ada"])] == ["ada"]
    assert world.times(9) == pytest.approx([5.0], abs=REFRESH + 0.3)


def test_a_child_that_comes_later_gets_its_message_then() -> None:
    world = World()
    world.grid.online = {2}
    world.at(50.0, lambda: world.grid.online.add(1))
    assert [child for child, _, _ in world.exchange()] == ["bob", "ada"]
    assert world.times(1) == pytest.approx([50.0], abs=REFRESH + 0.3)


def test_who_goes_away_for_good_has_failed() -> None:
    world = World(lambda node, before: Error(ErrorCode.NODE_UNAVAILABLE, "offline"))
    world.grid.online = {1}
    world.at(0.01, lambda: world.grid.online.clear())
    ((child, reply, _),) = world.exchange(seconds=1000.0, children=["ada"], patience=30.0)
    assert (child, reply.reason) == ("ada", Reason.SILENT)
    assert 30.0 < world.clock.seconds < 32.0


def test_who_was_not_there_to_begin_with_is_given_up_before_the_deadline() -> None:
    world = World()
    world.grid.online.discard(2)
    answers = world.exchange(seconds=600.0, patience=10.0)
    assert [(child, answer.kind) for child, answer, _ in answers] == [("ada", "confirmation"), ("bob", "failure")]
    assert answers[1][1].reason == Reason.SILENT and 30 <= world.clock.monotonic() < 32


def test_who_comes_back_in_time_answers() -> None:
    world = World(lambda node, before: yes("ada") if before else Error(ErrorCode.NODE_UNAVAILABLE, "offline"))
    world.at(0.01, lambda: world.grid.online.clear())
    world.at(20.0, lambda: world.grid.online.add(1))
    ((child, reply, _),) = world.exchange(children=["ada"], patience=30.0)
    assert (child, reply.accepted) == ("ada", True)
    assert world.times(1) == pytest.approx([0.0, 20.0], abs=REFRESH + 0.3)


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE])
def test_an_answer_that_was_lost_is_asked_for_again(code: int) -> None:
    world = World(lambda node, before: yes("ada") if before else Error(code, "gone"))
    assert [child for child, _, _ in world.exchange(children=["ada"])] == ["ada"]
    assert world.clock.seconds < 2.0


def test_an_app_that_failed_is_a_failure() -> None:
    world = World(lambda node, before: Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"))
    answers = world.exchange()
    assert [(child, reply.reason) for child, reply, _ in answers] == [("ada", Reason.INTERNAL), ("bob", Reason.INTERNAL)]
    assert all("boom" in reply.detail for _, reply, _ in answers)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"other": ConfigRecord({"json": yes("ada")})}),
        RecordDict({"trunkline": ConfigRecord({"json": 3})}),
        RecordDict({"trunkline": ConfigRecord({"json": INSTRUCTION.encode()})}),
        RecordDict({"trunkline": ConfigRecord({"json": "[" * 5000})}),
    ],
)
def test_what_is_not_an_answer_is_a_failure(content: RecordDict) -> None:
    ((child, reply, attachment),) = World(lambda node, before: content).exchange(children=["ada"])
    assert (child, reply.reason, attachment) == ("ada", Reason.MALFORMED, None)


@given(st.text() | st.binary() | st.integers(-(2**60), 2**60))
def test_whatever_a_child_sends_never_raises(anything: str | bytes | int) -> None:
    reply, _ = read("ada", RecordDict({"trunkline": ConfigRecord({"json": anything, "attachment": anything})}))
    assert isinstance(reply, Failure)
    assert reply.child == "ada"


def test_an_answer_from_another_node_is_dropped() -> None:
    world = World()
    world.grid.from_node = 77
    assert world.exchange(seconds=20.0) == []


def test_messages_that_are_not_taken_are_not_sent_without_end() -> None:
    world = World()
    world.grid.rejects = True
    assert world.exchange(seconds=900.0, children=["ada"]) == []
    assert 2 <= len(world.grid.sent) <= 6


def test_a_message_that_the_superlink_lost_does_not_hold_up_the_others() -> None:
    world = World(lambda node, before: yes("ada") if node == 1 else yes("bob"))
    world.grid.lost = {"2-0"}
    answers = world.exchange(seconds=100.0)
    assert [child for child, _, _ in answers] == ["ada", "bob"]
    assert len(world.times(2)) == 2


def test_the_common_wire_version_is_found() -> None:
    def old(node: int, before: int) -> str:
        return yes("ada") if before else Failure(child="ada", reason=Reason.WIRE, detail="too new", speaks=(1, 1)).encode()

    world = World(old)
    ((_, reply, _),) = world.exchange(children=["ada"], speaks=(1, 2))
    assert reply.accepted
    assert [one.text[:9] for one in world.grid.sent] == ['{"wire":2', '{"wire":1']


@pytest.mark.parametrize("speaks", [(3, 4), (1, 1), (2, 9)])
def test_no_common_wire_version_is_said_once(speaks: tuple[int, int]) -> None:
    """Also by a child that refuses the version it says it speaks."""
    world = World(lambda node, before: Failure(child="ada", reason=Reason.WIRE, detail="no", speaks=speaks).encode())
    ((_, reply, _),) = world.exchange(children=["ada"], speaks=(1, 2))
    assert reply.reason == Reason.WIRE
    assert len(world.grid.sent) <= 2


def test_a_run_that_was_ended_from_outside_says_so() -> None:
    world = World()

    def ended(messages: Iterable[Message]) -> list[str]:
        raise RunNotRunningException

    world.grid.push_messages = ended  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        world.exchange()


def test_a_superlink_that_is_gone_ends_the_run_not_the_job() -> None:
    world = World()

    def gone(messages: Iterable[Message]) -> list[str]:
        raise Unreachable("nobody there")

    world.grid.push_messages = gone  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="nobody there"):
        world.exchange()


def test_closing_early_ends_the_waiting() -> None:
    world = World(lambda node, before: yes("ada") if node == 1 else None)
    link = world.link()
    answers: Iterator[Any] = link.exchange({child: Outgoing(INSTRUCTION) for child in world.nodes}, Deadline(link.clock, 100, ""))
    assert next(answers)[0] == "ada"
    pulls = world.grid.pulls
    answers.close()  # type: ignore[attr-defined]
    assert world.grid.pulls == pulls
    assert world.clock.seconds < 1.0


def test_children_are_those_of_the_directory_who_are_online() -> None:
    world = World()
    world.grid.online = {2, 5}
    assert world.link().children() == ["bob"]
