"""Stock Flower as its documentation starts it: a SuperLink and two SuperNodes, without TLS, all in memory."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StartRunRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from benchmarks import machine
from benchmarks.figures import Note, Run
from master.demo.processes import Processes, free_ports
from trunkline.clock import Clock, Deadline
from trunkline.errors import FailedError

TOOLS = Path(sys.executable).parent

SECONDS = 1800.0
"""A run that takes longer has gone wrong."""

PROJECT = """[project]
name = "stock"
version = "1.0.0"
description = "The exchange of two clients, for comparison"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "stock_app:server"
clientapp = "stock_app:client"
[tool.flwr.app.config]
elements = 256
tensors = 1
rounds = 2
out = ""
"""


def measure(elements: int, tensors: int, rounds: int, folder: Path, clock: Clock, note: Note) -> Run:
    """Play rounds of FedAvg over two SuperNodes.

    :raises FailedError: a process ended, or an exchange was not answered by both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "rounds.jsonl"
    path = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"  # Flower starts its own programs by their names
    environment = {**machine.environment(), "FLWR_HOME": str(folder / "flwr"), "HOME": str(folder), "PATH": path}
    with Processes(folder, clock, environment) as processes, _fleet(processes, clock) as control:
        note(f"stock Flower: {rounds} rounds of {4 * elements} bytes")
        before = machine.loopback()
        run = _start(control, {"elements": elements, "tensors": tensors, "rounds": rounds, "out": str(out)})
        _wait(control, run, processes, clock)
        after = machine.loopback()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    if len(lines) != rounds or any(line["replies"] != 2 for line in lines):
        raise FailedError(f"{rounds} rounds with 2 answers each should have been played, found {lines}.", hint=f"See {folder}.")
    times = [float(line["seconds"]) for line in lines]
    wire = None if before is None or after is None else (after - before) // rounds
    return Run(times, times, 2 * 2 * 4 * elements, wire)


@contextmanager
def _fleet(processes: Processes, clock: Clock) -> Iterator[ControlHttpClient]:
    link, *nodes = free_ports(3)
    processes.start("superlink", [str(TOOLS / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(link)])
    address = f"127.0.0.1:{link}"
    control = ControlHttpClient.from_server_address(address, True, None, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")])
    try:
        _until(control, processes, clock, 0)
        for number, port in enumerate(nodes):
            command = [str(TOOLS / "flower-supernode"), "--insecure", "--superlink", address, "--port", str(port)]
            processes.start(f"node-{number}", [*command, "--node-config", f"partition-id={number}"])
        _until(control, processes, clock, len(nodes))
        yield control
    finally:
        control.close()


def _until(control: ControlHttpClient, processes: Processes, clock: Clock, online: int) -> None:
    """Wait until the SuperLink answers and so many nodes are online."""
    deadline = Deadline(clock, 120.0, f"stock Flower with {online} nodes")
    while True:
        processes.check()
        try:
            found = control.ListNodes(ListNodesRequest()).nodes_info
            if sum(node.status == "online" for node in found) >= online:
                return
        except (httpx.HTTPError, OSError):
            pass
        deadline.check()
        clock.sleep(0.1)


def _start(control: ControlHttpClient, config: Mapping[str, str | int]) -> int:
    from flwr.cli.build import build_fab_from_files  # takes a second to import

    app = Path(__file__).with_name("stock_app.py").read_bytes()
    content, _ = build_fab_from_files({"pyproject.toml": PROJECT.encode(), "stock_app.py": app})
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)), federation="")
    return control.StartRun(request).run_id


def _wait(control: ControlHttpClient, run: int, processes: Processes, clock: Clock) -> None:
    deadline = Deadline(clock, SECONDS, "the rounds of stock Flower")
    while True:
        status = control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status == "finished":
            if status.sub_status != "completed":
                raise FailedError(f"the run should complete, found {status.sub_status}: {status.details}")
            return
        processes.check()
        deadline.check()
        clock.sleep(0.5)
