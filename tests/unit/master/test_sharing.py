"""Whether tasks pull against each other, what they gain, when that is an alarm, and what is advised."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from master.sharing.advice import Advice, advise, groups
from master.sharing.directions import directions
from master.sharing.gains import Gain, gains, hurt, variance
from master.sharing.together import Task, Together
from tests.support.rules import contribution, parameters

# -- directions --------------------------------------------------------------------------------------------------------

Vector = np.ndarray[Any, np.dtype[np.float64]]


def tensors(values: Vector, count: int = 3) -> dict[str, Any]:
    """A set of two float tensors, and one of whole numbers that no direction is made of."""
    flat = values.astype(np.float32)
    return {"a": flat[:6].reshape(2, 3), "b": flat[6:], "steps": np.array(count, np.int64)}


def cosine(one: Vector, two: Vector) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def test_cosines_are_those_of_the_tasks_mean_movements() -> None:
    rng = np.random.default_rng(0)
    base, target = rng.standard_normal((2, 10)).astype(np.float32).astype(np.float64)
    moves = rng.standard_normal((4, 10)).astype(np.float32).astype(np.float64)
    counts = [{"s": 10}, {"s": 30}, {"t": 5}, {"t": 5, "u": 20}]
    found = directions(
        parameters(tensors(base)),
        [contribution(f"c{k}", tensors(base + move, k), n) for k, (move, n) in enumerate(zip(moves, counts, strict=True))],
        parameters(tensors(target)),
    )
    assert found is not None
    tasks = [0.25 * moves[0] + 0.75 * moves[1], (moves[2] + moves[3]) / 2, moves[3]]
    fused = target - base
    assert (found["names"], found["samples"]) == (["s", "t", "u"], [40, 10, 20])
    np.testing.assert_allclose(found["cosines"], [[cosine(a, b) for b in tasks] for a in tasks], atol=6e-5)
    np.testing.assert_allclose(found["kept"], [a @ fused / (a @ a) for a in tasks], atol=6e-5)
    assert found["within"] == [pytest.approx(cosine(*moves[:2]), abs=6e-5), pytest.approx(cosine(*moves[2:]), abs=6e-5), None]
    np.testing.assert_allclose(found["norms"], [np.linalg.norm(a) for a in tasks], rtol=1e-3)
    for k, move in enumerate(moves):
        told = found["children"][f"c{k}"]
        assert told == {
            "norm": pytest.approx(np.linalg.norm(move), rel=1e-3),
            "cosine": pytest.approx(cosine(move, fused), abs=6e-5),
        }
    assert found["mixed"] == [["t", "u"]]


def test_within_a_task_the_mean_is_over_pairs_of_its_children_by_their_shares() -> None:
    rng = np.random.default_rng(4)
    moves, counts = rng.standard_normal((4, 10)), [10, 20, 70, 5]
    names = ["s", "s", "s", "t"]
    children = [contribution(f"c{k}", tensors(m), {names[k]: n}) for k, (m, n) in enumerate(zip(moves, counts, strict=True))]
    found = directions(parameters(tensors(np.zeros(10))), children, parameters(tensors(moves[0])))
    pairs = [(a, b) for a in range(3) for b in range(a)]
    weights = [counts[a] * counts[b] * np.linalg.norm(moves[a]) * np.linalg.norm(moves[b]) for a, b in pairs]
    wanted = np.average([cosine(moves[a], moves[b]) for a, b in pairs], weights=weights)
    assert found is not None and found["within"] == [pytest.approx(wanted, abs=6e-5), None]


def test_one_task_is_not_compared_and_costs_no_pass() -> None:
    def unread(name: str, rows: slice) -> Any:
        raise AssertionError("it should not be read")

    update = contribution("c", tensors(np.ones(10)), {"s": 3, "t": 0})
    still = parameters(tensors(np.zeros(10)))
    silent = type(still)(still.spec, unread)
    assert directions(silent, [update], silent) is None


def test_what_did_not_move_or_is_beyond_numbers_has_no_cosine() -> None:
    base = np.zeros(10)
    rows = [np.zeros(10), np.ones(10), -np.ones(10)]
    children = [contribution(f"c{k}", tensors(row), {f"t{k}": 1}) for k, row in enumerate(rows)]
    ghost = contribution("z", tensors(np.full(10, np.nan)), 0)
    found = directions(parameters(tensors(base)), [*children, ghost], parameters(tensors(base)))
    assert found is not None and set(found["children"]) == {"c0", "c1", "c2"}
    assert found["cosines"] == [[None, None, None], [None, 1.0, -1.0], [None, -1.0, 1.0]]
    assert found["kept"] == [None, 0.0, 0.0] and found["within"] == [None] * 3
    huge = [contribution(f"c{k}", {"w": np.full(2, sign * 1e200)}, {f"t{k}": 1}) for k, sign in enumerate((1, -1))]
    zero = parameters({"w": np.zeros(2)})
    found = directions(zero, huge, zero)
    assert found is not None and found["cosines"] == [[None, None], [None, None]] and found["norms"] == [None, None]


# -- gains -------------------------------------------------------------------------------------------------------------


def score(task: str, value: float, samples: int = 200, metric: str = "accuracy", split: str = "validation") -> dict[str, Any]:
    return {
        "task": task,
        "split": split,
        "metric": metric,
        "value": value,
        "samples": samples,
        "higher_is_better": metric != "mse",
    }


def report(shared: float, alone: float | None, task: str = "t", **changes: Any) -> dict[str, Any]:
    told = [] if alone is None else [score(task, alone, **changes)]
    return {"scores": [score(task, shared, **changes)], "alone": told}


def test_a_gain_is_the_mean_over_children_with_a_reference() -> None:
    (found,) = gains([report(0.9, 0.8, samples=300), report(0.6, 0.7, samples=100), report(0.1, None)])
    assert (found.samples, found.children, found.metric) == (400, 2, "accuracy")
    assert found.gain == pytest.approx(0.75 * 0.1 - 0.25 * 0.1)
    assert found.shared - found.alone == pytest.approx(found.gain)
    assert gains([report(0.9, None)]) == [] and gains([report(0.9, 0.8)], "test") == []
    assert gains([{"scores": []}, {}]) == []


def test_for_an_error_less_is_a_gain() -> None:
    (found,) = gains([report(0.5, 0.8, metric="mse")])
    assert found.gain == pytest.approx(0.3)


def test_scores_of_different_metrics_are_not_compared() -> None:
    assert gains([{"scores": [score("t", 0.9)], "alone": [score("t", 0.8, metric="f1")]}]) == []
    assert gains([report(0.9, 0.8), report(0.9, 0.8, metric="f1")]) == []


@pytest.mark.parametrize("metric", ["accuracy", "pearson", "mse"])
def test_the_noise_is_that_of_drawing_the_samples_again(metric: str) -> None:
    """Against 4,000 draws of 100 samples each."""
    rng = np.random.default_rng(1)
    if metric == "accuracy":
        values = (rng.random((4000, 100)) < 0.85).mean(axis=1)
    elif metric == "mse":
        values = (rng.standard_normal((4000, 100)) ** 2).mean(axis=1)
    else:
        x = rng.standard_normal((4000, 100))
        y = 0.7 * x + np.sqrt(1 - 0.49) * rng.standard_normal((4000, 100))
        values = np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)])
    told = variance(score("t", float(values.mean()), 100, metric))
    assert told is not None and np.sqrt(told) == pytest.approx(values.std(), rel=0.06)


def test_a_metric_that_is_not_known_has_no_noise() -> None:
    assert variance(score("t", 0.9, metric="own")) is None
    (found,) = gains([report(0.9, 0.8, metric="own"), report(0.9, 0.8, metric="own")])
    assert found.noise is None and found.allowed == pytest.approx(0.02)


IMPOSSIBLE = [("accuracy", 5.0), ("f1", -3.0), ("recall@1", 1e200), ("pearson", 2.0), ("spearman", -1e200), ("mse", 1e200)]


@pytest.mark.parametrize(("metric", "value"), IMPOSSIBLE)
def test_a_score_that_cannot_be_is_an_error_of_its_child_and_not_of_ours(metric: str, value: float) -> None:
    """A report that says so ended the whole job."""
    for told in (report(value, 0.5, metric=metric), report(0.5, value, metric=metric), report(value, -value, metric=metric)):
        for found in gains([told, report(0.5, 0.5, metric=metric)]):
            assert np.isfinite([found.gain, found.shared, found.alone, found.allowed]).all()
            assert found.noise is None or found.children == 1
        assert all(np.isfinite(one.gain) for one in hurt([gains([told])] * 3))


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1.0000000000000002])
def test_a_perfect_correlation_has_a_noise(value: float) -> None:
    assert variance(score("t", value, metric="pearson")) is not None


# -- alarms ------------------------------------------------------------------------------------------------------------


def history(*rounds: tuple[float, float], samples: int = 2000, metric: str = "accuracy") -> list[list[Gain]]:
    return [gains([report(shared, alone, samples=samples, metric=metric)]) for shared, alone in rounds]


def test_a_task_that_loses_more_than_noise_is_an_alarm() -> None:
    (found,) = hurt(history((0.80, 0.9), (0.82, 0.9), (0.84, 0.9)))
    assert (found.task, found.gain) == ("t", pytest.approx(-0.08)) and found.shared == pytest.approx(0.82)


@pytest.mark.parametrize(
    ("rounds", "samples"),
    [
        ([(0.9, 0.8)] * 3, 2000),  # it gains
        ([(0.89, 0.90)] * 3, 100_000),  # sure, but small
        ([(0.85, 0.90)] * 3, 40),  # large, but two samples of forty
        ([(0.60, 0.90), (0.80, 0.90), (0.895, 0.90)], 2000),  # it has caught up
        ([], 2000),
    ],
)
def test_no_alarm(rounds: list[tuple[float, float]], samples: int) -> None:
    assert hurt(history(*rounds, samples=samples)) == []


def test_an_error_is_measured_by_its_own_size() -> None:
    assert hurt(history((1e-4 * 1.5, 1e-4), metric="mse"))
    assert not hurt(history((1000.0, 990.0), samples=10**9, metric="mse"))


def test_how_large_a_loss_matters_is_told_from_outside() -> None:
    rounds = [report(0.89, 0.90, samples=100_000)], [report(1.05, 1.0, samples=10**9, metric="mse")]
    for of_round, loss in zip(rounds, (0.01, 0.05), strict=True):
        assert [bool(hurt([gains(of_round, margin=margin)])) for margin in (0.0, loss - 1e-4, loss + 1e-4, 1.0)] == [
            True,
            True,
            False,
            False,
        ]
        assert gains(of_round, margin=0.3)[0].told()["allowed"] == pytest.approx(0.3)


def test_alarms_are_seldom_false() -> None:
    """Two runs of one skill, drawn 2,000 times: one in twenty may look like a loss, fewer where a margin counts as well."""
    rng = np.random.default_rng(2)
    found = [bool(hurt(history(tuple(rng.binomial(300, 0.85, 2) / 300), samples=300))) for _ in range(2000)]
    assert np.mean(found) < 0.06


# -- advice ------------------------------------------------------------------------------------------------------------


def advised(
    names: Sequence[str],
    cosines: Sequence[Sequence[float | None]],
    gained: Mapping[str, float] | None = None,
    losing: Sequence[str] = (),
    *,
    kept: Sequence[float] = (),
    compared: int = 5,
    mixed: tuple[tuple[str, str], ...] = (),
    samples: Sequence[int] = (),
) -> Advice:
    told = {name: gains([report(0.8 + by, 0.8, task=name)])[0] for name, by in (gained or {}).items()}
    tasks = tuple(Task(name, count or 10, None, way) for name, way, count in zip_longest(names, kept, samples))
    return advise(Together(compared, tasks, cosines, mixed), list(told.values()), [told[name] for name in losing])


def test_two_groups_that_go_opposite_ways_are_told_apart() -> None:
    """From movements on: two tasks go one way, two the other, each with noise of its own."""
    rng = np.random.default_rng(3)
    way = rng.standard_normal(10)
    moves = {"a": way, "b": -way, "c": way, "d": -way}
    children = [contribution(name, tensors(move + 0.3 * rng.standard_normal(10)), {name: 10}) for name, move in moves.items()]
    look = directions(parameters(tensors(np.zeros(10))), children, parameters(tensors(way)))
    assert look is not None
    found = advised(look["names"], look["cosines"])
    assert found.groups == [["a", "c"], ["b", "d"]]
    said = " ".join(found.advice)
    assert "Pulling against each other: " in said and "One encoder for a, c; one for b, d. Or keep one" in said and "upgrad" in said


def test_average_linkage_weighs_all_pairs() -> None:
    """c is with a, but so much against b that it stays out of their group."""
    assert groups(["a", "b", "c"], [[1, 0.8, 0.3], [0.8, 1, -0.6], [0.3, -0.6, 1]]) == [["a", "b"], ["c"]]
    assert groups(["a", "b", "c"], [[1, 0.8, 0.3], [0.8, 1, -0.2], [0.3, -0.2, 1]]) == [["a", "b", "c"]]
    assert groups(["a", "b"], [[1, None], [None, 1]]) == [["a", "b"]] and groups([], []) == []


def plain_groups(cosines: Sequence[Sequence[float | None]], least: float) -> list[list[str]]:
    """Average linkage in plain loops."""
    found = [[place] for place in range(len(cosines))]
    while len(found) > 1:
        linked = {}
        for two, one in ((late, early) for late in range(len(found)) for early in range(late)):
            pairs = [cosines[a][b] or 0.0 for a in found[one] for b in found[two]]
            linked[one, two] = sum(pairs) / len(pairs)
        (one, two) = max(linked, key=lambda pair: linked[pair])
        if linked[one, two] < least:
            break
        found[one] = sorted(found[one] + found.pop(two))
    return [[str(place) for place in group] for group in found]


@pytest.mark.parametrize("count", [2, 3, 7, 30])
def test_groups_are_those_of_plain_loops(count: int) -> None:
    """With some pairs that were never seen. The loops took minutes for hundreds of tasks, which one child can name."""
    rng = np.random.default_rng(count)
    for least in (-0.3, -0.02, 0.05, 0.3):
        table = np.round(np.tanh(rng.standard_normal((count, count))), 4)
        table = np.where(rng.random((count, count)) < 0.1, np.nan, (table + table.T) / 2)
        cosines = [[None if np.isnan(value) else float(value) for value in row] for row in np.fmax(table, table.T)]
        assert groups([str(place) for place in range(count)], cosines, least) == plain_groups(cosines, least)


def test_scores_count_for_more_than_directions() -> None:
    opposite = [[1.0, -0.5], [-0.5, 1.0]]
    found = advised("ab", opposite, {"a": 0.05, "b": 0.01})
    assert found.groups == [["a", "b"]] and "no task loses" in " ".join(found.advice)
    agree = [[1.0, 0.5, 0.4], [0.5, 1.0, 0.4], [0.4, 0.4, 1.0]]
    found = advised("abc", agree, {"a": 0.05, "b": 0.01, "c": -0.1}, losing="c")
    assert found.groups == [["a", "b"], ["c"]] and "upgrad" not in " ".join(found.advice), "nothing conflicts"
    assert any(line.startswith("c loses by sharing: accuracy 0.700, alone 0.800") for line in found.advice)


def test_why_tasks_are_parted_that_do_not_pull_apart_is_said() -> None:
    agree = [[1.0, -0.001], [-0.001, 1.0]]
    found = advised("ab", agree, {"a": -0.1, "b": 0.1}, losing="a")
    assert found.advice[0] == "No two tasks pull against each other (cosines +0.00)."
    assert found.advice[1] == "Still, what loses is better off by itself. One encoder for b; one for a."
    assert not any(line.startswith("All tasks lose") for line in found.advice)
    assert any(line.startswith("All tasks lose") for line in advised("ab", agree, {"a": -0.1, "b": -0.1}, losing="ab").advice)


def test_a_task_that_the_encoder_goes_against_is_said() -> None:
    found = advised("ab", [[1, 0.1], [0.1, 1]], kept=(0.4, -0.1))
    assert "The encoder went against what its children trained for b (-0.10 of its way)." in found.advice


def test_what_is_not_known_is_said() -> None:
    said = " ".join(advised("ab", [[1, 0.3], [0.3, 1]], {"a": 0.1}, compared=1, mixed=(("a", "b"),)).advice)
    assert "No reference for b:" in said and "Only 1 round so far" in said and "Some children train a and b" in said
    assert advised("a", [[1]]).advice == ["Nothing to compare yet: it takes a round in which two tasks train."]
    assert advised("", []).groups == []
