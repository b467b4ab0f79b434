"""Where rounds come into a stream, at its real server: what is added once, and the turns of a child."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from queues.queue import Claim, Outcome
from queues.redis import RedisQueues
from queues.store.store import Sent, Verdict
from queues.stream.join import join
from queues.stream.worker import Worker, never
from tests.support import small_stream
from tests.support.served import Served, served
from trunkline.errors import Conflict, NotFound, QueuePaused, RefusedValue, UsageError
from trunkline.sets import SetFile, write_set
from trunkline.tensors import Array

pytestmark = pytest.mark.contract

ROW = {"text": "good food", "mood": "good", "price": 3.5}

BATCH = 4
"""Of the task `mood`."""


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(small_stream.folder(tmp_path_factory.mktemp("rounds") / "reviews")) as made:
        yield made


@pytest.fixture(scope="module")
def worker(stream: Served) -> Iterator[Worker]:
    made = join(stream.home, threads=1)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _as_before(stream: Served, worker: Worker) -> Iterator[None]:
    """What a test leaves is given up, or applied where it is in a worker's hands."""
    yield
    stream.call("POST", "rounds/attach", json.dumps({"attached": False}))
    for task in ("mood", "price"):
        stream.call("DELETE", f"queues/{task}/samples")
    stream.wait("what is out", lambda: worker.drain() >= 0 and kept(stream) == 0)


def push(stream: Served, task: str, count: int) -> None:
    stream.call("POST", f"queues/{task}/samples", b"".join(json.dumps(ROW).encode() + b"\n" for _ in range(count)))


def now(stream: Served, to: Path) -> dict[str, Array]:
    """The shared layers, as a file and as arrays."""
    with stream.client.talk("GET", "/v1/snapshot") as answer:
        to.write_bytes(b"".join(answer.chunks))
    with SetFile(to) as file:
        return file.tensors()


def moved(values: dict[str, Array], by: float, to: Path) -> dict[str, Array]:
    """All values, moved: what a round might have come to."""
    found = {name: np.asarray(value + np.float32(by), np.float32) for name, value in values.items()}
    write_set(to, found)
    return found


def merge(stream: Served, name: str, base: Path, target: Path) -> dict[str, Any]:
    body = {"name": name, "base": str(base), "target": str(target)}
    return dict(stream.call("POST", "rounds/merge", json.dumps(body)))


def begin(stream: Served, name: str, initial: Path, steps: int = 1, tasks: tuple[str, ...] = ("mood",)) -> dict[str, Any]:
    body = {"name": f"{name}/in", "initial": str(initial), "steps": steps, "tasks": tasks}
    return dict(stream.call("POST", "rounds/begin", json.dumps(body)))


def end(stream: Served, name: str) -> dict[str, Any]:
    return dict(stream.call("POST", "rounds/end", json.dumps({"name": f"{name}/in", "why": "said so"})))


def state(stream: Served, task: str) -> str:
    return str(stream.call("GET", f"queues/{task}")["state"])


def kept(stream: Served) -> int:
    """Samples that the queue of `mood` can give, now or in the next round."""
    found = stream.counts("mood")
    return found["waiting"] + found["leased"] + found["submitted"]


def out(worker: Worker) -> tuple[RedisQueues, Claim[bytes], Sent]:
    """A batch in the hands of a slow worker, and its gradient, which nobody has yet."""
    claim = worker.queues.claim()
    assert claim is not None
    sent = worker._compute(claim, never)
    assert sent is not None
    return worker.queues, claim, sent


def hand_in(worker: Worker, claim: Claim[bytes], sent: Sent) -> Verdict | None:
    worker.store.send(sent)
    assert worker.queues.submit(claim) is Outcome.OK
    return worker.store.verdict(claim.id, claim.attempt, 30.0)


# -- what rounds came to -------------------------------------------------------------------------------------------------


def test_a_round_is_added_once_to_whatever_was_applied_meanwhile(stream: Served, worker: Worker, tmp_path: Path) -> None:
    base = now(stream, tmp_path / "base")
    target = moved(base, 0.25, tmp_path / "target")
    push(stream, "mood", BATCH)
    stream.wait("the batch", lambda: worker.drain() >= 0 and kept(stream) == 0)
    learned = now(stream, tmp_path / "learned")
    first, again = (merge(stream, "job-1/1", tmp_path / "base", tmp_path / "target") for _ in range(2))
    assert (first["new"], again["new"], again["step"]) == (True, False, first["step"])
    found = now(stream, tmp_path / "found")
    for name, value in found.items():
        wanted = np.where(learned[name] == base[name], target[name], learned[name] + (target[name] - base[name]))
        np.testing.assert_array_equal(value, wanted, err_msg=name)


def test_a_gradient_from_before_a_round_goes_by_the_staleness_bound(stream: Served, worker: Worker, tmp_path: Path) -> None:
    """At a master: applied one step staler, or computed again where the bound says so; never as if nothing had happened."""
    bound = stream.home.spec.store.staleness
    for merges, verdict in ((1, Verdict.APPLIED), (bound + 1, Verdict.STALE)):
        push(stream, "mood", BATCH)
        _, claim, sent = out(worker)
        moved(now(stream, tmp_path / f"base-{merges}"), 0.01, tmp_path / f"target-{merges}")
        for number in range(merges):
            merge(stream, f"bound-{merges}/{number}", tmp_path / f"base-{merges}", tmp_path / f"target-{merges}")
        assert hand_in(worker, claim, sent) is verdict
    stream.wait("the batch to be computed again", lambda: worker.drain() >= 0 and kept(stream) == 0)
    assert stream.call("GET", "lineage", most=1)[0]["staleness"] == 0


def test_what_is_no_round_of_this_encoder_is_refused_and_nothing_moves(stream: Served, tmp_path: Path) -> None:
    base = now(stream, tmp_path / "base")
    step = stream.call("GET", "status")["store"]["step"]
    name = next(iter(base))
    write_set(tmp_path / "other", {"nothing": np.zeros(3, np.float32)})
    write_set(tmp_path / "shape", base | {name: np.zeros(3, np.float32)})
    write_set(tmp_path / "nan", base | {name: np.full_like(base[name], np.nan)})
    for what, said in (("other", "found none of them"), ("shape", "should be"), ("nan", "finite")):
        with pytest.raises(RefusedValue, match=said):
            merge(stream, f"bad/{what}", tmp_path / "base", tmp_path / what)
    with pytest.raises(NotFound, match="found no such file"):
        merge(stream, "bad/gone", tmp_path / "base", tmp_path / "gone")
    with pytest.raises(UsageError, match="by its whole path"):
        merge(stream, "bad/relative", tmp_path / "base", Path("gone"))
    assert stream.call("GET", "status")["store"]["step"] == step
    assert not [name for name in stream.call("GET", "rounds") if name.startswith("bad/")]


# -- turns of a child ----------------------------------------------------------------------------------------------------


def test_a_turn_begins_with_exactly_its_set_and_ends_with_exactly_its_steps(stream: Served, worker: Worker, tmp_path: Path) -> None:
    initial = moved(now(stream, tmp_path / "before"), 0.125, tmp_path / "initial")
    push(stream, "mood", 3 * BATCH)
    push(stream, "price", 2)  # one batch of a task that is not in the round
    begun = begin(stream, "exact", tmp_path / "initial", steps=2)
    assert (begun["left"], begun["made"], begun["done"]) == (True, 0, None)
    for name, value in now(stream, tmp_path / "put").items():
        np.testing.assert_array_equal(value, initial[name])
    assert (state(stream, "mood"), state(stream, "price")) == ("open", "filling")
    stream.wait("the steps", lambda: worker.drain() >= 0 and stream.call("GET", "rounds/turn")["done"] is not None)
    turn = stream.call("GET", "rounds/turn")
    assert (turn["made"], turn["done"]["applied"], turn["done"]["why"]) == (2, {"mood": 2 * BATCH}, "steps")
    assert turn["done"]["losses"]["mood"] > 0
    assert state(stream, "mood") == "filling"
    assert worker.queues.claim() is None, "the rest waits for the next turn"
    with SetFile(stream.home.rounds / turn["done"]["digest"]) as file:
        for name, value in now(stream, tmp_path / "after").items():
            np.testing.assert_array_equal(value, file.read(name))
    with SetFile(stream.home.rounds / turn["done"]["heads"]) as file:
        assert {name.split("/")[0] for name in file} == {"mood"}
    assert begin(stream, "exact", tmp_path / "initial", steps=2) == turn, "who asks again is told the same"
    push(stream, "mood", 1)  # queues take samples all the time
    assert stream.counts("mood")["waiting"] == BATCH + 1


def test_a_batch_of_the_round_before_comes_back_and_is_the_first_of_the_next(
    stream: Served, worker: Worker, tmp_path: Path
) -> None:
    """Its gradient is one step old only, well within the bound; and it is never applied to the new set."""
    now(stream, tmp_path / "initial")
    push(stream, "mood", BATCH)
    begin(stream, "late-1", tmp_path / "initial")
    _, claim, sent = out(worker)
    assert end(stream, "late-1")["done"]["applied"] == {}
    second = begin(stream, "late-2", tmp_path / "initial")
    assert second["left"] is True, "a batch is out"
    assert hand_in(worker, claim, sent) is Verdict.STALE
    stream.wait("the batch to come back", lambda: worker.queues.out()[0].where == "back")  # a word after its verdict
    again = worker.queues.claim()
    assert again is not None
    assert (again.id, again.samples) == (claim.id, claim.samples)
    assert stream.call("GET", "status")["store"]["came_back"]["round"] >= 1
    sent = worker._compute(again, never)
    assert sent is not None
    assert hand_in(worker, again, sent) is Verdict.APPLIED
    with pytest.raises(Conflict, match="which is over"):
        begin(stream, "late-1", tmp_path / "initial")


def test_what_comes_after_the_snapshot_waits_for_the_next_round(stream: Served, worker: Worker, tmp_path: Path) -> None:
    now(stream, tmp_path / "initial")
    push(stream, "mood", BATCH)
    begin(stream, "after", tmp_path / "initial")
    _, claim, sent = out(worker)
    end(stream, "after")
    assert hand_in(worker, claim, sent) is Verdict.STALE
    assert worker.queues.claim() is None
    assert kept(stream) == BATCH
    stream.call("POST", "queues/mood/state", json.dumps({"state": "open"}))  # a person thinks it should give batches
    _, claim, sent = out(worker)
    assert hand_in(worker, claim, sent) is Verdict.STALE
    stream.wait("the queue to only fill again", lambda: state(stream, "mood") == "filling")
    assert kept(stream) == BATCH


def test_a_queue_that_a_person_paused_stays_so_and_a_stream_that_feeds_no_rounds_learns_at_all_times(
    stream: Served, worker: Worker, tmp_path: Path
) -> None:
    now(stream, tmp_path / "initial")
    stream.call("POST", "queues/mood/state", json.dumps({"state": "paused"}))
    push(stream, "price", 2)
    begin(stream, "paused", tmp_path / "initial", steps=9, tasks=("mood", "price"))
    assert (state(stream, "mood"), state(stream, "price")) == ("paused", "open")
    with pytest.raises(QueuePaused):
        push(stream, "mood", 1)
    stream.wait("the batch", lambda: worker.drain() >= 0 and stream.counts("price")["waiting"] == 0)
    stream.wait("no more", lambda: not stream.call("GET", "rounds/turn")["left"])
    end(stream, "paused")
    stream.call("POST", "queues/mood/state", json.dumps({"state": "open"}))
    push(stream, "mood", BATCH)
    assert stream.call("POST", "rounds/attach", json.dumps({"attached": False})) == {"attached": False}
    assert (state(stream, "mood"), state(stream, "price")) == ("open", "open")
    stream.wait("all batches", lambda: worker.drain() >= 0 and kept(stream) == 0)


def test_a_task_that_the_stream_has_not_is_named(stream: Served, tmp_path: Path) -> None:
    now(stream, tmp_path / "initial")
    with pytest.raises(NotFound, match="found weather"):
        begin(stream, "unknown", tmp_path / "initial", tasks=("mood", "weather"))
    with pytest.raises(Conflict, match="of a round that began here"):
        end(stream, "unknown")


def test_a_server_that_was_killed_goes_on_with_its_turn(stream: Served, worker: Worker, tmp_path: Path) -> None:
    now(stream, tmp_path / "initial")
    push(stream, "mood", 3 * BATCH)
    begin(stream, "killed", tmp_path / "initial", steps=2)
    _, claim, sent = out(worker)
    assert hand_in(worker, claim, sent) is Verdict.APPLIED
    stream.kill()
    stream.start()
    turn = begin(stream, "killed", tmp_path / "initial", steps=2)
    assert (turn["made"], turn["done"]) == (1, None), "the set did not come in twice"
    stream.wait("the steps", lambda: worker.drain() >= 0 and stream.call("GET", "rounds/turn")["done"] is not None)
    done = stream.call("GET", "rounds/turn")
    assert (done["made"], done["done"]["applied"]) == (2, {"mood": 2 * BATCH})
    stream.kill()
    assert os.path.exists(stream.home.rounds / done["done"]["digest"])
    stream.start()
    assert begin(stream, "killed", tmp_path / "initial", steps=2) == done
    assert state(stream, "mood") == "filling"
    assert kept(stream) == BATCH, "it waits, or came back from a worker that was quick to claim it"


def test_a_replay_makes_the_same_of_batches_and_rounds(stream: Served, worker: Worker, tmp_path: Path) -> None:
    """From the very beginning, whatever the tests before did: rounds that were added, and turns with fresh moments or kept ones."""
    moved(now(stream, tmp_path / "base"), 0.01, tmp_path / "target")
    push(stream, "mood", 2 * BATCH)
    merge(stream, "replay/1", tmp_path / "base", tmp_path / "target")
    body = {"name": "replay/2/in", "initial": str(tmp_path / "base"), "steps": 1, "tasks": ["mood"], "fresh": True}
    stream.call("POST", "rounds/begin", json.dumps(body))
    stream.wait("the step", lambda: worker.drain() >= 0 and stream.call("GET", "rounds/turn")["done"] is not None)
    found = stream.call("POST", "replay", json.dumps({"start": 0, "threads": 1}))
    assert (found["start"], found["same"], found["differs"]) == (0, True, None)
