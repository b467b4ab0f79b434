"""The process of a job opens what the daemon serves, wherever that lies."""

import os
import sys
from pathlib import Path

import pytest

from master import jobrun
from master.home import DaemonInfo, MasterHome
from master.jobs import JobSpec
from master.ledger import Ledger
from master.local import LocalLink
from tests.support.ledgers import add_encoder
from trunkline.clock import SystemClock


def test_a_job_is_played_in_the_ledger_that_the_daemon_was_told_of(tmp_path: Path) -> None:
    """Given a daemon with another ledger than the one in its folder, When a job's process runs, Then it finds the job there."""
    home, url = MasterHome(tmp_path / "state"), f"sqlite:///{tmp_path / 'elsewhere.db'}"
    home.create()
    home.write_daemon(DaemonInfo(os.getpid(), "https://127.0.0.1:8440", 8440, 8441, started=1.0, version="0", ledger=url))
    ledger = Ledger.open(url, SystemClock())
    add_encoder(ledger)
    waits = {"wait_seconds": 0.01, "confirm_seconds": 0.01}
    job, _ = ledger.start_job("text", JobSpec.model_validate({"encoder": "text", "children": waits}).table())
    jobrun.run(job.id, home.folder, lambda nodes, boots: LocalLink({}))
    played = ledger.job(job.id)
    assert (played.state, played.reason.partition(":")[0]) == ("failed", "deadline")
    assert not home.ledger.exists()
    ledger.close()


def test_a_job_whose_rule_has_no_library_here_fails_before_anybody_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a child's request may start it, or a master that was installed anew."""
    home = MasterHome(tmp_path / "state")
    home.create()
    ledger = Ledger.open(home.ledger_url(), SystemClock())
    add_encoder(ledger)
    job, _ = ledger.start_job("text", JobSpec.model_validate({"encoder": "text", "rule": "upgrad"}).table())
    monkeypatch.setitem(sys.modules, "torchjd", None)
    jobrun.run(job.id, home.folder, lambda nodes, boots: LocalLink({}))
    played = ledger.job(job.id)
    assert played.state == "failed" and "pip install 'trunkline[conflict]'" in played.reason
    assert ledger.reader(job.id).rounds() == []
    ledger.close()
