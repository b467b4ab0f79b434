"""One suite for every kind of task queue. The naive queue at the end must fail what ours pass."""

import itertools
import random
import threading
from collections import deque

import pytest

from queues.embedded import EmbeddedServer
from queues.memory import MemoryQueue
from queues.queue import Claim, Outcome, TaskQueue
from queues.settings import BATCH_LIMIT
from tests.support.streams import KINDS, Numbers, stream
from trunkline.clock import ManualClock
from trunkline.errors import NotFound, SettingsError

pytestmark = pytest.mark.contract


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", *KINDS])
def queue(request: pytest.FixtureRequest, clock: ManualClock) -> TaskQueue[int]:
    """Every kind there is; a later one is added here."""
    if request.param == "memory":
        return MemoryQueue(clock=clock, lease=10.0, attempts=3)
    server: EmbeddedServer = request.getfixturevalue(f"{request.param}_server")
    return Numbers(stream(server, clock=clock, lease_seconds=10.0, attempts=3))


def claims(queue: TaskQueue[int]) -> list[Claim[int]]:
    """Take and commit all that is ready."""
    taken = []
    while (claim := queue.claim()) is not None:
        assert queue.commit(claim) is Outcome.OK
        taken.append(claim)
    return taken


def test_a_batch_is_taken_when_the_queue_reaches_its_size_and_not_before(queue: TaskQueue[int]) -> None:
    queue.open("a", 4)
    queue.push("a", [1, 2, 3])
    assert queue.claim() is None
    queue.push("a", [4])
    claim = queue.claim()
    assert claim is not None
    assert claim.samples == (1, 2, 3, 4)


def test_batches_are_exact_pure_and_in_the_order_of_arrival(queue: TaskQueue[int]) -> None:
    rng = random.Random(0)
    sizes = {"a": 32, "b": 16, "c": 5}
    pushed: dict[str, list[int]] = {task: [] for task in sizes}
    for task, size in sizes.items():
        queue.open(task, size)
    taken: list[Claim[int]] = []
    for number in range(4000 if isinstance(queue, MemoryQueue) else 1000):  # each of them two calls over a socket
        task = rng.choice("aaabbc")
        queue.push(task, [number])
        pushed[task].append(number)
        taken += claims(queue)
    for task, size in sizes.items():
        mine = [claim for claim in taken if claim.task == task]
        assert len(mine) == len(pushed[task]) // size
        assert all(len(claim.samples) == size for claim in mine)
        assert list(itertools.chain.from_iterable(claim.samples for claim in mine)) == pushed[task][: len(mine) * size]


def test_the_remainder_stays(queue: TaskQueue[int]) -> None:
    queue.open("a", 4)
    queue.push("a", range(10))
    claims(queue)
    assert queue.waiting("a") == (8, 9)


def test_the_queue_that_was_full_first_comes_first(queue: TaskQueue[int]) -> None:
    for task in ("a", "b"):
        queue.open(task, 2)
    queue.push("b", [1, 2])
    queue.push("a", [3, 4])
    assert [claim.task for claim in claims(queue)] == ["b", "a"]


def test_a_lost_lease_comes_back_as_the_same_batch_and_fences_the_old_worker_off(queue: TaskQueue[int], clock: ManualClock) -> None:
    queue.open("a", 2)
    queue.push("a", [1, 2, 3, 4])
    first = queue.claim()
    assert first is not None
    clock.sleep(11.0)
    again = queue.claim()
    assert again is not None
    assert (again.id, again.samples, again.attempt) == (first.id, first.samples, 2)
    assert queue.commit(first) is Outcome.FENCED
    assert queue.commit(again) is Outcome.OK
    assert queue.commit(again) is Outcome.DUPLICATE
    assert queue.counts("a").applied == 2


def test_a_renewed_lease_stays(queue: TaskQueue[int], clock: ManualClock) -> None:
    queue.open("a", 1)
    queue.push("a", [1])
    claim = queue.claim()
    assert claim is not None
    for _ in range(5):
        clock.sleep(8.0)
        assert queue.renew(claim) is Outcome.OK
        assert queue.claim() is None
    assert queue.commit(claim) is Outcome.OK


def test_a_batch_that_fails_too_often_is_put_aside(queue: TaskQueue[int]) -> None:
    queue.open("a", 2)
    queue.push("a", [1, 2, 3, 4])
    for attempt in (1, 2, 3):
        claim = queue.claim()
        assert claim is not None
        assert (claim.samples, claim.attempt) == ((1, 2), attempt)
        assert queue.nack(claim, "poison") is Outcome.OK
    assert [claim.samples for claim in claims(queue)] == [(3, 4)]
    counts = queue.counts("a")
    assert (counts.dead, counts.applied) == (2, 2)


def test_what_was_pushed_is_somewhere_at_any_moment(queue: TaskQueue[int], clock: ManualClock) -> None:
    rng = random.Random(1)
    queue.open("a", 3)
    out: list[Claim[int]] = []
    for number in range(2000 if isinstance(queue, MemoryQueue) else 1000):
        match rng.randrange(6):
            case 0 | 1:
                queue.push("a", range(number, number + rng.randrange(5)))
            case 2:
                if (claim := queue.claim()) is not None:
                    out.append(claim)
            case 3 if out:
                queue.commit(out.pop(rng.randrange(len(out))))
            case 4 if out:
                queue.nack(out.pop(rng.randrange(len(out))), "chance")
            case _:
                clock.sleep(rng.random() * 6)
        assert queue.counts("a").conserved


def test_bad_input(queue: TaskQueue[int]) -> None:
    with pytest.raises(NotFound, match="'ghost'"):
        queue.push("ghost", [1])
    for size in (0, -1, BATCH_LIMIT + 1):
        with pytest.raises(SettingsError, match="batch_size"):
            queue.open("a", size)


def race(queue: TaskQueue[int], consumers: int = 4, samples: int = 20_000) -> list[Claim[int]]:
    """One producer in bursts of 16, several consumers, a batch size of 32."""
    queue.open("a", 32)
    taken: list[list[Claim[int]]] = [[] for _ in range(consumers)]
    done = threading.Event()

    def consume(mine: list[Claim[int]]) -> None:
        while not (done.is_set() and queue.counts("a").queued < 32):
            claim = queue.claim()
            if claim is not None:
                queue.commit(claim)
                mine.append(claim)

    threads = [threading.Thread(target=consume, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for start in range(0, samples, 16):
        queue.push("a", range(start, start + 16))
    done.set()
    for thread in threads:
        thread.join(60)
    return [claim for mine in taken for claim in mine]


def test_racing_consumers_get_exact_batches_once_each(queue: TaskQueue[int]) -> None:
    found = race(queue)
    assert all(len(claim.samples) == 32 for claim in found)
    assert sorted(itertools.chain.from_iterable(claim.samples for claim in found)) == list(range(20_000))


class NaiveQueue(MemoryQueue[int]):
    """Check, then pop: what people write first. Kept to show that the race test can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.line: deque[int] = deque()
        self.gap = threading.Event()

    def push(self, task: str, samples: object) -> int:
        self.line.extend(samples)  # type: ignore[arg-type]
        return len(self.line)

    def claim(self) -> Claim[int] | None:
        if len(self.line) < 32:
            return None
        self.gap.wait(0)  # another consumer may come in here
        taken = []
        for _ in range(32):
            try:
                taken.append(self.line.popleft())
            except IndexError:
                break
        return Claim("x", 1, "a", tuple(taken))

    def commit(self, claim: Claim[int]) -> Outcome:
        return Outcome.OK

    def counts(self, task: str):  # type: ignore[no-untyped-def]
        return type("Counts", (), {"queued": len(self.line)})()


def test_the_naive_queue_fails_when_two_consumers_meet_in_the_gap() -> None:
    queue = NaiveQueue()
    queue.push("a", range(32))
    first_waits = threading.Event()
    go_on = threading.Event()

    class Gap(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name == "first":
                first_waits.set()
                return go_on.wait(10)
            return True

    queue.gap = Gap()
    found: list[Claim[int] | None] = []
    first = threading.Thread(target=lambda: found.append(queue.claim()), name="first")
    first.start()
    assert first_waits.wait(10)
    second = queue.claim()
    go_on.set()
    first.join(10)
    assert second is not None
    assert len(second.samples) == 32
    assert found[0] is not None
    assert len(found[0].samples) == 0, "a short batch: the check was of another moment than the pop"
