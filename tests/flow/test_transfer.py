"""Negative transfer in whole rounds: directions are recorded, references are told, a task that loses is an alarm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from child import alone
from child.handlers import Child
from child.references import References
from master.jobs import JobSpec
from master.phases.play import Play
from master.rounds import run
from master.sharing.history import picture
from tasks.specs import TaskSpec
from tests.support.jobs import make_bench
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.messages import Plan, Report, Score
from trunkline.sets import SetFile

torch.set_num_threads(1)

GLOSSES = Path(__file__).parents[1] / "data" / "gloss_supersense.csv"


def look(play: Play, number: int) -> dict[str, Any]:
    round_ = play.pen.round(number)
    assert round_ is not None and round_.notes is not None
    return dict(round_.notes["tasks"])


def alarms(play: Play) -> list[tuple[int | None, Any]]:
    return [(event.round, event.data["task"]) for event in play.ledger.events(limit=10_000) if event.kind == "task.hurt"]


def test_tasks_that_pull_apart_are_seen_and_told_apart(tmp_path: Path) -> None:
    """Given two sites of one kind and two of its opposite, When they train together, Then the advice is two encoders."""
    bench = make_bench(tmp_path, {"a": 30, "b": 30, "c": 30, "d": 30})
    for name, site in bench.sites.items():
        site.task = f"task-{name}"
        site.points = np.random.default_rng(ord(name)).standard_normal((30, 3)) + (3.0 if name in "ac" else -3.0)
    bench.run(rounds=2, rule="mean")
    found = picture(bench.ledger, "vec", 10)
    assert found["groups"] == [["task-a", "task-c"], ["task-b", "task-d"]]
    assert [round_["round"] for round_ in found["rounds"]] == [1, 2] and found["compared"] == 2
    moved = {name: -site.points.mean(0) for name, site in bench.sites.items()}  # at w = 0, times one number for all
    wanted = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in moved.values()] for a in moved.values()]
    first = bench.ledger.reader(bench.ledger.jobs()[0].id).round(1)
    assert first is not None and first.notes is not None
    np.testing.assert_allclose(first.notes["tasks"]["cosines"], wanted, atol=1e-4)
    assert picture(bench.ledger, "vec", 1)["compared"] == 1
    np.testing.assert_allclose(picture(bench.ledger, "vec", 1)["cosines"], bench_notes(bench, 2)["cosines"], atol=1e-4)


def bench_notes(bench: Any, number: int) -> dict[str, Any]:
    round_ = bench.ledger.reader(bench.ledger.jobs()[0].id).round(number)
    return dict(round_.notes["tasks"])


@pytest.mark.parametrize("rule", ["pcgrad", "upgrad+momentum:beta=0.5"])
def test_a_job_under_a_conflict_averse_rule_is_the_same_when_it_is_played_again(tmp_path: Path, rule: str) -> None:
    found = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        bench = make_bench(tmp_path / place, {"a": 30, "b": 20, "c": 10, "d": 25})
        for name, site in bench.sites.items():
            site.task = "odd" if name in "ac" else f"task-{name}"
        bench.run(rounds=2, rule=rule)
        found.append(bench.w().tobytes())
        torch.rand(7)  # what else the process draws changes nothing
        (round_, *_) = bench.ledger.reader(bench.ledger.jobs()[0].id).rounds()
        assert round_.notes is not None
        told = round_.notes["rule"][rule.partition("+")[0]]
        assert set(told["tasks"]) == {"odd", "task-b", "task-d"} and told["stretch"] > 0
        assert set(bench.ledger.version("vec").weights) == {"a", "b", "c", "d"}
    assert found[0] == found[1]


def test_one_task_alone_leaves_no_note(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, {"a": 30, "b": 20})
    bench.run(rounds=1)
    assert "tasks" not in (bench.ledger.reader(bench.ledger.jobs()[0].id).rounds()[0].notes or {})


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One child with reviews, one with glosses: two tasks that have little in common."""
    world = make_world(tmp_path)
    world.add_child("amy", sentiment(write_reviews(tmp_path / "amy.csv", 80)))
    glosses = tmp_path / "glosses.csv"
    glosses.write_text("".join(GLOSSES.read_text(encoding="utf-8").splitlines(keepends=True)[:150]), encoding="utf-8")
    table = {"name": "gloss", "head": "single", "data": str(glosses), "fields": ["text"], "label": "label", "split": "split"}
    world.add_child("ben", TaskSpec.model_validate(table | {"batch_size": 8}))
    return world


def remember(child: Child, value: float, task: str, samples: dict[str, int]) -> None:
    """As if this child had trained alone and scored so on each split."""
    spec = child.registry.get(task)
    scores = [Score(task=task, split=split, metric=spec.measure, value=value, samples=n) for split, n in samples.items()]  # type: ignore[arg-type]
    References(child.home, "tiny").keep(scores, {task: child.registry.count(spec)["train"]}, 12)


def test_two_real_tasks_are_compared_with_what_they_reach_alone(world: World) -> None:
    amy = world.children["amy"]
    plan = Plan(steps=12, total_steps=12, learning_rate=3e-3, head_learning_rate=3e-2)
    scores = alone.run(amy.home, amy.settings, world.folder / "encoder", plan, amy.registry.all())
    References(amy.home, "tiny").keep(scores, {"sentiment": amy.registry.count(amy.registry.get("sentiment"))["train"]}, 12)
    play = world.run(rounds=2, training={"steps": 6, "learning_rate": 3e-3, "head_learning_rate": 3e-2})
    found = look(play, 2)
    assert found["names"] == ["gloss", "sentiment"] and found["cosines"][0][0] == found["cosines"][1][1] == 1.0
    updates = {row.child: row for row in play.pen.updates(2)}
    round_ = play.pen.round(2)
    assert round_ is not None
    moves = []
    for child in ("ben", "amy"):
        with world.blobs.open_set(round_.base) as base, SetFile(world.blobs.path(updates[child].digest)) as wire:
            moves.append(np.concatenate([(wire.read(name).astype(float) - base.read(name)).ravel() for name in sorted(base.spec)]))
    assert found["cosines"][0][1] == pytest.approx(
        moves[0] @ moves[1] / np.linalg.norm(moves[0]) / np.linalg.norm(moves[1]), abs=1e-4
    )
    reports = {row.child: Report.of_table(row.report) for row in play.pen.reports(2)}
    assert {(score.task, score.split): score.value for score in reports["amy"].alone} == {
        (score.task, score.split): score.value for score in scores
    }, "both splits of the last round have their reference"
    assert reports["ben"].alone == ()
    told = picture(world.ledger, "tiny", 10)
    assert [(gain["task"], gain["split"]) for gain in told["gains"]] == [("sentiment", "validation"), ("sentiment", "test")]
    assert any(line.startswith("No reference for gloss") for line in told["advice"])


def test_a_task_that_loses_by_sharing_is_an_alarm_in_the_last_rounds_only(world: World) -> None:
    amy, ben = world.children["amy"], world.children["ben"]
    counts = {name: child.registry.count(child.registry.all()[0]) for name, child in world.children.items()}
    remember(amy, 1.0, "sentiment", {"validation": counts["amy"]["validation"], "test": counts["amy"]["test"]})
    remember(ben, 0.0, "gloss", {"validation": counts["ben"]["validation"]})
    play = world.run(rounds=4, training={"steps": 2, "learning_rate": 1e-7, "head_learning_rate": 1e-7})
    assert alarms(play) == [(3, "sentiment"), (4, "sentiment")], "earlier rounds have trained for less than the reference"
    told = picture(world.ledger, "tiny", 10)
    assert [loss["task"] for loss in told["hurt"]] == ["sentiment"] and sorted(told["groups"]) == [["gloss"], ["sentiment"]]


@pytest.mark.parametrize(("margin", "told"), [(0.05, [(1, "sentiment")]), (1.0, [])])
def test_the_job_says_how_large_a_loss_matters(world: World, margin: float, told: list[tuple[int, str]]) -> None:
    amy = world.children["amy"]
    remember(amy, 1.0, "sentiment", {"validation": amy.registry.count(amy.registry.get("sentiment"))["validation"]})
    training = {"steps": 2, "learning_rate": 1e-7, "head_learning_rate": 1e-7}
    play = world.run(rounds=1, training=training, alarm={"margin": margin})
    assert alarms(play) == told
    found = picture(world.ledger, "tiny", 10)
    assert [one["task"] for one in found["hurt"]] == [task for _, task in told] and found["gains"][0]["margin"] == margin


@pytest.mark.parametrize("margin", [-0.1, 1.5, float("nan"), "much"])
def test_a_margin_that_cannot_be_is_refused_with_the_job(margin: object) -> None:
    with pytest.raises(ValidationError, match=r"alarm\.margin"):
        JobSpec.model_validate({"encoder": "a", "alarm": {"margin": margin}})


def test_an_alarm_is_told_once_by_a_master_that_dies_where_it_tells_it(world: World) -> None:
    """Given a task that loses, When the master dies before the round is closed, or as it closes it, Then its heir tells it once."""
    counts = world.children["amy"].registry.count(world.children["amy"].registry.get("sentiment"))
    remember(world.children["amy"], 1.0, "sentiment", {"validation": counts["validation"], "test": counts["test"]})

    class Power(Exception):
        pass

    def cut(*_: object) -> None:
        raise Power

    spec: dict[str, Any] = {"rounds": 1, "training": {"steps": 2, "learning_rate": 1e-7, "head_learning_rate": 1e-7}}
    for step in ("close_round", "_end_round"):
        dying = world.play(**spec)
        setattr(dying.pen, step, cut)
        with pytest.raises(Power):
            run(dying)
        assert alarms(dying) == [], step
    heir = world.run(**spec)
    assert alarms(heir) == [(1, "sentiment")] and [round_.state for round_ in heir.pen.rounds()] == ["closed"]


def test_a_reference_of_samples_that_have_changed_is_not_told(world: World) -> None:
    amy = world.children["amy"]
    validation = amy.registry.count(amy.registry.get("sentiment"))["validation"]
    remember(amy, 1.0, "sentiment", {"validation": validation})
    remember(amy, 1.0, "sentiment", {"validation": validation + 1})
    play = world.run(rounds=1, training={"steps": 1})
    assert [Report.of_table(row.report).alone for row in play.pen.reports(1)] == [(), ()]
    assert alarms(play) == []
