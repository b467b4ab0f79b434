"""The guard in front of the SuperLink: what it lets through is in `tests/contract`; here is in which order."""

import asyncio
from typing import Any

from master.flower.lookout import LOOK, LOOK_BYTES, LOOKS
from master.flower.superlinkd import Guard


class Flower:
    """An app whose answers wait until they may go."""

    def __init__(self) -> None:
        self.go, self.inside, self.bodies = asyncio.Event(), list[str](), list[bytes]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        self.inside.append(scope["path"])
        self.bodies.append(event["body"])
        assert not event["more_body"]
        await self.go.wait()


async def ask(guard: Guard, path: str, parts: list[bytes], told: asyncio.Event | None = None) -> None:
    """A request whose body comes in parts; with `told`, the last of them only then."""

    async def receive() -> dict[str, Any]:
        if told is not None and len(parts) == 1:
            await told.wait()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(event: Any) -> None: ...

    await guard({"type": "http", "path": path, "headers": []}, receive, send)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_hundred_looks_do_not_keep_the_messages_waiting() -> None:
    async def run() -> None:
        flower = Flower()
        guard = Guard(flower, b"secret")
        tasks = [asyncio.create_task(ask(guard, LOOK, [b"a", b"b"])) for _ in range(100)]
        await settle()
        assert flower.inside == [LOOK] * LOOKS
        tasks.append(asyncio.create_task(ask(guard, "/v1/runtime/push-object", [b"x"])))
        await settle()
        assert flower.inside[-1] == "/v1/runtime/push-object", "it does not queue behind the looks"
        flower.go.set()
        await asyncio.gather(*tasks)
        assert flower.inside.count(LOOK) == 100
        assert set(flower.bodies) == {b"ab", b"x"}, "a body in parts comes whole"

    asyncio.run(run())


def test_who_is_slow_to_ask_takes_nobodys_turn() -> None:
    async def run() -> None:
        flower, told = Flower(), asyncio.Event()
        flower.go.set()
        guard = Guard(flower, b"secret")
        slow = [asyncio.create_task(ask(guard, LOOK, [b"a", b"b"], told)) for _ in range(10 * LOOKS)]
        await settle()
        await asyncio.wait_for(ask(guard, LOOK, [b"c"]), 5)
        assert flower.bodies == [b"c"]
        told.set()
        await asyncio.gather(*slow)

    asyncio.run(run())


def test_a_look_that_never_ends_is_cut() -> None:
    async def run() -> None:
        flower = Flower()
        flower.go.set()
        await asyncio.wait_for(ask(Guard(flower, b"secret"), LOOK, [b"x" * 1024] * 1000), 5)
        assert [len(body) for body in flower.bodies] == [LOOK_BYTES]

    asyncio.run(run())
