"""The desk of a stream: what comes in is all of a request or nothing of it, and what is wrong is said by line and column."""

import base64
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.redis import CHUNK, RedisQueues
from queues.stream import edge
from queues.stream.desk import Desk
from queues.stream.edge import Edge
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from tests.support import small_stream
from tests.support.streams import client, server
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotFound, QueueFull, QueuePaused, SampleError, SettingsError, UsageError

_names = itertools.count()

ROW = {"text": "good food", "mood": "good", "price": 3.5}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with server("embedded", tmp_path_factory.mktemp("redis")) as made:
        yield made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[StreamHome, Learner]:
    home = small_stream.folder(tmp_path_factory.mktemp("stream") / "reviews", feeds={"both": ["mood", "price"]})
    return home, small_stream.learner(home)


@pytest.fixture
def desk(redis: EmbeddedServer, made: tuple[StreamHome, Learner]) -> Desk:
    home, learner = made
    queues = small_stream.opened(home, RedisQueues(client(redis), f"desk-{next(_names)}"))
    return Desk(home, home.spec, queues, Edge(learner.packers), None, ManualClock())


def lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def waiting(desk: Desk) -> dict[str, int]:
    return {one["task"]: one["waiting"] for one in desk.stats()}


# -- samples -----------------------------------------------------------------------------------------------------------


def test_rows_wait_packed_as_a_packer_packs_them(desk: Desk, made: tuple[StreamHome, Learner]) -> None:
    rows = [{"text": f"good food {number}", "mood": "good"} for number in range(3)]
    assert desk.push("mood", lines(*rows)) == {"samples": 3, "waiting": {"mood": 3}}
    assert list(desk.queues.waiting("mood")) == made[1].packers["mood"].pack(rows)


def test_a_name_feeds_several_tasks(desk: Desk) -> None:
    assert desk.push("both", lines(ROW, ROW)) == {"samples": 2, "waiting": {"mood": 2, "price": 2}}


def test_a_push_that_is_sent_again_does_no_harm(desk: Desk) -> None:
    for _ in range(3):
        assert desk.push("both", lines(ROW, ROW), producer="me", first=1)["waiting"] == {"mood": 2, "price": 2}
    desk.push("both", lines(ROW, ROW), producer="me", first=2)
    assert waiting(desk) == {"mood": 3, "price": 3}
    with pytest.raises(Conflict, match="should go on with sample 4, found 9"):
        desk.push("both", lines(ROW), producer="me", first=9)


def test_a_producer_counts_what_it_pushes_under_each_name_apart(desk: Desk) -> None:
    desk.push("both", lines(ROW, ROW), producer="me", first=1)
    desk.push("mood", lines(ROW), producer="me", first=1)  # another sample, not the first of those before
    desk.push("both", lines(ROW), producer="me", first=3)
    desk.push("mood", lines(ROW), producer="me", first=2)
    assert waiting(desk) == {"mood": 5, "price": 3}


def test_a_packed_sample_is_taken_as_it_is(desk: Desk, made: tuple[StreamHome, Learner]) -> None:
    sample = made[1].packers["mood"].pack([ROW])[0]
    packed = {"packed": base64.b64encode(sample).decode()}
    desk.push("mood", lines(packed, ROW, packed))
    assert desk.queues.waiting("mood") == (sample,) * 3


def test_blank_lines_are_no_samples(desk: Desk) -> None:
    assert desk.push("mood", b"\n\n" + lines(ROW) + b"  \n" + lines(ROW))["samples"] == 2
    assert desk.push("mood", b"")["samples"] == 0


LONG = b'{"text": "%s", "mood": "good"}'

WRONG: dict[str, tuple[list[Any], str]] = {
    "no-json": ([ROW, b"nope"], r"line 2: should be a JSON object, found"),
    "no-object": ([ROW, [1]], r"line 2: should be a JSON object, found list"),
    "no-utf8": ([ROW, b'{"text": "\xff"}'], r"line 2: should be UTF-8, found another byte at place 10"),
    "deep": ([b"[" * 100_000], r"line 1: should be a JSON object, found"),
    "label-outside": ([ROW, ROW | {"mood": "god"}], r"line 2, column 'mood': should be one of bad, good, found 'god'"),
    "no-label": ([{"text": "x"}], r"line 1, column 'mood': should have a label, found none"),
    "no-text": ([b"", {"mood": "good"}], r"line 2, column 'text': should have a value, found none"),
    "text-is-a-list": ([ROW | {"text": ["x"]}], r"line 1, column 'text': should be text, found \['x'\]"),
    "half-a-character": ([b'{"text": "\\ud83d", "mood": "good"}'], r"line 1, column 'text': should be whole characters"),
    "ten-megabytes": ([LONG % (b"x" * (10 << 20))], r"line 1: should have at most 4194304 bytes, found 104857"),
    "two-megabytes": ([LONG % (b"x" * (2 << 20))], r"line 1, column 'text': should have at most 1048576 characters, found 2097152"),
    "no-base64": ([{"packed": "?"}], r"line 1, column 'packed': should have a sample in base64"),
    "packed-list": ([{"packed": [1]}], r"line 1, column 'packed': should have a sample in base64"),
    "packed-nonsense": ([{"packed": "AAAA"}], r"line 1, column 'packed': a packed sample of task 'mood' should be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named_and_nothing_of_its_request_is_taken(desk: Desk, name: str) -> None:
    rows, said = WRONG[name]
    with pytest.raises(SampleError, match=said):
        desk.push("mood", lines(*rows))
    assert waiting(desk) == {"mood": 0, "price": 0}


@pytest.mark.parametrize("target", ["NaN", "Infinity", "1e39", '"much"', "true", "null"])
def test_a_target_is_a_finite_number(desk: Desk, target: str) -> None:
    with pytest.raises(SampleError, match=r"line 1, column 'price': should (be a finite number|have a label), found"):
        desk.push("price", b'{"text": "x", "price": %s}' % target.encode())
    assert waiting(desk)["price"] == 0


def test_a_token_id_outside_the_vocabulary_is_refused(desk: Desk, made: tuple[StreamHome, Learner]) -> None:
    sample = made[1].packers["mood"].pack([ROW])[0]
    beyond = sample[:8] + b"\xff\xff" + sample[10:]
    with pytest.raises(SampleError, match="line 1, column 'packed': a packed sample of task 'mood' should have token ids below"):
        desk.push("mood", lines({"packed": base64.b64encode(beyond).decode()}))


def test_all_wrong_lines_of_a_request_are_told(desk: Desk) -> None:
    rows = [ROW, ROW | {"mood": "god"}, ROW, {"text": "x"}]
    with pytest.raises(SampleError, match=r"2 of 4 lines should be samples of task 'mood'.*line 2, column.*line 4, column"):
        desk.push("mood", lines(*rows))
    with pytest.raises(SampleError, match=r"30 of 30 lines.*line 10, .* And 20 more\.$"):
        desk.push("mood", lines(*[ROW | {"mood": "god"}] * 30))


def test_lines_are_numbered_as_in_their_file(desk: Desk) -> None:
    with pytest.raises(SampleError, match="line 1001: should be a JSON object"):
        desk.push("mood", b"nope", line=1001)


def test_a_sample_that_one_of_the_fed_tasks_refuses_goes_to_none(desk: Desk) -> None:
    with pytest.raises(SampleError, match="column 'price'"):
        desk.push("both", lines(ROW, {"text": "x", "mood": "good"}))
    assert waiting(desk) == {"mood": 0, "price": 0}


def test_a_push_has_so_many_samples_at_most(desk: Desk) -> None:
    with pytest.raises(SampleError, match=f"at most {CHUNK} samples, found {CHUNK + 1}"):
        desk.push("mood", lines(*[ROW] * (CHUNK + 1)))
    assert desk.push("mood", lines(*[ROW] * CHUNK))["samples"] == CHUNK


def test_an_unknown_task_is_named_with_those_there_are(desk: Desk) -> None:
    for ask in (lambda: desk.push("moot", b""), lambda: desk.tasks_of("moot")):
        with pytest.raises(NotFound, match="should be one of mood, price, both, found 'moot'"):
            ask()
    asked: list[Callable[[str], Any]] = [desk.stats, desk.peek, desk.dead, desk.retry, desk.purge, desk.purge_dead]
    for ask_one in asked:
        with pytest.raises(NotFound, match="mood, price"):
            ask_one("both")


# -- no room -----------------------------------------------------------------------------------------------------------


def test_busy_and_paused_say_how_many_wait(desk: Desk) -> None:
    desk.change("mood", {"most": 5})
    desk.push("mood", lines(*[ROW] * 4))
    with pytest.raises(QueueFull, match="should have room for 2 more samples, found 4 in it"):
        desk.push("mood", lines(ROW, ROW))
    desk.set_state("mood", "paused")
    with pytest.raises(QueuePaused, match="takes no samples; 4 wait"):
        desk.push("mood", lines(ROW))
    desk.set_state("mood", "open")
    desk.push("mood", lines(ROW))
    assert waiting(desk)["mood"] == 5


def test_where_one_queue_has_no_room_none_of_those_fed_takes_a_sample(desk: Desk) -> None:
    desk.change("price", {"most": 2})
    with pytest.raises(QueueFull, match=r"'price' should have room for 3 more samples, found 0 in it. None took a sample"):
        desk.push("both", lines(*[ROW] * 3))
    desk.set_state("price", "stopped")
    with pytest.raises(QueuePaused, match=r"'price' should be open, found it stopped; 0 wait. None took a sample"):
        desk.push("both", lines(ROW))
    assert waiting(desk) == {"mood": 0, "price": 0}


def test_what_one_queue_took_before_another_refused_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(tasks: Any, count: int) -> None:
        desk.set_state("price", "paused")  # between the look and the push

    monkeypatch.setattr(desk, "_check_room", nothing)
    with pytest.raises(QueuePaused, match=r"queues of mood took them before. Push them again under the same producer"):
        desk.push("both", lines(ROW), producer="me", first=1)
    desk.set_state("price", "open")
    monkeypatch.setattr(desk, "_check_room", lambda tasks, count: None)
    desk.push("both", lines(ROW), producer="me", first=1)
    assert waiting(desk) == {"mood": 1, "price": 1}


def test_more_pushes_at_a_time_than_there_may_be_are_told_to_come_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: Any, **__: Any) -> Any:
        return desk.push("mood", b"")

    monkeypatch.setattr(desk.edge, "packed", again)
    with pytest.raises(QueueFull, match="at most 16 pushes at a time"):
        desk.push("mood", b"")
    monkeypatch.undo()
    assert desk.push("mood", lines(ROW))["samples"] == 1


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_look_shows_text_and_label(desk: Desk) -> None:
    desk.push("both", lines(ROW, {"text": "Slow price!", "mood": "bad", "price": -1}))
    desk.queues.push("mood", [b"not one of ours"])
    first, second, third = desk.peek("mood")
    assert (first["inputs"], first["label"], first["numbers"]) == (["good food"], "good", [4])
    assert (second["inputs"], second["label"]) == (["slow price!"], "bad")
    assert "should begin with" in third["problem"]
    assert [one["label"] for one in desk.peek("price")] == [3.5, -1.0]
    assert len(desk.peek("mood", 1)) == 1
    with pytest.raises(UsageError, match="`most` should be from 0 to 1000, found 1001"):
        desk.peek("mood", 1001)


def test_rates_are_growth_a_second(desk: Desk) -> None:
    assert isinstance(desk.clock, ManualClock)
    desk.look()
    desk.push("mood", lines(*[ROW] * 6))
    desk.clock.sleep(2.0)
    desk.look()
    found = desk.stats("mood")[0]
    assert (found["pushed_a_second"], found["applied_a_second"], found["pushed"]) == (3.0, 0.0, 6)


def test_dead_batches_are_told_retried_and_purged(desk: Desk) -> None:
    desk.queues.configure_stream(desk.spec.queues.model_copy(update={"attempts": 1}))
    desk.push("mood", lines(*[ROW] * 8))
    for _ in range(2):
        claim = desk.queues.claim()
        assert claim is not None
        desk.queues.nack(claim, "the loss is NaN")
    one, _ = desk.dead("mood")
    assert (one["size"], one["reason"], one["samples"][0]["label"]) == (4, "the loss is NaN", "good")
    assert desk.stats("mood")[0]["dead"] == 8
    assert desk.retry("mood", [one["batch"]]) == {"task": "mood", "batches": 1}
    assert desk.purge_dead("mood") == {"task": "mood", "samples": 4}
    assert desk.dead("mood") == []
    assert [out["where"] for out in desk.out()] == ["back"]


def test_a_worker_is_seen_by_what_it_has(desk: Desk) -> None:
    desk.push("mood", lines(*[ROW] * 4))
    worker = RedisQueues(desk.queues._client, desk.queues.name, worker="ada:7")
    assert worker.claim() is not None
    (out,) = desk.out()
    assert (out["worker"], out["queue"], out["where"]) == ("ada:7", "mood", "leased")
    assert worker.claim() is None
    (seen,) = desk.workers()
    assert seen["worker"] == "ada:7" and seen["seen"] < 60 and seen["batches"] == [out | {"seconds": seen["batches"][0]["seconds"]}]


def test_settings_are_changed_one_by_one_and_checked(desk: Desk) -> None:
    assert desk.change("mood", {"weight": 2.0})["settings"]["weight"] == 2.0
    found = desk.change("mood", {"priority": 3})["settings"]
    assert (found["weight"], found["priority"], found["batch_size"]) == (2.0, 3, 4)
    with pytest.raises(SettingsError, match="`wieght` in the queue mood is not a known key; did you mean `weight`"):
        desk.change("mood", {"wieght": 2})
    with pytest.raises(SettingsError, match="`batch_size` in the queue mood is wrong"):
        desk.change("mood", {"batch_size": 5000})


def test_all_that_wait_can_be_given_up(desk: Desk) -> None:
    desk.push("mood", lines(*[ROW] * 3))
    assert desk.purge("mood") == {"task": "mood", "samples": 3}
    assert desk.stats("mood")[0]["purged"] == 3


def test_scores_are_the_newest_whole_lines(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.home, "scores", tmp_path / "scores.jsonl")
    assert desk.scores() == []
    text = "".join(json.dumps({"step": step}) + "\n" for step in range(5))
    (tmp_path / "scores.jsonl").write_text(text + '{"step": ', encoding="utf-8")
    assert [one["step"] for one in desk.scores(3)] == [3, 4]


def test_the_limits_hold_for_a_push_as_a_whole(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "CHUNK_BYTES", 40)
    with pytest.raises(SampleError, match="at most 40 bytes of samples, found"):
        desk.push("mood", lines(*[ROW] * 9))
