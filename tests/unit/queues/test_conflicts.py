"""How the gradients of a stream's tasks go together is seen while it learns, kept over time, and told where it is alarming."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from queues.store.store import Rows, Sent
from queues.stream import conflicts
from queues.stream.conflicts import Conflicts
from queues.stream.home import StreamHome
from tasks.balance.matrix import Row
from tests.support import few_numbers


def made(folder: Path, **change: Any) -> Conflicts:
    spec = few_numbers.spec({"a": 2, "b": 2}, conflict_steps=1, **change)
    home = StreamHome(folder)
    home.create(spec)
    return Conflicts(home, spec)


def sent(task: str, values: torch.Tensor | Rows) -> Sent:
    return Sent("batch", 1, task, 0, 2, 1.0, {"shared/w": values, f"head/{task}/w": torch.ones(3)})


def lines(home: StreamHome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in home.conflicts.read_text().splitlines()]


def test_gradients_that_come_one_by_one_have_an_estimated_cosine(tmp_path: Path) -> None:
    seen = made(tmp_path)
    generator = torch.Generator().manual_seed(3)
    one, noise = torch.randn(4000, generator=generator), torch.randn(4000, generator=generator)
    seen.one(sent("a", one), 1)
    assert seen.table() == {"cosines": [], "exact": False, "alarms": []}
    seen.one(sent("b", noise - one), 2)
    want = float(torch.nn.functional.cosine_similarity(one.double(), (noise - one).double(), dim=0))
    (found,) = seen.table()["cosines"]
    assert (found["one"], found["other"], found["step"]) == ("a", "b", 2)
    assert found["cosine"] == pytest.approx(want, abs=0.08)
    assert lines(seen.home) == [found]


def test_rows_of_an_embedding_are_seen_too(tmp_path: Path) -> None:
    seen = made(tmp_path)
    rows = Rows(torch.tensor([1, 5]), torch.ones(2, 50))
    seen.one(sent("a", rows), 1)
    seen.one(sent("b", Rows(rows.index, -rows.values)), 2)
    assert seen.table()["cosines"][0]["cosine"] == pytest.approx(-1.0, abs=0.01)


def test_an_alarm_is_told_once_where_tasks_stay_against_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = made(tmp_path)
    for step in range(1, 41):
        seen.together([Row(step, "a", "b", -0.5)])
    (told,) = seen.table()["alarms"]
    assert (told["step"], told["since"], told["tasks"]) == (20, 1, ["a", "b"])
    assert [record.message for record in caplog.records] == [told["message"]]
    assert len(lines(seen.home)) == 40


def test_an_alarm_is_told_where_a_score_falls_also_of_an_error(tmp_path: Path) -> None:
    seen = made(tmp_path)  # both tasks are regressions, scored by Pearson's correlation
    table = [{"task": "a", "step": step, "value": value} for step, value in ((10, 0.8), (20, 0.5), (30, 0.4))]
    seen.home.scores.write_text(
        "\n".join(map(json.dumps, table[:2])) + '\nno json\n[]\n{"task": "gone", "step": 1, "value": 2}\n{"ta'
    )
    seen.look_at_scores()
    assert seen.table()["alarms"] == []
    with seen.home.scores.open("a") as file:
        file.write(f'sk": 3}}\n{json.dumps(table[2])}\n')
    seen.look_at_scores()
    seen.look_at_scores()
    (told,) = seen.table()["alarms"]
    assert (told["tasks"], told["step"], told["since"]) == (["a"], 30, 10)


def test_what_is_kept_stays_small_and_outlives_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "LINES", 10)
    seen = made(tmp_path)
    for step in range(1, 13):
        if step == 6:
            seen = Conflicts(seen.home, seen.spec)
        seen.together([Row(step, "a", "b", 0.1)])
    assert [line["step"] for line in lines(seen.home)] == [6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("change", [{"conflict_steps": 0}, {}])
def test_nothing_is_looked_at_where_it_is_not_wanted(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = few_numbers.spec({"a": 2} if not change else {"a": 2, "b": 2}, **change)
    home = StreamHome(tmp_path)
    home.create(spec)
    seen = Conflicts(home, spec)
    for step in range(1, 4):
        seen.one(sent("a", torch.ones(5)), step)
    assert seen.table()["cosines"] == [] and not home.conflicts.exists()
