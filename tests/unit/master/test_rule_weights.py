"""Who counts how much."""

import pytest

from master.rules.weights import capped, share_out, within_task
from tests.support.rules import contribution, sets


@pytest.mark.parametrize("most", [0.3, 0.4, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("counts", [[1000, 1, 1, 1], [5, 5], [900, 50, 25, 25, 1], [7]])
def test_no_share_above_the_cap(most: float, counts: list[int]) -> None:
    shares = capped({f"c{k}": float(n) for k, n in enumerate(counts)}, most)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) <= max(most, 1 / len(counts)) + 1e-12
    ordered = [shares[f"c{k}"] for k in range(len(counts))]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.parametrize(
    ("way", "shares"),
    [
        ("samples", [0.04, 0.32, 0.64]),
        ("sqrt", [2 / 15.65685424949, 5.65685424949 / 15.65685424949, 8 / 15.65685424949]),
        ("equal", [1 / 3, 1 / 3, 1 / 3]),
        ("tasks", [(4 / 20) / 2, (16 / 20 + 16 / 80) / 2, (64 / 80) / 2]),
    ],
)
def test_ways_to_weigh(way: str, shares: list[float]) -> None:
    tensors = sets(0, 1)[0]
    counts = [{"s": 4}, {"s": 16, "t": 16}, {"t": 64}]
    updates = [contribution(name, tensors, count) for name, count in zip("abc", counts, strict=True)]
    found = share_out(updates, way)  # type: ignore[arg-type]
    assert [found[name] for name in "abc"] == pytest.approx(shares)
    assert within_task(updates, "s") == pytest.approx({"a": 0.2, "b": 0.8})
