"""What is private stays at its site: canaries are searched for in all that passes between real processes and in all that they keep.

Both ports of a real master are read in the clear, by a proxy that ends TLS. The canaries stand in samples, in label names, in
column and file names, in an error about samples, and in a head; the shared parameters, which do
travel, prove that they would be seen.
"""

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from child.home import ChildHome
from child.registry import Registry
from child.state import PrivateStore
from master.demo.processes import ADMIN, CHILD, Processes, free_ports
from tasks.specs import TaskSpec
from tests.support.cluster import ENVIRONMENT, Cluster
from tests.support.tap import ADDRESS, Tap, tap
from tests.support.world import write_reviews
from trunkline.clock import SystemClock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the loopback has one address elsewhere, and /proc is not there"),
]

SAMPLE, LABEL, COLUMN, FILE, BROKEN = CANARIES = (
    "zz-canary-of-the-samples",
    "zz-canary-of-the-labels",
    "zz-canary-of-the-columns",
    "zz-canary-of-the-files",
    "zz-canary-of-what-is-broken",
)
"""Long enough not to come up by chance in any spelling."""


@dataclass
class Watched:
    """A cluster whose frames and command lines were kept while it played a job."""

    made: Cluster
    taps: tuple[Tap, Tap]  # in front of the API, of the SuperLink
    titles: set[str]
    job: str

    def blob(self, digest: str) -> bytes:
        return (self.made.folder / "master" / "blobs" / digest[:2] / digest).read_bytes()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("privacy")
    with ExitStack() as stack:
        api, fleet = free_ports(2)
        tls = folder / "master" / "tls"
        taps = tuple(stack.enter_context(tap(port, tls, folder / f"frames-{port}")) for port in (api, fleet))
        processes = stack.enter_context(Processes(folder, SystemClock(), ENVIRONMENT))  # they end before the taps do
        made = Cluster(folder, processes, ports=[api, fleet])
        ports = ["--port", str(api), "--superlink-port", str(fleet), "--name", ADDRESS, "--name", "127.0.0.1"]
        made.daemon = made.processes.start("master", made.processes.command(ADMIN, ["serve", *made.state, *ports]))
        made.wait("the master to answer", lambda: made.call("GET", "/readyz") is not None, 120.0)
        made.add_encoder()
        (folder / FILE).mkdir()
        data = reviews(folder / FILE / f"{FILE}.csv")
        add_child(made, "amy", data)
        made.wait("the child to greet", lambda: all(node["boot"] for node in made.call("GET", "/v1/admin/nodes")), 120.0)
        titles: set[str] = set()
        job = made.start_job(rounds=2, training={"steps": 4}, codec="float32")
        made.wait("the job to finish", lambda: titles.update(command_lines()) or made.job(job)["state"] == "finished", 240.0)
        assert len(taps) == 2
        yield Watched(made, taps, titles, job)


def add_child(made: Cluster, name: str, data: Path) -> None:
    home = ["--home", str(made.folder / name)]
    token = made.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": name}))["token"]
    made.processes.run("enrol", made.processes.command(CHILD, ["enrol", "--token", token, *home]))
    task = ["task", "add", str(data), "--task", "sentiment", "--text", COLUMN, "--label", f"{COLUMN}-label", "--batch-size", "8"]
    made.processes.run("task add", made.processes.command(CHILD, [*task, *home]))
    (made.folder / name / "child.toml").write_text("threads = 1\naway = 1.0\nidle_poll = 0.5\n", encoding="utf-8")
    made.start_child(name)


def reviews(path: Path) -> Path:
    """A file of reviews with canaries everywhere."""
    text = write_reviews(path, 60, 0, SAMPLE).read_text(encoding="utf-8")
    text = text.replace("text,label,split", f"{COLUMN},{COLUMN}-label,split")
    path.write_text(text.replace("positive", f"{LABEL}-good").replace("negative", f"{LABEL}-bad"), encoding="utf-8")
    return path


def command_lines() -> set[str]:
    """What any user of this machine can read of its programs."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "comm"):
            try:
                found.add((path / name).read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return {line for line in found if "trunkline" in line or "master.flower" in line}


def spellings(secret: bytes) -> list[bytes]:
    """A secret as it is, and as encodings that carry it: hex, UTF-16, base64 from each offset without the letters at its ends."""
    carried = [base64.b64encode(bytes(offset) + secret)[4:-4] for offset in range(3)]
    return [secret, secret.hex().encode(), secret.decode("latin-1").encode("utf-16-le"), *carried]


def holds(data: bytes, secret: bytes) -> bool:
    return any(spelling in data for spelling in spellings(secret))


def kept_at_the_master(made: Cluster) -> dict[str, bytes]:
    files = {str(path): path.read_bytes() for path in (made.folder / "master").rglob("*") if path.is_file()}
    return files | {"its output": (made.folder / "master.log").read_bytes()}


def frames(watched: Watched) -> bytes:
    return b"\0".join(one.frames() for one in watched.taps)


def test_the_taps_see_all_that_passes(watched: Watched) -> None:
    """Without this the others prove nothing: every message, and every byte of what was sent, went by in the clear."""
    api, fleet = (one.frames() for one in watched.taps)
    assert api and fleet and all(one.connections for one in watched.taps)
    for kind in (
        b'"kind":"instruction"',
        b'"kind":"confirmation"',
        b'"kind":"initial_set"',
        b'"kind":"update"',
        b'"kind":"report"',
    ):
        assert kind in fleet, kind
    round_ = watched.made.call("GET", f"/v1/admin/jobs/{watched.job}/rounds/1")
    (update,) = round_["updates"]
    data = watched.blob(update["digest"])
    middle = data[len(data) // 2 :][:256]
    assert middle in api, "the update's bytes"
    assert b"sentiment" in fleet and b"sentiment" in api, "the task's name may be known"
    assert b"Authorization: Bearer" in api


@pytest.mark.parametrize("canary", [SAMPLE, LABEL, COLUMN, FILE])
def test_no_canary_passes_or_is_kept_at_the_master(watched: Watched, canary: str) -> None:
    site = [str(path).encode() + path.read_bytes() for path in (watched.made.folder / FILE).iterdir()]
    assert any(canary.encode() in one for one in site), "it is there to be found"
    assert not holds(frames(watched), canary.encode())
    for name, data in kept_at_the_master(watched.made).items():
        assert not holds(data, canary.encode()), name


def test_no_canary_stands_in_a_command_line(watched: Watched) -> None:
    assert any("master.flower.serverapp" in line for line in watched.titles), "they were looked at"
    assert any("run --home" in line for line in watched.titles)
    for line in watched.titles:
        if "task add" not in line:  # what its owner typed
            assert not any(canary in line for canary in CANARIES), line


def test_no_bytes_of_a_head_or_of_its_optimiser_leave_the_site(watched: Watched) -> None:
    private = PrivateStore(ChildHome(watched.made.folder / "amy").private / "tiny")
    heads = [np.asarray(array) for array in private.newest().tensors.values() if array.nbytes >= 64]
    assert len(heads) >= 3, "the weights of the head, and two moments of them"
    passed, kept = frames(watched), kept_at_the_master(watched.made)
    shared = watched.blob(watched.made.call("GET", "/v1/admin/encoders/tiny")["current"]["digest"])
    assert shared[-64:] in passed
    for array in heads:
        data = array.tobytes()
        for start in range(0, len(data) - 31, 32):
            part = data[start : start + 32]
            if len(set(part)) > 4:  # not all zero
                assert part not in passed
                assert not any(part in one for one in kept.values())
    assert not any(b"sentiment/head" in one for one in (passed, *kept.values()))


def test_an_error_about_samples_does_not_tell_them(watched: Watched) -> None:
    """Given a task whose file went bad, and a reader that fails with a sample in its mouth, When a job asks, Then the refusal
    says so and no more; the child's own log says what."""
    made = watched.made
    home = ChildHome(made.folder / "amy")
    broken = made.folder / FILE / "broken.csv"
    broken.write_text(f"{COLUMN},{COLUMN}-label,split\ngood,1.5,train\nbad,{BROKEN},train\n", encoding="utf-8")
    (home.modules / "reader.py").write_text(
        f"def rows(path, spec):\n    raise RuntimeError('{BROKEN} in ' + str(path))\n    yield {{}}\n", encoding="utf-8"
    )
    registry = Registry(home)
    registry.remove("sentiment")
    common = {"data": str(broken), "fields": [COLUMN], "label": f"{COLUMN}-label"}
    registry.add(TaskSpec.model_validate({"name": "mood", "head": "regression", **common}))
    registry.add(TaskSpec.model_validate({"name": "own", "head": "single", "reader": "reader.py:rows", **common}))
    job = made.start_job(rounds=1, children={"wait_seconds": 2.0, "confirm_seconds": 20.0})
    made.wait("the job to fail", lambda: made.job(job)["state"] == "failed", 120.0)
    told = made.call("GET", f"/v1/admin/jobs/{job}/rounds/1")
    assert "no_samples" in json.dumps(told) or "internal" in json.dumps(told), told
    assert BROKEN in (made.folder / "amy.log").read_text(encoding="utf-8"), "the site itself is told"
    for canary in CANARIES:
        assert not holds(frames(watched), canary.encode()), canary
        for name, data in kept_at_the_master(made).items():
            assert not holds(data, canary.encode()), (canary, name)


def test_a_child_s_request_and_its_doctor_tell_nothing_more(watched: Watched) -> None:
    made = watched.made
    home = ["--home", str(made.folder / "amy")]
    made.processes.run("doctor", ["sh", "-c", '"$@" || true', "sh", *made.processes.command(CHILD, ["doctor", *home])])
    made.processes.run("request", made.processes.command(CHILD, ["request", "--encoder", "tiny", *home]))
    assert b'"kind":"request"' in watched.taps[0].frames()
    for canary in CANARIES:
        assert not holds(frames(watched), canary.encode()), canary
