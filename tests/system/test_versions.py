"""Processes of different releases: an older and a newer one find the wire version they share, or each says that there is none."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from master.cli import main as admin_main
from master.demo.processes import ADMIN, CHILD
from master.home import MasterHome
from tests.support.cluster import Cluster, cluster
from tests.support.versions import VERSION, another_release, run_from
from tests.support.world import write_reviews
from trunkline import __version__

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

JOB = {"rounds": 2, "training": {"steps": 4}}
BOTH = {"wanted": 2, "least": 2}


@dataclass
class Releases:
    """A master and amy of this release, ben of the next, which speaks one wire version more; `alien` speaks that one alone."""

    made: Cluster
    next: Path
    alien: Path
    digests: list[str] = field(default_factory=list)

    def master(self, release: Path | None) -> None:
        """Stop the master and start the one of another release on its folder."""
        if self.made.daemon is not None:
            self.made.daemon.terminate()
            assert self.made.daemon.wait(60) == 0
        ports = ["--port", str(self.made.ports[0]), "--superlink-port", str(self.made.ports[1])]
        command = run_from(release, self.made.processes.command(ADMIN, ["serve", *self.made.state, *ports]))
        self.made.daemon = self.made.processes.start("master", command)
        self.made.wait("the master to answer", lambda: self.made.call("GET", "/readyz") is not None, 120.0)

    def child(self, release: Path | None, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`trunkline-child` of a release, to its end."""
        command = run_from(release, self.made.processes.command(CHILD, words))
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)

    def start_ben(self) -> None:
        command = self.made.processes.command(CHILD, ["run", *self.home("ben")])
        self.made.children["ben"] = self.made.processes.start("ben", run_from(self.next, command))

    def home(self, name: str) -> list[str]:
        return ["--home", str(self.made.folder / name)]

    def invite(self, name: str) -> str:
        return self.made.call("POST", "/v1/admin/nodes/invite", json.dumps({"name": name}))["token"]

    def greeted(self, name: str, boot: str) -> bool:
        return self.node(name)["boot"] not in (None, "", boot)

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.made.call("GET", "/v1/admin/nodes") if node["name"] == name)

    def play(self, **children: int) -> set[str]:
        """A job; who took part in its last round."""
        job = self.made.start_job(**JOB, children=children)
        self.made.finish(job, 240.0)
        told = self.made.call("GET", f"/v1/admin/jobs/{job}/rounds/2")
        assert told["refusals"] == []
        assert {report["child"] for report in told["reports"]} == {update["child"] for update in told["updates"]}
        return {update["child"] for update in told["updates"]}

    def log(self, name: str) -> str:
        return (self.made.folder / f"{name}.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    folder = tmp_path_factory.mktemp("versions")
    with cluster(folder, {"amy": 60}) as made:
        found = Releases(made, another_release(folder / "next", 1, 3), another_release(folder / "alien", 3, 3))
        assert (done := found.child(found.next, "enrol", "--token", found.invite("ben"), *found.home("ben"))).returncode == 0, done
        words = ["--task", "sentiment", "--text", "text", "--label", "label", "--batch-size", "8"]
        data = write_reviews(folder / "ben.csv", 80, 1)
        assert (done := found.child(found.next, "task", "add", str(data), *words, *found.home("ben"))).returncode == 0, done
        (folder / "ben" / "child.toml").write_text("threads = 1\naway = 1.0\nidle_poll = 0.5\n", encoding="utf-8")
        found.start_ben()
        made.wait("ben to greet", lambda: bool(found.node("ben")["boot"]), 90.0)
        yield found


def mismatch(said: str, theirs: str, ours: str) -> None:
    """One error that names both sides' versions, and no traceback."""
    assert f"a common wire version should exist, found {theirs} and {ours} at the master. Upgrade the older side." in said
    assert "Traceback" not in said


def test_a_newer_child_talks_to_an_older_master_in_the_version_they_share(releases: Releases) -> None:
    assert (releases.node("amy")["speaks"], releases.node("ben")["speaks"]) == ([1, 2], [1, 3])
    assert releases.play(**BOTH) == {"amy", "ben"}
    done = releases.child(releases.next, "request", "--encoder", "tiny", "--output", "json", *releases.home("ben"))
    assert done.returncode == 0, done.stderr + done.stdout
    releases.made.call("POST", f"/v1/admin/jobs/{json.loads(done.stdout)['data']['job']}/abort", json.dumps({"reason": "enough"}))


def test_without_a_common_version_a_child_does_not_get_in_and_both_sides_say_so(releases: Releases) -> None:
    done = releases.child(releases.alien, "enrol", "--token", releases.invite("eve"), *releases.home("eve"))
    assert (done.returncode, done.stdout) == (4, "")
    mismatch(done.stderr, "3 to 3 at the child", "1 to 2")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "found 3 to 3 at the child" in releases.log("master")
    assert not (releases.made.folder / "eve" / "identity.json").exists()


def test_a_child_that_was_upgraded_too_far_ends_and_says_why(releases: Releases) -> None:
    """Given an enrolled child, When it comes back as a release that shares no version, Then it ends with 4, and its invitation
    and heads are still good."""
    made = releases.made
    made.children["ben"].terminate()
    assert made.children["ben"].wait(60) == 0
    boot = releases.node("ben")["boot"]
    done = releases.child(releases.alien, "run", *releases.home("ben"))
    releases.start_ben()
    made.wait("ben to greet", lambda: releases.greeted("ben", boot), 90.0)
    assert (done.returncode, done.stdout) == (4, "")
    mismatch(done.stderr, "3 to 3 at child 'ben'", "1 to 2")
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [done.stderr.splitlines()[-1]]
    assert "found 3 to 3 at child 'ben'" in releases.log("master")


def test_a_newer_master_goes_on_with_an_older_child_and_with_one_that_is_no_child_of_its_version(releases: Releases) -> None:
    made = releases.made
    boots = {name: releases.node(name)["boot"] for name in ("amy", "ben")}
    releases.master(releases.next)
    assert releases.play(**BOTH) == {"amy", "ben"}
    assert {name: releases.node(name)["boot"] for name in boots} == boots, "neither child had to start again"
    releases.master(releases.alien)
    assert made.children["amy"].wait(120) == 4
    mismatch(releases.log("amy"), "1 to 2 at child 'amy'", "3 to 3")
    assert "found 1 to 2 at child 'amy'" in releases.log("master")
    assert releases.play(least=1) == {"ben"}, "the others go on"


def test_the_admin_s_command_line_tells_both_versions(releases: Releases, capsys: pytest.CaptureFixture[str]) -> None:
    made = releases.made
    home = MasterHome(made.folder / "master")
    place = ["--url", f"https://127.0.0.1:{made.ports[0]}", "--ca", str(home.tls / "ca.pem")]
    assert admin_main(["version", "--output", "json", *place, "--token-file", str(home.secrets / "admin.token")]) == 0
    told = json.loads(capsys.readouterr().out)["data"]
    assert (told["trunkline"], told["master"]) == (__version__, {"version": VERSION, "wire": [3, 3]})
    assert admin_main(["encoder", "list", "--output", "json", *place, "--token-file", str(home.secrets / "admin.token")]) == 0


def test_an_api_of_another_version_is_told_from_a_call_that_is_wrong(releases: Releases, tmp_path: Path) -> None:
    """Given a release whose API is v2, When its child enrols here, Then it is told the versions, not that something is missing."""
    future = another_release(tmp_path / "future", 1, 3)
    for path in (future / "child" / "api.py", future / "trunkline" / "https.py"):
        text = path.read_text(encoding="utf-8")
        assert '"/v1/' in text
        path.write_text(text.replace("/v1/", "/v2/"), encoding="utf-8")
    done = releases.child(future, "enrol", "--token", releases.invite("zoe"), *releases.home("zoe"))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.strip() == (
        "error: the version of the master's API should be v1, found that v2 was asked for. Upgrade the older side."
    )
