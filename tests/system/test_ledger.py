"""The ledger under real processes: many that write at once (T-42), and some that are killed while they write."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from master.ledger import Ledger
from tests.support.ledgers import digest, open_ledger, owned_job, play_to
from trunkline.clock import SystemClock
from trunkline.errors import Fenced

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
    """A Python process that runs `code`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def outputs(processes: Sequence["subprocess.Popen[str]"], seconds: float) -> list[str]:
    """What they printed, once all have ended well."""
    until = time.monotonic() + seconds
    found = []
    for process in processes:
        out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
        assert process.returncode == 0, err
        found.append(out)
    return found


WRITERS = """
import sys, threading
from master.ledger import Ledger
from trunkline.clock import SystemClock
ledger = Ledger.open(sys.argv[1], SystemClock())  # all at once on a file that is not there yet
name, errors = sys.argv[2], []
def write(thread):
    try:
        for number in range(10):
            ledger.event("written", data={"by": [name, thread, number]})
            ledger.set_node("shared", seen=float(number), labels={"by": f"{name}-{thread}"})
    except Exception as error:
        errors.append(repr(error))
try:
    ledger.add_node("shared", b"key", "a" * 64)
except Exception:
    pass
threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("\\n".join(errors))
"""


def test_32_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Four processes of eight threads each; none is told that the database is locked, and every event is there once."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    assert outputs([start(WRITERS, url, name) for name in range(4)], 90) == ["\n"] * 4
    ledger = Ledger.open(url, SystemClock())
    written = [tuple(event.data["by"]) for event in ledger.events(limit=10_000) if event.kind == "written"]
    assert sorted(written) == [(str(p), t, n) for p in range(4) for t in range(8) for n in range(10)]
    for writer in {entry[:2] for entry in written}:
        assert [entry[2] for entry in written if entry[:2] == writer] == list(range(10)), "each in its own order"
    ledger.close()


PLAYER = """
import sys
from pathlib import Path
from tests.support.ledgers import digest, open_ledger, play_to
from trunkline.clock import SystemClock
ledger = open_ledger(Path(sys.argv[1]), SystemClock())
job = ledger.own(ledger.open_jobs()[0].id, "player")
last = job.last_round()
if last is not None and last.open:
    if last.target is None:
        job.skip_round(last.number, "killed")
    else:
        job.close_round(last.number)
number = last.number + 1 if last else 1
print("ready", flush=True)
while True:
    play_to(job, "closed", number=number, target=f"{number:x}-")
    print(number, flush=True)
    number += 1
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_killed_while_writing_it_stays_whole_and_goes_on(tmp_path: Path) -> None:
    """One process after the other plays rounds and is killed at a step of a round; what it said was done is done."""
    ledger = open_ledger(tmp_path, SystemClock())
    job = owned_job(ledger)
    for step in ("round.opened", "confirmation", "round.members", "update.accepted", "round.published", "round.closed"):
        process = start(PLAYER, tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
        wait_for(ledger, step)
        os.kill(process.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=20)
        with ledger._db.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        rounds = {round_.number: round_ for round_ in job.rounds()}
        assert all(rounds[int(line)].state == "closed" for line in said.split())
        assert sorted(rounds) == list(range(1, len(rounds) + 1))
        assert all(not rounds[number].open for number in sorted(rounds)[:-1])
        published = [version.round for version in ledger.versions("text") if version.kind == "round"]
        assert published == [number for number in sorted(rounds) if rounds[number].target is not None]
    assert len(rounds) >= 3
    ledger.close()


def wait_for(ledger: Ledger, kind: str) -> None:
    """Until something of this kind happens."""
    last, until = 0, time.monotonic() + 30
    while events := ledger.events(after=last):
        last = events[-1].id
    while time.monotonic() < until:
        events = ledger.events(after=last)
        if any(event.kind == kind for event in events):
            return
        last = events[-1].id if events else last
        time.sleep(0.0005)
    raise AssertionError(f"no {kind} in 30 s")


def test_a_process_that_was_replaced_writes_nothing_more(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, SystemClock())
    owned_job(ledger)
    process = start(PLAYER, tmp_path)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.readline()
    newer = ledger.own(ledger.open_jobs()[0].id, "newer")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and Fenced.__name__ in err
    last = newer.last_round()
    assert last is not None
    (newer.close_round if last.target else lambda number: newer.skip_round(number, "x"))(last.number)
    play_to(newer, "closed", number=last.number + 1, target="9-")
    assert newer.current_version().digest == digest(f"9-{last.number + 1}")
    ledger.close()


OPENING = """
import sys, time
from master.ledger import Ledger
from trunkline.clock import SystemClock
times = []
for _ in range(5):
    start = time.process_time()
    Ledger.open(sys.argv[1], SystemClock()).close()
    times.append(time.process_time() - start)
print(min(times), "alembic" in sys.modules)
"""


def test_opening_a_ledger_that_is_up_to_date_takes_under_50_ms_and_no_alembic(tmp_path: Path) -> None:
    open_ledger(tmp_path, SystemClock()).close()
    (found,) = outputs([start(OPENING, f"sqlite:///{tmp_path}/ledger.db")], 60)
    seconds, alembic = found.split()
    assert alembic == "False"
    assert float(seconds) < 0.05
