"""Many children in one process: each enrolled for real, with a real agent and a key of its own, but numpy where torch would be.

A hundred processes with torch do not fit on a small machine; a hundred `child.agent.Agent`s in threads do. All that a master sees
of them (enrolment, greeting, activation, heartbeats, polling, answers) is the real thing.
"""

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from child.agent import Agent
from child.handlers import Child
from child.home import ChildHome
from child.identity import come_in
from child.settings import ChildSettings
from master.blobs import BlobStore
from master.cli import encoder_files
from master.tokens import Gate
from tests.support.cluster import Cluster
from tests.support.sites import QuadraticSite, points
from trunkline.clock import SystemClock
from trunkline.messages import TaskCount
from trunkline.sets import write_set

CLOCK = SystemClock()


class LightSite(QuadraticSite):
    """A `QuadraticSite` that an `Agent` can stand in front of. Parameters travel inside the messages."""

    @property
    def registry(self) -> "LightSite":
        return self

    def types(self) -> list[str]:
        return [self.encoder_type]

    def counted(self) -> tuple[list[TaskCount], list[str]]:
        count = TaskCount(task=self.task, head="regression", metric="mse", higher_is_better=False, samples=len(self.points))
        return [count], []


def add_vector_encoder(made: Cluster, name: str = "vec", width: int = 3) -> None:
    """An encoder whose only tensor is `w`, all zeros."""
    place = made.folder / f"encoder-{name}"
    place.mkdir()
    write_set(place / encoder_files.SHARED, {"w": np.zeros(width, np.float32)})
    (place / "encoder.json").write_text(json.dumps({"name": name, "type": "vector"}), encoding="utf-8")
    with made.admin() as https:
        encoder_files.send(https, place, name, "vector", {"name": name, "type": "vector"}, lambda note: None)


@contextmanager
def light_children(made: Cluster, sizes: Mapping[str, int]) -> Iterator[dict[str, LightSite]]:
    """Agents in threads, with so many points each; enrolled when the block begins, told to end when it ends."""
    gate, trace = Gate(b"0" * 32, CLOCK), []
    stop, errors, threads = threading.Event(), list[BaseException](), []
    sites: dict[str, LightSite] = {}
    with made.admin() as https:
        invites = {name: https.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": name}))["token"] for name in sizes}
    for seed, (name, count) in enumerate(sizes.items()):
        folder = made.folder / name
        home = ChildHome(folder)
        sites[name] = LightSite(name, points(seed, count), folder / "cache", BlobStore(folder / "none"), gate, trace)
        arguments = (home, sites[name], invites[name], random.Random(seed), stop, errors)
        threads.append(threading.Thread(target=_live, args=arguments, daemon=True, name=name))
    try:
        for thread in threads:
            thread.start()
        yield sites
        assert not errors, errors
    finally:
        stop.set()
        end = time.monotonic() + 60
        for thread in threads:
            thread.join(max(0.1, end - time.monotonic()))


def _live(
    home: ChildHome, site: LightSite, invitation: str, rng: random.Random, stop: threading.Event, errors: list[BaseException]
) -> None:
    """Enrol, then serve the master until told to stop."""
    try:
        identity = come_in(home, invitation, None, CLOCK, rng)
        with identity.api(CLOCK, rng) as api:
            settings = ChildSettings(away=1.0)
            Agent(home, settings, api, cast(Child, site), CLOCK, rng, stop=stop).run()
    except BaseException as error:
        errors.append(error)


def union(sites: Mapping[str, LightSite], names: Sequence[str]) -> Any:
    """The mean over the samples of these sites: where one full step of rate 1 leads to, whatever the start."""
    return np.concatenate([sites[name].points for name in names]).mean(0)
