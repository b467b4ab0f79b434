"""Workers as real processes that get killed: each sample changes the parameters once, whatever Celery and Redis go through."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from queues import doorbell
from tests.support.live_stream import LiveStream, eventually, live_stream
from trunkline.errors import TrunklineError

Found = TypeVar("Found")

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

QUICK = {"queues": {"lease_seconds": 2.0, "attempts": 10}}


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[LiveStream]:
    with live_stream(tmp_path, **QUICK) as made:
        yield made


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(30)


@pytest.mark.parametrize("point", ["gradient", "before", "after"])
def test_a_worker_that_is_killed_costs_work_and_no_sample(point: str, stream: LiveStream, tmp_path: Path) -> None:
    queues, there = stream.queues(), tmp_path / "there"
    stream.push(queues, "mood", 8)
    first = stream.worker("--at", point, str(there))
    eventually(there.exists)
    first.kill()
    first.wait(10)
    stream.worker()
    stream.push(queues, "price", 4)
    stream.settled(queues)
    assert stream.steps() == stream.batches() == 4


def test_a_storm_of_sigterms_loses_nothing(stream: LiveStream) -> None:
    queues = stream.queues()
    workers = [stream.worker("--sleep", "0.05") for _ in range(2)]
    for turn in range(3):
        stream.push(queues, "mood", 40)
        eventually(lambda turn=turn: queues.counts("mood").applied > 40 * turn)
        for worker in workers:
            for _ in range(5):
                worker.send_signal(signal.SIGTERM)
                time.sleep(0.01)
        assert {worker.wait(60) for worker in workers} <= {0, -signal.SIGTERM}  # by itself while Python was still starting
        workers = [stream.worker("--sleep", "0.05") for _ in range(2)]
    stream.settled(queues)
    assert stream.steps() == stream.batches() == 30


def test_redis_killed_under_load_and_no_worker_is_restarted(stream: LiveStream) -> None:
    queues = stream.queues()
    worker = stream.worker("--sleep", "0.02", "--silence", "1000")  # the watchdog would hide that Celery went deaf
    for turn in range(3):
        before = stream.pushed.get("mood", 0)
        persistent(lambda: stream.push(queues, "mood", 40))
        eventually(lambda before=before: persistent(lambda: queues.counts("mood").applied) > before)
        if turn < 2:
            stream.kill_redis()
    stream.settled(queues)
    assert worker.poll() is None
    assert stream.steps() == stream.batches()


def test_redis_killed_while_idle_and_the_next_doorbell_is_heard(stream: LiveStream) -> None:
    queues = stream.queues()
    stream.worker("--silence", "1000")
    stream.push(queues, "mood", 4)
    stream.settled(queues)
    stream.kill_redis()
    assert eventually(lambda: alive(stream), what="a new server of the queues")
    persistent(lambda: stream.push(queues, "mood", 4))
    stream.settled(queues)


def test_many_doorbells_for_one_batch_make_one_step(stream: LiveStream) -> None:
    queues = stream.queues()
    for _ in range(2):
        stream.worker("--sleep", "0.2")
    app = doorbell.make_app(doorbell.broker_of(stream.url), "reviews")
    for _ in range(3):
        stream.push(queues, "mood", 4)
        for _ in range(4):
            doorbell.ring(app, doorbell.MOST)
    stream.settled(queues)
    eventually(lambda: doorbell.waiting(app) == 0)
    app.close()
    assert stream.steps() == 3


def test_a_step_longer_than_the_visibility_timeout_moves_the_parameters_once(stream: LiveStream) -> None:
    queues = stream.queues()
    for _ in range(2):
        stream.worker("--sleep", "3", "--visibility", "1")
    stream.push(queues, "mood", 8)
    stream.settled(queues)
    assert stream.steps() == 2


def test_a_lost_doorbell_is_healed_by_the_watchdog(tmp_path: Path) -> None:
    with live_stream(tmp_path, **QUICK) as stream:
        queues = stream.queues()
        worker = stream.worker("--silence", "1")
        stream.push(queues, "mood", 4)
        stream.settled(queues)
        # Whatever the server rings from now on goes to a queue that nobody hears.
        broker = stream.clients[0]
        broker.execute_command("SELECT", 1)
        for key in broker.keys("*_kombu.binding*"):
            broker.delete(key)
        stop = time.monotonic() + 1.5
        while time.monotonic() < stop:
            broker.delete("trunkline:reviews:celery:doorbell")
        stream.push(stream.queues(), "mood", 4)
        deadline = time.monotonic() + 60
        while stream.steps() < 2 and time.monotonic() < deadline:
            broker.delete("trunkline:reviews:celery:doorbell")
        assert stream.steps() == 2
        assert worker.poll() is None


def test_a_second_sigint_in_a_long_step_gives_the_batch_back(stream: LiveStream, tmp_path: Path) -> None:
    queues, there = stream.queues(), tmp_path / "there"
    stream.push(queues, "mood", 4)
    worker = stream.worker("--at", "gradient", str(there))
    eventually(there.exists)
    worker.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    worker.wait(30)
    claim = eventually(queues.claim)
    assert claim is not None
    assert claim.attempt == 2
    queues.nack(claim, "for the next", counts=False)
    stream.worker()
    stream.settled(queues)


def test_a_slow_worker_hoards_nothing(stream: LiveStream) -> None:
    queues = stream.queues()
    slow = stream.worker("--sleep", "600")
    stream.push(queues, "mood", 4)
    eventually(lambda: queues.counts("mood").leased == 4)
    stream.worker()
    stream.push(queues, "price", 40)
    eventually(lambda: queues.counts("price").applied == 40)
    slow.kill()
    slow.wait(10)
    stream.settled(queues)


@pytest.mark.parametrize("program", ["trunkline", "trunkline-child"])
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_the_command_lines_run_one_until_told_to_stop(program: str, pool: str, stream: LiveStream) -> None:
    queues = stream.queues()
    folder = str(stream.home.folder)
    worker = stream.start(program, "worker", "--stream-folder", folder, "--threads", "1", "--pool", pool, "--output", "json")
    stream.push(queues, "mood", 8)
    stream.settled(queues)
    assert end(worker, signal.SIGINT) == 0
    words = (stream.home.logs / "test-1.log").read_text()
    assert "step 1, of task mood; 1 applied" in words
    assert '"stopped": true' in words
    assert "step 1, of task mood" in (stream.home.logs / "worker.log").read_text()


def test_celerys_own_program_runs_a_worker_that_monitors_see(stream: LiveStream) -> None:
    queues = stream.queues()
    arguments = ("-A", "queues.doorbell", "worker", "--without-mingle", "--without-gossip", "-E", "-n", "own@host")
    worker = stream.start("celery", *arguments, TRUNKLINE_STREAM=str(stream.home.folder))
    stream.push(queues, "mood", 4)
    stream.settled(queues)
    app = doorbell.make_app(doorbell.broker_of(stream.url), "reviews")
    assert eventually(lambda: app.control.inspect(timeout=1.0).ping()) == {"own@host": {"ok": "pong"}}
    seen: list[str] = []
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        stream.push(queues, "mood", 4)
        while not seen:
            with suppress(TimeoutError):
                receiver.capture(limit=1, timeout=1, wakeup=False)
    app.close()
    assert end(worker) == 0, stream.words()


def test_a_thousand_doorbells_leave_nothing_behind(stream: LiveStream) -> None:
    """Memory, keys and connections stay as they are."""
    queues = stream.queues()
    worker = stream.worker()
    stream.push(queues, "mood", 4)
    stream.settled(queues)
    app = doorbell.make_app(doorbell.broker_of(stream.url), "reviews")
    client = stream.clients[0]
    sizes, keys, clients = [], [], []
    for _ in range(4):
        for _ in range(500):
            eventually(lambda: doorbell.ring(app, 8))
        stream.push(queues, "mood", 40)
        stream.settled(queues)
        eventually(lambda: doorbell.waiting(app) == 0)
        sizes.append(resident(worker.pid))
        info = client.info("keyspace")
        keys.append(info["db1"]["keys"])
        clients.append(len(client.client_list()))
    app.close()
    assert sizes[-1] - sizes[1] < 5 << 20, sizes
    assert max(keys) <= 8, keys  # the binding's two, and what holds a doorbell that is on its way
    assert max(clients[1:]) <= clients[0] + 2, clients


# -- help --------------------------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def persistent(once: Callable[[], Found]) -> Found:
    """Again, while the server of the queues is away."""
    end = time.monotonic() + 60
    while True:
        try:
            return once()
        except TrunklineError:
            assert time.monotonic() < end
            time.sleep(0.05)


def alive(stream: LiveStream) -> bool:
    try:
        return bool(stream.clients[0].ping())
    except Exception:
        return False
