"""Flower's strategies: as rules of ours, and ours against them where both exist.

Where the two differ it is said here how, and the rest is shown to be equal. Flower computes in float32, ours in float64.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower

from master.flower import strategies
from master.rules import State, find_rule
from tests.support.rules import contribution, fuse, parameters, play
from trunkline.errors import FailedError, SpecError, TooFewChildren
from trunkline.tensors import Array

pytestmark = pytest.mark.contract

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
"""What float32 sums of a dozen values leave."""


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> Iterator[None]:
    """Bulyan of Flower collects garbage once a set, which takes long where much is loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


def drawn(seed: int, count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    shapes: Mapping[str, tuple[int, ...]] = {"w": (6, 5), "b": (5,), "s": ()}
    return [{name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()} for _ in range(count)]


def theirs(
    strategy: flower.FedAvg, sets: Sequence[Mapping[str, Array]], weights: Sequence[float], number: int = 1
) -> dict[str, Any]:
    """A strategy played directly, without our rule around it."""
    replies = [strategies.reply(k, dict(arrays), weight) for k, (arrays, weight) in enumerate(zip(sets, weights, strict=True), 1)]
    found, _ = strategy.aggregate_train(number, replies)
    assert found is not None
    return {name: array.numpy() for name, array in found.items()}


def ours(word: str, base: Mapping[str, Array], sets: Sequence[Mapping[str, Array]], samples: Sequence[int]) -> dict[str, Array]:
    return fuse(word, base, [contribution(f"c{k:02}", s, n) for k, (s, n) in enumerate(zip(sets, samples, strict=True))])


PAIRS = [
    ("mean", flower.FedAvg(), "unequal"),
    ("mean", flower.FedProx(), "unequal"),
    ("median:within=round", flower.FedMedian(), "equal"),  # theirs has no weights
    ("trimmed_mean:trim=0.2", flower.FedTrimmedAvg(beta=0.2), "equal"),  # no weights; and see below
    ("trimmed_mean:trim=0.4", flower.FedTrimmedAvg(beta=0.4), "equal"),
    ("krum:faulty=1", flower.Krum(num_malicious_nodes=1), "unequal"),  # no weights in either
    ("krum:faulty=3", flower.Krum(num_malicious_nodes=3), "unequal"),
    ("multi_krum:faulty=2,keep=4", flower.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=4), "unequal"),
    ("bulyan:faulty=0", flower.Bulyan(num_malicious_nodes=0), "equal"),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("word", "strategy", "counts"), PAIRS, ids=[f"{word}-{type(s).__name__}" for word, s, _ in PAIRS])
def test_ours_equals_flowers(word: str, strategy: flower.FedAvg, counts: str, seed: int) -> None:
    sets = drawn(seed, 10)
    samples = [10] * 10 if counts == "equal" else [3 * k + 1 for k in range(10)]
    expected = theirs(strategy, sets, samples)
    found = ours(word, sets[0] if seed else drawn(99, 1)[0], sets, samples)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], **CLOSE, err_msg=name)


def test_a_share_that_is_no_whole_number_of_children_is_cut_exactly_by_ours_alone() -> None:
    """Flower cuts `int(beta n)` values: of four children a fifth is none, and a wild one passes."""
    sets = [{"w": np.array([value], np.float32)} for value in (1, 2, 3, 1e9)]
    assert theirs(flower.FedTrimmedAvg(beta=0.2), sets, [1] * 4)["w"][0] == pytest.approx(2.5e8)
    assert ours("trimmed_mean:trim=0.2", sets[0], sets, [1] * 4)["w"][0] == pytest.approx((0.05 * 1 + 0.25 * 5 + 0.05 * 1e9) / 0.6)
    assert ours("trimmed_mean:trim=0.25", sets[0], sets, [1] * 4)["w"][0] == 2.5


def test_bulyan_chooses_one_after_the_other_by_the_paper_and_all_at_once_in_flower() -> None:
    """With the same choice the second half is the same: the choice of Flower is ours where nobody is left out between."""
    sets = drawn(6, 11)
    by_paper = play("bulyan:faulty=2", sets[0], [contribution(f"c{k:02}", s) for k, s in enumerate(sets)])[1]
    chosen = by_paper.notes["bulyan"]["task"]["chosen"]
    scores = play("multi_krum:faulty=2,keep=7", sets[0], [contribution(f"c{k:02}", s) for k, s in enumerate(sets)])[1]
    assert chosen != scores.notes["multi_krum"]["task"]["chosen"], "so that this test says something"

    def select(contents: list[Any], faulty: int, count: int) -> list[Any]:
        assert (faulty, count) == (2, len(chosen))
        return [contents[int(name[1:])] for name in chosen]

    expected = theirs(flower.Bulyan(num_malicious_nodes=2, selection_rule=select), sets, [1] * 11)
    found = ours("bulyan:faulty=2", sets[0], sets, [1] * 11)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], **CLOSE)


# -- steps: five rounds ----------------------------------------------------------------------------------------------------


def zero_state(base: Mapping[str, Array]) -> State:
    """Flower's moments begin at zero; the paper's, and ours, with v = tau^2."""
    return State(
        parameters({f"{key}/{name}": np.zeros(array.shape, np.float32) for key in "mv" for name, array in base.items()}), {}
    )


STEPS: Mapping[str, tuple[Any, bool]] = {
    "momentum:rate=0.5,beta=0.9": (flower.FedAvgM(server_learning_rate=0.5, server_momentum=0.9), False),
    "adam:rate=0.1": (flower.FedAdam(eta=0.1), True),
    "yogi:rate=0.1": (flower.FedYogi(eta=0.1), True),
    "adagrad:rate=0.1": (flower.FedAdagrad(eta=0.1), True),
}


@pytest.mark.parametrize("word", STEPS)
def test_five_rounds_of_an_optimiser_equal_flowers(word: str) -> None:
    """FedAdam of Flower corrects its rate for the bias of the moments, with one round too many; the paper's does not."""
    strategy, adaptive = STEPS[word]
    base = drawn(1, 1)[0]
    state, mine, their = (zero_state(base) if adaptive else None), base, dict(base)
    for number in range(1, 6):
        sets = [{name: np.asarray(mine[name] + change[name]) for name in change} for change in drawn(number, 4)]
        strategy.current_arrays = (  # what `configure_train` sets
            their if adaptive else ArrayRecord({name: FlowerArray(np.asarray(array, np.float32)) for name, array in their.items()})
        )
        their = theirs(strategy, sets, [1, 2, 3, 4], number)
        rate = 0.1
        if isinstance(strategy, flower.FedAdam):
            rate *= np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        played = word.replace("rate=0.1", f"rate={rate}")
        mine, _, state = play(f"mean+{played}", mine, [contribution(f"c{k}", s, k + 1) for k, s in enumerate(sets)], state)
        for name in base:
            np.testing.assert_allclose(mine[name], their[name], rtol=1e-4, atol=1e-5, err_msg=f"round {number}: {name}")


def test_flowers_adam_leaves_float32_and_ours_does_not() -> None:
    base = drawn(1, 1)[0]
    strategy = flower.FedAdam()
    strategy.current_arrays = dict(base)
    assert theirs(strategy, drawn(2, 3), [1, 1, 1])["w"].dtype == np.float64
    assert ours("adam", base, drawn(2, 3), [1, 1, 1])["w"].dtype == np.float32


# -- as a rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "strategy"),
    [
        ("flower:FedAvg", flower.FedAvg()),
        ("flower:FedProx", flower.FedProx()),
        ("flower:FedMedian", flower.FedMedian()),
        ("flower:FedTrimmedAvg,beta=0.1", flower.FedTrimmedAvg(beta=0.1)),
        ("flower:Krum,num_malicious_nodes=2", flower.Krum(num_malicious_nodes=2)),
        (
            "flower:MultiKrum,num_malicious_nodes=2,num_nodes_to_select=3",
            flower.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=3),
        ),
        ("flower:Bulyan,num_malicious_nodes=1", flower.Bulyan(num_malicious_nodes=1)),
    ],
)
def test_a_strategy_as_a_rule_is_the_strategy(word: str, strategy: flower.FedAvg) -> None:
    sets, samples = drawn(3, 10), [2 * k + 1 for k in range(10)]
    assert str(find_rule(word)) == word
    expected = theirs(strategy, sets, [n / sum(samples) for n in samples])
    found = ours(word, sets[0], sets, samples)
    assert all(found[name].tobytes() == expected[name].astype(np.float32).tobytes() for name in expected)


def test_it_is_left_alone_by_what_is_no_float_or_is_empty() -> None:
    sets = [{"w": np.full(2, k, np.float32), "n": np.array(k, np.int64), "e": np.zeros((0, 2), np.float16)} for k in (1, 2, 6)]
    found = ours("flower:FedMedian", sets[0], sets, [1, 1, 1])
    assert (found["w"].tolist(), found["n"].dtype, int(found["n"]), found["e"].shape) == ([2, 2], np.int64, 3, (0, 2))


def test_every_strategy_of_flower_is_a_rule_or_says_why_not() -> None:
    """Breaks when a new minor version brings one that nobody has looked at."""
    names = {name for name in flower.__all__ if isinstance(getattr(flower, name), type) and name not in ("Strategy", "Result")}
    assert names == set(strategies.STATELESS) | set(strategies.INSTEAD) | {n for n in names if n.startswith("DifferentialPrivacy")}
    for name in names - set(strategies.STATELESS):
        with pytest.raises(SpecError, match=f"found '{name}': it "):
            find_rule(f"flower:{name}")


@pytest.mark.parametrize("name", strategies.STATELESS)
def test_those_that_are_rules_keep_nothing(name: str) -> None:
    strategy = getattr(flower, name)()
    before = dict(vars(strategy))
    first, second = (theirs(strategy, drawn(4, 7), [1] * 7) for _ in range(2))
    assert dict(vars(strategy)) == before
    assert all(np.array_equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("flower", "should name one of FedAvg"),
        ("flower:beta=0.1", "should name one of FedAvg"),
        ("flower:FedAvg,fraction_train=0.5", "should be among none, found 'fraction_train'"),
        ("flower:FedTrimmedAvg,beta=0.5", r"range \[0, 0.5\)"),
        ("flower:FedTrimmedAvg,beta=nan", "should be a finite number from 0 on"),
        ("flower:FedTrimmedAvg,beta=1e400", "should be a finite number from 0 on"),
        ("flower:Krum,num_malicious_nodes=1.5", r"a number \(int\)"),
        ("flower:Krum,num_malicious_nodes=1,num_malicious_nodes=2", "each once"),
        ("flower:FedTrimmedAvg,weighted_by_key=x", "should be among beta"),
    ],
)
def test_options_are_checked_when_the_job_is_configured(word: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        find_rule(word)


def test_too_few_updates_are_refused_before_flower_skips_the_round() -> None:
    assert find_rule("flower:Bulyan,num_malicious_nodes=1").least == 7
    assert find_rule(f"flower:Bulyan,num_malicious_nodes={10**30}").least > 10**30, "more than any job has"
    assert find_rule("flower:Krum,num_malicious_nodes=1").least == 5
    with pytest.raises(TooFewChildren):
        ours("flower:Krum,num_malicious_nodes=1", drawn(1, 1)[0], drawn(1, 4), [1] * 4)
    with pytest.raises(TooFewChildren, match="should have more updates"):
        strategies.aggregate("Bulyan", {"num_malicious_nodes": 2}, drawn(1, 4), [1.0] * 4)


def test_what_flower_refuses_is_an_error_of_ours() -> None:
    with pytest.raises(FailedError, match="InconsistentMessageReplies"):
        strategies.aggregate("FedAvg", {}, [{"a": np.ones(1, np.float32)}, {"b": np.ones(1, np.float32)}], [1.0, 1.0])
