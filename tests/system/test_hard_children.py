"""Real children in hard conditions: many rounds, no memory left, busy for longer than every interval, later than every deadline."""

import json
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.world import write_reviews

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(400)]

BOTH = {"wanted": 2, "least": 2}
WIDE = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}
"""An encoder whose set is large beside what an allocator leaves lying about: 7 MB."""

HEAD = '''"""A head that does as it is told by the file beside it, once: keeps the processor, or the interpreter, busy."""

import ctypes
import json
import time
from pathlib import Path

import torch

from tasks.heads import Single

FOLDER = Path(__file__).parent


class Told(Single):
    def loss(self, sides, batch):
        with (FOLDER / "steps").open("a") as file:
            print(batch.size, file=file)
        order = FOLDER / "order.json"
        if order.exists():
            told = json.loads(order.read_text())
            order.unlink()
            end = time.monotonic() + told.get("busy", 0)
            table = torch.ones(256, 256)
            while time.monotonic() < end:
                table = (table @ table).clamp(max=1.0)
            if held := told.get("held"):
                ctypes.PyDLL(None).sleep(held)  # one call that never lets go of the interpreter: no other thread runs
        return super().loss(sides, batch)
'''


class Hard:
    """A cluster with a plain child, amy, and ben, who does as told."""

    def __init__(self, made: Cluster) -> None:
        self.made, self.modules = made, made.folder / "ben" / "modules"

    def tell(self, **order: int) -> None:
        (self.modules / "order.json").write_text(json.dumps(order), encoding="utf-8")

    def steps(self) -> int:
        """Losses that ben has computed."""
        path = self.modules / "steps"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def pid(self, name: str = "ben") -> int:
        process = self.made.children[name]
        assert process.poll() is None, f"{name} should live, found that it ended with {process.returncode}"
        return process.pid

    def round(self, job: str, number: int = 1) -> dict[str, Any]:
        return self.made.call("GET", f"/v1/admin/jobs/{job}/rounds/{number}")

    def ended(self, job: str, seconds: float = 120.0) -> dict[str, Any]:
        self.made.wait(f"job {job} to end", lambda: self.made.job(job)["state"] in ("finished", "failed"), seconds)
        return self.made.job(job)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hard]:
    folder = tmp_path_factory.mktemp("hard")
    with cluster(folder, {"amy": 60}) as made:
        (folder / "ben" / "modules").mkdir(parents=True)
        head = folder / "ben" / "modules" / "head.py"
        head.write_text(HEAD, encoding="utf-8")
        made.add_child("ben", write_reviews(folder / "ben.csv", 80, 1), "--custom-head", f"{head}:Told")
        made.wait("ben to greet", lambda: all(node["boot"] for node in made.call("GET", "/v1/admin/nodes")), 90.0)
        made.add_encoder("wide", **WIDE)
        yield Hard(made)


def resident(pid: int) -> int:
    """Bytes that a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def virtual(pid: int) -> int:
    """Bytes of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


# -- many rounds -------------------------------------------------------------------------------------------------------


def test_a_childs_memory_is_flat_over_many_rounds(hard: Hard) -> None:
    """T-23: over the last ten of 32 rounds a child holds no more than half a parameter set more than it did after ten."""
    made, rounds = hard.made, 32
    job = made.start_job(encoder="wide", rounds=rounds, children=BOTH, training={"steps": 2})
    held: dict[int, dict[str, int]] = {}

    def look() -> bool:
        told = made.job(job)
        assert told["state"] not in ("failed", "aborted"), told["reason"]
        closed = sum(one["state"] == "closed" for one in told["rounds"])
        held[closed] = {name: resident(hard.pid(name)) for name in made.children}
        return told["state"] == "finished"

    made.wait(f"job {job} to finish", look, 300.0)
    size = made.call("GET", "/v1/admin/encoders/wide")["current"]["size"]
    for name in made.children:
        early = median(bytes_[name] for number, bytes_ in held.items() if 10 <= number < 20)
        late = median(bytes_[name] for number, bytes_ in held.items() if rounds - 10 <= number)
        told = f"{early / 2**20:.1f} MiB after ten rounds, {late / 2**20:.1f} MiB after {rounds}; a set is {size / 2**20:.1f}"
        print(f"{name}: {told}")
        assert late - early < size / 2, f"{name}: {told}"


# -- no memory ---------------------------------------------------------------------------------------------------------


def test_a_child_without_memory_is_a_failed_update(hard: Hard) -> None:
    """T-26: a batch that does not fit is an update refused for `memory`; the job goes on, and so does the child."""
    made, pid = hard.made, hard.pid()
    made.finish(made.start_job(rounds=1, children=BOTH))  # the encoder is loaded
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (virtual(pid) + (64 << 20), before[1]))
    try:
        job = made.start_job(rounds=2, children=BOTH | {"least_updates": 1}, training={"steps": 1, "batch_size": 4096})
        made.finish(job)
        for number in (1, 2):
            told = hard.round(job, number)
            assert [update["child"] for update in told["updates"]] == ["amy"]
            assert [(one["child"], one["reason"]) for one in told["refusals"]] == [("ben", "memory")], told["refusals"]
        job = made.start_job(rounds=1, children=BOTH)  # a batch that fits, within the same limit
        made.finish(job)
        assert [update["child"] for update in hard.round(job)["updates"]] == ["amy", "ben"]
        assert hard.pid() == pid
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


# -- busy --------------------------------------------------------------------------------------------------------------


def test_a_busy_child_is_not_taken_for_dead(hard: Hard) -> None:
    """T-32, T-34: one step of more than a minute: longer than three heartbeats, than Flower waits for a node and for a task, and
    than it takes to send a message again. For its last third not even the heartbeat gets to run. The update counts, once.
    """
    made, before = hard.made, hard.steps()
    hard.tell(busy=38, held=24)
    begun, away = time.monotonic(), []
    job = made.start_job(rounds=1, children=BOTH, training={"steps": 2})

    def look() -> bool:
        seconds = time.monotonic() - begun
        if seconds < 36:
            away.extend(node["name"] for node in made.call("GET", "/v1/admin/nodes") if node["online"] is False)
        return made.job(job)["state"] in ("finished", "failed")

    made.wait(f"job {job} to end", look, 180.0)
    seconds = time.monotonic() - begun
    told = hard.round(job)
    assert made.job(job)["state"] == "finished", made.job(job)["reason"]
    assert seconds > 60
    assert not away, "a child that computes is there"
    assert not told["refusals"]
    assert [update["child"] for update in told["updates"]] == ["amy", "ben"]
    assert hard.steps() - before == 2, "the message came again meanwhile, and was not trained on again"


# -- late --------------------------------------------------------------------------------------------------------------


def test_an_update_after_the_deadline_is_no_update(hard: Hard) -> None:
    """T-34: the round closes without who is late, says so, and gives it no weight; what comes later changes nothing."""
    made = hard.made
    hard.tell(busy=9)
    job = made.start_job(rounds=1, children=BOTH | {"least_updates": 1, "update_seconds": 4.0})
    digest = made.finish(job)
    told = hard.round(job)
    assert set(told["weights"]) == {"amy"}
    assert [(one["child"], one["reason"]) for one in told["refusals"]] == [("ben", "silent")]
    job = made.start_job(rounds=1, children=BOTH)  # ben is heard again once it is done
    assert made.finish(job) != digest
    assert {update["child"] for update in hard.round(job)["updates"]} == {"amy", "ben"}


def test_a_round_whose_updates_are_all_late_is_no_success(hard: Hard) -> None:
    """T-34: with too few updates in time nothing is published, and a job that can hold no round fails by its deadline."""
    made = hard.made
    before = made.call("GET", "/v1/admin/encoders/tiny")["current"]
    hard.tell(busy=12)
    job = made.start_job(rounds=1, children=BOTH | {"update_seconds": 3.0, "confirm_seconds": 2.0, "wait_seconds": 5.0})
    told = hard.ended(job)
    assert told["state"] == "failed"
    assert told["reason"].startswith("deadline: waited 5 s for"), told["reason"]
    assert {one["state"] for one in told["rounds"]} == {"skipped"}
    assert made.call("GET", "/v1/admin/encoders/tiny")["current"] == before


def test_a_step_longer_than_its_lease_is_no_success(hard: Hard) -> None:
    """T-34: a site that gives a step one second gets a failed update with a reason, whatever the step came to."""
    made, pid = hard.made, hard.pid()
    settings, log = made.folder / "ben" / "child.toml", made.folder / "ben" / "logs" / "agent.log"
    usual, read = settings.read_text(encoding="utf-8"), log.read_text(encoding="utf-8").count("settings were read again")

    def set_to(text: str) -> None:
        nonlocal read
        settings.write_text(text, encoding="utf-8")
        made.children["ben"].send_signal(signal.SIGHUP)
        read += 1
        made.wait(
            "ben to read its settings", lambda: log.read_text(encoding="utf-8").count("settings were read again") == read, 30.0
        )

    set_to(usual + "batch_lease = 1.0\n")
    hard.tell(busy=3)
    job = made.start_job(rounds=1, children=BOTH | {"least_updates": 1})
    made.finish(job)
    told = hard.round(job)
    assert set(told["weights"]) == {"amy"}
    assert [(one["child"], one["reason"]) for one in told["refusals"]] == [("ben", "training")]
    set_to(usual)
    assert hard.pid() == pid
