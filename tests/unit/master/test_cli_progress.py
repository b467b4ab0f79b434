"""How far a job is, from its events alone; and the card that tells where an encoder came from."""

from itertools import count
from typing import Any

import pytest

from master.cli.card import card
from master.cli.progress import Progress, weighted_scores
from master.cli.watch import TOLD, line_of, panel

JOB = {"id": "a-1", "encoder": "a", "spec": {"rounds": 4}}


def score(task: str, value: float, samples: int, split: str = "validation", metric: str = "accuracy") -> dict[str, Any]:
    return {"task": task, "split": split, "metric": metric, "value": value, "samples": samples, "higher_is_better": True}


class Story:
    """Events as the ledger writes them, with a clock that is told."""

    def __init__(self) -> None:
        self.progress, self.ids, self.events = Progress(rounds=4), count(1), list[dict[str, Any]]()

    def __call__(self, at: float, kind: str, child: str | None = None, round: int | None = None, **data: Any) -> None:
        event = {"id": next(self.ids), "at": at, "kind": kind, "job": "a-1", "round": round, "child": child, "data": data}
        self.events.append(event)
        self.progress.take(event)


def round_of(tell: Story, number: int, start: float, seconds: float) -> None:
    tell(start, "round.opened", round=number, base="b" * 64, version=number)
    for child in ("ada", "bob"):
        tell(start, "confirmation", child, number, accepted=True, reason=None, detail="")
    tell(start, "round.members", round=number, children=["ada", "bob"])
    for child in ("ada", "bob"):
        tell(start + 1, "blob.moved", child, number, digest="d" * 64, direction="down", bytes=100)
        tell(start + 2, "blob.moved", child, number, digest="e" * 64, direction="up", bytes=70)
        tell(start + 2, "update.accepted", child, number, digest="e" * 64, size=70)
    tell(start + 3, "round.fusing", round=number)
    tell(start + 3, "round.published", round=number, digest="f" * 64, size=100, version=number + 1)
    tell(start + 3, "report", "ada", number, report={"scores": [score("x", 0.5, 30), score("x", 0.9, 10, "test")]})
    tell(start + 3, "report", "bob", number, report={"scores": [score("x", 0.8, 10), score("y", 0.25, 4)]})
    tell(start + seconds, "round.closed", round=number, reason="")


def test_a_job_from_its_start_to_its_end() -> None:
    tell = Story()
    tell(0, "job.started", encoder="a")
    assert (tell.progress.state, tell.progress.left()) == ("waiting", None)
    tell(0, "job.owned", owner="o", epoch=1)
    assert tell.progress.state == "running"
    round_of(tell, 1, 10, 20)
    assert tell.progress.left() == pytest.approx(60), "three rounds of 20 s"
    tell(40, "round.opened", round=2, base="b" * 64, version=2)
    tell(45, "round.members", round=2, children=["ada"])
    assert tell.progress.left() == pytest.approx(55), "of which 5 s are over"
    assert (tell.progress.number, tell.progress.phase, tell.progress.members, tell.progress.updates) == (
        2,
        "training",
        ("ada",),
        set(),
    )
    assert tell.progress.scores() == {"x": pytest.approx((0.5 * 30 + 0.8 * 10) / 40), "y": 0.25}, "of the round before"
    tell(50, "job.finished", reason="all done")
    assert (tell.progress.ended, tell.progress.left(), tell.progress.reason) == (True, 0.0, "all done")
    told = tell.progress.table()
    assert (told["bytes_down"], told["bytes_up"], told["scored_round"]) == (200, 140, 1)


def test_time_left_is_never_negative_and_skipped_rounds_do_not_count() -> None:
    tell = Story()
    round_of(tell, 1, 0, 5)
    tell(5, "round.opened", round=2, base="b" * 64, version=2)
    tell(100, "round.skipped", round=2, reason="too few")
    assert (tell.progress.fused, tell.progress.phase, tell.progress.left()) == (1, "skipped", pytest.approx(15))
    tell(100, "round.opened", round=3, base="b" * 64, version=2)
    tell(900, "confirmation", "ada", 3, accepted=True, reason=None, detail="")
    assert tell.progress.left() == 0.0


def test_who_is_refused_and_comes_in_after_all() -> None:
    tell = Story()
    tell(0, "round.opened", round=1, base="b" * 64, version=1)
    tell(0, "confirmation", "ada", 1, accepted=False, reason="silent", detail="")
    tell(0, "confirmation", "bob", 1, accepted=True, reason=None, detail="")
    assert (tell.progress.refused, tell.progress.confirmed) == ({"ada": "silent"}, {"bob"})
    tell(1, "confirmation", "ada", 1, accepted=True, reason=None, detail="")
    assert (tell.progress.refused, tell.progress.confirmed) == ({}, {"ada", "bob"})
    tell(2, "update.refused", "ada", 1, reason="not_finite", detail="")
    assert tell.progress.refused == {"ada": "not_finite"}
    tell(3, "round.opened", round=2, base="b" * 64, version=1)
    assert tell.progress.refused == {}


def test_pause_and_resume() -> None:
    tell = Story()
    tell(0, "job.paused", reason="lunch")
    assert (tell.progress.state, tell.progress.reason, tell.progress.ended) == ("paused", "lunch", False)
    tell(1, "job.waiting", reason="")
    assert (tell.progress.state, tell.progress.reason) == ("waiting", "")


def test_scores_of_different_metrics_are_not_averaged() -> None:
    mixed = [score("x", 0.5, 10), score("x", 0.9, 10, metric="f1"), score("y", 1.0, 1), score("y", 0.0, 0)]
    assert weighted_scores(mixed, "validation") == {"y": 1.0}
    assert weighted_scores(mixed, "test") == {}


def test_a_task_that_is_hurt_is_told_until_a_round_says_otherwise() -> None:
    tell = Story()
    loss = {"task": "x", "metric": "accuracy", "split": "validation", "samples": 40, "alone": 0.9, "shared": 0.8, "gain": -0.1}
    tell(0, "task.hurt", round=2, **loss)
    tell(0, "round.closed", round=2, reason="")
    assert tell.progress.table()["hurt"] == {"x": -0.1}
    shown = panel(JOB, tell.progress)
    assert "hurt       x -0.100: trunkline encoder conflicts a" in shown
    assert "task.hurt" in TOLD and line_of(tell.events[0]).endswith("alone=0.9  shared=0.8  gain=-0.1")
    tell(1, "round.opened", round=3, base="b" * 64, version=3)
    assert tell.progress.hurt == {"x": -0.1}
    tell(2, "round.closed", round=3, reason="")
    assert tell.progress.hurt == {} and not any("hurt" in line for line in panel(JOB, tell.progress))


def test_every_event_has_a_line_and_a_picture() -> None:
    tell = Story()
    round_of(tell, 1, 0, 5)
    for event in tell.events:
        line = line_of(event)
        assert event["kind"] in line and "\n" not in line and "None" not in line
        assert (event["kind"] in TOLD) == (
            event["kind"].split(".")[0] in ("job", "round", "update") and event["kind"] != "round.fusing"
        )
    shown = "\n".join(panel(JOB, tell.progress))
    for part in ("a-1", "1 of 4", "2 of 2 updates", "200 B down, 140 B up", "15 s", "x 0.575, y 0.250", "test       x 0.900"):
        assert part in shown
    assert all(line[10] == " " != line[11] for line in shown.splitlines()[2:]), "the words line up"


# -- the card ----------------------------------------------------------------------------------------------------------


def encoder(**spec: Any) -> dict[str, Any]:
    base = {"source": {"kind": "pretrained", "path": "/somebodys/models/mini"}, "freeze": ["embeddings"], "tuning": "full"}
    return {"name": "a", "type": "text", "spec": base | {"pooling": "mean", "max_length": 32} | spec}


def version(number: int, parent: int | None, round: int | None) -> dict[str, Any]:
    job = "a-1" if round else None
    return {"number": number, "digest": f"{number}" * 64, "parent_number": parent, "job": job, "round": round, "created": 0.0}


def played(number: int, samples: int, scores: list[dict[str, Any]]) -> dict[str, Any]:
    task = {"task": "x", "head": "single", "metric": "accuracy", "samples": samples}
    members = [
        {"child": "ada", "state": "member", "confirmation": {"tasks": [task]}},
        {"child": "eve", "state": "refused", "confirmation": {}},
        {"child": "ida", "state": "left_out", "confirmation": {"tasks": [task]}},
        {"child": "zoe", "state": "member", "confirmation": {"tasks": [task]}},  # whose update was refused
    ]
    reports = [{"child": "ada", "report": {"scores": scores}}]
    return {"number": number, "version": number + 1, "members": members, "weights": {"ada": 1.0}, "reports": reports}


def test_the_card_states_tasks_rounds_metrics_and_lineage() -> None:
    rounds = [played(2, 40, []), played(1, 30, [score("x", 0.5, 10), score("x", 0.625, 10, "test")])]
    line = [version(3, 2, 2), version(2, 1, 1), version(1, None, None)]
    text = card(encoder(), line[0], line, rounds, "sentence-transformers")
    assert text.startswith("---\ntags:\n- trunkline\n")
    assert "library_name: sentence-transformers" in text
    assert "rounds: 2; children that took part: 1" in text
    assert "| x | single | accuracy | 1 | 40 |" in text, "the newest word of each child, and members only"
    assert "## Scores of version 2" in text and "| x | accuracy | 0.5000 | 0.6250 |" in text
    assert [row.split(" | ")[0] for row in text.splitlines() if "| a-1 |" in row] == ["| 3", "| 2"]
    assert "`mini`" in text and "/somebodys" not in text, "the admin's folders are nobody's business"
    told = encoder(source={"kind": "pretrained", "path": f"sha256:{'ab' * 32}"})
    assert f"the weights of `sha256:{'ab' * 8}…`" in card(told, line[0], line, [], "hf")


def test_the_card_of_an_encoder_that_was_never_trained() -> None:
    line = [version(1, None, None)]
    text = card(encoder(tuning={"rank": 4}, freeze=[]), line[0], line, [], "hf")
    assert "None yet" in text and "Scores" not in text and "rank 4" in text and "frozen: nothing" in text
    assert "AutoModel" in text


def test_the_card_of_a_module() -> None:
    line = [version(1, None, None)]
    module = encoder(source={"kind": "module", "path": "net.py:Net", "seed": 3})
    text = card(module, line[0], line, [], "safetensors")
    assert "`net.py:Net` and the seed 3" in text and "pipeline_tag" not in text and "tokens" not in text
