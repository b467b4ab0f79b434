"""The link over real Flower: a ServerApp process, warm agents, a stock SuperNode. Its rules are in `tests/unit/master`."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from master.link import Outgoing
from master.superlink import SuperLink
from tests.support.fleet import (
    CLOCK,
    ROOT,
    AgentProcess,
    NodeKey,
    free_port,
    initial_set,
    instruction,
    link_here,
    report_request,
    run_here,
    until,
    warm,
)
from trunkline.clock import Deadline
from trunkline.errors import Fenced, Reason
from trunkline.messages import Confirmation, Failure, Report, Update

pytestmark = pytest.mark.contract


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline(CLOCK, seconds, "answers")


def test_a_serverapp_process_and_two_agents(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    kinds = ["query", "train", "evaluate"]
    with warm(superlink, *keys) as nodes:
        (tmp_path / "nodes.json").write_text(json.dumps(nodes))
        (tmp_path / "kinds.json").write_text(json.dumps(kinds))
        run = superlink.start_run({"job": "j7", "state": str(tmp_path), "entry": "tests.support.flower_job:run"})
        until(lambda: superlink.run_status(run).finished, 60, "the run")
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == kinds
    for line, kind in zip(lines, ["confirmation", "update", "report"], strict=True):
        assert line["answers"] == [["ada", kind, "nwod"], ["bob", kind, "nwod"]]
        assert (line["job"], line["torch"]) == ("j7", False)


def test_an_exchange_is_quick(superlink: SuperLink, keys: list[NodeKey]) -> None:
    """Stock Flower takes about 10 s for this. On a quiet machine it is near 0.1 s; the bound leaves room for a busy one."""
    seconds = []
    with run_here(superlink) as grid, warm(superlink, *keys) as nodes:
        link = link_here(grid, nodes)
        for number in range(1, 12):
            begun = CLOCK.monotonic()
            answers = list(link.exchange({name: Outgoing(instruction(number)) for name in nodes}, soon()))
            seconds.append(CLOCK.monotonic() - begun)
            assert sorted(child for child, _, _ in answers) == ["ada", "bob"]
    assert statistics.median(seconds) < 2.0, seconds


def test_an_answer_that_is_no_message(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    agent = AgentProcess(superlink, keys[0], tmp_path, "malformed")
    with run_here(superlink) as grid:
        link = link_here(grid, {"ada": agent.node_id()})
        ((child, reply, _),) = link.exchange({"ada": Outgoing(instruction())}, soon())
    assert isinstance(reply, Failure)
    assert (child, reply.child, reply.reason) == ("ada", "ada", Reason.MALFORMED)
    agent.end()


def test_who_is_slow_does_not_hold_up_the_others(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    """And a message that was sent again meanwhile is answered once."""
    slow = AgentProcess(superlink, keys[0], tmp_path, "slow")
    quick = AgentProcess(superlink, keys[1], tmp_path)
    nodes = {"ada": slow.node_id(), "bob": quick.node_id()}
    with run_here(superlink) as grid:
        link = link_here(grid, nodes, resend=1.0)
        order = [child for child, _, _ in link.exchange({name: Outgoing(instruction()) for name in nodes}, soon())]
        assert order == ["bob", "ada"]
        ((_, reply, _),) = link.exchange({"bob": Outgoing(report_request("bob"))}, soon())
        assert isinstance(reply, Report)  # not a late confirmation
    slow.end()
    quick.end()


def test_a_run_that_is_ended_from_outside(superlink: SuperLink, keys: list[NodeKey]) -> None:
    with run_here(superlink) as grid, warm(superlink, keys[0]) as nodes:
        superlink.control.stop_run(grid.run.run_id)
        with pytest.raises(Fenced):
            list(link_here(grid, nodes).exchange({"ada": Outgoing(instruction())}, soon()))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stock_supernode_joins(superlink: SuperLink, keys: list[NodeKey], tmp_path: Path) -> None:
    """`flower-supernode` with a key that we registered, under TLS, beside a warm agent. It takes 5 to 10 s a message."""
    home = tmp_path / "ada"
    home.mkdir()
    assert superlink.tls is not None
    command = [
        str(Path(sys.executable).parent / "flower-supernode"),
        *("--superlink", superlink.address, "--root-certificates", str(superlink.tls.ca)),
        *("--auth-supernode-private-key", str(keys[0].ssh), "--node-config", f'home="{home}"'),
        *("--port", str(free_port())),
    ]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "TRUNKLINE_CHILD_OPEN": "tests.support.fleet:open_stand_in",
    }
    log = tmp_path / "supernode.log"
    with log.open("wb") as out:
        node = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=out, stderr=out)
    try:
        until(lambda: _online(superlink, keys[0]), 90, "the SuperNode", log)
        stock = superlink.register_node(keys[0].public)
        with run_here(superlink) as grid, warm(superlink, keys[1]) as nodes:
            link = link_here(grid, {"ada": stock, **nodes})
            for make, kind in ((lambda child: instruction(), Confirmation), (initial_set, Update), (report_request, Report)):
                messages = {name: Outgoing(make(name), b"down") for name in ("ada", "bob")}
                answers = {child: (type(reply), attachment) for child, reply, attachment in link.exchange(messages, soon(60))}
                assert answers == {"ada": (kind, b"nwod"), "bob": (kind, b"nwod")}, log.read_text()
    finally:
        node.terminate()
        try:
            node.wait(20)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait(10)


def _online(superlink: SuperLink, key: NodeKey) -> bool:
    return any(node.public_key == key.public and node.status == "online" for node in superlink.nodes())
