"""Real processes that really get killed: a job goes on by itself and ends with the parameters of the undisturbed run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Event, cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

CHILDREN = {"amy": 60, "ben": 80}
JOB = {"rounds": 3, "children": {"wanted": 2, "least": 2}}


def of_round(kind: str, number: int) -> Callable[[Event], bool]:
    return lambda event: event["kind"] == kind and event["round"] == number


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the job comes to when nothing happens, and two things that must hold then."""
    with cluster(tmp_path_factory.mktemp("calm"), CHILDREN) as made:
        digest = made.finish(made.start_job(**JOB))
        nothing_went_out_before_its_confirmation(events(made))
        made.children["amy"].terminate()
        assert made.children["amy"].wait(30) == 0, "a child that is told to end does so with 0"
        return digest


STEPS = ["round.opened", "confirmation", "round.members", "update.accepted", "round.fusing", "round.published", "report"]
"""Protocol steps of a round, as the ledger tells of them: a process is killed as soon as one is seen."""


@pytest.mark.parametrize(
    "step", [step if step == "update.accepted" else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_the_process_of_the_rounds_is_killed(tmp_path: Path, calm: str, step: str) -> None:
    with cluster(tmp_path, CHILDREN) as made:
        job = made.start_job(**JOB)
        made.wait_event(of_round(step, 2))
        made.kill_serverapp(job)
        assert made.finish(job) == calm
        assert sum(event["kind"] == "job.owned" for event in events(made)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_the_master_is_killed(tmp_path: Path, calm: str, step: str) -> None:
    with cluster(tmp_path, CHILDREN) as made:
        job = made.start_job(**JOB)
        made.wait_event(of_round(step, 2))
        made.kill_master()
        made.start_master()
        assert made.finish(job) == calm


@pytest.mark.slow
@pytest.mark.parametrize("step", ["round.opened", "blob.sent", "update.accepted", "round.published"])
def test_a_child_is_killed(tmp_path: Path, calm: str, step: str) -> None:
    with cluster(tmp_path, CHILDREN) as made:
        job = made.start_job(**JOB)
        made.wait_event(of_round(step, 2))
        made.kill_child("amy")
        made.start_child("amy")
        assert made.finish(job) == calm


def nothing_went_out_before_its_confirmation(told: list[Event]) -> None:
    confirmed: set[tuple[str, int]] = set()
    sent = 0
    for event in told:
        if event["kind"] == "confirmation" and event["data"]["accepted"]:
            confirmed.add((event["child"], event["round"]))
        if event["kind"] == "blob.sent":
            sent += 1
            assert (event["child"], event["round"]) in confirmed
    assert sent, "parameters did go out"


def events(made: Cluster) -> list[Event]:
    return made.call("GET", "/v1/admin/events", query={"limit": 5000})["events"]
