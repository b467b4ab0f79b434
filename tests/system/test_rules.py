"""Rules with codecs over Flower, each rule and each codec at least once: the same bits as over the local link (pairwise)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from master.demo.processes import Processes
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.jobs import make_bench
from tests.support.light import add_vector_encoder, light_children
from trunkline.clock import SystemClock

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(300)]

SIZES = {"a": 10, "b": 20, "c": 15, "d": 5, "e": 12}

PAIRS = {
    "mean": "bf16",
    "mean_by_task": "int8",
    "median": "int4",
    "trimmed_mean:trim=0.2": "topk:share=0.5",
    "geometric_median": "lowrank:rank=1",
    "krum:faulty=1": "float32",
    "multi_krum:faulty=1": "bf16",
    "upgrad": "float32",
    "pcgrad": "topk:share=0.5",
    "clip:norm=0.5+mean": "int4",
    "zero_outliers+median": "int8",
    "momentum": "topk:share=0.5",
    "adam": "int8",
    "yogi": "bf16",
    "adagrad": "lowrank:rank=1",
    "flower:FedMedian": "float32",
    "fedbuff:size=5": "int8",
}
"""Which rule is played with which codec."""

ROUNDS = {"rounds": 2, "transfer": "inline", "report": [], "final_report": []}
TRAINING = {"steps": 1, "learning_rate": 0.5, "warmup": 0.0}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rules")
    with Processes(folder, SystemClock(), ENVIRONMENT) as processes:
        made = Cluster(folder, processes)
        made.start_master()
        with light_children(made, SIZES):
            online = lambda: sum(bool(node["online"]) for node in made.call("GET", "/v1/admin/nodes")) == len(SIZES)  # noqa: E731
            made.wait("the children to be online", online, 120.0)
            yield made


@pytest.mark.parametrize(("rule", "codec"), PAIRS.items())
def test_over_flower_as_over_the_local_link(fleet: Cluster, tmp_path: Path, rule: str, codec: str) -> None:
    name = f"vec{list(PAIRS).index(rule)}"
    add_vector_encoder(fleet, name)
    spec: dict[str, Any] = {"rule": rule, "codec": codec, "children": {"least": 5}, "training": TRAINING, **ROUNDS}
    job = fleet.call("POST", "/v1/admin/jobs", json.dumps({"spec": {"encoder": name, **spec}}))["job"]["id"]
    fleet.wait(f"job {job} to end", lambda: fleet.job(job)["state"] in ("finished", "failed"), 120.0)
    assert fleet.job(job)["state"] == "finished", fleet.job(job)["reason"]

    bench = make_bench(tmp_path, SIZES, url="sqlite://")
    bench.run(**spec)
    assert fleet.call("GET", f"/v1/admin/encoders/{name}")["current"]["digest"] == bench.digest()

    replayed = fleet.call("POST", f"/v1/admin/jobs/{job}/rounds/2/replay")
    assert replayed["same"], "the daemon computes what the job's own process did"
    trial = fleet.call("POST", f"/v1/admin/jobs/{job}/trial", json.dumps({"rule": "median"}))
    assert [one["round"] for one in trial] == [1, 2]
