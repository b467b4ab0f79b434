"""Flower's Runtime API for one run: a `Grid` whose calls end, and that does not block where a reply is not whole yet.

Flower's own `HttpGrid` tries without end while the SuperLink is away, kills its process on a 401, and sleeps a second or more when
it finds a reply before its parts.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import httpx
from flwr.app import ConfigRecord, Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError

from trunkline.clock import Clock, Deadline
from trunkline.errors import Fenced, TrunklineError, Unreachable
from trunkline.hold import Hold
from trunkline.retry import persist
from trunkline.values import RECORD

logger = logging.getLogger(__name__)

HEARTBEAT = 10.0  # seconds; Flower gives a task up after 60
SETTLED = 5.0  # seconds after which every part of a reply has come in
WHOLE = 60.0  # seconds in which the parts of a reply must have come

Result = TypeVar("Result")


class RuntimeGrid(Grid):
    """The grid of one run. A context manager; used by one thread.

    :param hold: goes with the client's calls: how long a look for answers may be held.
    :param limit: how long a call is tried again while nobody answers, in seconds.
    """

    def __init__(
        self, client: RuntimeHttpClient, clock: Clock, rng: random.Random, *, hold: Hold | None = None, limit: float = 30.0
    ) -> None:
        self._client, self.clock, self.rng, self.hold, self.limit = client, clock, rng, hold or Hold(), limit
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self._run: Run | None = None
        self._half: dict[str, tuple[ProtoMessage, ObjectTree, Deadline]] = {}  # replies that are not whole yet, by their id
        self._taken: deque[tuple[float, str]] = deque()  # when a reply was taken, and its id
        self._stop, self._fenced = threading.Event(), threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True, name="task-heartbeat")

    @classmethod
    def connect(cls, address: str, ca: bytes | None, token: str, clock: Clock, rng: random.Random) -> Self:
        """The grid of the run that a token speaks for."""
        hold, version = Hold(), RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        interceptors = [version, RuntimeTokenHttpInterceptor(token=token), hold]
        return cls(RuntimeHttpClient.from_server_address(address, ca is None, ca, interceptors), clock, rng, hold=hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._client.close()

    # -- the task ----------------------------------------------------------------------------------------------------

    def take_task(self) -> Context:
        """Say that the run runs now, and what it is to do.

        :raises Fenced: the run was ended.
        """
        task = self._call(self._client.PullTaskInput, PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self._run = run_from_proto(task.run)
        context = context_from_proto(task.context)
        context.run_config = self._run.override_config
        self._pulse.start()
        return context

    def finish(self, sub_status: str, details: str) -> None:
        """Say how the run ended: completed, failed or stopped. A SuperLink that is gone does not matter then."""
        self._stop.set()
        try:
            self._call(self._client.PushTaskOutput, PushTaskOutputRequest(sub_status=sub_status, details=details), limit=2.0)
        except TrunklineError as error:
            logger.info("the end of the run was not told: %s", error)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            try:
                if not self._once(self._client.SendTaskHeartbeat, SendTaskHeartbeatRequest()).success:
                    self._fenced.set()
            except Fenced:
                self._fenced.set()
            except TrunklineError as error:
                logger.warning("no heartbeat: %s", error)

    def leave(self) -> None:
        """End the run soon: the next call says that it was ended. May be called from a signal handler."""
        self._fenced.set()

    # -- Grid --------------------------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        if self._run is None:
            raise RuntimeError("take_task comes first")
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> NoReturn:
        raise NotImplementedError("push and pull")

    def get_node_ids(self) -> list[int]:
        """Nodes that are online."""
        return [node.node_id for node in self._call(self._client.GetNodes, GetNodesRequest()).nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages. The id is empty for one that the SuperLink did not take."""
        self._let_go()
        headers, trees, objects = [], [], dict[str, InflatableObject]()
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            headers.append(message_to_proto(remove_content_from_message(message)))
            trees.append(get_object_tree(message))
            objects.update(get_all_nested_objects(message))
        answer = self._call(self._client.PushMessages, PushAppMessagesRequest(messages_list=headers, message_object_trees=trees))
        # Records first: a warm child begins as soon as it has the record, and lets a message go only after its answer.
        for object_id in sorted(answer.objects_to_push, key=lambda one: not isinstance(objects[one], ConfigRecord)):
            request = PushObjectRequest(
                node=self._node,
                run_id=self.run.run_id,
                object_id=object_id,
                object_content=objects[object_id].deflate(),
                session_id=answer.session_id,
            )
            self._call(self._client.PushObject, request)
        return list(answer.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there and whole. One that is not whole yet comes with a later call."""
        asked = list(message_ids)
        waiting = {header.metadata.reply_to_message_id for header, _, _ in self._half.values()}
        if fresh := [message_id for message_id in asked if message_id not in waiting]:
            answer = self._call(self._client.PullMessages, PullAppMessagesRequest(message_ids=fresh))
            for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                deadline = Deadline(self.clock, WHOLE, "the rest of a reply")
                self._half[header.metadata.message_id] = (header, tree, deadline)
        return [message for reply_id in list(self._half) if (message := self._complete(reply_id, asked))]

    def _complete(self, reply_id: str, asked: Sequence[str]) -> Message | None:
        """A reply with its record, once that is there; the other parts of a reply of ours repeat what its header says."""
        header, tree, deadline = self._half[reply_id]
        if header.metadata.reply_to_message_id not in asked:
            return None
        message = message_from_proto(header)
        if not message.has_error():
            record = self._record(tree)
            if record is None and not deadline.over():
                return None
            message = _lost(header) if record is None else message
            if record is not None:
                message.content = record
        del self._half[reply_id]
        self._taken.append((self.clock.monotonic(), reply_id))
        return message

    def _let_go(self) -> None:
        """Let the SuperLink forget replies that were taken. Not at once: parts of them that nobody needs may still come in."""
        now = self.clock.monotonic()
        while self._taken and now - self._taken[0][0] > SETTLED:
            request = ConfirmMessageReceivedRequest(
                node=self._node, run_id=self.run.run_id, message_object_id=self._taken.popleft()[1]
            )
            self._call(self._client.ConfirmMessageReceived, request)

    def _record(self, tree: ObjectTree) -> RecordDict | None:
        """The content of a reply of ours, empty where it has another form; None while it is not there."""
        for _ in range(2):  # from the message to its content, from there to the record
            if len(tree.children) != 1:
                return RecordDict()
            tree = tree.children[0]
        request = PullObjectRequest(node=self._node, run_id=self.run.run_id, object_id=tree.object_id)
        answer = self._call(self._client.PullObject, request)
        if not answer.object_available:
            return None
        try:
            return RecordDict({RECORD: ConfigRecord.inflate(answer.object_content)})
        except (ValueError, KeyError, TypeError, DecodeError) as error:
            logger.warning("a reply that cannot be read: %r", error)
            return RecordDict()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, method: Callable[[Any], Result], request: Any, limit: float | None = None) -> Result:
        if self._fenced.is_set():
            raise Fenced("this run should be running, found that it was ended from outside.")
        deadline = Deadline(self.clock, self.limit if limit is None else limit, "the SuperLink")
        return persist(lambda: self._once(method, request), deadline, self.rng)

    def _once(self, method: Callable[[Any], Result], request: Any) -> Result:
        with translated():
            return method(request)


def _lost(header: ProtoMessage) -> Message:
    """What stands for a reply whose parts are gone."""
    meta = header.metadata
    return make_message(
        metadata=Metadata(
            run_id=meta.run_id,
            message_id="",
            src_node_id=meta.src_node_id,
            dst_node_id=meta.dst_node_id,
            message_type=meta.message_type,
            group_id=meta.group_id,
            ttl=0,
            reply_to_message_id=meta.reply_to_message_id,
            created_at=meta.created_at,
        ),
        error=Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason="the parts of the reply did not come"),
    )


class LostMessage(Unreachable):
    """The SuperLink does not have a message that was asked for."""

    retryable = False


@contextmanager
def translated() -> Iterator[None]:
    """What Flower's HTTP clients say, in our words."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, told = error.response.status_code, error.response.text[:200]
        if status in (401, 403):
            raise Fenced(f"this run should be running, found that it was ended from outside ({status}: {told}).") from None
        if status == 500:
            raise LostMessage(f"the SuperLink should answer, found {status} ({told}).") from None
        raise Unreachable(f"the SuperLink should answer, found {status} ({told}).") from None
    except (httpx.HTTPError, ValueError, OSError) as error:
        raise Unreachable(f"the SuperLink should answer, found {error!r}.") from None
