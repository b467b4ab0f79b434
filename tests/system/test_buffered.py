"""Rounds that do not wait, over Flower, with a child that is held up and a master that is killed."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from master.demo.processes import Processes
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.light import LightSite, add_vector_encoder, light_children
from trunkline.clock import SystemClock
from trunkline.messages import InitialSet, Update
from trunkline.sets import SetFile

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(300)]

SIZES = {"a": 10, "b": 20, "c": 15, "slow": 40}
ROUNDS = 10


@dataclass
class Fleet:
    """A master, its children, and what the slow one waits for before it trains."""

    made: Cluster
    sites: dict[str, LightSite]
    released: threading.Event


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("buffered")
    with Processes(folder, SystemClock(), ENVIRONMENT) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        with light_children(made, SIZES) as sites:
            found = Fleet(made, sites, threading.Event())
            hold_up(sites["slow"], found.released)
            online = lambda: sum(bool(node["online"]) for node in made.call("GET", "/v1/admin/nodes")) == len(SIZES)  # noqa: E731
            made.wait("the children to be online", online, 120.0)
            yield found
            found.released.set()


def hold_up(site: LightSite, released: threading.Event) -> None:
    """Let a training end only when it is released."""
    real = site.train

    def train(message: InitialSet, base: SetFile) -> Update:
        assert released.wait(200.0), "the test should release it"
        return real(message, base)

    site.train = train  # type: ignore[method-assign]


def start(fleet: Fleet, encoder: str) -> str:
    """A job whose buffer the three quick children fill; waits until it has played some rounds without the slow one."""
    made = fleet.made
    fleet.released.clear()
    add_vector_encoder(made, encoder)
    spec: dict[str, Any] = {"encoder": encoder, "rounds": ROUNDS, "rule": "fedbuff:size=3,most_stale=100", "transfer": "inline"}
    spec |= {"training": {"steps": 1, "learning_rate": 0.5, "warmup": 0.0}, "children": {"least": 3}, "keep_rounds": ROUNDS}
    job = made.call("POST", "/v1/admin/jobs", json.dumps({"spec": spec}))["job"]["id"]
    made.wait("the third round", lambda: len(made.job(job)["rounds"]) >= 3, 120.0)
    return job


def counted(fleet: Fleet, job: str) -> list[tuple[int, int]]:
    """Rounds in which the slow child counted, each with the round whose set it had trained. Waits for the end of the job."""
    made = fleet.made
    made.wait(f"job {job} to end", lambda: made.job(job)["state"] in ("finished", "failed"), 200.0)
    assert made.job(job)["state"] == "finished", made.job(job)["reason"]
    rounds = [made.call("GET", f"/v1/admin/jobs/{job}/rounds/{number}") for number in range(1, ROUNDS + 1)]
    assert not [one for round_ in rounds for one in round_["refusals"]]
    return [(one["number"], update["origin"]) for one in rounds for update in one["updates"] if update["child"] == "slow"]


def test_nobody_waits_for_the_slow_one_and_its_work_counts(fleet: Fleet) -> None:
    before = fleet.sites["slow"].trained
    job = start(fleet, "vec1")
    fleet.released.set()
    found = counted(fleet, job)
    assert found[0][1] == 1 < found[0][0], found
    assert fleet.sites["slow"].trained - before <= len(found) + 1, "it trains once for each update, however often it is asked"
    for number in (1, found[0][0], ROUNDS):
        assert fleet.made.call("POST", f"/v1/admin/jobs/{job}/rounds/{number}/replay")["same"]


def test_a_master_that_is_killed_meanwhile_loses_no_work(fleet: Fleet) -> None:
    """Given a slow child in its training, When the master is killed and started again, Then the child's update counts still."""
    before = fleet.sites["slow"].trained
    job = start(fleet, "vec2")
    fleet.made.kill_master()
    fleet.made.start_master()
    fleet.released.set()
    found = counted(fleet, job)
    assert found[0][1] == 1 < found[0][0], found
    assert fleet.sites["slow"].trained - before <= len(found) + 1
