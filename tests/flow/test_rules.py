"""Every rule with every codec in whole rounds over the local link, with numpy children."""

import numpy as np
import pytest

from master import fusion
from master.rounds import run
from master.rules import PARTS
from tests.support.jobs import Bench, make_bench
from trunkline.codecs import CODECS

OPTIONS = {
    "krum": "krum:faulty=0",
    "multi_krum": "multi_krum:faulty=0,keep=2",
    "bulyan": "bulyan:faulty=0",
    "fedbuff": "fedbuff:size=3",
    "flower": "flower:FedTrimmedAvg,beta=0.4",
    "clip": "clip:norm=0.5+mean",
    "zero_outliers": "zero_outliers:times=1.0+mean",
}
"""Options under which three children are enough, and filters have something to filter."""

RULES = [OPTIONS.get(name, name) for name in PARTS if name != "scaffold"]  # whose children know more than these do
WORDS = {"topk": "topk:share=0.4"}  # of three numbers, at least one


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One master and its children for all jobs; each goes on from where the one before it ended."""
    return make_bench(tmp_path_factory.mktemp("rules"), {"a": 3, "b": 5, "c": 4})


def played(bench: Bench, rule: str, codec: str, rounds: int) -> None:
    """A job to its end: published, finite; and each round fused again from what was recorded to the same bytes."""
    play = bench.play(rule=rule, codec=WORDS.get(codec, codec), rounds=rounds, children={"least": 3}, report=())
    assert run(play) == ("the one round done" if rounds == 1 else f"all {rounds} rounds done"), (rule, codec)
    assert np.isfinite(bench.w()).all(), (rule, codec)
    for number in range(1, rounds + 1):
        round_ = play.pen.round(number)
        assert round_ is not None
        with fusion.opened(bench.blobs, play.pen, round_, play.spec) as inputs:
            assert [one.child for one in inputs.contributions] == ["a", "b", "c"]
            again = fusion.fuse(bench.blobs, play.spec, inputs)
        assert again.target.digest == round_.target, (rule, codec, number)
    play.pen.finish("finished", "played")


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_with_some_codec(bench: Bench, rule: str) -> None:
    """Each codec has its turn."""
    played(bench, rule, list(CODECS)[RULES.index(rule) % len(CODECS)], 1)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_with_every_codec(bench: Bench, rule: str, codec: str) -> None:
    played(bench, rule, codec, 2)
