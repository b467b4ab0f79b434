"""A hundred children on one real master over Flower: more than are wanted, fewer than are needed, all of them at once (T-30)."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from master.demo.processes import Processes
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.light import LightSite, add_vector_encoder, light_children, union
from trunkline.clock import SystemClock
from trunkline.sets import SetFile

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(300)]

COUNT = 100
SIZES = {f"c{number:03}": 1 + number % 7 for number in range(COUNT)}
ONE_STEP = {"steps": 1, "learning_rate": 1.0, "warmup": 0.0}
"""A full step to the mean of one's own points: fused by samples it is the mean of all members' points."""

Fleet = tuple[Cluster, dict[str, LightSite]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with Processes(folder, SystemClock(), ENVIRONMENT) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        add_vector_encoder(made)
        with light_children(made, SIZES) as sites:
            online = lambda: sum(bool(node["online"]) for node in made.call("GET", "/v1/admin/nodes")) == COUNT  # noqa: E731
            made.wait(f"{COUNT} children to be online", online, 120.0)
            yield made, sites


def play(made: Cluster, seconds: float = 120.0, **spec: Any) -> dict[str, Any]:
    """Start a job, wait for its end however it ends, and give it."""
    table = {
        "encoder": "vec",
        "rounds": 1,
        "rule": "mean",
        "transfer": "inline",
        "report": [],
        "final_report": [],
        "training": ONE_STEP,
    } | spec
    job = made.call("POST", "/v1/admin/jobs", json.dumps({"spec": table}))["job"]["id"]
    made.wait(f"job {job} to end", lambda: made.job(job)["state"] in ("finished", "failed"), seconds)
    return made.job(job)


def w(made: Cluster) -> Any:
    digest = made.call("GET", "/v1/admin/encoders/vec")["current"]["digest"]
    found = next(path for path in (made.folder / "master").rglob(f"*{digest[2:]}*") if path.is_file())
    with SetFile(found) as file:
        return file.read("w")


def members(made: Cluster, job: dict[str, Any], number: int = 1) -> dict[str, Any]:
    found = made.call("GET", f"/v1/admin/jobs/{job['id']}/rounds/{number}")
    return found | {"names": [one["child"] for one in found["members"] if one["state"] == "member"]}


def test_all_hundred_take_part_in_one_round(fleet: Fleet) -> None:
    """T-30: more children than the least number; each gives one update, and its samples count."""
    made, sites = fleet
    job = play(made, seconds=150.0, children={"least": 2})
    assert job["state"] == "finished", job["reason"]
    told = members(made, job)
    assert told["names"] == sorted(SIZES)
    assert [one["child"] for one in told["updates"]] == sorted(SIZES)
    assert not told["refusals"]
    np.testing.assert_allclose(w(made), union(sites, told["names"]), rtol=1e-6)
    assert all(site.trained == 1 for site in sites.values())


def test_a_preset_number_of_many(fleet: Fleet) -> None:
    """T-30: a hundred are there, three are wanted: three are members, nobody else gets parameters, the round does not wait."""
    made, sites = fleet
    before = {name: site.trained for name, site in sites.items()}
    job = play(made, children={"wanted": 3, "least": 3})
    assert job["state"] == "finished", job["reason"]
    names = members(made, job)["names"]
    assert len(names) == 3
    assert {name for name, site in sites.items() if site.trained > before[name]} == set(names)
    np.testing.assert_allclose(w(made), union(sites, names), rtol=1e-6)


def test_fewer_than_needed_end_at_the_deadline(fleet: Fleet) -> None:
    """T-30: a job that needs one more than there are ends at its deadline, says what it waited for, and changes nothing."""
    made, _ = fleet
    before = w(made)
    job = play(made, children={"least": COUNT + 1, "confirm_seconds": 5.0, "wait_seconds": 10.0})
    assert (job["state"], job["rounds"][-1]["state"]) == ("failed", "skipped")
    assert f"{COUNT + 1} confirmations" in job["reason"]
    np.testing.assert_array_equal(w(made), before)
