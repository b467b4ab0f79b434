"""Chaos in short: fixed seeds, and both ways in which tasks may go together. `make chaos` goes on for as long as one likes."""

import pytest

from tests.chaos.runner import Plan, run, show
from tests.chaos.schedule import KINDS, drawn

KILLS = tuple(kind for kind in KINDS if kind not in ("copy", "back"))


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plan",
    [
        Plan(seed=1, seconds=40.0, kinds=KILLS),
        Plan(seed=2, seconds=40.0),
        Plan(seed=3, seconds=40.0, mode="together"),
    ],
    ids=["killed", "and set back", "together"],
)
def test_whatever_is_killed_each_sample_changes_the_parameters_once(plan: Plan) -> None:
    report = run(plan)
    show(report)
    assert report.wrong == ()


def test_a_seed_says_what_is_done() -> None:
    actors = ["server", "celery-0", "worker-0", "producer-0", "redis"]
    found = drawn(7, 120.0, actors)
    assert found == drawn(7, 120.0, actors) != drawn(8, 120.0, actors)
    assert {action.kind for action in drawn(7, 1200.0, actors)} == set(KINDS)
    assert all(set(action.targets) <= set(actors) and 0 < action.at < 120 for action in found)
