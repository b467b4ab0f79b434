"""Both command lines against a master's API: what was trained is told, exported and used; each way to fail has its exit code."""

import io
import json
import os
import random
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from child.cli import main as child_main
from child.home import ChildHome
from child.identity import Identity, come_in
from master.cli import main as admin_main
from master.home import DaemonInfo, MasterHome
from master.jobs import JobSpec, Training
from tests.support import tiny
from tests.support.api import ADMIN, QUICK, Running, running_master
from tests.support.world import make_world, sentiment, write_reviews
from trunkline.clock import SystemClock
from trunkline.errors import Conflict, DamagedFile, NotAuthorized, NotFound, UsageError
from trunkline.sets import SetFile

pytestmark = pytest.mark.contract

torch.set_num_threads(1)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master's folder in which three children trained a tiny encoder for two rounds; one of them was refused once."""
    folder = tmp_path_factory.mktemp("master")
    world = make_world(folder)
    for seed, name in enumerate(("amy", "ben", "cid")):
        world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", 60 + 10 * seed, seed)))
    job = world.run(rounds=2, training={"steps": 16, "learning_rate": 5e-3, "head_learning_rate": 3e-2})
    job.pen.refuse_update(2, "eve", "sender", "it should come from a member, found eve")
    world.ledger.close()
    return folder


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[Running]:
    with running_master(folder, poll_seconds=0.3) as running:
        (folder / "token").write_text(f"{ADMIN}\n")
        yield running


@pytest.fixture(autouse=True)
def _reached(master: Running, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the admin's command line finds it."""
    monkeypatch.setenv("TRUNKLINE_URL", master.url)
    monkeypatch.setenv("TRUNKLINE_TOKEN_FILE", str(folder / "token"))
    monkeypatch.setenv("TRUNKLINE_CA", str(master.tls.ca))
    monkeypatch.chdir(tmp_path)


def told(capsys: Capture, main: Any, *words: str) -> dict[str, Any]:
    """The envelope; what people are shown comes to the same exit code."""
    code = main(["--output", "json", *words])
    out, err = capsys.readouterr()
    envelope = json.loads(out)
    assert envelope["exit_code"] == code and "Traceback (" not in err
    return envelope


def data(capsys: Capture, *words: str) -> Any:
    envelope = told(capsys, admin_main, *words)
    assert envelope["status"] == "ok", envelope
    return envelope["data"]


def child(capsys: Capture, *words: str) -> Any:
    envelope = told(capsys, child_main, *words)
    assert envelope["status"] == "ok", envelope
    return envelope["data"]


def shown(capsys: Capture, *words: str) -> str:
    """What people see."""
    assert admin_main(words) == 0
    return capsys.readouterr().out


# -- what was trained --------------------------------------------------------------------------------------------------


def test_a_job_and_its_rounds_are_told(capsys: Capture) -> None:
    (job,) = data(capsys, "job", "list")
    assert data(capsys, "job", "show") == data(capsys, "job", "show", job["id"])
    assert (job["state"], [one["version"] for one in data(capsys, "round", "list")]) == ("finished", [2, 3])
    for words in (["job", "list"], ["job", "show"], ["round", "show"], ["round", "show", "1"]):
        assert job["id"] in shown(capsys, *words)


def test_a_round_shows_members_weights_updates_refusals_and_reports(capsys: Capture) -> None:
    found = data(capsys, "round", "show", "2")
    assert [member["child"] for member in found["members"]] == ["amy", "ben", "cid"]
    assert sum(found["weights"].values()) == pytest.approx(1.0)
    assert (found["refusals"][0]["child"], found["refusals"][0]["reason"]) == ("eve", "sender")
    people = shown(capsys, "round", "show", "2", "tiny-1")
    for part in ("sentiment 42", "eve", "sender", "accuracy", "validation"):
        assert part in people


def test_every_figure_of_a_card_is_what_the_rounds_say(capsys: Capture, tmp_path: Path) -> None:
    """Given an encoder that three children trained, When it is exported, Then its card says of it what `round show` does."""
    data(capsys, "encoder", "export", "tiny", "--version", "3", "--format", "safetensors", "--out", str(tmp_path / "out"))
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    versions = {one["number"]: one for one in data(capsys, "encoder", "versions", "tiny")}
    last, rounds = data(capsys, "round", "show", "2"), data(capsys, "round", "list")
    assert f"- version 3, sha256 `{versions[3]['digest']}`" in text and last["target"] == versions[3]["digest"]
    assert f"- rounds: {len(rounds)}; children that took part: {len(last['weights'])}" in text
    told = {
        (member["child"], task["task"]): task["samples"] for member in last["members"] for task in member["confirmation"]["tasks"]
    }
    assert f"| sentiment | single | accuracy | {len(told)} | {sum(told.values())} |" in text
    means = []
    for split in ("validation", "test"):
        scores = [score for one in last["reports"] for score in one["report"]["scores"] if score["split"] == split]
        right = sum(round(score["value"] * score["samples"]) for score in scores)  # an accuracy is a share of whole samples
        means.append(f"{right / sum(score['samples'] for score in scores):.4f}")
    assert "## Scores of version 3" in text and f"| sentiment | accuracy | {' | '.join(means)} |" in text
    for one in versions.values():
        if one["number"] <= 3:
            parent = one["parent_number"] or "-"
            assert f"| {one['number']} | `{one['digest'][:16]}` | {parent} | {one['job'] or '-'} | {one['round'] or '-'} |" in text


def test_how_the_tasks_get_on_is_told_and_written_as_a_page(capsys: Capture, tmp_path: Path) -> None:
    found = data(capsys, "encoder", "conflicts", "tiny")
    assert [one["round"] for one in found["rounds"]] == [1, 2] and found["compared"] == 0, "one task has nobody to compare with"
    people = shown(capsys, "encoder", "conflicts", "tiny", "--rounds", "1", "--page", "page.html")
    assert "Nothing to compare yet" in people and "tiny-1 2" in people
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert told(capsys, admin_main, "encoder", "conflicts", "nobody")["exit_code"] == 5
    assert told(capsys, admin_main, "encoder", "conflicts", "tiny", "--rounds", "0")["exit_code"] == 2


def test_scores_of_training_alone_are_kept_at_the_site(capsys: Capture, folder: Path) -> None:
    words = ("alone", "--home", str(folder / "children" / "amy"), "--encoder", str(folder / "encoder"), "--batch-size", "4")
    kept = folder / "children" / "amy" / "alone" / "tiny.json"
    child(capsys, *words, "--steps", "1", "--no-keep")
    assert not kept.exists()
    scores = child(capsys, *words, "--steps", "2")["scores"]
    assert json.loads(kept.read_text()) == {"sentiment": {"rows": 42, "steps": 2, "scores": scores}}
    assert {score["split"] for score in scores} == {"validation", "test"}


def test_watching_a_job_that_has_ended_shows_how_it_went(capsys: Capture) -> None:
    found = data(capsys, "job", "watch")
    assert (found["state"], found["progress"]["round"], found["progress"]["rounds"]) == ("finished", 2, 2)
    assert found["progress"]["members"] == ["amy", "ben", "cid"] and set(found["progress"]["scores"]) == {"validation", "test"}
    assert admin_main(["job", "watch", "--output", "jsonl", "--quiet"]) == 0
    *events, envelope = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "job.started" and kinds[-2:] == ["job.finished", "update.refused"] and envelope["status"] == "ok"
    assert [event["id"] for event in events] == sorted({event["id"] for event in events})


def test_logs_are_all_events_oldest_first(capsys: Capture) -> None:
    events = data(capsys, "job", "logs")
    assert events[0]["kind"] == "job.started" and len(events) > 15
    assert len(shown(capsys, "job", "logs").splitlines()) == len(events)
    assert shown(capsys, "job", "logs", "--follow").splitlines() == shown(capsys, "job", "logs").splitlines()


def test_versions_and_how_far_they_are_apart(capsys: Capture) -> None:
    assert [one["kind"] for one in data(capsys, "encoder", "versions", "tiny")][:3] == ["initial", "round", "round"]
    found = data(capsys, "encoder", "diff", "tiny", "1", "3")
    assert not found["same"] and len(found["tensors"]) == len(data(capsys, "encoder", "show", "tiny")["shared"])
    shares = [np.inf if one["relative"] is None else one["relative"] for one in found["tensors"]]
    assert shares == sorted(shares, reverse=True) and shares[-1] > 0
    assert data(capsys, "encoder", "diff", "tiny", "2", "2")["same"] and "the same" in shown(
        capsys, "encoder", "diff", "tiny", "2", "2"
    )
    assert told(capsys, admin_main, "encoder", "diff", "tiny", "1", "99")["exit_code"] == 5


@pytest.mark.parametrize("form", ["hf", "sentence-transformers", "safetensors"])
def test_an_export_holds_the_version_and_its_card(capsys: Capture, master: Running, form: str) -> None:
    made = data(capsys, "encoder", "export", "tiny", "--format", form, "--out", "out", "--version", "2")
    card = Path("out/README.md").read_text()
    assert (
        made["digest"] in card and "| sentiment | single | accuracy | 3 |" in card and "\n| 2 | " in card and "\n| 3 | " not in card
    )
    with SetFile(master.parts.blobs.path(made["digest"])) as version:
        from safetensors.numpy import load_file

        exported = load_file("out/model.safetensors")
        assert set(version.spec) <= set(exported)
        assert all(np.array_equal(exported[name], version.read(name)) for name in version.spec)
    assert Path("out/modules.json").exists() == (form == "sentence-transformers")
    assert told(capsys, admin_main, "encoder", "export", "tiny", "--out", "out")["exit_code"] == 5


def test_the_private_head_predicts_at_its_site(capsys: Capture, folder: Path) -> None:
    home = ["--home", str(folder / "children" / "amy")]
    texts = [
        "the food was good place is 1",
        "room was bad price is a 2",
        "staff and loved the food was 3",
        "place is hated room was 4",
    ]
    found = child(capsys, "task", "predict", "sentiment", *texts, *home)
    assert [one["label"] for one in found] == ["positive", "negative", "positive", "negative"]
    assert [one["input"] for one in found] == texts and all(0.5 <= one["probability"] <= 1 for one in found)
    Path("new.jsonl").write_text("\n".join(json.dumps({"text": text, "more": 1}) for text in texts))
    assert child(capsys, "task", "predict", "sentiment", "--file", "new.jsonl", *home) == found
    assert child_main(["task", "predict", "sentiment", *texts, *home, "--output", "jsonl", "-q"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:-1] == found and lines[-1]["data"] is None


def test_a_prediction_needs_no_samples_but_a_trained_head(capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder / "children" / "ben"
    words = ["task", "predict", "sentiment", "--file", "-", "--home", str(home)]
    (folder / "ben.csv").rename(folder / "ben.moved")
    monkeypatch.setattr(sys, "stdin", io.StringIO("the food was good\n\nthe room was bad\n"))
    assert len(child(capsys, *words)) == 2
    (folder / "ben.moved").rename(folder / "ben.csv")
    assert told(capsys, child_main, *words, "--encoder", "other")["exit_code"] == 5
    assert child(capsys, "reset", "--yes", "--home", str(home))["forgotten"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    envelope = told(capsys, child_main, *words)
    assert envelope["exit_code"] == 5 and "trained here" in envelope["error"]["message"]


def test_each_encoder_has_its_own_parameters_though_their_shapes_are_the_same(folder: Path) -> None:
    """Given two encoders of one shape, When both trained here, Then a prediction takes the parameters of its own."""
    from child.predict import open_predictor
    from child.registry import Registry
    from child.settings import ChildSettings
    from child.state import PrivateStore

    home = ChildHome(folder / "children" / "cid")
    spec = Registry(home).get("sentiment")
    mine = open_predictor(home, ChildSettings(), spec).answer(["the food was good"])
    other = PrivateStore(home.private / "other")
    own = PrivateStore(home.private / "tiny")
    first = next(digest for digest in home.held_sets() if digest != own.last_set())
    (home.sets / first).touch()
    other.save(("other-1", 1, first), own.newest(), {"digest": "0" * 64})
    other.note_set(first)
    with pytest.raises(UsageError, match="other, tiny"):
        open_predictor(home, ChildSettings(), spec)
    assert open_predictor(home, ChildSettings(), spec, encoder="tiny").answer(["the food was good"]) == mine
    with pytest.raises(NotFound, match="files of encoder 'other'"):
        open_predictor(home, ChildSettings(), spec, encoder="other")


# -- children ----------------------------------------------------------------------------------------------------------

_count = iter(range(1_000))


@pytest.fixture
def enrolled(capsys: Capture, tmp_path: Path, master: Running) -> tuple[str, Path]:
    """A new child by the two command lines: its name and its folder."""
    name, home = f"site-{next(_count)}", tmp_path / "home"
    token = master.invite(name)
    found = child(capsys, "enrol", "--token", token, "--home", str(home))
    assert found["name"] == name and found["master"] == master.url
    return name, home


def test_an_invitation_alone_is_on_standard_output(capsys: Capture, master: Running) -> None:
    assert admin_main(["node", "invite", "new-one", "--days", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 1 and out.strip() not in err
    made = data(capsys, "node", "invite", "new-one", "--days", "1")
    assert 0 < made["expires"] - time.time() <= 86_401
    assert told(capsys, admin_main, "node", "invite", "--days", "0")["exit_code"] == 2


def test_a_child_comes_in_is_put_out_for_a_while_and_for_ever(capsys: Capture, enrolled: tuple[str, Path]) -> None:
    name, home = enrolled
    assert name in {one["name"] for one in data(capsys, "node", "list")}
    assert data(capsys, "node", "show", name)["state"] == "active" and name in shown(capsys, "node", "show", name)
    ask = ["request", "--encoder", "tiny", "--home", str(home)]
    assert data(capsys, "node", "disable", name)["state"] == "disabled"
    assert told(capsys, child_main, *ask)["exit_code"] == 4
    assert data(capsys, "node", "enable", name)["state"] == "active"
    first, second = child(capsys, *ask), child(capsys, *ask)
    assert first["new"] and not second["new"] and first["job"] == second["job"], "two requests start one job"
    data(capsys, "job", "abort", first["job"], "--yes")
    assert told(capsys, admin_main, "node", "revoke", name)["exit_code"] == 2, "it is asked first"
    assert data(capsys, "node", "revoke", name, "--yes")["state"] == "revoked"
    assert told(capsys, child_main, *ask)["exit_code"] == 4
    assert told(capsys, admin_main, "node", "enable", name)["exit_code"] == 5
    assert told(capsys, admin_main, "node", "show", "nobody/../x")["exit_code"] == 5


def test_an_identity_is_kept_for_this_user_alone(enrolled: tuple[str, Path]) -> None:
    name, folder = enrolled
    home = ChildHome(folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home.identity, home.key, home.ca)}
    assert modes == {"identity.json": 0o600, "key.pem": 0o600, "ca.pem": 0o644}
    identity = Identity.read(home)
    assert identity.name == name and identity.token not in repr(identity)
    with identity.api(SystemClock(), patience=QUICK) as api:
        assert "version" in api.version()
    home.identity.write_text("{}")
    with pytest.raises(DamagedFile, match="enrolment gave"):
        Identity.read(home)


def test_enrolling_again_is_refused_unless_it_is_meant(capsys: Capture, master: Running, enrolled: tuple[str, Path]) -> None:
    name, folder = enrolled
    home, clock, rng = ChildHome(folder), SystemClock(), random.Random(1)
    before = (home.key.read_bytes(), home.identity.read_bytes())
    with pytest.raises(Conflict, match=name):
        come_in(home, master.invite(), None, clock, rng, patience=QUICK)
    assert told(capsys, child_main, "enrol", "--token", master.invite(), "--home", str(folder))["exit_code"] == 5
    assert (home.key.read_bytes(), home.identity.read_bytes()) == before
    again = come_in(home, master.invite(), None, clock, rng, again=True, patience=QUICK)
    assert again.name == name and home.key.read_bytes() == before[0], "the same key is the same node"


def test_an_enrolment_that_broke_off_is_repeated_with_the_same_key(master: Running, tmp_path: Path) -> None:
    home, clock, rng = ChildHome(tmp_path / "home"), SystemClock(), random.Random(1)
    invitation = master.invite("slow")
    master.superlink.failures.append(NotAuthorized("the SuperLink should be there, found it away."))
    with pytest.raises(NotAuthorized):
        come_in(home, invitation, None, clock, rng, patience=QUICK)
    assert home.key.exists() and not home.identity.exists()
    assert come_in(home, invitation, None, clock, rng, patience=QUICK).name == "slow", "though the invitation is used up"


def test_an_invitation_may_come_by_file_environment_or_standard_input(
    capsys: Capture, master: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "invitation").write_text(master.invite("by-file") + "\n")
    assert child(capsys, "enrol", "--token-file", "invitation", "--home", "a")["name"] == "by-file"
    monkeypatch.setenv("TRUNKLINE_CHILD_TOKEN", master.invite("by-environment"))
    assert child(capsys, "enrol", "--home", "b")["name"] == "by-environment"
    monkeypatch.setattr(sys, "stdin", io.StringIO(master.invite("by-pipe")))
    assert child(capsys, "enrol", "--token-file", "-", "--home", "c")["name"] == "by-pipe"
    assert told(capsys, child_main, "enrol", "--home", "d")["exit_code"] == 4, "an invitation is good for one enrolment"


def test_status_and_doctor_of_a_child(capsys: Capture, enrolled: tuple[str, Path], folder: Path) -> None:
    name, home = enrolled
    words = ["task", "add", str(folder / "amy.csv"), "--task", "sentiment", "--text", "text", "--label", "label"]
    child(capsys, *words, "--home", str(home))
    found = child(capsys, "status", "--home", str(home))
    assert found["enrolled"]["name"] == name and found["tasks"][0]["rows"]["train"] == 42
    checks = {one["check"]: one for one in told(capsys, child_main, "doctor", "--home", str(home))["data"]}
    assert checks["master"]["status"] == checks["enrolled"]["status"] == checks["task sentiment"]["status"] == "ok"
    assert checks["superlink"]["status"] == "failed", "there is none behind this API"


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(capsys: Capture) -> Iterator[str]:
    """A job that waits."""
    name = data(capsys, "job", "start", "--encoder", "tiny", "--rounds", "3", "--steps", "2")["job"]["id"]
    yield name
    admin_main(["job", "abort", name, "--yes"])


def test_a_dry_run_shows_the_whole_job_and_starts_none(capsys: Capture) -> None:
    before = data(capsys, "job", "list")
    found = data(capsys, "job", "start", "--encoder", "tiny", "--steps", "7", "--dry-run")
    usual = JobSpec(encoder="tiny", training=Training(steps=7))
    assert found["dry_run"] and found["spec"] == usual.table()
    assert "training.steps" in shown(capsys, "job", "start", "--encoder", "tiny", "--dry-run")
    assert told(capsys, admin_main, "job", "start", "--encoder", "nobody", "--dry-run")["exit_code"] == 5
    assert data(capsys, "job", "list") == before


def test_a_job_rests_goes_on_and_ends(capsys: Capture, master: Running, job: str) -> None:
    assert data(capsys, "job", "show")["id"] == job, "the one that is open comes before the newest"
    assert data(capsys, "job", "pause", job, "--reason", "lunch")["reason"] == "lunch"
    assert data(capsys, "job", "resume", job)["state"] == "waiting"
    assert master.superlink.woken.count(job) == 3
    assert told(capsys, admin_main, "job", "start", "--encoder", "tiny")["exit_code"] == 5, "one open job an encoder"
    assert told(capsys, admin_main, "job", "abort", job)["exit_code"] == 2
    assert data(capsys, "job", "abort", job, "--yes")["state"] == "aborted"
    assert told(capsys, admin_main, "job", "resume", job)["exit_code"] == 5
    assert told(capsys, admin_main, "round", "show", "1", job)["exit_code"] == 5
    assert told(capsys, admin_main, "job", "watch", job)["exit_code"] == 1


def test_the_same_key_starts_one_job(capsys: Capture) -> None:
    words = ["job", "start", "--encoder", "tiny", "--idempotency-key", "nightly-7"]
    first, second = data(capsys, *words), data(capsys, *words)
    assert first["job"]["id"] == second["job"]["id"] and (first["new"], second["new"]) == (True, False)
    data(capsys, "job", "abort", first["job"]["id"], "--yes")


def test_a_wait_that_runs_out_is_3_and_the_job_goes_on(capsys: Capture, job: str) -> None:
    envelope = told(capsys, admin_main, "job", "wait", job, "--timeout", "0.5")
    assert (envelope["exit_code"], envelope["error"]["code"]) == (3, "deadline")
    assert data(capsys, "job", "show", job)["state"] == "waiting"


@pytest.mark.parametrize(("ends", "code"), [("finished", 0), ("failed", 1), ("aborted", 1)])
def test_watching_follows_a_job_to_its_end(capsys: Capture, master: Running, job: str, ends: Any, code: int) -> None:
    """Given somebody who watches, When rounds go on and the job ends, Then each event is told as it comes and the code says how."""
    pen = master.parts.ledger.own(job, "test")
    base = master.parts.ledger.version("tiny").digest

    def play() -> None:
        pen.open_round(1, base)
        pen.record_confirmation(1, "amy", {}, accepted=False, reason="policy", detail="not at night")
        pen.skip_round(1, "nobody came")
        pen.finish(ends, "that is all")

    begun = threading.Timer(0.2, play)
    begun.start()
    result = admin_main(["job", "watch", job, "--output", "jsonl", "--timeout", "60"])
    begun.join()
    out, err = capsys.readouterr()
    *events, envelope = [json.loads(line) for line in out.splitlines()]
    assert (result, envelope["exit_code"]) == (code, code)
    kinds = [event["kind"] for event in events]
    assert kinds[-1] == f"job.{ends}" and {"round.opened", "confirmation", "round.skipped"} <= set(kinds)
    assert "round.skipped  round 1  reason=nobody came" in err
    assert envelope["data"]["progress"]["refused"] == {"amy": "policy"}
    if code:
        assert "that is all" in envelope["error"]["message"]


def test_starting_and_waiting_in_one(capsys: Capture, master: Running) -> None:
    def end() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            opened = master.parts.ledger.open_jobs()
            if opened:
                master.parts.ledger.set_job_state(opened[0].id, "running")
                master.parts.ledger.own(opened[0].id, "t").finish("finished", "done")
                return
            time.sleep(0.02)

    thread = threading.Thread(target=end)
    thread.start()
    found = data(capsys, "job", "start", "--encoder", "tiny", "--wait", "--timeout", "60")
    thread.join()
    assert found["state"] == "finished"


# -- encoders ----------------------------------------------------------------------------------------------------------


def options() -> list[str]:
    return [word for key, value in tiny.OPTIONS.items() for word in ("--option", f"{key}={json.dumps(value)}")]


def test_an_encoder_from_a_config_arrives_whole_and_trains_from_its_seed(capsys: Capture, master: Running, tmp_path: Path) -> None:
    tokenizer = str(tiny.tokenizer(tmp_path / "tokenizer"))
    words = [*options(), "--seed", "1", "--tokenizer", tokenizer, "--max-length", "32"]
    made = data(capsys, "encoder", "create", "twin", *words, "--layers", "1", "--freeze", "embeddings", "--keep", "kept")
    assert (made["name"], made["type"], made["current"]["number"]) == ("twin", "text", 1)
    found = data(capsys, "encoder", "show", "twin")
    assert found["spec"]["layers"] == 1 and "shared.safetensors" not in found["files"]
    with SetFile(master.parts.blobs.path(found["current"]["digest"])) as first:
        assert set(first.spec) == set(found["shared"]) and not any("embeddings" in name for name in first.spec)
    for name, file in found["files"].items():
        assert (tmp_path / "kept" / name).read_bytes() == master.parts.blobs.path(file["digest"]).read_bytes()
    assert told(capsys, admin_main, "encoder", "create", "twin", *words)["exit_code"] == 5
    data(capsys, "encoder", "create", "same", *words, "--no-send", "--keep", "offline")
    assert "same" not in {one["name"] for one in data(capsys, "encoder", "list")}
    assert data(capsys, "encoder", "rollback", "twin", "1")["number"] == 2
    assert "rollback" in shown(capsys, "encoder", "versions", "twin")


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(3, width)

    def forward(self, x):
        return self.linear(x)
"""


def test_an_encoder_of_ones_own_module(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    words = ["--type", "vector", "--module", str(tmp_path / "net.py") + ":Net", "--option", "width=5", "--shape", "3"]
    data(capsys, "encoder", "create", "dense", *words)
    found = data(capsys, "encoder", "show", "dense")
    assert found["spec"]["source"]["path"] == "net.py:Net", "the admin's folders are nobody's business"
    assert found["shared"]["linear.weight"] == [[5, 3], "F32"]
    assert "`net.py:Net`" in _card(capsys, "dense")


def _card(capsys: Capture, name: str) -> str:
    data(capsys, "encoder", "export", name, "--format", "safetensors", "--out", f"{name}-out")
    return Path(f"{name}-out/README.md").read_text()


BAD_SOURCES = {
    "a hub name while offline": (["--from", "somebody/some-model"], "a model at the hub"),
    "no such folder": (["--from", "./none"], "should be a folder with a model, found none"),
    "a folder without weights": (["--from", "tokenizer"], "weights as safetensors, found no weights"),
    "a folder without a model": (["--from", "."], "no config.json"),
    "too many layers": (["--config", "tokenizer", "--layers", "9"], "`layers` should be at most 2"),
    "a pattern that matches nothing": (["--config", "tokenizer", "--freeze", "embedings"], "found none for 'embedings'"),
    "no such kind of model": (["--option", "model_type=berd", "--tokenizer", "tokenizer"], "berd"),
    "a module that is not there": (["--module", "gone.py:Net", "--shape", "3"], "gone.py"),
}


@pytest.mark.parametrize("name", BAD_SOURCES)
def test_an_encoder_that_cannot_be_made_is_told_and_nothing_arrives(capsys: Capture, tmp_path: Path, name: str) -> None:
    tiny.tokenizer(tmp_path / "tokenizer")
    words, said = BAD_SOURCES[name]
    before = len(data(capsys, "encoder", "list"))
    envelope = told(capsys, admin_main, "encoder", "create", "bad", *words, "--max-length", "32")
    assert (envelope["exit_code"], envelope["error"]["code"]) == (2, "spec"), envelope
    assert said in envelope["error"]["message"]
    assert len(data(capsys, "encoder", "list")) == before


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_every_list_is_told_in_every_form(capsys: Capture) -> None:
    yaml = pytest.importorskip("yaml")
    for words in (
        ["node", "list"],
        ["encoder", "list"],
        ["task", "list"],
        ["job", "list"],
        ["version"],
        ["encoder", "show", "tiny"],
    ):
        envelope = told(capsys, admin_main, *words)
        assert envelope["exit_code"] == 0
        assert admin_main([*words, "-o", "yaml"]) == 0
        assert yaml.safe_load(capsys.readouterr().out) == envelope
        assert admin_main([*words, "-o", "jsonl"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        rows = envelope["data"]
        assert lines == ([*rows, envelope | {"data": None}] if isinstance(rows, list) else [envelope])
        assert admin_main(words) == 0 and capsys.readouterr().out.strip()


def test_tasks_are_what_the_confirmations_told(capsys: Capture) -> None:
    (task,) = [one for one in data(capsys, "task", "list") if one["task"] == "sentiment"]
    assert {child: about["samples"] for child, about in task["children"].items()} == {"amy": 42, "ben": 49, "cid": 56}


def test_a_master_that_cannot_be_reached_and_one_that_does_not_know_this_token(capsys: Capture, tmp_path: Path) -> None:
    envelope = told(capsys, admin_main, "job", "list", "--url", "https://127.0.0.1:1", "--timeout", "0.2")
    assert (envelope["exit_code"], envelope["error"]["code"], envelope["error"]["retryable"]) == (4, "unreachable", True)
    (tmp_path / "wrong").write_text("another")
    envelope = told(capsys, admin_main, "job", "list", "--token-file", "wrong")
    assert (envelope["exit_code"], envelope["error"]["code"]) == (4, "not_authorized")


@pytest.mark.parametrize(
    "words", [["encoder", "show", "x"], ["job", "show", "x"], ["job", "watch", "x"], ["node", "show", "x"], ["round", "show", "9"]]
)
def test_what_is_not_there_is_5(capsys: Capture, words: list[str]) -> None:
    assert told(capsys, admin_main, *words)["exit_code"] == 5


def test_the_daemon_of_a_state_folder_is_found_by_itself(
    capsys: Capture, master: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a daemon on this machine, When only its folder is known, Then it is reached, and the doctor is content."""
    for name in ("TRUNKLINE_URL", "TRUNKLINE_TOKEN_FILE", "TRUNKLINE_CA"):
        monkeypatch.delenv(name)
    home = MasterHome(folder)
    home.create()
    home.admin_token(lambda: ADMIN)
    info = DaemonInfo(pid=os.getpid(), url=master.url, port=master.port, superlink_port=8441, started=0.0, version="0")
    home.write_daemon(info)
    assert data(capsys, "job", "list", "--state", str(folder))[0]["id"] == "tiny-1"
    monkeypatch.setenv("TRUNKLINE_STATE", str(folder))
    found = told(capsys, admin_main, "doctor")
    checks = {one["check"]: one["status"] for one in found["data"]}
    assert found["exit_code"] == 0 and {checks[name] for name in ("master", "port", "state folder", "encoders", "authority")} == {
        "ok"
    }
    tiny.tokenizer(folder / "no-weights")
    assert told(capsys, admin_main, "doctor", "--encoder", str(folder / "no-weights"))["exit_code"] == 1
    home.forget_daemon()
    envelope = told(capsys, admin_main, "doctor")
    assert envelope["exit_code"] == 1 and {one["check"] for one in envelope["data"] if one["status"] == "failed"} == {"master"}
