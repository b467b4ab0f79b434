"""What a running child does when it is told something: SIGHUP, settings are read again; SIGTERM, it ends in order."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Event, cluster
from trunkline.clock import Deadline

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ONE = {"rounds": 1, "children": {"wanted": 1, "least": 1, "confirm_seconds": 60.0, "wait_seconds": 120.0, "report_seconds": 5.0}}


@pytest.fixture
def amy(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, {"amy": 60}) as made:
        yield made


def of_amy(kind: str) -> Any:
    return lambda event: event["kind"] == kind and event["child"] == "amy"


def log_of(made: Cluster) -> str:
    return (made.folder / "amy" / "logs" / "agent.log").read_text(encoding="utf-8")


def settle(made: Cluster, text: str, said: str) -> None:
    """Write other settings, send SIGHUP, and wait until the log says so."""
    path, before = made.folder / "amy" / "child.toml", log_of(made).count(said)
    path.write_text("threads = 1\naway = 1.0\nidle_poll = 0.5\n" + text, encoding="utf-8")
    made.children["amy"].send_signal(signal.SIGHUP)
    deadline = Deadline(made.clock, 30.0, f"the log to say {said!r}")
    while log_of(made).count(said) == before:
        deadline.check()
        made.clock.sleep(0.05)


def test_sighup_brings_in_a_policy_and_takes_it_away(amy: Cluster) -> None:
    """Given a child that runs, When its policy is changed and it is told, Then the next instruction meets the new one."""
    settle(amy, '[policy]\nencoders = ["another"]\n', "settings were read again")
    settle(amy, "[policy]\nencoder = 1\n", "settings stay as they were")
    job = amy.start_job(**ONE)
    refused: Event = amy.wait_event(of_amy("confirmation"))
    assert (refused["data"]["accepted"], refused["data"]["reason"]) == (False, "policy")
    assert "`encoders` another, found tiny" in refused["data"]["detail"]
    settle(amy, "", "settings were read again")
    amy.finish(job)
    assert amy.children["amy"].poll() is None


def test_sigterm_while_it_trains_sends_what_it_has_come_to(amy: Cluster) -> None:
    """Given a child in the middle of a long training, When SIGTERM comes, Then the update is sent before it ends with 0."""
    steps, batch = 100_000, 8
    job = amy.start_job(**ONE, training={"steps": steps})
    amy.wait_event(of_amy("blob.sent"))
    amy.children["amy"].terminate()
    assert amy.children["amy"].wait(60) == 0
    amy.finish(job)
    (update,) = amy.call("GET", f"/v1/admin/jobs/{job}/rounds/1")["updates"]
    applied = update["update"]["applied"]["sentiment"]
    assert 0 < applied < steps * batch and applied % batch == 0, "whole steps, and not all of them"
