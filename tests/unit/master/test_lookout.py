"""Looks that wait for a message: they hear of it when it is whole, of theirs only, and never wait beyond their time."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse, PushAppMessagesRequest, PushAppMessagesResponse

from master.flower.lookout import ANSWERS, COMING, LOOK, LOOKS, Lookout
from trunkline.hold import HEADER

RECORD, OTHER = "a" * 64, "b" * 64


def tree(record: str) -> ObjectTree:
    return ObjectTree(object_id="1" * 64, children=[ObjectTree(object_id="2" * 64, children=[ObjectTree(object_id=record)])])


class Flower:
    """Messages by node, as Flower keeps them: a header is there at once, a record when it was stored."""

    def __init__(self, lacking: tuple[str, ...] = (RECORD, OTHER)) -> None:
        self.lacking = lacking
        self.messages: dict[int, deque[Message]] = {}
        self.looks: list[int] = []
        self.answers: list[Message] = []
        self.inside = self.most = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        body = (await receive())["body"]
        answer = self.answer(scope["path"], body)
        self.inside -= 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"date", b"today")]})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, path: str, body: bytes) -> bytes:
        if path == LOOK:
            node = PullMessagesRequest.FromString(body).node.node_id
            self.looks.append(node)
            found = self.messages.get(node)
            return PullMessagesResponse(messages_list=[found.popleft()] if found else []).SerializeToString()
        if path == ANSWERS:
            self.looks.append(0)
            found, self.answers = self.answers, []
            return PullAppMessagesResponse(messages_list=found).SerializeToString()
        if path == "/v1/runtime/push-messages":
            for header in PushAppMessagesRequest.FromString(body).messages_list:
                self.messages.setdefault(header.metadata.dst_node_id, deque()).append(header)
            return PushAppMessagesResponse(objects_to_push=self.lacking).SerializeToString()
        if path == "/v1/fleet/push-messages":
            self.answers += PushMessagesRequest.FromString(body).messages_list
            return PushMessagesResponse(objects_to_push=self.lacking).SerializeToString()
        return b""


class Caller:
    """A client, and its connection."""

    def __init__(self, lookout: Lookout) -> None:
        self.lookout, self.gone = lookout, asyncio.Event()

    async def call(self, path: str, body: bytes, hold: str | None = None) -> tuple[int, bytes, bool] | None:
        """Status, body, and whether it was said to be held; None: no answer was given."""
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        told: list[Any] = []

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            told.append(event)

        headers = [] if hold is None else [(HEADER.encode(), hold.encode())]
        await self.lookout({"type": "http", "path": path, "headers": headers}, receive, send)
        if not told:
            return None
        return told[0]["status"], b"".join(part["body"] for part in told[1:]), HEADER.encode() in dict(told[0]["headers"])

    async def look(self, node: int, hold: str | None = "20") -> int:
        """How many messages a look brings."""
        answer = await self.call(LOOK, PullMessagesRequest(node=Node(node_id=node)).SerializeToString(), hold)
        return -1 if answer is None else len(PullMessagesResponse.FromString(answer[1]).messages_list)

    async def send(self, *pairs: tuple[int, str]) -> None:
        """A run sends messages: nodes and the records that they bring."""
        messages = [Message(metadata=Metadata(dst_node_id=node)) for node, _ in pairs]
        request = PushAppMessagesRequest(messages_list=messages, message_object_trees=[tree(record) for _, record in pairs])
        await self.call("/v1/runtime/push-messages", request.SerializeToString())

    async def store(self, record: str, path: str = "/v1/runtime/push-object") -> None:
        content = b"x" * 5000
        await self.call(path, PushObjectRequest(run_id=7, object_id=record, object_content=content).SerializeToString())


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_look_waits_for_the_record_of_its_message() -> None:
    async def story() -> None:
        flower = Flower()
        caller = Caller(Lookout(flower))
        look, another = (asyncio.create_task(caller.look(node)) for node in (5, 6))
        await settle()
        await caller.send((5, RECORD))
        await settle()
        assert flower.looks == [5, 6], "who would find a message without its record is not woken"
        await caller.store(OTHER)
        await settle()
        assert not look.done()
        await caller.store(RECORD)
        assert await look == 1
        assert flower.looks == [5, 6, 5] and not another.done(), "nobody else looks"
        another.cancel()

    play(story())


def test_a_record_that_is_there_already_is_not_waited_for() -> None:
    async def story() -> None:
        caller = Caller(Lookout(Flower(lacking=())))
        look = asyncio.create_task(caller.look(5))
        await settle()
        await caller.send((5, RECORD))
        assert await look == 1

    play(story())


def test_a_message_that_came_before_the_look_is_given_at_once() -> None:
    async def story() -> None:
        caller = Caller(Lookout(Flower()))
        await caller.send((5, RECORD))
        assert await caller.look(5) == 1

    play(story())


@pytest.mark.parametrize("hold", [None, "0", "-1", "nan", "1e9", "99999999", "é"])
def test_who_does_not_ask_for_it_is_answered_at_once(hold: str | None) -> None:
    async def story() -> None:
        flower = Flower()
        answer = await Caller(Lookout(flower)).call(LOOK, PullMessagesRequest(node=Node(node_id=5)).SerializeToString(), hold)
        assert answer == (200, b"", False)
        assert flower.looks == [5]

    play(story())


def test_a_look_ends_with_its_time() -> None:
    async def story() -> None:
        flower = Flower()
        request = PullMessagesRequest(node=Node(node_id=5)).SerializeToString()
        assert await Caller(Lookout(flower)).call(LOOK, request, "0.05") == (200, b"", True)
        assert 1 <= len(flower.looks) <= 2

    play(story())


def test_a_message_is_not_given_to_a_connection_that_is_gone() -> None:
    async def story() -> None:
        flower = Flower()
        lookout = Lookout(flower)
        lost, back = Caller(lookout), Caller(lookout)
        look = asyncio.create_task(lost.look(5))
        await settle()
        lost.gone.set()
        assert await look == -1
        await back.send((5, RECORD))
        await back.store(RECORD)
        assert await back.look(5) == 1
        assert not lookout._waiting, "and nothing is kept of it"

    play(story())


def test_a_run_hears_of_an_answer_whose_record_is_there() -> None:
    async def story() -> None:
        flower = Flower()
        caller = Caller(Lookout(flower))
        request = PullAppMessagesRequest(message_ids=["m"]).SerializeToString()
        look = asyncio.create_task(caller.call(ANSWERS, request, "20"))
        await settle()
        reply = PushMessagesRequest(messages_list=[Message(metadata=Metadata(src_node_id=5))], message_object_trees=[tree(RECORD)])
        await caller.call("/v1/fleet/push-messages", reply.SerializeToString())
        await settle()
        assert not look.done()
        await caller.store(RECORD, "/v1/fleet/push-object")
        answer = await look
        assert answer is not None and answer[2] and len(PullAppMessagesResponse.FromString(answer[1]).messages_list) == 1

    play(story())


def test_many_who_wait_take_no_turns_and_few_look_at_a_time() -> None:
    async def story() -> None:
        flower = Flower(lacking=())
        caller = Caller(Lookout(flower))
        looks = [asyncio.create_task(caller.look(node)) for node in range(1, 101)]
        while len(flower.looks) < 100:
            await settle()
        assert flower.most <= LOOKS
        flower.most = 0
        await caller.send(*((node, RECORD) for node in range(1, 101)))
        assert await asyncio.gather(*looks) == [1] * 100
        assert flower.most <= LOOKS

    play(story())


def test_what_cannot_be_read_goes_through_and_records_that_never_come_are_forgotten() -> None:
    async def story() -> None:
        lookout = Lookout(Flower())
        caller = Caller(lookout)
        lookout._note("PushAppMessages", b"\xff\xff", b"")
        for number in range(COMING // 100 + 1):
            names = tuple(f"{number * 100 + place:064x}" for place in range(100))
            caller.lookout.app.lacking = names  # type: ignore[attr-defined]
            await caller.send(*((place + 1, name) for place, name in enumerate(names)))
        assert len(lookout._coming) == COMING

    play(story())
