"""A worker of a stream: one batch, one gradient, handed in once; and what it does when things go wrong."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file

from queues.connection import connect
from queues.embedded import EmbeddedServer
from queues.queue import Claim
from queues.redis import RedisQueues
from queues.store.store import Verdict
from queues.stream import worker as worker_module
from queues.stream.heart import Heart
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.scores import Scores, last_step
from queues.stream.seeds import dropout_seed
from queues.stream.worker import Tally, Worker
from tasks.evaluate import evaluate
from tasks.step import Gradient, gradient
from tasks.table import open_table
from tests.support import small_stream
from tests.support.plain_store import PlainStore, move
from tests.support.streams import client, raw, server
from trunkline.clock import SystemClock
from trunkline.errors import Fenced, Reason, TrainingFailed, Unreachable
from trunkline.files import Lock


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with server("embedded", tmp_path_factory.mktemp("redis")) as made:
        yield made


@dataclass
class Place:
    """A stream with a worker and a plain store."""

    home: StreamHome
    learner: Learner
    queues: RedisQueues
    store: PlainStore
    worker: Worker

    def push(self, task: str, count: int, first: int = 0) -> None:
        self.queues.push(task, small_stream.samples(self.learner, task, count, first))


Make = Callable[..., Place]


@pytest.fixture
def make(tmp_path: Path, redis: EmbeddedServer) -> Iterator[Make]:
    stores: list[PlainStore] = []

    def made(*, dropout: float = 0.0, started: bool = True, **change: Any) -> Place:
        client(redis).flushall()
        home = small_stream.folder(tmp_path / f"stream-{len(stores)}", dropout=dropout, **change)
        learner = small_stream.learner(home)
        queues = small_stream.opened(home, RedisQueues(client(redis), "reviews", epoch=home.epoch, worker="one"))
        store = PlainStore(home.store, learner.parameters(), RedisQueues(client(redis), "reviews", epoch=home.epoch))
        stores.append(store.start() if started else store)
        return Place(home, learner, queues, store, Worker(home.spec, learner, queues, store.reader))

    yield made
    for store in stores:
        store.stop()


# -- one batch, one gradient -------------------------------------------------------------------------------------------


def plain_gradient(learner: Learner, task: str, taken: list[bytes], seed: int) -> dict[str, torch.Tensor]:
    """Without the worker."""
    found = gradient(learner.encoder, learner.heads[task], learner.packers[task].batch(taken), seed=seed)
    shared = {f"shared/{name}": tensor for name, tensor in found.shared.items()}
    return shared | {f"head/{task}/{name}": tensor for name, tensor in found.head.items()}


@pytest.mark.parametrize("mode", ["each", "together"])
def test_a_worker_alone_ends_where_a_plain_loop_ends(mode: str, make: Make) -> None:
    place = make(dropout=0.1, together={"mode": mode})
    place.push("mood", 10)
    place.push("price", 6)
    assert place.worker.drain() == 5  # what is left of mood is no batch
    assert eventually(lambda: len(place.store.log) == 5)
    if mode == "together":
        return  # this store applies one by one, so the base of a gradient depends on who was quicker

    plain = small_stream.learner(place.home)
    waiting = {"mood": small_stream.samples(plain, "mood", 10), "price": small_stream.samples(plain, "price", 6)}
    for batch, task in place.store.log:
        size = {"mood": 4, "price": 2}[task]
        taken, waiting[task] = waiting[task][:size], waiting[task][size:]
        move({**plain.parameters()}, plain_gradient(plain, task, taken, dropout_seed(0, task, batch)))
    for name, parameter in plain.parameters().items():
        assert torch.equal(place.store.parameters[name], parameter.detach()), name
    assert place.worker.tally == Tally(applied=5)
    assert place.queues.counts("mood").queued == 2


def test_a_batch_that_comes_again_gives_the_same_gradient(make: Make) -> None:
    place = make(dropout=0.3, started=False)
    place.push("mood", 4)
    seen = []
    for verdict in (Verdict.STALE, Verdict.REFUSED, None):
        with running(place.worker):
            (claim,) = eventually(place.store.submitted)
            seen.append(load_file(place.home.store / f"gradient-{claim.id}-{claim.attempt}"))
            if verdict is not None:
                place.queues.nack(claim, "again", counts=False)
                place.store.finish(claim, verdict)
            else:
                place.store.pump()
    assert place.worker.tally == Tally(applied=1, stale=1, refused=1)
    assert all(torch.equal(first[name], again[name]) for first, *rest in [seen] for again in rest for name in first)
    assert place.queues.counts("mood").applied == 4


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_poison_batch_is_put_aside_with_its_reason_and_the_other_task_goes_on(make: Make) -> None:
    place = make()
    place.queues.push("mood", [b"no sample of this task"] * 4)
    place.push("price", 2)
    place.worker.drain()
    ((claim, reason),) = place.queues.dead("mood")
    assert "should begin with" in reason
    assert claim.attempt == 3
    assert place.worker.tally == Tally(applied=1, failed=3)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "should fit into memory"),
        (TrainingFailed(Reason.MEMORY, "it should fit."), "it should fit."),
        (KeyError("a head of one's own"), "KeyError"),
    ],
    ids=["memory", "of torch", "of a user"],
)
def test_whatever_a_step_raises_is_the_reason(error: Exception, said: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make()
    place.push("mood", 4)
    monkeypatch.setattr(place.learner, "gradient", raising(error))
    place.worker.drain()
    ((_, reason),) = place.queues.dead("mood")
    assert said in reason
    assert place.queues.counts("mood").conserved


def test_a_queue_that_the_declaration_does_not_name_dies_with_that_reason(make: Make) -> None:
    place = make()
    place.queues.open("other", 1)
    place.queues.push("other", [b"x"])
    place.worker.drain()
    assert "should have a task 'other'" in place.queues.dead("other")[0][1]


def test_a_signal_in_a_step_gives_the_batch_back_and_it_counts_for_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make()
    place.push("mood", 4)
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(place.learner, "gradient", raising(SystemExit(1)))
        place.worker.drain()
    assert place.worker.drain() == 1  # at once, not after the lease
    assert place.queues.counts("mood").applied == 4


def test_a_stream_of_another_epoch_gets_no_gradient(make: Make) -> None:
    place = make()
    place.push("mood", 4)
    raw(place.queues).hset(place.queues._key("meta"), "epoch", "of another store")
    with pytest.raises(Fenced):
        place.worker.drain()
    assert not place.store.log


def test_what_another_took_over_is_dropped(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(queues={"lease_seconds": 0.05})
    place.push("mood", 4)
    taken = []

    def slow(claim: Claim[bytes], seed: int) -> Gradient:
        if not taken:
            taken.append(eventually(place.queues.claim))
        return Learner.gradient(place.learner, claim, seed)

    monkeypatch.setattr(place.learner, "gradient", slow)
    place.worker.drain()
    assert place.worker.tally.dropped == 1
    assert taken[0].attempt == 2
    assert not list(place.home.store.glob("gradient-*-1"))


def test_a_heartbeat_keeps_the_lease_of_a_long_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(queues={"lease_seconds": 0.3})
    place.push("mood", 4)
    other = RedisQueues(raw(place.queues), "reviews", worker="other")
    place.worker.heart = Heart(RedisQueues(connect(raw_url(place)), "reviews"), 0.3)
    stolen = []

    def slow(claim: Claim[bytes], seed: int) -> Gradient:
        for _ in range(20):
            time.sleep(0.05)
            stolen.append(other.claim())
        return Learner.gradient(place.learner, claim, seed)

    monkeypatch.setattr(place.learner, "gradient", slow)
    place.worker.drain()
    place.worker.close()
    raw(place.worker.heart._queues).close()
    assert stolen == [None] * 20
    assert place.worker.tally == Tally(applied=1)


def test_a_redis_that_is_restarted_in_a_step_loses_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, redis: EmbeddedServer
) -> None:
    place = make()
    place.push("mood", 8)
    places = []

    def restarted(claim: Claim[bytes], seed: int) -> Gradient:
        if not places:
            redis.stop()
            places.append(threading.Timer(0.3, redis.start))
            places[0].start()
        return Learner.gradient(place.learner, claim, seed)

    monkeypatch.setattr(place.learner, "gradient", restarted)
    assert place.worker.drain() == 2
    places[0].join()
    assert eventually(lambda: place.queues.counts("mood").applied == 8)
    assert len(place.store.log) == 2


def test_a_redis_that_stays_away_ends_the_drain(make: Make, monkeypatch: pytest.MonkeyPatch, redis: EmbeddedServer) -> None:
    place = make()
    monkeypatch.setattr(worker_module, "PATIENCE", 0.2)
    place.push("mood", 4)
    redis.stop()
    try:
        with pytest.raises(Unreachable):
            place.worker.drain()
    finally:
        redis.start()
    assert place.worker.drain() == 1


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_without_a_verdict_nothing_more_is_claimed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(started=False)
    monkeypatch.setattr(worker_module, "SILENCE", 0.3)
    place.push("mood", 8)
    assert place.worker.drain() == 1
    assert place.worker.drain() == 0  # also when it is asked again
    assert place.queues.counts("mood").queued == 4
    place.store.pump()
    with running(place.worker):
        assert eventually(lambda: place.store.pump() or len(place.store.log) == 2)
        assert eventually(lambda: len(place.store.log) == 2)
    assert place.worker.tally == Tally(applied=2)


def test_a_store_that_died_after_its_step_is_not_waited_for(make: Make) -> None:
    place = make(started=False)
    place.push("mood", 8)
    with running(place.worker):
        (claim,) = eventually(place.store.submitted)
        place.queues.commit(claim, 1)  # and no verdict
        assert eventually(lambda: [other for other in place.store.submitted() if other.id != claim.id])
        place.store.pump()
    assert place.worker.tally == Tally(applied=2)


def test_together_it_waits_only_for_the_same_task(make: Make) -> None:
    place = make(started=False, together={"mode": "together", "wait_seconds": 30})
    place.push("mood", 8)
    place.push("price", 2)
    with running(place.worker):
        assert eventually(lambda: len(place.store.submitted()) == 2)
        assert {claim.task for claim in place.store.submitted()} == {"mood", "price"}
        time.sleep(0.1)
        assert len(place.store.submitted()) == 2  # the other batch of mood would be computed on old parameters
        place.store.pump()
        assert eventually(lambda: len(place.store.submitted()) == 1)
        place.store.pump()
    assert len(place.store.log) == 3


def test_together_what_is_held_is_given_back_when_it_is_told_to_stop(make: Make) -> None:
    place = make(started=False, together={"mode": "together"})
    place.push("mood", 8)
    with running(place.worker):
        assert eventually(lambda: (place.queues.counts("mood").submitted, place.queues.counts("mood").leased) == (4, 4))
    claim = place.queues.claim()  # at once
    assert claim is not None
    assert claim.attempt == 2


def test_told_to_stop_it_claims_nothing(make: Make) -> None:
    place = make()
    place.push("mood", 4)
    assert place.worker.drain(lambda: True) == 0
    assert place.queues.counts("mood").queued == 4


def test_a_drain_ends_with_its_time(make: Make) -> None:
    place = make()
    place.push("mood", 8)
    assert place.worker.drain(seconds=0.0) == 0
    assert place.worker.drain() == 2


# -- scores ------------------------------------------------------------------------------------------------------------


def test_held_out_rows_are_scored_every_so_many_steps(make: Make) -> None:
    tasks = [dict(task) for task in small_stream.TASKS]
    tasks[0]["heldout"] = "heldout/mood.jsonl"
    place = make(tasks=tasks, evaluate_steps=2)
    place.home.heldout.mkdir()
    rows = [{"text": "good food", "mood": "good"}, {"text": "bad place", "mood": "bad"}, {"text": "hated", "mood": "bad"}]
    (place.home.heldout / "mood.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place.worker.scores = Scores(place.home, place.learner, place.queues, place.store.reader, SystemClock())
    place.push("mood", 16)
    place.worker.drain()
    lines = [json.loads(line) for line in place.home.scores.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 3]
    assert lines[1]["consumed"] == {"mood": 12, "price": 0}
    assert (lines[1]["task"], lines[1]["metric"]) == ("mood", "accuracy")
    assert lines[1]["rows"] == 3

    spec = place.home.spec.tasks[0].task.model_copy(update={"data": "mood.jsonl", "fractions": (1.0, 0.0, 0.0)})
    table = open_table(spec, place.learner.encoder, place.home.cache, place.home.heldout, 1 << 20)
    assert place.store.reader.read(place.learner.parameters()) == 4
    found = evaluate(place.learner.encoder, place.learner.heads["mood"], table, spec, "train")
    place.worker.scores.evaluate()
    assert json.loads(place.home.scores.read_text().splitlines()[-1])["value"] == found.value


def test_rows_that_are_none_stop_nothing(make: Make) -> None:
    tasks = [{**task, "heldout": "heldout/x.jsonl"} for task in small_stream.TASKS]
    place = make(tasks=tasks, evaluate_steps=1)
    place.worker.scores = Scores(place.home, place.learner, place.queues, place.store.reader, SystemClock())
    place.push("mood", 8)
    assert place.worker.drain() == 2
    assert not place.home.scores.exists()


def test_one_worker_at_a_time_looks(make: Make) -> None:
    tasks = [{**task, "heldout": "heldout/x.jsonl"} for task in small_stream.TASKS]
    place = make(tasks=tasks, evaluate_steps=1)
    scores = Scores(place.home, place.learner, place.queues, place.store.reader, SystemClock())
    lock = Lock(place.home.folder / "scores.lock", "worker that evaluates")
    scores.look(1)  # would tell of the missing rows, and set the next look later
    assert scores._next == 0
    lock.release()


def test_the_last_step_is_that_of_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    assert last_step(path) is None
    path.write_text('{"step": 3}\n{"step": 5}\n{"st')
    assert last_step(path) == 5


def test_the_seed_is_a_function_of_run_task_and_batch() -> None:
    seeds = {dropout_seed(seed, task, batch) for seed in (0, 1) for task in "ab" for batch in "xy"}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert dropout_seed(7, "mood", "b1") == int.from_bytes(hashlib.sha256(b"7/mood/b1").digest()[:8], "big") >> 1


# -- help --------------------------------------------------------------------------------------------------------------


Found = TypeVar("Found")


def eventually(look: Callable[[], Found], seconds: float = 20.0) -> Found:
    """What is found as soon as there is something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it should have come by now"
        time.sleep(0.005)
    return found


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """It drains in a thread until the block ends and nothing of its own is out."""
    ended, failed = threading.Event(), []

    def run() -> None:
        try:
            while not ended.is_set():
                worker.drain(ended.is_set)
                ended.wait(0.01)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
        end = time.monotonic() + 2.0
        while worker._pending and not worker._held and not failed and time.monotonic() < end:
            time.sleep(0.005)
    finally:
        ended.set()
        thread.join(20.0)
    assert not failed
    assert not thread.is_alive()


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def raw_url(place: Place) -> str:
    kwargs = raw(place.queues).connection_pool.connection_kwargs
    return f"unix://{kwargs['path']}"
