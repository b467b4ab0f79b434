"""What lies between machines, without a network: snapshots that are shared and let go, and answers that lie."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from queues.store.layout import Layout
from queues.store.remote import _Held
from queues.store.snapshots import HEAD_BYTES, Front, Snapshots, pack_head, read_head
from queues.store.store import Sent, StoreReader
from queues.store.wireform import decode, encode
from tests.support.plain_optim import SHAPES, sent
from trunkline.clock import ManualClock
from trunkline.errors import DamagedFile, QueueFull, RefusedValue, Unreachable
from trunkline.https import Answer

LAYOUT = Layout(SHAPES, ())


class Still:
    """A store that stands still, and counts how often it is read."""

    def __init__(self) -> None:
        self.now, self.reads = 0, 0

    def step(self) -> int:
        return self.now

    def read(self, into: Mapping[str, Tensor]) -> int:
        self.reads += 1
        for tensor in into.values():
            tensor.fill_(self.now)
        return self.now


def snapshots(store: Still, clock: ManualClock | None = None, **how: Any) -> Snapshots:
    reader: StoreReader = store  # type: ignore[assignment]
    return Snapshots(reader, LAYOUT, 7, clock or ManualClock(), **how)


def test_all_who_ask_for_a_step_share_it() -> None:
    store = Still()
    held = snapshots(store)
    with held.using(False) as one, held.using(False) as two, held.using(True) as half:
        assert one is two
        assert (half.step, len(half.data)) == (0, HEAD_BYTES + 2 * LAYOUT.part)
    assert store.reads == 2


def test_what_is_in_use_stays_and_what_nobody_uses_goes() -> None:
    store, clock = Still(), ManualClock()
    held = snapshots(store, clock, kept=1, room=0, seconds=30.0)
    used = []
    for store.now in range(4):
        used.append(held.take(False))
    assert [one.step for one in used] == [0, 1, 2, 3]
    store.now = 4
    with pytest.raises(QueueFull, match="at most 4"):
        held.take(False)
    first = used[0]
    held.let_go(first)
    assert held.take(False, first.tag) is first, "it was not long ago"
    held.let_go(first)
    fifth = held.take(False)
    assert fifth.step == 4
    assert fifth.buffer is first.buffer, "its room was needed"
    assert set(torch.frombuffer(bytearray(fifth.data[HEAD_BYTES:]), dtype=torch.float32).tolist()) == {0.0, 4.0}
    assert held.take(False, first.tag) is fifth
    for one in (*used[1:], fifth, fifth):
        held.let_go(one)
    store.now = 5
    held.let_go(held.take(True))
    assert len(held._held) == 4, "one went for it"
    clock.sleep(31.0)
    held.look()
    assert held._held == []


# -- answers that lie --------------------------------------------------------------------------------------------------


def body_of(values: Tensor, step: int = 3, *, width: int = 4) -> bytes:
    data = values.numpy().tobytes()
    return pack_head(Front(width, step, len(values), zlib.crc32(data))) + data


def answer(body: bytes, status: int = 200, **headers: str) -> Answer:
    told = {"etag": '"x"', "content-length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, told, iter([body[at : at + 50_000] for at in range(0, len(body), 50_000)]))


GOOD = body_of(torch.arange(LAYOUT.part, dtype=torch.float32))

LIES: dict[str, Callable[[], Answer]] = {
    "too-short": lambda: answer(GOOD[:-4]),
    "too-long": lambda: answer(GOOD + b"more"),
    "longer-than-it-says": lambda: answer(GOOD + b"more", content_length=str(len(GOOD))),
    "no-length": lambda: Answer(200, {"etag": '"x"'}, iter([GOOD])),
    "no-tag": lambda: Answer(200, {"content-length": str(len(GOOD))}, iter([GOOD])),
    "a-damaged-number": lambda: answer(GOOD[:5000] + bytes([GOOD[5000] ^ 1]) + GOOD[5001:]),
    "a-damaged-head": lambda: answer(bytes([GOOD[0] ^ 1]) + GOOD[1:]),
    "another-width": lambda: answer(body_of(torch.zeros(2 * LAYOUT.part, dtype=torch.bfloat16).view(torch.int16), width=2)),
    "another-head": lambda: answer(pack_head(Front(4, 3, 1 << 40, zlib.crc32(GOOD[HEAD_BYTES:]))) + GOOD[HEAD_BYTES:]),
    "a-step-beyond-all": lambda: answer(body_of(torch.zeros(LAYOUT.part), step=1 << 60)),
    "a-rest-that-nobody-asked-for": lambda: answer(GOOD[64:], 206, content_range=f"bytes 64-{len(GOOD) - 1}/{len(GOOD)}"),
    "nothing-new-where-there-is-nothing": lambda: answer(b"", 304),
    "no-content": lambda: answer(b"", 204),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_answer_that_is_none_is_refused_and_nothing_is_kept(lie: Callable[[], Answer]) -> None:
    held = _Held(LAYOUT, False)
    with pytest.raises(RefusedValue):
        held.take(lie())
    assert held.headers() == {}
    held.take(answer(GOOD))
    assert held.step == 3
    assert held.values["shared/embedding"].flatten()[17].item() == 17


def test_the_rest_of_another_step_is_refused() -> None:
    held = _Held(LAYOUT, False)
    for headers in ({"etag": '"y"'}, {"content_range": f"bytes 0-{len(GOOD) - 1}/{len(GOOD)}"}, {"content_range": "all of it"}):
        with pytest.raises(Unreachable, match="ended after 50000"):
            held.take(answer(GOOD[:50_000], content_length=str(len(GOOD))))
        assert held.headers() == {"Range": "bytes=50000-", "If-Range": '"x"'}
        rest = {"content_range": f"bytes 50000-{len(GOOD) - 1}/{len(GOOD)}"} | headers
        with pytest.raises(RefusedValue, match="should begin at byte 50000"):
            held.take(answer(GOOD[50_000:], 206, **rest))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_head_or_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedFile):
        read_head(data.ljust(HEAD_BYTES, b"\0"), 4, LAYOUT.part)


# -- bytes of a gradient -----------------------------------------------------------------------------------------------


def whole(gradient: Sent) -> bytes:
    return b"".join(encode(gradient).chunks(1000))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_gradient_decodes_to_itself_or_is_damaged(data: st.DataObject) -> None:
    good = sent(1, "mood", rows=True, skip=("shared/dense",))
    body = bytearray(whole(good))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(body, len(body), "it")
    except DamagedFile:
        return
    assert replace(found, tensors={}) == replace(good, tensors={})
