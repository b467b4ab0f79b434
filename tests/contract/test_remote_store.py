"""Parameters and gradients between machines: bytes that are counted, transfers that break, bodies that lie, and who may what."""

import random
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from torch import Tensor

from queues.store.layout import Layout
from queues.store.remote import RemoteReader
from queues.store.snapshots import HEAD_BYTES
from queues.store.store import Rows, Sent, Verdict
from queues.store.wireform import HEAD, encode
from queues.store.writer import FileWriter
from queues.stream.api import parameters as parameters_api
from queues.stream.api.answers import HANDLERS
from queues.stream.api.serve import SocketServer
from queues.stream.client import StreamClient
from queues.stream.depot import Depot
from tests.support.api import QUICK
from tests.support.elsewhere import Master, master
from tests.support.plain_optim import SHAPES, PlainStore, dense, parameters, read, same, sent, spec_of
from tests.support.proxy import Cut, Proxy, proxy
from trunkline.clock import SystemClock
from trunkline.errors import NotAuthorized, Reason, RefusedValue, StateError, TrunklineError, Unreachable
from trunkline.https import Patience

SHORT = replace(QUICK, progress=0.2)

pytestmark = pytest.mark.contract

LAYOUT = Layout(SHAPES, ())
WHOLE = HEAD_BYTES + 4 * LAYOUT.part
"""Bytes of all parameters."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with master(tmp_path_factory.mktemp("master")) as made:
        yield made


@dataclass
class Place:
    """A store, its server, and a worker's side of it."""

    there: Master
    writer: FileWriter
    depot: Depot
    opened: ExitStack

    def reader(self, *cuts: Cut, always: Cut | None = None, patience: Patience = QUICK, **how: Any) -> tuple[RemoteReader, Proxy]:
        """One whose connections go through a proxy that cuts them."""
        between = self.opened.enter_context(proxy(self.there.running.port, *cuts, always=always))
        https = self.opened.enter_context(self.there.https(port=between.port, patience=patience))
        return self.there.reader(self.depot, https, **how), between

    def move(self, number: int) -> int:
        """The next step."""
        return self.writer.apply((sent(number, "mood", base=self.writer.step),))


def placed(there: Master, name: str) -> Iterator[Place]:
    with ExitStack() as opened:
        writer, depot = opened.enter_context(there.store(spec_of().model_copy(update={"name": name}), parameters()))
        yield Place(there, writer, depot, opened)
    shutil.rmtree(there.streams.folder / name)


@pytest.fixture
def place(there: Master) -> Iterator[Place]:
    yield from placed(there, "stream")


@pytest.fixture(scope="module")
def still(there: Master) -> Iterator[Place]:
    """One for tests that change nothing."""
    yield from placed(there, "still")


# -- parameters --------------------------------------------------------------------------------------------------------


def test_a_step_travels_once(place: Place) -> None:
    reader, _ = place.reader()
    for _ in range(3):
        assert read(reader)[0] == 0
        assert reader.read({"shared/bias": torch.empty(40)}) == 0
    assert reader.fetched == WHOLE
    place.move(1)
    plain = PlainStore(spec_of(), parameters())
    plain.apply((sent(1, "mood", base=0),))
    step, values = read(reader)
    assert (step, reader.fetched) == (1, 2 * WHOLE)
    assert same(values, plain.values())


def test_half_the_bytes_are_half_the_numbers(place: Place) -> None:
    reader, _ = place.reader(half_parameters=True)
    values = read(reader)[1]
    assert reader.fetched == HEAD_BYTES + 2 * LAYOUT.part
    assert same(values, {name: p.detach().bfloat16().float() for name, p in parameters().items()})


@pytest.mark.parametrize("down", [5000, 100_000, 160_000])
def test_a_fetch_that_breaks_goes_on_where_it_was(place: Place, down: int) -> None:
    reader, between = place.reader(Cut(down=down), Cut(down=down))
    assert same(read(reader)[1], {name: p.detach() for name, p in parameters().items()})
    assert between.connections == 3
    assert reader.fetched == WHOLE, "not a byte twice"


def test_a_step_that_broke_is_finished_though_the_store_went_on(place: Place) -> None:
    """Whatever is read is of one step: the one that was begun, as long as the server has it; then the newest."""
    reader, between = place.reader(Cut(down=100_000), always=Cut(down=0), patience=SHORT)
    with pytest.raises(Unreachable):
        read(reader)
    for number in range(1, 3):
        place.move(number)
    between.always = Cut()
    step, values = read(reader)
    assert step == 0
    assert same(values, {name: p.detach() for name, p in parameters().items()})
    assert reader.fetched == WHOLE
    step, values = read(reader)
    assert step == 2
    assert same(values, read(place.depot.reader)[1])


def test_a_step_that_is_gone_is_begun_anew(place: Place) -> None:
    reader, between = place.reader(Cut(down=100_000), always=Cut(down=0), patience=SHORT)
    with pytest.raises(Unreachable):
        read(reader)
    place.move(1)
    place.depot.snapshots._held.clear()  # nobody had asked for half a minute
    between.always = Cut()
    step, values = read(reader)
    assert step == 1
    assert same(values, read(place.depot.reader)[1])


def test_parameters_stay_of_one_step_while_the_store_moves(place: Place) -> None:
    """Two workers read while steps are made, over connections that break: every read is a step that there was."""
    plain = PlainStore(spec_of(), parameters())
    steps = {0: plain.values()}
    for number in range(1, 16):
        plain.apply((sent(number, "mood", base=plain.step),))
        steps[number] = plain.values()
    wrong: list[int] = []

    def look() -> None:
        reader, _ = place.reader(*[Cut(down=150_000)] * 40)
        found = -1
        while found < 15:
            found, values = read(reader)
            if not same(values, steps[found]):
                wrong.append(found)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 16):
        place.move(number)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_server_that_starts_again_tells_its_steps_apart_from_those_before(there: Master) -> None:
    """After a power cut a step comes a second time, and may be another one."""
    spec = spec_of().model_copy(update={"name": "twice"})
    with there.https() as https:
        with there.store(spec, parameters()) as (writer, depot):
            reader = there.reader(depot, https)
            writer.apply((sent(1, "mood", base=0),))
            before = read(reader)
        (there.streams.folder / "twice" / "store" / "map").unlink()
        with there.store(spec, parameters(), incarnation=2) as (writer, _):
            writer.apply((sent(2, "mood", base=0),))
            after = read(reader)
    assert before[0] == after[0] == 1
    assert not same(before[1], after[1])


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
def test_a_gradient_comes_as_it_was_sent_or_rounded(place: Place, half: bool, rows: bool) -> None:
    reader, _ = place.reader(half_gradients=half)
    gradient = sent(1, "mood", base=0, rows=rows)
    reader.send(gradient)
    found = place.writer.received("batch-1", 1)
    assert found is not None
    for name, tensor in gradient.tensors.items():
        wanted, like = dense(tensor, torch.empty(SHAPES[name])), torch.empty(SHAPES[name])
        assert same({"": dense(found.tensors[name], like)}, {"": wanted.bfloat16().float() if half else wanted})
    assert place.writer.apply((found,)) == 1


def test_bytes_of_rows_and_halves(place: Place) -> None:
    """What a gradient costs on the wire: an embedding of 2,000 rows of which 37 have anything, beside 40 × 33 others."""
    sizes = {}
    for half in (False, True):
        reader, between = place.reader(half_gradients=half)
        for rows in (False, True):
            before = between.up
            reader.send(sent(1, "mood", base=0, rows=rows))
            sizes[rows, half] = between.up - before
    whole = 4 * sum(torch.Size(shape).numel() for name, shape in SHAPES.items() if "topic" not in name)
    assert whole < sizes[False, False] < 1.05 * whole
    assert sizes[False, True] < 0.52 * whole
    assert sizes[True, False] < 0.05 * whole
    assert sizes[True, True] < 0.04 * whole


@pytest.mark.parametrize("up", [2000, 3000, 150_000, 300_000])
def test_a_gradient_that_breaks_is_sent_again_and_lies_there_once(place: Place, up: int) -> None:
    reader, between = place.reader(Cut(up=up), Cut(up=up))
    gradient = sent(1, "mood", base=0)
    reader.send(gradient)
    assert between.connections == 3
    found = place.writer.received("batch-1", 1)
    assert found is not None
    assert same({n: t for n, t in found.tensors.items() if isinstance(t, Tensor)}, dict(gradient.tensors))  # type: ignore[arg-type]
    assert [path.suffix for path in place.depot.reader.slabs().folder.iterdir()] == [".slab"]


def test_an_answer_that_is_lost_makes_no_second_gradient(place: Place) -> None:
    """The answer is cut, not the gradient: it is sent again, and does no harm; nor does it when it was judged meanwhile."""
    reader, between = place.reader(Cut(down=1500), Cut(down=1500))
    reader.send(sent(1, "mood", base=0))
    assert between.connections >= 2
    found = place.writer.received("batch-1", 1)
    assert found is not None
    place.writer.apply((found,))
    place.writer.done("batch-1", 1, Verdict.APPLIED)
    reader.send(sent(1, "mood", base=0))
    assert place.writer.received("batch-1", 1) is None, "it was judged before"
    assert reader.verdict("batch-1", 1, 5.0) is Verdict.APPLIED


def test_a_stale_gradient_of_halves_is_judged_as_any(place: Place) -> None:
    reader, _ = place.reader(half_gradients=True)
    for number in range(1, 5):
        place.move(number)
    reader.send(sent(9, "mood", base=0))
    found = place.writer.received("batch-9", 1)
    assert found is not None
    assert place.writer.step - found.base == 4
    place.writer.done("batch-9", 1, Verdict.STALE)
    assert reader.verdict("batch-9", 1, 5.0) is Verdict.STALE


def test_a_verdict_that_cannot_be_asked_for_is_none_yet(place: Place) -> None:
    reader, between = place.reader(always=Cut(down=0))
    assert reader.verdict("batch-1", 1, 0.3) is None
    place.writer.done("batch-1", 1, Verdict.STALE)
    between.always = Cut()
    assert reader.verdict("batch-1", 1, 5.0) is Verdict.STALE


# -- bodies that lie ---------------------------------------------------------------------------------------------------


def whole(gradient: Sent) -> bytes:
    return b"".join(encode(gradient).chunks(1000))


def put(place: Place, body: bytes) -> None:
    client = StreamClient(place.depot.home.socket, "stream")
    client.call("PUT", "/v1/worker/gradients", body)


def nothing_lies_there(place: Place) -> bool:
    folder = place.depot.reader.slabs().folder
    return not folder.exists() or not list(folder.iterdir())


WRONG: dict[str, tuple[bytes, Reason]] = {
    "nothing": (b"", Reason.SIZE),
    "too-short": (b"x" * 20, Reason.SIZE),
    "noise": (b"x" * 2000, Reason.DAMAGED),
    "cut-off": (whole(sent(1, "mood"))[:-64], Reason.DAMAGED),
    "more-than-it-says": (whole(sent(1, "mood")) + bytes(64), Reason.DAMAGED),
    "another-task": (whole(replace(sent(1, "mood"), task="other")), Reason.NAMES),
    "a-head-of-another-task": (whole(replace(sent(1, "mood"), task="topic")), Reason.NAMES),
    "no-batch": (whole(replace(sent(1, "mood"), batch="")), Reason.MALFORMED),
    "a-long-batch": (whole(replace(sent(1, "mood"), batch="b" * 201)), Reason.MALFORMED),
    "before-the-first-attempt": (whole(replace(sent(1, "mood"), attempt=-1)), Reason.MALFORMED),
    "too-many-samples": (whole(replace(sent(1, "mood"), samples=1 << 60)), Reason.MALFORMED),
    "a-name": (whole(replace(sent(1, "mood"), tensors={"shared/no": torch.ones(3)})), Reason.NAMES),
    "a-shape": (whole(replace(sent(1, "mood"), tensors={"shared/bias": torch.ones(39)})), Reason.SHAPE),
    "rows-of-a-scalar": (
        whole(replace(sent(1, "mood"), tensors={"shared/scale": Rows(torch.tensor([0]), torch.ones(1))})),
        Reason.SHAPE,
    ),
    "rows-beyond": (
        whole(replace(sent(1, "mood"), tensors={"shared/embedding": Rows(torch.tensor([2000]), torch.ones(1, 40))})),
        Reason.SHAPE,
    ),
    "larger-than-any": (whole(replace(sent(1, "mood"), tensors={"shared/no": torch.ones(10**6)})), Reason.SIZE),
}


@pytest.mark.parametrize(("body", "reason"), WRONG.values(), ids=WRONG)
def test_a_body_that_is_no_gradient_is_refused(still: Place, body: bytes, reason: Reason) -> None:
    with pytest.raises(RefusedValue) as error:
        put(still, body)
    assert error.value.reason == reason
    assert nothing_lies_there(still)


def test_a_refusal_comes_through_the_master_though_much_is_still_to_be_sent(still: Place) -> None:
    reader, _ = still.reader()
    with pytest.raises(RefusedValue, match="found 40"):
        reader.send(replace(sent(1, "mood"), tensors={"shared/no": torch.ones(10**7)}))
    with pytest.raises(RefusedValue) as error:
        reader.send(replace(sent(1, "mood"), task="other"))
    assert error.value.reason == Reason.NAMES
    assert nothing_lies_there(still)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_sent_is_taken_or_refused_and_nothing_fails_inside(still: Place, data: st.DataObject) -> None:
    good = sent(1, "mood", rows=True, skip=("shared/dense",))
    body = bytearray(whole(good))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body) - 1) | st.integers(0, HEAD.size + 400))
        body[at : at + 1] = data.draw(st.binary(max_size=9))
    body = body[: data.draw(st.just(len(body)) | st.integers(0, len(body)))]
    try:
        put(still, bytes(body))
    except TrunklineError as error:
        assert isinstance(error, RefusedValue), error
        assert nothing_lies_there(still)
    else:
        found = still.writer.received("batch-1", 1)
        assert found is not None
        assert whole(found) == whole(good)
        still.writer.done("batch-1", 1, Verdict.REFUSED)
        for path in still.depot.reader.slabs().folder.iterdir():
            path.unlink()
        still.writer._map.verdicts._ring["low"] = 0  # it may come again


# -- who may -----------------------------------------------------------------------------------------------------------

CALLS = [
    ("GET", ""),
    ("GET", "/step"),
    ("GET", "/parameters"),
    ("PUT", "/gradients"),
    ("DELETE", "/gradients?batch=b&attempt=1"),
    ("GET", "/verdict?batch=b&attempt=1"),
    ("GET", "/files/" + "0" * 64),
]


@pytest.mark.parametrize(("method", "call"), CALLS, ids=[f"{one[0]} {one[1]}" for one in CALLS])
def test_a_stranger_learns_nothing(still: Place, method: str, call: str) -> None:
    for stream in ("still", "none", "..", "%2e%2e"):
        for token in ("wrong", "x" * 5000):
            with still.there.https(token) as https, pytest.raises((NotAuthorized, TrunklineError)) as error:
                https.call(method, f"/v1/streams/{stream}/worker{call}", b"x" if method == "PUT" else None, retry=False)
            assert "stream 'none'" not in str(error.value)
            if stream in ("still", "none"):
                assert isinstance(error.value, NotAuthorized)
    with still.there.https("") as https, pytest.raises(NotAuthorized):
        https.call(method, f"/v1/streams/still/worker{call}", retry=False)


def test_a_token_opens_one_stream_until_it_is_revoked(place: Place) -> None:
    there = place.there
    with there.https() as admin, there.store(spec_of().model_copy(update={"name": "other"}), parameters()):
        tokens = "/v1/admin/streams/stream/worker-tokens"
        first = admin.call("POST", tokens, '{"label": "gpu"}')["token"]
        second = admin.call("POST", tokens, "{}")["token"]
        assert [one["label"] for one in admin.call("GET", tokens)] == ["gpu", "workers"]
        path = there.streams.folder / "stream" / "workers.json"
        assert path.stat().st_mode & 0o777 == 0o600
        assert first not in path.read_text()
        assert set(admin.call("GET", "/v1/streams")) >= {"other", "stream"}
        with there.https(first) as https:
            assert https.call("GET", "/v1/streams") == ["stream"]
            assert https.call("GET", "/v1/streams/stream/worker/step") == {"step": 0}
            for wrong in ("/v1/streams/other/worker/step", "/v1/admin/streams", "/v1/admin/streams/stream", tokens):
                with pytest.raises(NotAuthorized):
                    https.call("GET", wrong)
            with pytest.raises(NotAuthorized):
                https.call("POST", "/v1/queues/mood/samples", "{}")
            admin.call("DELETE", f"{tokens}/gpu")
            with pytest.raises(NotAuthorized):
                https.call("GET", "/v1/streams/stream/worker/step")
        with there.https(second) as https:
            assert https.call("GET", "/v1/streams/stream/worker/step") == {"step": 0}
            admin.call("POST", tokens, "{}")  # another of the same label
            with pytest.raises(NotAuthorized):
                https.call("GET", "/v1/streams")


@pytest.mark.parametrize(
    "call",
    [
        "nothing",
        "step/../../../status",
        "files/x",
        "files/" + "0" * 64,
        "verdict",
        "verdict?batch=b&attempt=x",
        "verdict?batch=b&attempt=1&seconds=nan",
        "verdict?batch=" + "b" * 300,
        "parameters?half=x",
    ],
)
def test_a_call_that_is_wrong_is_told(still: Place, call: str) -> None:
    with still.there.https() as https, pytest.raises(TrunklineError) as error:
        https.call("GET", f"/v1/streams/still/worker/{call}", retry=False)
    assert error.value.exit_code in (2, 5)


@pytest.mark.parametrize(
    ("ranges", "status"),
    [({"Range": "bytes=5-"}, 200), ({"Range": "x", "If-Range": '"y"'}, 200), ({"If-None-Match": '"y"'}, 200)],
    ids=["no-tag", "another-tag", "another-step"],
)
def test_what_is_no_part_of_this_step_is_the_whole(still: Place, ranges: dict[str, str], status: int) -> None:
    with still.there.https() as https:
        with https.talk("GET", "/v1/streams/still/worker/parameters", ranges) as found:
            assert found.status == status
            assert len(b"".join(found.chunks)) == WHOLE
        tag = {"If-Range": found.headers["etag"]}
        with https.talk("GET", "/v1/streams/still/worker/parameters", tag | {"Range": "bytes=70-"}) as rest:
            assert rest.status == 206
            assert len(b"".join(rest.chunks)) == WHOLE - 70
        beyond = https.talk("GET", "/v1/streams/still/worker/parameters", tag | {"Range": f"bytes={WHOLE}-"})
        with pytest.raises(TrunklineError, match="should begin before byte"), beyond:
            pass
    assert all(one.users == 0 for one in still.depot.snapshots._held)


def test_a_stream_that_is_away_is_waited_for(place: Place) -> None:
    (Path(place.depot.home.socket)).unlink()
    with place.there.https() as https, pytest.raises(Unreachable, match="the server of the stream should answer"):
        https.call("GET", "/v1/streams/stream/worker/step", retry=False)


def test_a_store_in_memory_is_out_of_reach_for_other_processes(tmp_path: Path) -> None:
    app = Starlette(routes=parameters_api.routes(None), exception_handlers=HANDLERS)
    with (
        SocketServer(app, tmp_path / "server.sock", SystemClock()),
        pytest.raises(StateError, match="found one that keeps it in memory"),
    ):
        StreamClient(tmp_path / "server.sock", "stream").call("GET", "/v1/worker")


@pytest.mark.parametrize("seed", range(6))
def test_connections_that_break_anywhere_cost_time_and_nothing_else(place: Place, seed: int) -> None:
    """A worker's whole way, over a network that breaks at bytes drawn by lot: it ends where a plain store does."""
    lot = random.Random(seed)
    cuts = [
        Cut(up=lot.choice((None, 3000, lot.randrange(400_000))), down=lot.randrange(lot.choice((3000, 400_000)))) for _ in range(30)
    ]
    reader, between = place.reader(*cuts, patience=replace(QUICK, progress=30.0))
    plain = PlainStore(spec_of(), parameters())
    for number in range(6):
        gradient = sent(number, "mood", rows=bool(number % 2))
        base, values = read(reader)
        assert base == plain.step
        assert same(values, plain.values())
        reader.send(gradient)
        found = place.writer.received(gradient.batch, 1)
        assert found is not None
        place.writer.apply((found,))
        place.writer.done(gradient.batch, 1, Verdict.APPLIED)
        assert reader.verdict(gradient.batch, 1, 30.0) is Verdict.APPLIED
        reader.withdraw(gradient.batch, 1)
        plain.apply((gradient,))
    assert between.connections > 6
    assert same(read(reader)[1], plain.values())


SMUGGLED = b"DELETE /v1/worker/gradients?batch=batch-1&attempt=1 HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET {path}/step HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        b"GET {path}/step HTTP/1.1\r\nContent-Length: 76\r\n",
        b"DELETE {path}/gradients?batch=x&attempt=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        b"PUT {path}/gradients HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
        b"PUT {path}/gradients HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"PUT {path}/gradients HTTP/1.1\r\nContent-Length: 10\r\n",
        b"GET {path}/step?x=%0d%0a%0d%0a HTTP/1.1\r\n",
        b"GET {path}/step HTTP/1.1\r\nIf-None-Match: x\r\n\tDELETE\r\n",
    ],
    ids=["get-chunked", "get-length", "delete-chunked", "put-chunked", "put-both", "put-more", "get-lines", "get-folded"],
)
def test_a_call_cannot_bring_another_one_with_it(place: Place, head: bytes) -> None:
    """A worker's token opens a few calls: what stands in the body of one of them must not become a call to the stream's server."""
    reader, _ = place.reader()
    reader.send(sent(1, "mood", base=0))
    head = head.replace(b"{path}", b"/v1/streams/stream/worker")
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if b"chunked" in head else SMUGGLED
    token = place.there.running.parts.admin_token.encode()
    context = ssl.create_default_context(cadata=place.there.running.parts.ca)
    with (
        socket.create_connection(("127.0.0.1", place.there.running.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as one,
    ):
        one.sendall(head + b"Host: x\r\nConnection: close\r\nAuthorization: Bearer " + token + b"\r\n\r\n" + body)
        with suppress(OSError):
            while one.recv(4096):
                pass
    assert place.writer.received("batch-1", 1) is not None
