"""The SuperLink process, its Control API, and the ServerApp processes of its runs. Everything here is real."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

from master.flower.control import Control, thin_fab, translated
from master.pki import Tls
from master.superlink import SuperLink
from tests.support.fleet import CLOCK, ROOT, NodeKey, free_port, gone, session, until
from trunkline.errors import AlreadyRunning, Conflict, FailedError, NotAuthorized, NotFound, SettingsError, StateError, UsageError

pytestmark = pytest.mark.contract


def start(superlink: SuperLink, state: Path, entry: str, **config: str | int) -> int:
    return superlink.start_run({"job": "j", "state": str(state), "entry": f"tests.support.flower_job:{entry}", **config})


def ended(superlink: SuperLink, run: int, seconds: float = 40.0):
    """How a run ended."""

    def look():
        status = superlink.run_status(run)
        return status if status.finished else None

    return until(look, seconds, "the end of the run")


# -- the process -------------------------------------------------------------------------------------------------------


def test_stopping_leaves_nothing(own_superlink: SuperLink, tmp_path: Path) -> None:
    run = start(own_superlink, tmp_path, "wait")
    until(lambda: (tmp_path / "running").exists(), 30, "the ServerApp")
    assert own_superlink._process is not None
    assert own_superlink._spare is None  # the run took it
    start(own_superlink, tmp_path, "wait")
    own_superlink._prepare()
    assert own_superlink._spare is not None
    pids = [own_superlink._process.pid, own_superlink._spare.pid, *(one.pid for one in own_superlink._runs.values())]
    begun = time.monotonic()
    own_superlink.stop()
    assert time.monotonic() - begun < 9.0
    assert all(gone(pid) for pid in pids)
    assert not own_superlink.alive()
    assert not own_superlink.run_alive(run)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", own_superlink.port))
    with pytest.raises(StateError):
        own_superlink.nodes()


def test_a_port_that_is_taken(tmp_path: Path, tls: Tls) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(AlreadyRunning, match=str(port)):
            SuperLink(tmp_path, port, tls).start()


def test_a_certificate_that_is_not_there(tmp_path: Path, tls: Tls) -> None:
    missing = replace(tls, certificate=tmp_path / "none.pem")
    with pytest.raises(SettingsError, match=r"none\.pem"):
        SuperLink(tmp_path / "superlink", free_port(), missing).start()


def test_a_certificate_that_is_none(tmp_path: Path, tls: Tls) -> None:
    (tmp_path / "broken.pem").write_text("no certificate")
    link = SuperLink(tmp_path / "superlink", free_port(), replace(tls, certificate=tmp_path / "broken.pem"))
    with pytest.raises(FailedError, match=f"{link.port}.*ended"):
        link.start()
    assert not link.alive()


def test_it_ends_when_its_master_is_killed(tmp_path: Path, tls: Tls) -> None:
    """kill -9 of the master leaves no process that holds the port."""
    port = free_port()
    script = """
import sys, time
from pathlib import Path
from master.pki import Tls
from master.superlink import SuperLink
folder, port, ca, cert, key = sys.argv[1:]
link = SuperLink(Path(folder) / "superlink", int(port), Tls(Path(ca), Path(cert), Path(key), ""))
link.start()
run = link.start_run({"job": "j", "state": folder, "entry": "tests.support.flower_job:wait"})
link._prepare()
print(link._process.pid, link._runs[run].pid, link._spare.pid, flush=True)
time.sleep(600)
"""
    arguments = [str(tmp_path), str(port), str(tls.ca), str(tls.certificate), str(tls.key)]
    master = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert master.stdout is not None
        pids = [int(word) for word in master.stdout.readline().split()]
        assert len(pids) == 3
        until(lambda: (tmp_path / "running").exists(), 30, "the ServerApp")
    finally:
        master.send_signal(signal.SIGKILL)
        master.wait(10)
        assert master.stdout is not None
        master.stdout.close()
    until(lambda: all(gone(pid) for pid in pids), 20, "its processes to end")
    again = SuperLink(tmp_path / "superlink", port, tls)
    again.start()
    again.stop()


def test_no_secret_stands_on_a_command_line(superlink: SuperLink, tmp_path: Path) -> None:
    run = start(superlink, tmp_path, "wait")
    until(lambda: (tmp_path / "running").exists(), 30, "the ServerApp")
    assert superlink._process is not None
    secret = (superlink.folder / "secret").read_text()
    for pid in (superlink._process.pid, superlink._runs[run].pid):
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert secret.encode() not in shown
        assert b"token" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (superlink.folder / "secret").stat().st_mode & 0o077 == 0
    superlink.stop_run(run)


def test_a_proxy_of_this_machine_is_passed_by(tmp_path: Path, tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    link, key = SuperLink(tmp_path / "superlink", free_port(), tls), NodeKey(tmp_path, "ada")
    link.start()
    try:
        link.register_node(key.public)
        with session(link, key) as fleet:
            assert fleet.receive() is None
        run = start(link, tmp_path, "note")
        assert ended(link, run).sub_status == "completed"
    finally:
        link.stop()


# -- who may do what ---------------------------------------------------------------------------------------------------


def test_a_run_is_taken_from_the_master_alone(superlink: SuperLink) -> None:
    """Flower's Control API would run anybody's code, and its Runtime API give anybody the task of a run."""
    assert superlink.tls is not None
    ca = superlink.tls.ca.read_bytes()
    stranger = ControlHttpClient.from_server_address(
        superlink.address, False, ca, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    )
    content = thin_fab({"job": "x"})
    fab = fab_to_proto(Fab("0" * 64, content, {}))
    calls = (lambda: stranger.StartRun(StartRunRequest(fab=fab)), lambda: stranger.ListNodes(ListNodesRequest()))
    for call in calls:
        with pytest.raises(httpx.HTTPStatusError) as caught:
            call()
        assert caught.value.response.status_code == 404
    runtime = RuntimeHttpClient.from_server_address(
        superlink.address, False, ca, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    )
    with pytest.raises(httpx.HTTPStatusError) as caught:
        runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    assert caught.value.response.status_code == 401
    stranger.close()
    runtime.close()


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/responses", "/v1/control", "/v1/fleet/../control/list-nodes", "/health"]
)
def test_what_else_flower_serves_is_closed(superlink: SuperLink, path: str) -> None:
    assert superlink.tls is not None
    import ssl

    trust = ssl.create_default_context(cadata=superlink.tls.ca.read_text())
    with httpx.Client(verify=trust) as client:
        for method in ("GET", "POST"):
            assert client.request(method, f"https://{superlink.address}{path}").status_code == 404


def test_a_node_that_does_not_sign_is_refused(superlink: SuperLink) -> None:
    assert superlink.tls is not None
    unsigned = FleetHttpClient.from_server_address(
        superlink.address, False, superlink.tls.ca.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="SuperNode")]
    )
    for node in superlink.nodes() or [None]:
        with pytest.raises(httpx.HTTPStatusError) as caught:
            unsigned.PullMessages(PullMessagesRequest(node=FlowerNode(node_id=node.node_id if node else 1)))
        assert caught.value.response.status_code == 401
    unsigned.close()


def test_a_head_without_end_is_cut(superlink: SuperLink) -> None:
    """Flower lets uvicorn choose what reads a connection, and that takes a head of any size: ours is in its place."""
    context = ssl._create_unverified_context()
    with context.wrap_socket(socket.create_connection(("127.0.0.1", superlink.port), timeout=10)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nX: ")
        until = time.monotonic() + 15
        with pytest.raises((ConnectionError, ssl.SSLError)):
            while time.monotonic() < until:
                stranger.sendall(b"a" * 16_384)


def test_a_wrong_secret(superlink: SuperLink) -> None:
    import random

    assert superlink.tls is not None
    control = Control(superlink.address, superlink.tls.ca.read_bytes(), "wrong", CLOCK, random.Random(0))
    with pytest.raises(NotAuthorized):
        control.ping()
    control.close()


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_registering_twice_is_registering_once(superlink: SuperLink, tmp_path: Path) -> None:
    key = NodeKey(tmp_path, "dan")
    node = superlink.register_node(key.public, "dan")
    assert superlink.register_node(key.public, "dan") == node
    assert [(one.name, one.status) for one in superlink.nodes() if one.public_key == key.public] == [("dan", "registered")]


def test_a_key_that_was_taken_back_stays_so(superlink: SuperLink, tmp_path: Path) -> None:
    key = NodeKey(tmp_path, "eve")
    superlink.control.unregister_node(superlink.register_node(key.public))
    with pytest.raises(Conflict):
        superlink.register_node(key.public)


def test_what_is_no_key(superlink: SuperLink) -> None:
    with pytest.raises(UsageError):
        superlink.register_node(b"no key")
    with pytest.raises(NotFound):
        superlink.control.unregister_node(12345)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_flower_takes_declared_keys_only(superlink: SuperLink) -> None:
    """So `thin_fab` declares what it is given. Should this fail with a newer Flower, that is no longer needed."""
    content = thin_fab({"job": ""})
    fab = fab_to_proto(Fab("0" * 64, content, {}))
    request = StartRunRequest(fab=fab, override_config=user_config_to_proto({"job": "x", "other": "y"}))
    with pytest.raises(UsageError), translated(superlink.address):
        superlink.control._client.StartRun(request)


def test_a_run_gets_its_configuration_and_no_torch(superlink: SuperLink, tmp_path: Path) -> None:
    state = tmp_path / 'with "quotes" and = signs'
    state.mkdir()
    run = start(superlink, state, "note", number=3)
    status = ended(superlink, run)
    assert (status.status, status.sub_status) == ("finished", "completed"), (superlink.folder / "serverapp.log").read_text()
    assert json.loads((state / "noted").read_text()) == {"job": "j", "state": str(state), "torch": False}
    until(lambda: not superlink.run_alive(run), 10, "its process to end")
    assert run in superlink.reap()  # the fixture is shared: a run of the test before may end only now
    assert run not in superlink.reap()


def test_a_run_that_was_left_behind_is_not_in_the_way(superlink: SuperLink, tmp_path: Path) -> None:
    """Its StartRun was done, but the answer was lost: nobody ever takes its task."""
    fab = fab_to_proto(Fab("0" * 64, thin_fab({"job": "x"}), {}))
    orphan = superlink.control._client.StartRun(StartRunRequest(fab=fab)).run_id
    run = start(superlink, tmp_path, "note")
    assert ended(superlink, run).sub_status == "completed"
    assert superlink.run_status(orphan).sub_status == "stopped"


def test_a_run_that_fails_says_why(superlink: SuperLink, tmp_path: Path) -> None:
    status = ended(superlink, start(superlink, tmp_path, "fail"))
    assert (status.sub_status, status.details) == ("failed", "ZeroDivisionError: a bug in the rounds")
    assert "Traceback" in (superlink.folder / "serverapp.log").read_text()


def test_a_killed_serverapp_is_noticed_at_once(superlink: SuperLink, tmp_path: Path) -> None:
    """Flower would need 57 s, and deliver the dead run's messages meanwhile."""
    run = start(superlink, tmp_path, "wait")
    until(lambda: (tmp_path / "running").exists(), 30, "the ServerApp")
    assert superlink.run_alive(run)
    assert run not in superlink.reap()
    os.killpg(superlink._runs[run].pid, signal.SIGKILL)
    until(lambda: not superlink.run_alive(run), 5, "its end")
    assert superlink.run_status(run).status == "running"
    assert run in superlink.reap()
    assert superlink.run_status(run).sub_status == "stopped"


def test_a_run_is_stopped(superlink: SuperLink, tmp_path: Path) -> None:
    run = start(superlink, tmp_path, "wait")
    until(lambda: (tmp_path / "running").exists(), 30, "the ServerApp")
    assert superlink.stop_run(run)
    assert not superlink.run_alive(run)
    assert superlink.run_status(run).sub_status == "stopped"
    assert not superlink.stop_run(run)


def test_runs_of_a_superlink_that_lost_its_memory(own_superlink: SuperLink, tmp_path: Path) -> None:
    run = start(own_superlink, tmp_path, "wait")
    assert own_superlink._process is not None
    own_superlink._process.send_signal(signal.SIGKILL)
    until(lambda: not own_superlink.alive(), 5, "its end")
    own_superlink.start()
    with pytest.raises(NotFound):
        own_superlink.run_status(run)
    assert own_superlink.reap() == []
