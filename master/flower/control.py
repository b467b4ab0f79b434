"""The SuperLink's Control API, as the master uses it: nodes and runs, without Flower's command line."""

import hashlib
import io
import logging
import random
import ssl
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient

from master.flower.superlinkd import SECRET_HEADER
from trunkline.clock import Clock, Deadline
from trunkline.errors import Conflict, FailedError, NotAuthorized, NotFound, TrunklineError, Unreachable, UsageError
from trunkline.retry import persist

logger = logging.getLogger(__name__)

LEFT_BEHIND = 8  # runs that nobody runs and that may be in the way of one
CALL = 30.0  # seconds to wait for an answer
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

Value = str | int | float | bool
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Node:
    """A child's node as the SuperLink sees it."""

    node_id: int
    name: str
    status: str  # registered | online | offline | unregistered
    public_key: bytes  # PEM


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as the SuperLink sees it."""

    status: str  # pending | starting | running | finished
    sub_status: str  # of a finished one: completed | failed | stopped
    details: str

    @property
    def finished(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run, and the token with which its ServerApp speaks for it."""

    run_id: int
    token: str


class _Secret:
    """Shows the guard in front of the SuperLink that this is the master."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self.secret
        return call_next(context)


def _directly(client: ProtobufClient, ca: bytes | None) -> None:
    """Have Flower's client pass by this machine's proxy: a SuperLink on the loopback is not behind it."""
    client.close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nothing yet
    if ca:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    client._client = httpx.Client(verify=context, timeout=CALL, trust_env=False)


class Control:
    """Talks to one SuperLink. Safe to use from several threads.

    :param address: `host:port`.
    :param ca: PEM of the authority that signed its certificate; None for one without TLS.
    :param secret: what opens the Control API and takes tasks.
    :param limit: how long a call is tried again while nobody answers, in seconds.
    """

    def __init__(
        self, address: str, ca: bytes | None, secret: str, clock: Clock, rng: random.Random, *, limit: float = 20.0
    ) -> None:
        self.address, self.clock, self.rng, self.limit = address, clock, rng, limit
        common = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        self._starting = threading.Lock()
        task = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        sign = SuperExecAuthHttpInterceptor(master_secret=secret.encode(), protected_methods={ACQUIRE})
        self._client = ControlHttpClient.from_server_address(address, ca is None, ca, [*common, _Secret(secret)])
        self._runtime = RuntimeHttpClient.from_server_address(address, ca is None, ca, [*task, sign])
        for client in (self._client, self._runtime):
            _directly(client, ca)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._runtime.close()

    # -- nodes -------------------------------------------------------------------------------------------------------

    def register_node(self, public_key: bytes, name: str = "") -> int:
        """Make a node's key known, and give its id; the id it has already if it was known.

        :param public_key: PEM, EC P-384.
        :raises UsageError: not such a key.
        :raises Conflict: the key was known and taken back; a SuperLink takes such a key again only after a restart.
        """
        try:
            return self._call(self._client.RegisterNode, RegisterNodeRequest(public_key=public_key, name=name or None)).node_id
        except Conflict:
            for node in self.nodes():
                if node.public_key == public_key and node.status != "unregistered":
                    return node.node_id
            raise

    def unregister_node(self, node_id: int) -> None:
        """Take a node's key back: from now on it is refused.

        :raises NotFound: no such node.
        """
        self._call(self._client.UnregisterNode, UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> list[Node]:
        """Every node whose key was registered."""
        answer = self._call(self._client.ListNodes, ListNodesRequest())
        return [Node(node.node_id, node.name, node.status, node.public_key) for node in answer.nodes_info]

    # -- runs --------------------------------------------------------------------------------------------------------

    def start_run(self, config: Mapping[str, Value]) -> StartedRun:
        """Start a run of ours, and take its task, so that no other program runs it.

        :param config: what the ServerApp finds as its run configuration.
        :raises FailedError: the SuperLink would not start it.
        """
        content = thin_fab(config)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)), federation="")
        with self._starting:
            run_id = self._call(self._client.StartRun, request, limit=0.0).run_id
            if not run_id:
                raise FailedError("a run should start, found that the SuperLink gave it no number.")
            return StartedRun(run_id, self._acquire(run_id))

    def _acquire(self, run_id: int) -> str:
        """The token of a run's task. Tasks come in the order of their runs; one that a lost answer left behind may come first."""
        for _ in range(LEFT_BEHIND):
            found = self._call(self._runtime.AcquireTask, AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if found.token and found.task.run_id == run_id:
                return found.token
            if not found.token:
                break
            self.stop_run(found.task.run_id)
        self.stop_run(run_id)
        raise FailedError(f"the task of run {run_id} should be waiting, found none.")

    def run_status(self, run_id: int) -> RunStatus:
        """Where a run stands.

        :raises NotFound: no such run; a SuperLink that was restarted knows none from before.
        """
        runs = self._call(self._client.ListRuns, ListRunsRequest(run_id=run_id)).run_dict
        if run_id not in runs:
            raise NotFound(f"run {run_id} should be known, found that the SuperLink does not know it.")
        status = runs[run_id].status
        return RunStatus(status.status, status.sub_status, status.details)

    def stop_run(self, run_id: int) -> bool:
        """End a run; its undelivered messages go with it. False: it was over, or is not known."""
        try:
            return self._call(self._client.StopRun, StopRunRequest(run_id=run_id)).success
        except (Conflict, NotFound):
            return False

    def ping(self) -> None:
        """Ask for the nodes once.

        :raises Unreachable: nobody there.
        :raises NotAuthorized: somebody else's SuperLink.
        """
        self._call(self._client.ListNodes, ListNodesRequest(), limit=0.0)

    def _call(self, method: Callable[[Any], Result], request: Any, limit: float | None = None) -> Result:
        def once() -> Result:
            with translated(self.address):
                return method(request)

        deadline = Deadline(self.clock, self.limit if limit is None else limit, f"the SuperLink at {self.address}")
        return persist(once, deadline, self.rng)


def thin_fab(config: Mapping[str, Value]) -> bytes:
    """The bundle of a run: which functions to call, and no code. It declares the keys of `config`: Flower refuses others.

    Written here and not by `flwr.cli.build`, which takes a second to import. A test runs such a bundle on both sides of Flower.
    """
    defaults = {str: '""', bool: "false", int: "0", float: "0.0"}
    keys = "".join(f"{key} = {defaults[type(value)]}\n" for key, value in sorted(config.items()))
    bundle = f"""[project]
name = "trunkline-run"
version = "1.0.0"
description = "A run of Trunkline"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "trunkline"
[tool.flwr.app.components]
serverapp = "master.flower:app"
clientapp = "child.app:app"
[tool.flwr.app.config]
{keys}"""
    content = bundle.encode()
    manifest = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{len(content) * 8}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundled:
        for path, text in (("pyproject.toml", bundle), (".info/CONTENT", manifest)):
            bundled.writestr(
                zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text
            )  # no time of its own: the same keys, the same bundle
    return buffer.getvalue()


@contextmanager
def translated(address: str) -> Iterator[None]:
    """What Flower's HTTP clients say, in our words."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise _from_status(address, error.response) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        raise Unreachable(f"the SuperLink at {address} should answer, found {error!r}.") from None


def _from_status(address: str, response: httpx.Response) -> TrunklineError:
    told = FlowerError.from_json(response.text)
    code = told.code if told else 0
    text = " ".join(filter(None, (told.message, told.public_details))) if told else response.text[:200]
    found = f"found {response.status_code} ({text})"
    if code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
        return Conflict(f"a node's key should be new to the SuperLink, {found}.")
    if code == ApiErrorCode.RUN_ALREADY_FINISHED:
        return Conflict(f"a run should be going on, {found}.")
    if code in (ApiErrorCode.RUN_ID_NOT_FOUND, ApiErrorCode.NODE_NOT_FOUND, ApiErrorCode.NODE_NOT_FOUND_OR_NOT_OWNER):
        return NotFound(f"the SuperLink should know it, {found}.")
    if code in (ApiErrorCode.PUBLIC_KEY_NOT_VALID, ApiErrorCode.INVALID_RUN_CONFIG):
        return UsageError(f"the SuperLink should take this, {found}.")
    if response.status_code in (401, 403, 404) and not told:
        return NotAuthorized(f"the SuperLink at {address} should be this master's own, {found}.")
    if response.status_code >= 500:
        return Unreachable(f"the SuperLink at {address} should answer, {found}.")
    return FailedError(f"the SuperLink at {address} should take this request, {found}.")
