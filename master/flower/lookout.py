"""Looks for messages that wait for one, in front of Flower's APIs: a child, or a run, hears of a message when it is there.

Flower's clients look again and again; each look costs the SuperLink 5 ms, and a message waits for the next one. A look that says so
(`trunkline.hold`) is answered when there is something, or when its time is over. What comes in tells that there is something: a
message for a node once its record is stored too, an answer of a node likewise. A look of anybody else goes through as it is.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from trunkline.hold import HEADER

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOK = "/v1/fleet/pull-messages"
LOOKS = 2  # of children that are answered at a time
LOOK_BYTES = 4096  # the largest look of a child; one holds a node's id
ANSWERS = "/v1/runtime/pull-messages"  # a run's look; it holds the ids of its messages
SENT = {"/v1/runtime/push-messages": "PushAppMessages", "/v1/fleet/push-messages": "PushMessages"}
STORED = ("/v1/runtime/push-object", "/v1/fleet/push-object")

SENT_BYTES = 4 << 20  # of headers and trees that are read; more goes through unread, and those who wait look at their time
LONGEST = 30.0  # seconds that a look is held at most
COMING = 10_000  # records on their way that are remembered
NO_NODE = 0  # who waits for answers


class Lookout:
    """Holds looks until there is something to see.

    :param app: Flower's.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._turns = asyncio.Semaphore(LOOKS)
        self._waiting: dict[int, set[asyncio.Event]] = defaultdict(set)  # by node
        self._coming: dict[str, set[int]] = {}  # records that are not stored yet -> the nodes that wait for them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == LOOK:
            body = await whole(receive, LOOK_BYTES)  # before its turn: who is slow to ask keeps nobody waiting
            await self._look(scope, body, receive, send, _node(body))
        elif path == ANSWERS and _seconds(scope):
            body = await whole(receive, SENT_BYTES)
            await self._look(scope, body, receive, send, NO_NODE)
        elif path in SENT:
            await self._sent(scope, receive, send)
        elif path in STORED:
            await self._stored(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # -- those who look ----------------------------------------------------------------------------------------------

    async def _look(self, scope: Scope, body: bytes, receive: Receive, send: Send, node: int) -> None:
        seconds = _seconds(scope)
        if not seconds:
            async with self._turn(node):
                await self.app(scope, given(body, receive), send)
            return
        end = asyncio.get_running_loop().time() + seconds
        gone, rung = asyncio.create_task(_gone(receive)), asyncio.Event()
        self._waiting[node].add(rung)
        try:
            while not gone.done():
                rung.clear()
                answer = _Answer()
                async with self._turn(node):
                    await self.app(scope, given(body, receive), answer.take)
                left = end - asyncio.get_running_loop().time()
                if answer.says_something or left <= 0:
                    await answer.give(send)
                    return
                ring = asyncio.create_task(rung.wait())
                await asyncio.wait({ring, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                ring.cancel()
        finally:
            gone.cancel()
            self._waiting[node].discard(rung)
            if not self._waiting[node]:
                del self._waiting[node]

    @asynccontextmanager
    async def _turn(self, node: int) -> AsyncIterator[None]:
        """Few children look at a time, so that many of them do not keep the messages themselves waiting."""
        if node == NO_NODE:
            yield
            return
        async with self._turns:
            yield

    # -- what they look for --------------------------------------------------------------------------------------------

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, answer = await whole(receive, SENT_BYTES + 1), _Answer()
        await self.app(scope, given(body, receive), answer.take)
        if answer.status == 200 and len(body) <= SENT_BYTES:
            self._note(SENT[scope["path"]], body, answer.body)
        await answer.give(send)

    def _note(self, name: str, body: bytes, answer: bytes) -> None:
        """Ring for messages that are there whole, and remember the records that others lack."""
        from flwr.proto import fleet_pb2, runtime_pb2
        from google.protobuf.message import DecodeError

        module = runtime_pb2 if "App" in name else fleet_pb2
        try:
            sent = getattr(module, f"{name}Request").FromString(body)
            lacking = set(getattr(module, f"{name}Response").FromString(answer).objects_to_push)
        except DecodeError:
            return
        for header, tree in zip(sent.messages_list, sent.message_object_trees, strict=False):
            node = header.metadata.dst_node_id if "App" in name else NO_NODE
            while tree.children:
                tree = tree.children[0]
            if tree.object_id in lacking:
                self._coming.setdefault(tree.object_id, set()).add(node)
            else:
                self._ring(node)
        while len(self._coming) > COMING:
            del self._coming[next(iter(self._coming))]

    async def _stored(self, scope: Scope, receive: Receive, send: Send) -> None:
        named: list[str] = []

        async def seen() -> Event:
            event = await receive()
            if not named:  # its id stands before its content
                named.extend(name.decode() for name in re.findall(rb"[0-9a-f]{64}", event.get("body", b"")[:512]))
                named.append("")
            return event

        await self.app(scope, seen, send)
        for name in named:
            for node in self._coming.pop(name, ()):
                self._ring(node)

    def _ring(self, node: int) -> None:
        for rung in self._waiting.get(node, ()):
            rung.set()


class _Answer:
    """What the app answers, kept until it is known whether it is to be given."""

    def __init__(self) -> None:
        self._start: Event = {}
        self.body = b""

    async def take(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self._start = event
        else:
            self.body += event.get("body", b"")

    @property
    def status(self) -> int:
        return int(self._start.get("status", 500))

    @property
    def says_something(self) -> bool:
        return self.status != 200 or bool(self.body)

    async def give(self, send: Send) -> None:
        headers = [*self._start.get("headers", ()), (HEADER.encode(), b"1")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def _seconds(scope: Scope) -> float:
    """How long a look may be held; 0: not at all."""
    shown = dict(scope["headers"]).get(HEADER.encode(), b"0").decode("ascii", "replace")
    return min(LONGEST, float(shown)) if re.fullmatch(r"\d{1,4}(\.\d{1,3})?", shown) else 0.0


def _node(body: bytes) -> int:
    """Who looks; whether it is who it says, the app finds out before it gives anything."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        return PullMessagesRequest.FromString(body).node.node_id or 1
    except DecodeError:
        return 1


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole(receive: Receive, most: int) -> bytes:
    """A request's body, read now, up to so many bytes."""
    body, more = b"", True
    while more and len(body) <= most:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body[:most]


def given(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read again, and then whatever comes after it."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Event:
        return waiting.pop() if waiting else await receive()

    return again
