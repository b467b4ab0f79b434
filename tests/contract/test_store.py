"""One suite against every kind of parameter store: what it comes to is what plain loops come to, and what is wrong is told."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from queues.store.layout import Slot
from queues.store.memory import MemoryStore
from queues.store.reader import FileReader
from queues.store.remote import RemoteReader
from queues.store.store import Rows, Sent, StoreReader, Verdict
from queues.store.writer import FileWriter
from queues.stream.spec import StreamSpec
from tests.support.elsewhere import Master, master
from tests.support.plain_optim import SHAPES, TASKS, PlainStore, dense, parameters, read, same, sent, spec_of, stream
from trunkline.errors import Conflict, NotFound, QueueFull, Reason, RefusedValue, SpecError
from trunkline.https import Patience
from trunkline.sets import SetFile

pytestmark = pytest.mark.contract

Writer = MemoryStore | FileWriter
Kind = Callable[..., tuple[Writer, StoreReader]]

SHORT = Patience(connect=5.0, answer=30.0, progress=0.5, first_pause=0.05)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with master(tmp_path_factory.mktemp("master")) as made:
        yield made


@pytest.fixture(params=["memory", "file", "http"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with ExitStack() as opened:

        def make(spec: StreamSpec, start: Mapping[str, Tensor] | None = None, most: int = 64) -> tuple[Writer, StoreReader]:
            start = parameters() if start is None else start
            if request.param == "memory":
                store = MemoryStore(spec, start, most=most)
                opened.callback(store.close)
                return store, store.reader()
            if request.param == "file":
                writer = FileWriter(tmp_path / "store", spec, start, "epoch", slabs=most)
                opened.callback(writer.close)
                return writer, FileReader(tmp_path / "store")
            there: Master = request.getfixturevalue("elsewhere")
            spec = spec.model_copy(update={"name": f"stream-{uuid.uuid4().hex[:12]}"})
            writer, depot = opened.enter_context(there.store(spec, start, slabs=most))
            https = there.https(patience=SHORT)
            opened.callback(https.close)
            return writer, there.reader(depot, https)

        yield make


def slot_of(store: Writer) -> Slot:
    """What it has now, its moments too."""
    return store._slot if isinstance(store, MemoryStore) else store._slots[store._map.active]


def kept(store: Writer, prefix: str) -> dict[str, Tensor]:
    """Copies of values, moments and counts of the parameters that begin so."""
    return {name: t.clone() for name, t in slot_of(store).tensors().items() if name.partition("/")[2].startswith(prefix)}


def give(store: Writer, reader: StoreReader, gradient: Sent) -> int:
    """A gradient's whole way."""
    reader.send(gradient)
    found = store.received(gradient.batch, gradient.attempt)
    assert found is not None
    assert (found.batch, found.attempt, found.task) == (gradient.batch, gradient.attempt, gradient.task)
    assert (found.base, found.samples, found.loss) == (gradient.base, gradient.samples, gradient.loss)
    step = store.apply((found,))
    store.done(gradient.batch, gradient.attempt, Verdict.APPLIED)
    assert reader.verdict(gradient.batch, gradient.attempt, 30.0) == Verdict.APPLIED
    return step


LEARNING: Mapping[str, Mapping[str, object]] = {
    "adamw": {},
    "no-clipping": {"clip_norm": 0.0, "decay": "linear", "total_steps": 10},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
}


@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("learning", LEARNING.values(), ids=LEARNING)
def test_one_worker_in_order_is_a_plain_loop_bit_for_bit(make: Kind, learning: Mapping[str, object], rows: bool) -> None:
    spec = spec_of(learning)
    store, reader = make(spec)
    plain = PlainStore(spec, parameters())
    assert same(read(reader)[1], plain.values())
    for gradient in stream(12, rows=rows):
        assert give(store, reader, gradient) == plain.apply((gradient,)) == reader.step()
        step, found = read(reader)
        assert step == plain.step
        assert same(found, plain.values()), step


def test_what_was_sent_is_received_as_it_was(make: Kind) -> None:
    store, reader = make(spec_of())
    for gradient in (sent(0, "mood"), sent(1, "topic", rows=True)):
        reader.send(gradient)
        for tensor in gradient.tensors.values():  # the sender goes on with its memory
            (tensor.values if isinstance(tensor, Rows) else tensor).clone()
        found = store.received(gradient.batch, 1)
        assert found is not None
        assert found.tensors.keys() == gradient.tensors.keys()
        for name, tensor in gradient.tensors.items():
            like = torch.empty(SHAPES[name])
            assert same({"": dense(found.tensors[name], like)}, {"": dense(tensor, like)})


def test_what_the_sender_does_with_its_tensors_afterwards_changes_nothing(make: Kind) -> None:
    store, reader = make(spec_of())
    tensor = torch.ones(SHAPES["shared/bias"])
    reader.send(replace(sent(0, "mood"), tensors={"shared/bias": tensor}))
    tensor.zero_()
    found = store.received("batch-0", 1)
    assert found is not None
    held = found.tensors["shared/bias"]
    assert isinstance(held, Tensor)
    assert held.eq(1).all()


def test_an_embedding_of_which_few_rows_hold_anything_travels_as_these(make: Kind) -> None:
    store, reader = make(spec_of())
    whole = torch.zeros(SHAPES["shared/embedding"])
    whole[7], whole[1999, 3] = 1.0, -0.0
    reader.send(replace(sent(0, "mood"), tensors={"shared/embedding": whole}))
    found = store.received("batch-0", 1)
    assert found is not None
    rows = found.tensors["shared/embedding"]
    assert isinstance(rows, Rows)
    assert rows.index.tolist() == [7, 1999]
    assert same({"": dense(rows, whole)}, {"": whole}), "a minus zero stays one: moments have its sign"


# -- the laws of a step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNING.values(), ids=LEARNING)
def test_other_heads_and_their_moments_stay_bit_for_bit(make: Kind, learning: Mapping[str, object]) -> None:
    """Given moments in every head, When one task alone has batches, Then nothing of the others moves, nor what has no gradient."""
    store, reader = make(spec_of(learning))
    for number, task in enumerate(("mood", "topic", "mood", "topic")):
        give(store, reader, sent(number, task))
    head, dense_layer = kept(store, "head/topic/"), kept(store, "shared/dense")
    before = kept(store, "head/mood/")
    for number in range(4, 9):
        give(store, reader, sent(number, "mood", skip=("shared/dense",)))
        assert same(kept(store, "head/topic/"), head)
        assert same(kept(store, "shared/dense"), dense_layer)
    assert not same(kept(store, "head/mood/"), before)
    assert store.step == 9


@pytest.mark.parametrize("damping", ["none", "sqrt"])
def test_a_stale_gradient_moves_as_far_as_its_damping_says(make: Kind, damping: str) -> None:
    spec = spec_of({"optimizer": "sgd", "learning_rate": 0.1}, {"damping": damping})
    store, reader = make(spec)
    plain = PlainStore(spec, parameters())
    for number, base in enumerate((0, 0, 0, 3, 1)):
        gradient = sent(number, "mood", base=base)
        assert give(store, reader, gradient) == plain.apply((gradient,))
    assert same(read(reader)[1], plain.values())


@pytest.mark.parametrize("learning", LEARNING.values(), ids=LEARNING)
def test_gradients_of_all_tasks_move_together_in_one_step(make: Kind, learning: Mapping[str, object]) -> None:
    spec = spec_of(learning)
    store, reader = make(spec)
    plain = PlainStore(spec, parameters())
    for step in range(4):
        gradients = tuple(sent(10 * step + number, task, base=step) for number, task in enumerate(TASKS))
        found: list[Sent] = []
        for gradient in gradients:
            reader.send(gradient)
            received = store.received(gradient.batch, 1)
            assert received is not None
            found.append(received)
        combined = {n: torch.full(SHAPES[n], 0.1 * step) for n in SHAPES if n.startswith("shared/")}
        assert store.apply(tuple(found), combined) == plain.apply(gradients, combined)
        assert {store.applied(gradient.batch) for gradient in gradients} == {step + 1}
        assert same(read(reader)[1], plain.values())


def test_what_a_round_came_to_enters_once(make: Kind) -> None:
    store, reader = make(spec_of())
    give(store, reader, sent(0, "mood"))
    before, moments = read(reader)[1], kept(store, "shared/bias")
    delta = {"shared/bias": torch.randn(40), "shared/scale": torch.tensor(2.0)}
    assert store.add(delta, "round-7") == 2
    assert store.add(delta, "round-7") == 2
    step, after = read(reader)
    assert step == store.step == 2
    assert same(after, before | {name: before[name] + more for name, more in delta.items()})
    del moments["value/shared/bias"]
    now = kept(store, "shared/bias")
    del now["value/shared/bias"]
    assert same(now, moments), "moments are what gradients made of them"
    give(store, reader, sent(1, "mood"))
    assert store.step == 3


@pytest.mark.parametrize("fresh", [False, True], ids=["kept", "fresh"])
def test_what_a_round_begins_with_is_set_once_and_moments_stay_or_begin_anew(make: Kind, fresh: bool) -> None:
    store, reader = make(spec_of())
    give(store, reader, sent(0, "mood"))
    before, moments = read(reader)[1], kept(store, "shared/bias")
    values = {"shared/bias": torch.randn(40)}
    assert store.put(values, "round-7/in", fresh=fresh) == 2
    assert store.put({"shared/bias": torch.zeros(40)}, "round-7/in", fresh=fresh) == 2
    assert same(read(reader)[1], before | values)
    assert store.added() == {"round-7/in": 2}
    now = kept(store, "shared/bias")
    for name in set(moments) - {"value/shared/bias"}:
        assert torch.equal(now[name], torch.zeros_like(now[name]) if fresh else moments[name]), name
    give(store, reader, sent(1, "mood"))  # in both slots of a mapped file
    assert store.step == 3
    assert kept(store, "shared/bias")["count/shared/bias"] == (1 if fresh else 2)


def test_lazy_moments_move_only_in_rows_that_a_batch_has(make: Kind) -> None:
    """It is AdamW of these rows, as if there were no others; the others would move in AdamW."""
    spec = spec_of({"lazy": True, "clip_norm": 0.0})
    store, reader = make(spec)
    start = parameters()
    other = [row for row in range(2000) if row % 5]
    table = nn.Parameter(start["shared/embedding"].detach()[::5].clone())
    optimiser = torch.optim.AdamW([table], lr=1.0, weight_decay=0.01, fused=True)
    for number in range(5):
        values = torch.randn(400, 40)
        rows = Rows(torch.arange(0, 2000, 5), values)
        give(store, reader, replace(sent(number, "mood"), tensors={"shared/embedding": rows}))
        table.grad = values
        optimiser.param_groups[0]["lr"] = 1e-4 * min(1.0, (number + 1) / 3)
        optimiser.step()
    found = read(reader)[1]["shared/embedding"]
    assert torch.equal(found[::5], table)
    assert torch.equal(found[other], start["shared/embedding"][other])
    moments = kept(store, "shared/embedding")
    assert moments["exp_avg/shared/embedding"][other].eq(0).all()
    assert moments["count/shared/embedding"] == 5


def test_lazy_and_whole_gradients_of_one_table_take_turns(make: Kind) -> None:
    """Whatever is a step behind is brought up, in part or whole."""
    spec = spec_of({"lazy": True})
    store, reader = make(spec)
    memory = MemoryStore(spec, parameters())
    for number in range(10):
        gradient = sent(number, "mood", rows=number % 3 != 1, skip=("shared/embedding",) if number % 4 == 3 else ())
        give(store, reader, gradient)
        give(memory, memory.reader(), gradient)
        assert same(read(reader)[1], read(memory.reader())[1])
    assert same(kept(store, ""), kept(memory, ""))


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_each_attempt_has_its_verdict(make: Kind) -> None:
    store, reader = make(spec_of())
    assert reader.verdict("batch-0", 1, 0.0) is None
    store.done("batch-0", 1, Verdict.STALE)
    store.done("batch-0", 2, Verdict.REFUSED)
    store.done("batch-1", 1, Verdict.APPLIED)
    assert [reader.verdict("batch-0", n, 0.01) for n in (1, 2, 3)] == [Verdict.STALE, Verdict.REFUSED, None]
    assert reader.verdict("batch-1", 1, 0.0) == Verdict.APPLIED


def test_a_verdict_is_waited_for(make: Kind) -> None:
    store, reader = make(spec_of())
    later = threading.Timer(0.2, store.done, ("batch-0", 1, Verdict.APPLIED))
    later.start()
    assert reader.verdict("batch-0", 1, 60.0) == Verdict.APPLIED
    later.join()


def test_old_verdicts_are_forgotten_and_new_ones_are_not(make: Kind) -> None:
    store, reader = make(spec_of())
    for number in range(4200):
        store.done(f"batch-{number}", 1, Verdict.STALE)
    assert reader.verdict("batch-0", 1, 0.0) is None
    every = 64 if isinstance(reader, RemoteReader) else 1
    assert {reader.verdict(f"batch-{number}", 1, 0.0) for number in range(4200 - 4096, 4200, every)} == {Verdict.STALE}


def test_done_lets_go_of_this_and_earlier_attempts(make: Kind) -> None:
    store, reader = make(spec_of())
    for attempt in (1, 2, 3):
        reader.send(replace(sent(0, "mood"), attempt=attempt))
    store.done("batch-0", 2, Verdict.STALE)
    assert [store.received("batch-0", attempt) is None for attempt in (1, 2, 3)] == [True, True, False]


def test_what_is_withdrawn_is_not_there(make: Kind) -> None:
    store, reader = make(spec_of())
    reader.send(sent(0, "mood"))
    reader.send(sent(1, "mood"))
    reader.withdraw("batch-0", 1)
    reader.withdraw("batch-7", 1)
    assert store.received("batch-0", 1) is None
    assert store.received("batch-1", 1) is not None
    assert store.received("batch-1", 2) is None


def test_a_full_store_says_so_and_takes_more_when_something_went(make: Kind) -> None:
    store, reader = make(spec_of(), most=3)
    for number in range(3):
        reader.send(sent(number, "mood"))
    with pytest.raises(QueueFull):
        reader.send(sent(3, "mood"))
    store.done("batch-1", 1, Verdict.REFUSED)
    reader.send(sent(3, "mood"))
    assert store.received("batch-3", 1) is not None


# -- what is wrong -----------------------------------------------------------------------------------------------------


def infinite(shape: tuple[int, ...]) -> Tensor:
    tensor = torch.zeros(shape)
    tensor.view(-1)[-1] = float("inf")
    return tensor


WRONG: Mapping[str, tuple[Mapping[str, Tensor | Rows], Reason]] = {
    "name": ({"shared/nothing": torch.ones(3)}, Reason.NAMES),
    "name-of-another-head": ({"head/topic/bias": torch.ones(5)}, Reason.NAMES),
    "shape": ({"shared/bias": torch.ones(41)}, Reason.SHAPE),
    "a-scalar": ({"shared/bias": torch.tensor(1.0)}, Reason.SHAPE),
    "nan": ({"shared/bias": torch.full((40,), float("nan"))}, Reason.NOT_FINITE),
    "infinite": ({"shared/dense": infinite((40, 33))}, Reason.NOT_FINITE),
    "too-large": ({"shared/dense": torch.full((40, 33), 3e38)}, Reason.NOT_FINITE),
    "rows-beyond": ({"shared/embedding": Rows(torch.tensor([2000]), torch.ones(1, 40))}, Reason.SHAPE),
    "rows-below": ({"shared/embedding": Rows(torch.tensor([-1]), torch.ones(1, 40))}, Reason.SHAPE),
    "rows-twice": ({"shared/embedding": Rows(torch.tensor([3, 3]), torch.ones(2, 40))}, Reason.SHAPE),
    "rows-in-disorder": ({"shared/embedding": Rows(torch.tensor([3, 2]), torch.ones(2, 40))}, Reason.SHAPE),
    "rows-of-another-width": ({"shared/embedding": Rows(torch.tensor([3]), torch.ones(1, 41))}, Reason.SHAPE),
    "rows-of-a-scalar": ({"shared/scale": Rows(torch.tensor([0]), torch.ones(1))}, Reason.SHAPE),
    "rows-not-finite": ({"shared/embedding": Rows(torch.tensor([3]), torch.full((1, 40), float("nan")))}, Reason.NOT_FINITE),
}


@pytest.mark.parametrize(("tensors", "reason"), WRONG.values(), ids=WRONG)
def test_a_gradient_that_is_none_is_refused_before_anything_moves(
    make: Kind, tensors: Mapping[str, Tensor | Rows], reason: Reason
) -> None:
    store, reader = make(spec_of())
    give(store, reader, sent(0, "mood", rows=True))
    before, values = kept(store, ""), read(reader)
    good = sent(1, "mood").tensors
    with pytest.raises(RefusedValue) as error:  # what comes over a network is refused at the door, where it can be
        reader.send(replace(sent(1, "mood"), tensors={"shared/bias": good["shared/bias"]} | dict(tensors)))
        found = store.received("batch-1", 1)
        assert found is not None
        store.apply((found,))
    assert error.value.reason == reason
    assert store.applied("batch-1") is None
    assert same(kept(store, ""), before)
    assert read(reader)[0] == values[0] == store.step == 1
    store.done("batch-1", 1, Verdict.REFUSED)
    plain = PlainStore(spec_of(), parameters())
    for number in (0, 2):  # what was refused left nothing behind, not in any part of memory
        plain.apply((replace(sent(number, "mood", rows=True), base=plain.step),))
    give(store, reader, sent(2, "mood", base=1, rows=True))
    assert same(read(reader)[1], plain.values())


def test_two_gradients_of_one_parameter_are_refused(make: Kind) -> None:
    store, _ = make(spec_of())
    with pytest.raises(RefusedValue, match="found two"):
        store.apply((sent(0, "mood"), sent(1, "topic")))
    with pytest.raises(RefusedValue, match="shared/"):
        store.apply((sent(0, "mood"),), {"head/mood/bias": torch.ones(3)})
    assert store.step == 0


@pytest.mark.parametrize(
    "delta",
    [{"head/mood/bias": torch.ones(3)}, {"shared/bias": torch.ones(3)}, {"shared/bias": torch.full((40,), float("nan"))}],
    ids=["of-a-head", "shape", "nan"],
)
def test_a_round_that_does_not_fit_is_refused(make: Kind, delta: Mapping[str, Tensor]) -> None:
    store, reader = make(spec_of())
    with pytest.raises(RefusedValue):
        store.add(delta, "round-1")
    assert store.step == 0
    assert same(read(reader)[1], {name: p.detach() for name, p in parameters().items()})


def test_a_batch_is_applied_once(make: Kind) -> None:
    store, reader = make(spec_of())
    give(store, reader, sent(0, "mood"))
    assert (store.applied("batch-0"), store.applied("batch-1")) == (1, None)
    with pytest.raises(Conflict, match="batch-0"):
        store.apply((replace(sent(0, "mood"), attempt=2),))
    assert store.step == 1


def test_a_parameter_that_is_not_there_is_told(make: Kind) -> None:
    _, reader = make(spec_of())
    with pytest.raises(NotFound, match="shared/other"):
        reader.read({"shared/other": torch.empty(3)})
    with pytest.raises(NotFound, match="shared/bias"):
        reader.read({"shared/bias": torch.empty(3)})


@pytest.mark.parametrize("wrong", [{"shared/x": torch.ones(2, dtype=torch.float64)}, {"x": torch.ones(2)}], ids=["dtype", "name"])
def test_a_store_holds_float32_of_encoder_and_heads(make: Kind, wrong: Mapping[str, Tensor]) -> None:
    with pytest.raises(SpecError):
        make(spec_of(), wrong)


# -- readers -----------------------------------------------------------------------------------------------------------


def test_parameters_are_read_into_any_tensors_in_place(make: Kind) -> None:
    _, reader = make(spec_of())
    start = parameters()
    parameter = nn.Parameter(torch.zeros(2000, 40))
    turned, half = torch.zeros(33, 40).t(), torch.zeros(40, dtype=torch.float64)
    assert reader.read({"shared/embedding": parameter, "shared/dense": turned, "shared/bias": half}) == 0
    assert torch.equal(parameter, start["shared/embedding"])
    assert torch.equal(turned, start["shared/dense"])
    assert torch.equal(half, start["shared/bias"].double())


def test_the_encoder_is_written_as_a_parameter_set(make: Kind, tmp_path: Path) -> None:
    store, reader = make(spec_of())
    give(store, reader, sent(0, "mood"))
    digest = store.write_shared(tmp_path / "set")
    values = read(reader)[1]
    assert len(digest) == 64
    with SetFile(tmp_path / "set") as found:
        assert {f"shared/{name}" for name in found} == {name for name in SHAPES if name.startswith("shared/")}
        for name in found:
            assert np.array_equal(found.read(name), values[f"shared/{name}"].numpy())


def test_a_reader_never_sees_two_steps_at_once(make: Kind) -> None:
    """Every number of every parameter is the step's own, the heads' too: gradient descent by one."""
    shapes = {name: (300, 300) if len(shape) == 2 else shape for name, shape in SHAPES.items() if "topic" not in name}
    learning = {"optimizer": "sgd", "learning_rate": 1.0, "head_learning_rate": 1.0, "warmup_steps": 0, "clip_norm": 0.0}
    store, reader = make(spec_of(learning), {name: torch.zeros(shape) for name, shape in shapes.items()})
    down = {name: torch.full(shape, -1.0) for name, shape in shapes.items()}
    seen: list[int] = []
    wrong: list[str] = []

    def look() -> None:
        into = {name: torch.empty(shape) for name, shape in shapes.items()}
        while not seen or seen[-1] < 200:
            step = reader.read(into)
            seen.append(step)
            wrong.extend(f"{name} at {step}" for name, tensor in into.items() if not tensor.eq(step).all())

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(200):
        store.apply((replace(sent(number, "mood"), tensors=down),))
    for thread in threads:
        thread.join()
    assert wrong == []
