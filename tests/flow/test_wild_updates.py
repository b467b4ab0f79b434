"""A child that sends the largest numbers there are: each is finite, what a rule makes of several is not."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from master.ledger_reader import JobReader
from master.rounds import run
from master.trial import trials
from tests.support.jobs import Bench, make_bench
from tests.support.sites import QuadraticSite
from trunkline import codecs
from trunkline.errors import DeadlineExceeded
from trunkline.files import sha256_file
from trunkline.messages import Confirmation, InitialSet, Instruction, Update
from trunkline.sets import SetFile

SGD = {"steps": 1, "learning_rate": 0.5, "warmup": 0.0, "optimizer": "sgd", "decay": "none", "clip_norm": 0.0}


@dataclass
class Liar(QuadraticSite):
    """Sends one number everywhere in some rounds, and is honest in the others."""

    lies: tuple[float | None, ...] = ()  # of each round

    def train(self, message: InitialSet, base: SetFile) -> Update:
        update = super().train(message, base)
        number = self.lies[message.round - 1] if message.round <= len(self.lies) else None
        if number is None:
            return update
        wild, path = np.full(3, number, np.float32), self.folder / "wild"
        codecs.encode(path, message.codec, base, lambda name, rows: wild[rows])
        digest, size = sha256_file(path), path.stat().st_size
        path.rename(self.folder / digest)
        return update.model_copy(update={"digest": digest, "size": size})


def bench_of(folder: Path, *lies: float | None) -> Bench:
    bench = make_bench(folder, {"a": 3, "b": 4, "c": 5}, url="sqlite://")
    honest = bench.sites["c"]
    bench.sites["c"] = Liar("c", honest.points, honest.folder, bench.blobs, bench.gate, bench.trace, lies=lies)
    return bench


def kept(bench: Bench, rounds: JobReader) -> None:
    """What was published, and what the next round would start from, is finite."""
    for round_ in rounds.rounds():
        for digest in (round_.target, round_.rule_state, round_.residual):
            if digest is not None:
                with bench.blobs.open_set(digest) as file:
                    assert all(np.isfinite(array).all() for array in file.tensors().values()), round_.number


@pytest.mark.parametrize("codec", ["float32", "int8"])
@pytest.mark.parametrize(
    ("rule", "lies"),
    [
        ("momentum", (3e38, 3.2e38, 3.2e38)),
        ("adam", (3e38,)),
        ("yogi", (3e38,)),
        ("adagrad", (3e38,)),
        ("momentum:rate=1e+300", ()),
        ("scaffold:rate=9.0", (3e38,)),
    ],
)
def test_a_round_that_leaves_the_numbers_is_skipped_and_changes_nothing(
    tmp_path: Path, rule: str, lies: tuple[float, ...], codec: str
) -> None:
    """Neither is such a set published, nor remembered, nor does the job end: the next round starts from what there was."""
    bench = bench_of(tmp_path, *lies)
    play = bench.play(rule=rule, codec=codec, rounds=4, children={"wait_seconds": 20.0}, training=SGD)
    try:
        run(play)
    except DeadlineExceeded as error:  # it waits no longer than it was told to
        assert "waited 20 s for a round with enough updates" in str(error), error
    kept(bench, play.pen)
    named = {digest for one in play.pen.rounds() for digest in (one.base, one.target, one.rule_state, one.residual)}
    if codec == "float32":  # which has no differences
        updates = {row.digest for one in play.pen.rounds() for row in play.pen.updates(one.number)}
        assert set(bench.blobs.digests()) <= named | updates, "nothing stays of a round that came to nothing"
    skipped = [round_ for round_ in play.pen.rounds() if round_.state == "skipped"]
    assert skipped
    assert all("should be finite, found NaN or infinity" in round_.reason for round_ in skipped)
    if len(lies) == 1:
        assert [round_.state for round_ in play.pen.rounds()] == ["skipped", *["closed"] * 4], "it went on as if nothing had been"


def test_a_trial_says_so_and_tells_no_figures(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 3e38, 3.2e38, 3.2e38)
    bench.run(rounds=3, keep_rounds=3)
    *_, last = trials(bench.blobs, bench.ledger.reader(bench.ledger.jobs()[-1].id), "adam")
    assert "should be finite" in str(last.error)
    assert last.step is None


@dataclass
class Busybody(QuadraticSite):
    """Says that it has very many tasks."""

    tasks: int = 0

    def confirm(self, message: Instruction) -> Confirmation:
        confirmation = super().confirm(message)
        (task,) = confirmation.tasks
        more = tuple(task.model_copy(update={"task": f"point-{number}"}) for number in range(1, self.tasks))
        return confirmation.model_copy(update={"tasks": (task, *more)})


@pytest.mark.parametrize(("tasks", "state"), [(100, "member"), (101, "refused")])
def test_a_child_names_so_many_tasks_and_no_more(tmp_path: Path, tasks: int, state: str) -> None:
    """They are compared pair by pair: ten thousand of one child were gigabytes at the master."""
    bench = make_bench(tmp_path, {"a": 3, "b": 4}, url="sqlite://")
    other = bench.sites["b"]
    bench.sites["b"] = Busybody("b", other.points, other.folder, bench.blobs, bench.gate, bench.trace, tasks=tasks)
    play = bench.play(rounds=1)
    run(play)
    told = {member.child: (member.state, member.reason) for member in play.pen.members(1)}
    assert told == {"a": ("member", None), "b": (state, None if state == "member" else "count")}
