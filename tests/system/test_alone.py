"""`trunkline-child alone`, as a process: what a site gets from its own samples, without a master."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from child.home import ChildHome
from child.registry import Registry
from master.demo.processes import CHILD, Processes
from tasks import encoders
from tasks.specs import Config, EncoderSpec
from tests.support import tiny
from tests.support.cluster import ENVIRONMENT
from tests.support.world import sentiment, write_reviews
from trunkline.clock import SystemClock
from trunkline.files import sha256_file

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(200)]

TRAIN = ["--steps", "60", "--learning-rate", "3e-3", "--head-learning-rate", "3e-2", "--batch-size", "8"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, as `encoder create --keep` leaves it."""
    folder = tmp_path_factory.mktemp("encoders")
    source = Config(options=tiny.OPTIONS, seed=1, tokenizer=str(tiny.tokenizer(folder / "tokenizer")))
    encoders.create(EncoderSpec.model_validate({"name": "tiny", "source": source, "max_length": 32}), folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A site that never enrolled anywhere, with 80 reviews."""
    Registry(ChildHome(tmp_path / "site")).add(sentiment(write_reviews(tmp_path / "reviews.csv", 80)))
    (tmp_path / "site" / "child.toml").write_text("threads = 1\n", encoding="utf-8")
    return tmp_path / "site"


def alone(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    processes = Processes(home.parent, SystemClock(), ENVIRONMENT)
    command = processes.command(CHILD, ["alone", "--home", str(home), *words])
    environment = os.environ | ENVIRONMENT
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    return found


def test_it_trains_and_scores_and_leaves_no_trace(home: Path, encoder: Path) -> None:
    before = {path.name: sha256_file(path) for path in encoder.iterdir()}
    found = told(alone(home, "--encoder", str(encoder), *TRAIN, "--output", "json"))
    assert found["status"] == "ok" and found["data"]["steps"] == 60
    scores = {score["split"]: score for score in found["data"]["scores"]}
    assert {split: score["samples"] for split, score in scores.items()} == {"validation": 8, "test": 16}
    assert {(score["task"], score["metric"]) for score in scores.values()} == {("sentiment", "accuracy")}
    assert scores["test"]["value"] > 0.85, "the label can be read off one word"
    # Again, looking on: the same seed gives the same scores, and looking changes nothing.
    done = alone(home, "--encoder", str(encoder), *TRAIN, "--every", "20", "--output", "jsonl")
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert [row["step"] for row in rows] == [20, 40, 60] and all(row["scores"][0]["split"] == "validation" for row in rows)
    assert last["data"] == found["data"] and rows[-1]["scores"] == [scores["validation"]]
    assert "step 40: sentiment accuracy" in done.stderr
    assert {path.name: sha256_file(path) for path in encoder.iterdir()} == before
    assert list(ChildHome(home).private.iterdir()) == [], "heads of this comparison are not kept"


@pytest.mark.parametrize(
    ("words", "code", "kind", "said"),
    [
        ([], 2, "usage", "--encoder"),
        (["--encoder", "nowhere"], 5, "not_found", "`--encoder` should be the folder of an encoder, found none at nowhere"),
        (["--encoder", "HERE", "--steps", "0"], 2, "usage", "`--steps` should be at least 1, found 0"),
        (
            ["--encoder", "HERE", "--task", "mail"],
            2,
            "sample",
            "'text' among mail should be declared here, found sentiment (type text)",
        ),
        (["--encoder", "HERE", "--warmup", "2"], 2, "usage", "`--warmup` should be a share from 0 to 1, found 2"),
        (["--encoder", "HERE", "--every", "0"], 2, "usage", "`--every` should be at least 1, found 0"),
    ],
)
def test_what_is_wrong_is_told(home: Path, encoder: Path, words: list[str], code: int, kind: str, said: str) -> None:
    done = alone(home, *(str(encoder) if word == "HERE" else word for word in words), "--output", "json")
    found = told(done)
    assert (done.returncode, found["error"]["code"], found["data"]) == (code, kind, None)
    assert said in found["error"]["message"] and "Traceback" not in done.stderr
