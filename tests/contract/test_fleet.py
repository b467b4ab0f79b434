"""The warm session on Flower's Fleet API, against a real SuperLink with TLS and node keys."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from child.fleet import FleetSession, LinkLost, NotKnown, RunGone
from child.fleet.content import pack
from child.talk import talk
from master.link import Outgoing
from master.pki import Tls
from master.superlink import SuperLink
from tests.support.fleet import (
    CLOCK,
    AgentProcess,
    NodeKey,
    StandIn,
    free_port,
    initial_set,
    instruction,
    link_here,
    report_request,
    run_here,
    session,
    take,
    tls_files,
    until,
    warm,
)
from trunkline.clock import Deadline, SystemClock
from trunkline.errors import ConnectionFailed, NotAuthorized, SettingsError, Unreachable
from trunkline.messages import Confirmation, Report, Update, decode

from flwr.app import ConfigRecord, Message, RecordDict  # isort: skip

pytestmark = pytest.mark.contract


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline(CLOCK, seconds, "answers")


def test_query_train_evaluate_go_round(superlink: SuperLink, keys: list[NodeKey]) -> None:
    sent = bytes(range(256)) * 1000
    with run_here(superlink) as grid, warm(superlink, *keys) as nodes:
        link = link_here(grid, nodes)
        assert link.children() == ["ada", "bob"]
        kinds = {}
        for make in (lambda child: instruction(), initial_set, report_request):
            answers = list(link.exchange({name: Outgoing(make(name), sent) for name in nodes}, soon()))
            assert sorted(child for child, _, _ in answers) == ["ada", "bob"]
            assert all(getattr(reply, "child", "") == child for child, reply, _ in answers)
            assert all(attachment == sent[::-1] for _, _, attachment in answers)
            kinds[type(answers[0][1])] = True
        assert list(kinds) == [Confirmation, Update, Report]


def test_what_a_message_says_of_itself(superlink: SuperLink, keys: list[NodeKey]) -> None:
    with run_here(superlink) as grid, session(superlink, keys[0]) as fleet, ThreadPoolExecutor(1) as beside:
        exchange = link_here(grid, {"ada": fleet.node_id}).exchange({"ada": Outgoing(instruction(7))}, soon(11.0))
        answers = beside.submit(list, exchange)
        incoming = take(fleet)
        fleet.reply(incoming, Confirmation(job="j", round=7, child="ada", accepted=True).encode(), None, 0.0)
        assert [child for child, _, _ in answers.result(20)] == ["ada"]
        assert (incoming.kind, decode(incoming.text), incoming.attachment) == ("query", instruction(7), None)
        assert incoming.run_id == grid.run.run_id
        assert 5.0 < incoming.ttl < 17.0
        assert abs(incoming.created - time.time()) < 15.0


def _push(grid, node: int, content: RecordDict | None = None, ttl: float = 20.0) -> str:
    message = Message(pack(instruction().encode(), None) if content is None else content, node, "query", ttl=ttl)
    return grid.push_messages([message])[0]


def test_both_sides_hear_of_a_message_instead_of_looking_again(superlink: SuperLink, keys: list[NodeKey]) -> None:
    with run_here(superlink) as grid, session(superlink, keys[0]) as fleet, ThreadPoolExecutor(1) as beside:
        assert fleet.receive(0.1) is None and fleet.held, "our SuperLink knows of it"
        look = beside.submit(fleet.receive, 20.0)
        time.sleep(0.3)
        message_id = _push(grid, fleet.node_id)
        incoming = look.result(25)
        assert incoming is not None, "one look, held until the message came"
        grid.hold.seconds = 20.0
        answers = beside.submit(grid.pull_messages, [message_id])
        time.sleep(0.3)
        fleet.reply(incoming, "here", None, 0.0)
        assert [answer.content["trunkline"]["json"] for answer in answers.result(25)] == ["here"]


def test_answers_that_come_twice_or_too_late(superlink: SuperLink, keys: list[NodeKey]) -> None:
    with run_here(superlink) as grid, session(superlink, keys[0]) as fleet:
        message_id = _push(grid, fleet.node_id)
        incoming = take(fleet)
        fleet.reply(incoming, "first", None, 0.0)
        with pytest.raises(RunGone, match="too late or twice"):
            fleet.reply(incoming, "second", None, 0.0)
        (answer,) = until(lambda: grid.pull_messages([message_id]), 10, "the first answer")
        assert answer.content["trunkline"]["json"] == "first"

        _push(grid, fleet.node_id, ttl=1.0)
        short = take(fleet)
        until(lambda: time.monotonic() - short.received > 1.1, 5, "the end of its time")
        with pytest.raises(RunGone, match="1 s"):
            fleet.reply(short, "late", None, 0.0)


def test_a_message_of_another_app_is_answered_as_malformed(superlink: SuperLink, keys: list[NodeKey]) -> None:
    foreign = [
        RecordDict(),
        RecordDict({"a": ConfigRecord({"x": 1}), "b": ConfigRecord({"y": 2})}),
        RecordDict({"trunkline": ConfigRecord({"json": 3})}),
        RecordDict({"trunkline": ConfigRecord({"json": "{"})}),
    ]
    with run_here(superlink) as grid, session(superlink, keys[0]) as fleet:
        for content in foreign:
            message_id = _push(grid, fleet.node_id, content)
            incoming = take(fleet)
            fleet.reply(incoming, *talk(StandIn("ada"), incoming.text, incoming.attachment), 0.0)
            (answer,) = until(lambda wanted=message_id: grid.pull_messages([wanted]), 10, "an answer")
            assert '"reason":"malformed"' in str(answer.content["trunkline"]["json"])


def test_a_run_that_is_stopped_while_an_answer_is_under_way(superlink: SuperLink, keys: list[NodeKey]) -> None:
    with session(superlink, keys[0]) as fleet:
        with run_here(superlink) as grid:
            _push(grid, fleet.node_id)
            _push(grid, fleet.node_id)
            incoming = take(fleet)
        with pytest.raises(RunGone):
            fleet.reply(incoming, "x", None, 0.0)
        assert fleet.receive() is None  # what was not delivered went with the run
        with run_here(superlink) as grid:  # and the session goes on
            message_id = _push(grid, fleet.node_id)
            fleet.reply(take(fleet), "y", None, 0.0)
            assert until(lambda: grid.pull_messages([message_id]), 10, "an answer")


def test_a_killed_agent_comes_back_at_once(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    first = AgentProcess(superlink, keys[0], tmp_path, "hang")
    node = first.node_id()
    boots = {"ada": "one"}
    with run_here(superlink) as grid:
        link = link_here(grid, {"ada": node}, boots)
        answers = link.exchange({"ada": Outgoing(instruction())}, soon(60))
        second = []

        class Restart(SystemClock):
            """Kills and restarts the agent while the master waits."""

            def sleep(self, seconds: float) -> None:
                if first.lines("took") and not second:
                    first.kill()
                    second.append(AgentProcess(superlink, keys[0], tmp_path, node_id=node))
                    second[0].wait("online")
                    boots["ada"] = "two"
                super().sleep(seconds)

        link.clock = Restart()
        ((child, reply, _),) = answers
        assert (child, type(reply)) == ("ada", Confirmation)
        assert second[0].node_id() == node
        # Without the goodbye in its predecessor's name it would be refused until 20 s after the last heartbeat.
        assert float(second[0].lines("online")[0].split()[2]) < 9.0
        assert second[0].end() == 0


@pytest.mark.slow
def test_a_killed_agent_that_forgot_its_number_comes_back(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    first = AgentProcess(superlink, keys[0], tmp_path)
    node = first.node_id()
    first.kill()
    with session(superlink, keys[0], limit=40.0) as fleet:
        assert fleet.node_id == node


def test_a_superlink_that_lost_its_memory(own_superlink: SuperLink, tmp_path: Path) -> None:
    key = NodeKey(tmp_path, "ada")
    own_superlink.register_node(key.public, key.name)
    agent = AgentProcess(own_superlink, key, tmp_path)
    agent.node_id()
    assert own_superlink._process is not None
    own_superlink._process.send_signal(signal.SIGKILL)
    agent.wait("away LinkLost")
    assert not own_superlink.alive()
    own_superlink.start()
    agent.wait("away NotKnown")
    node = own_superlink.register_node(key.public, key.name)
    assert agent.node_id(2) == node
    with run_here(own_superlink) as grid:
        ((_, reply, _),) = link_here(grid, {"ada": node}).exchange({"ada": Outgoing(instruction())}, soon())
        assert isinstance(reply, Confirmation)
    assert agent.end() == 0


def test_leaving_says_goodbye(superlink: SuperLink, keys: list[NodeKey]) -> None:
    def status(node: int) -> str:
        return next(one.status for one in superlink.nodes() if one.node_id == node)

    with session(superlink, keys[0]) as fleet:
        assert status(fleet.node_id) == "online"
    assert status(fleet.node_id) == "offline"


def test_a_clock_that_is_wrong(superlink: SuperLink, keys: list[NodeKey]) -> None:
    class Wrong(SystemClock):
        def __init__(self, ahead: float) -> None:
            self.ahead = ahead

        def now(self) -> float:
            return super().now() + self.ahead

    for ahead in (-3600.0, 60.0):
        with run_here(superlink) as grid, session(superlink, keys[0], clock=Wrong(ahead)) as fleet:
            message_id = _push(grid, fleet.node_id)
            fleet.reply(take(fleet), "x", None, 0.0)
            assert until(lambda wanted=message_id: grid.pull_messages([wanted]), 10, "an answer")


def test_a_key_that_nobody_registered(superlink: SuperLink, tmp_path: Path) -> None:
    with pytest.raises(NotKnown, match="key"), session(superlink, NodeKey(tmp_path, "eve"), limit=1.0):
        pass


def test_a_key_that_was_taken_back(superlink: SuperLink, tmp_path: Path) -> None:
    key = NodeKey(tmp_path, "cyd")
    node = superlink.register_node(key.public, key.name)
    with session(superlink, key) as fleet:
        superlink.control.unregister_node(node)
        with pytest.raises(NotAuthorized):
            until(fleet.receive, 10, "a refusal")


def test_nobody_there(tls, tmp_path: Path, superlink: SuperLink, keys: list[NodeKey]) -> None:
    port = free_port()
    begun = time.monotonic()
    with (
        pytest.raises(LinkLost, match=f"127.0.0.1:{port}"),
        session(SuperLink(tmp_path / "none", port, tls), keys[0], limit=1.0),
    ):
        pass
    assert 0.5 < time.monotonic() - begun < 6.0


def test_a_stranger_with_another_authority(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    """A wrong certificate is told at once: trying again would not help."""
    stranger = SuperLink(tmp_path / "none", superlink.port, tls_files(tmp_path / "other"))
    begun = time.monotonic()
    with pytest.raises(ConnectionFailed, match="certificate") as caught, session(stranger, keys[0], limit=20.0):
        pass
    assert not isinstance(caught.value, Unreachable)
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize("address", ["nowhere", "https://host:1", "host:port", ":1", "host:"])
def test_an_address_that_is_none(keys: list[NodeKey], tls: Tls, address: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        FleetSession(address, tls.ca.read_bytes(), keys[0].path, CLOCK, random.Random(0), node_id=None)


@pytest.mark.parametrize("ca", [b"no certificate", b"\xff\xfe"])
def test_an_authority_that_is_none(keys: list[NodeKey], ca: bytes) -> None:
    with pytest.raises(SettingsError, match="PEM"):
        FleetSession("localhost:1", ca, keys[0].path, CLOCK, random.Random(0), node_id=None)


def test_a_key_that_is_none(tmp_path: Path, tls: Tls) -> None:
    (tmp_path / "key.pem").write_text("no key")
    for path in (tmp_path / "key.pem", tmp_path / "missing.pem"):
        with pytest.raises(SettingsError, match=path.name):
            FleetSession("localhost:1", tls.ca.read_bytes(), path, CLOCK, random.Random(0), node_id=None)
    with pytest.raises(SettingsError, match="P-384"):
        FleetSession(
            "localhost:1", tls.ca.read_bytes(), ec.generate_private_key(ec.SECP256R1()), CLOCK, random.Random(0), node_id=None
        )


@pytest.mark.parametrize("heartbeat", [0.0, -1.0, 9.9, 1801.0, float("nan")])
def test_a_heartbeat_that_flower_would_refuse(superlink: SuperLink, keys: list[NodeKey], heartbeat: float) -> None:
    with pytest.raises(SettingsError, match="heartbeat"):
        session(superlink, keys[0], heartbeat=heartbeat)
