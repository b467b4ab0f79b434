from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks import metrics

lists = st.lists(st.integers(0, 3), min_size=1, max_size=30)
small = st.integers(-5, 5).map(float)


@settings(max_examples=20)
@given(st.data())
def test_f1_macro_is_the_mean_of_two_p_r_over_p_plus_r(data: st.DataObject) -> None:
    found = data.draw(lists)
    wanted = data.draw(st.lists(st.integers(0, 3), min_size=len(found), max_size=len(found)))
    each = []
    for name in sorted({*found, *wanted}):
        hits = sum(f == w == name for f, w in zip(found, wanted, strict=True))
        precision, recall = hits / max(1, found.count(name)), hits / max(1, wanted.count(name))
        each.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert metrics.f1_macro(np.array(found), np.array(wanted)) == pytest.approx(sum(each) / len(each))
    assert metrics.accuracy(np.array(found), np.array(wanted)) == pytest.approx(np.mean(np.array(found) == np.array(wanted)))


@given(st.lists(st.tuples(small, small), min_size=2, max_size=20))
def test_correlations_are_those_of_numpy_and_of_counted_ranks(points: list[tuple[float, float]]) -> None:
    x, y = (np.array(side) for side in zip(*points, strict=True))

    def plain(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(np.corrcoef(a, b)[0, 1])

    def ranks(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([np.sum(a < v) + (np.sum(a == v) + 1) / 2 for v in a])

    assert metrics.pearson(x, y) == pytest.approx(plain(x, y), abs=1e-9)
    assert metrics.spearman(x, y) == pytest.approx(plain(ranks(x), ranks(y)), abs=1e-9)
    assert metrics.mse(x, y) == pytest.approx(np.mean((x - y) ** 2))


def test_f1_micro_over_all_decisions() -> None:
    found, wanted = np.random.default_rng(0).integers(0, 2, (2, 40, 5))
    hits, misses, alarms = (found & wanted).sum(), (wanted & ~found & 1).sum(), (found & ~wanted & 1).sum()
    assert metrics.f1_micro(found, wanted) == pytest.approx(hits / (hits + (misses + alarms) / 2))
    assert metrics.accuracy(found, wanted) == pytest.approx((found == wanted).all(axis=1).mean())


@pytest.mark.parametrize(("k", "block"), [(1, 7), (5, 7), (10, 1000)])
def test_recall_is_what_sorting_all_candidates_gives(k: int, block: int) -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(50, 6))
    second = first + rng.normal(size=(50, 6))
    cosines = (first / np.linalg.norm(first, axis=1, keepdims=True)) @ (second / np.linalg.norm(second, axis=1, keepdims=True)).T
    hits = [row in np.argsort(-cosines[row])[:k] for row in range(50)]
    assert metrics.recall_at(k, first, second, block) == pytest.approx(np.mean(hits))
    assert 0 < np.mean(hits) < 1


def test_equal_candidates_do_not_push_each_other_down() -> None:
    same = np.tile(np.array([[1.0, 2.0]]), (10, 1))
    assert metrics.recall_at(1, same, same) == 1.0


def test_nothing_to_measure_is_zero() -> None:
    empty: Any = np.empty(0)
    for measure in (metrics.accuracy, metrics.mse, metrics.pearson, metrics.spearman, metrics.f1_macro):
        assert measure(empty, empty) == 0.0
    assert metrics.recall_at(1, np.empty((0, 3)), np.empty((0, 3))) == 0.0
    assert metrics.f1_micro(np.zeros((2, 2)), np.zeros((2, 2))) == 0.0


def test_names_lead_to_formulas() -> None:
    a, b = np.array([0, 1, 1]), np.array([0, 1, 0])
    assert metrics.score("accuracy", "single", a, b) == pytest.approx(2 / 3)
    assert metrics.score("f1", "single", a, b) == metrics.f1_macro(a, b)
    assert metrics.score("f1", "multi", a[:, None], b[:, None]) == metrics.f1_micro(a[:, None], b[:, None])
    assert metrics.score("mse", "regression", a, b) == pytest.approx(1 / 3)
    assert metrics.score("recall@2", "pairs", np.eye(3), np.eye(3)) == 1.0
