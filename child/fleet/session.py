"""A warm session on Flower's Fleet API: one process that stays, takes messages and answers them.

It is built on `FleetHttpClient` and not on Flower's own `http_request_response`, which ends the process and swallows errors. No app
that a master sends is run here.

    receive()   the next message, or None
    reply()     answer it

All errors are ours: `RunGone` (nobody waits for that answer any more), `NotKnown` (the SuperLink does not know this key, or forgot
this session), `LinkLost` (nobody there within the limit). After `NotKnown` or `LinkLost` leave the session and enter a new one.
"""

import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from child.fleet.connection import connect
from child.fleet.content import Incoming, open_record, pack, record_first, record_id
from child.fleet.errors import LinkLost, NotKnown, NotYet, Refused, RunGone, translated
from child.fleet.signer import Hurry, Signer, load_key, public_pem
from trunkline.clock import Clock, Deadline
from trunkline.errors import SettingsError, TrunklineError
from trunkline.hold import Hold
from trunkline.retry import persist

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

GOODBYE = 3.0  # seconds to wait when leaving


class FleetSession:
    """One stay at a SuperLink, from activation to deactivation. A context manager; used by one thread.

    :param address: `host:port` of the SuperLink.
    :param ca: PEM of the authority to trust; None talks without TLS, for a loopback in tests only.
    :param key: the node's private key (EC P-384), or its PEM file.
    :param node_id: the id this key had last, if known: a predecessor that was killed is then replaced at once,
        otherwise only when the SuperLink takes it for offline (twice the heartbeat).
    :param heartbeat: seconds; Flower allows 10 to 1800.
    :param limit: how long a call is tried again while nobody answers, in seconds.
    :param stop: true once the caller wants to end: then nothing is tried again.
    """

    node_id: int

    def __init__(
        self,
        address: str,
        ca: bytes | None,
        key: ec.EllipticCurvePrivateKey | Path,
        clock: Clock,
        rng: random.Random,
        *,
        node_id: int | None,
        heartbeat: float = 10.0,
        limit: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if not 10 <= heartbeat <= 1800:
            raise SettingsError(f"`heartbeat` should be 10 to 1800 seconds, found {heartbeat:g}.")
        self.address, self.clock, self.rng, self.limit, self.heartbeat = address, clock, rng, limit, heartbeat
        self._previous, self._plain = node_id, ca is None
        private = load_key(key)
        self._public, self._hurry, self._hold = public_pem(private), Hurry(), Hold()
        calls = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), Signer(private, clock), self._hurry, self._hold]
        self._client = connect(address, ca, calls)
        self._stop, self._forgotten, self._told = threading.Event(), threading.Event(), stop
        self._pulse = threading.Thread(target=self._beat, daemon=True, name="fleet-heartbeat")

    # -- coming and going ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Activate this node.

        :raises NotKnown: the SuperLink does not know the key.
        :raises LinkLost: nobody there within the limit.
        """
        try:
            self.node_id = self._activate()
        except BaseException:
            self._client.close()
            raise
        self._pulse.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        try:
            if not self._forgotten.is_set():
                self._hurry.seconds = GOODBYE
                self._call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self.node_id), limit=0.0)
        except TrunklineError as trouble:
            logger.info("leaving without a word: %s", trouble)  # the SuperLink notices by itself, after twice the heartbeat
        finally:
            self._pulse.join(GOODBYE)  # a heartbeat under way would find its client closed
            self._client.close()

    def _activate(self) -> int:
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=self.heartbeat)
        if self._plain:
            self._register()
        try:
            return self._call(self._client.ActivateNode, request).node_id
        except Refused:
            self._replace_predecessor()
        # Either a predecessor whose id is not known here counts as online, or the key is not known: only time tells them apart.
        try:
            return self._persist(lambda: self._activate_now(request), min(self.limit, 2 * self.heartbeat + 5))
        except NotYet as error:
            raise NotKnown(
                f"the SuperLink at {self.address} should take this node, found that it refuses its key.",
                hint="Wait until the master has registered the key, or enrol this child again.",
            ) from error

    def _activate_now(self, request: ActivateNodeRequest) -> int:
        try:
            return self._once(self._client.ActivateNode, request).node_id
        except Refused as error:
            raise NotYet(error.message) from None

    def _register(self) -> None:
        """Without TLS there is no list of keys: a node makes itself known."""
        try:
            self._call(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=self._public))
        except Refused:
            logger.debug("registered before")

    def _replace_predecessor(self) -> None:
        """A killed process of this node still counts as online: say goodbye in its name."""
        if self._previous is None:
            return
        try:
            self._call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._previous))
        except (NotKnown, Refused) as error:
            logger.info("no predecessor to replace: %s", error)

    # -- staying ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Say "still here" until told to stop. Nothing ends this loop but `_stop`: a lost heartbeat is tried again soon."""
        request = SendNodeHeartbeatRequest(node=Node(node_id=self.node_id), heartbeat_interval=self.heartbeat)
        pause, trouble = self.heartbeat, ""
        while not self._stop.wait(pause * self.rng.uniform(0.4, 0.6)):
            try:
                known = self._once(self._client.SendNodeHeartbeat, request).success
            except NotKnown:
                known = False
            except TrunklineError as error:
                if str(error) != trouble:
                    logger.warning("no heartbeat: %s", error)
                pause, trouble = min(2.0, self.heartbeat), str(error)
                continue
            pause, trouble = self.heartbeat, ""
            if not known:
                self._forgotten.set()

    def _check_known(self) -> None:
        if self._forgotten.is_set():
            raise NotKnown(f"the SuperLink at {self.address} should know this session, found that it forgot it.")

    # -- messages --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the last look was held, so that the next one may come at once."""
        return self._hold.held

    def receive(self, hold: float = 0.0) -> Incoming | None:
        """The next message, or None when there is none now.

        :param hold: seconds to wait for one, where the SuperLink is one of ours; any other answers at once.
        :raises NotKnown: the SuperLink forgot this session.
        :raises LinkLost: nobody there within the limit.
        """
        self._check_known()
        self._hold.seconds = hold
        answer = self._call(self._client.PullMessages, PullMessagesRequest(node=Node(node_id=self.node_id)))
        if not answer.messages_list:
            return None
        header = message_from_proto(answer.messages_list[0])
        try:
            return self._fetch(header, answer.message_object_trees[0])
        except RunGone as error:
            logger.info("a message went with its run: %s", error)
            return None

    def _fetch(self, header: Message, tree: ObjectTree) -> Incoming:
        received, meta = self.clock.monotonic(), header.metadata
        record = record_id(tree)
        text, attachment = open_record(self._pull(meta.run_id, record)) if record else ("", None)
        return Incoming(
            meta.run_id, meta.message_id, meta.message_type, text, attachment, meta.created_at, meta.ttl, received, header
        )

    def _pull(self, run_id: int, object_id: str) -> bytes:
        request = PullObjectRequest(node=Node(node_id=self.node_id), run_id=run_id, object_id=object_id)

        def once() -> bytes:
            answer = self._once(self._client.PullObject, request)
            if not answer.object_found:
                raise RunGone("a message should be whole, found that a part of it was deleted.")
            if not answer.object_available:
                raise NotYet("a part of a message should be there, found that it is still on its way.")
            return answer.object_content

        try:
            return self._persist(once, self.limit)
        except NotYet as error:
            raise RunGone(error.message) from None

    def reply(self, incoming: Incoming, text: str, attachment: bytes | None, seconds: float) -> None:
        """Answer a message. Safe to call again with the same answer after `LinkLost`.

        :param seconds: how long the work took.
        :raises RunGone: nobody waits for the answer any more.
        :raises NotKnown: the SuperLink forgot this session.
        :raises LinkLost: nobody there within the limit.
        """
        self._check_known()
        message = self._answer(incoming, pack(text, attachment))
        objects = get_all_nested_objects(message)
        answer = self._call(
            self._client.PushMessages,
            PushMessagesRequest(
                node=Node(node_id=self.node_id),
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[seconds],
            ),
        )
        wanted = set(answer.objects_to_push)
        if message.metadata.message_id not in wanted:
            raise RunGone("an answer should be wanted, found that it came too late or twice.")
        for number, object_id in enumerate(record_first(message)):
            if object_id in wanted:
                self._push(incoming.run_id, answer.session_id, object_id, objects[object_id].deflate(), needed=number == 0)
        self._let_go(incoming)

    def _let_go(self, incoming: Incoming) -> None:
        """Let the SuperLink forget a message that was answered. Not before: the master may still be sending parts of it."""
        request = ConfirmMessageReceivedRequest(
            node=Node(node_id=self.node_id), run_id=incoming.run_id, message_object_id=incoming.message_id
        )
        try:
            self._call(self._client.ConfirmMessageReceived, request)
        except (RunGone, Refused) as error:
            logger.debug("a message went with its run: %s", error)

    def _answer(self, incoming: Incoming, content: RecordDict) -> Message:
        """The reply, dated by the master's clock: a child whose clock is wrong can answer all the same."""
        elapsed = self.clock.monotonic() - incoming.received
        if elapsed >= incoming.ttl:
            raise RunGone(f"an answer should come within {incoming.ttl:g} s, found {elapsed:.0f} s gone.")
        message = Message(content, reply_to=incoming.header)
        message.metadata.created_at = incoming.created + elapsed
        message.metadata.ttl = incoming.ttl - elapsed
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def _push(self, run_id: int, session: str, object_id: str, content: bytes, *, needed: bool) -> None:
        """:param needed: whether the master waits for this part; the others it may let go, with the whole run, before they come."""
        request = PushObjectRequest(
            node=Node(node_id=self.node_id), run_id=run_id, object_id=object_id, object_content=content, session_id=session
        )
        try:
            stored = self._call(self._client.PushObject, request).stored
        except RunGone:
            if needed:
                raise
            return
        if needed and not stored:
            raise LinkLost("an answer should be taken whole, found that its time to be sent was over.", hint="Send it again.")

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(self, method: Callable[[Any], Result], request: Any, limit: float | None = None) -> Result:
        return self._persist(lambda: self._once(method, request), self.limit if limit is None else limit)

    def _persist(self, once: Callable[[], Result], limit: float) -> Result:
        return persist(
            once,
            Deadline(self.clock, limit, f"the SuperLink at {self.address}"),
            self.rng,
            stop=lambda: self._stop.is_set() or self._told(),
        )

    def _once(self, method: Callable[[Any], Result], request: Any) -> Result:
        with translated(self.address):
            return method(request)
