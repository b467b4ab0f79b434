"""A master that is killed at twenty random moments of one job: what the job comes to is what it comes to undisturbed (T-38)."""

import random
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Event, cluster
from tests.support.world import make_world, sentiment, write_reviews

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]

CHILDREN = {"amy": 60, "ben": 80}
TRAINING = {"steps": 12, "learning_rate": 1e-3, "head_learning_rate": 1e-2, "decay": "linear", "moments": "kept"}
JOB = {"rounds": 12, "rule": "mean_by_task", "children": {"wanted": 2, "least": 2}, "training": TRAINING}
KILLS = 20
MOST_EVENTS = 12
"""About as many as a round has: the next kill comes after so many at most, in the order of the ledger."""


def undisturbed(folder: Path) -> str:
    """The same job over the local link, in this process: over Flower it comes to the same bits."""
    folder.mkdir()
    world = make_world(folder)
    for seed, (name, count) in enumerate(CHILDREN.items()):
        world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", count, seed)))
    world.run(**JOB)
    return world.digest()


def wait_events(made: Cluster, count: int) -> str:
    """Wait for so many new events; the kind of the last one."""
    seen = ["nothing yet"]

    def look(event: Event) -> bool:
        seen.append(event["kind"])
        return len(seen) > count

    if count:
        made.wait_event(look)
    return seen[-1]


def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    """T-38: every fourth kill comes while the master starts, the others at any moment of the rounds."""
    calm = undisturbed(tmp_path / "calm")
    seed = 38
    rng = random.Random(seed)
    with cluster(tmp_path, CHILDREN) as made:
        job = made.start_job(**JOB)
        kinds: set[str] = set()
        for number in range(1, KILLS + 1):
            early, count, more = number % 4 == 0, rng.randint(0, MOST_EVENTS), rng.uniform(0.0, 0.3)
            if early:
                more *= 10  # it takes seconds to start
            else:
                made.wait_ready()
                kinds.add(wait_events(made, count))
            made.clock.sleep(more)  # the moment is what is drawn; nothing is waited for
            print(f"seed {seed}, kill {number}: {f'{count} events and ' if not early else ''}{more:.3f} s after the last start")
            made.kill_master()
            made.launch_master()
        made.wait_ready()
        assert made.job(job)["state"] in ("waiting", "running"), "the kills came while the job ran"
        assert made.finish(job, 300.0) == calm
        assert [one["state"] for one in made.job(job)["rounds"]] == ["closed"] * JOB["rounds"], "none was lost, none skipped"
        assert len(kinds) >= 5, f"the moments should differ, found {sorted(kinds)}"
