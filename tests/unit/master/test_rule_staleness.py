"""How much a late update is worth."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from master.rules.fedbuff import FedBuff
from tests.support.rules import contribution, fuse, parameters

WAYS = [
    FedBuff(size=1),
    FedBuff(size=1, power=0.0),
    FedBuff(size=1, power=10.0),
    FedBuff(size=1, discount="hinge"),
    FedBuff(size=1, discount="hinge", slope=100.0, after=0),
    FedBuff(size=1, discount="constant"),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_discount_is_positive_and_never_grows(way: FedBuff) -> None:
    """T-17, T-21: also for a staleness of thousands, and for whole numbers as they come."""
    worths = [way.worth(staleness) for staleness in range(10_001)]
    assert worths[0] == 1.0
    assert min(worths) > 0
    assert all(later <= earlier for earlier, later in itertools.pairwise(worths))


def test_golden_values() -> None:
    assert FedBuff(size=1).worth(3) == pytest.approx(0.5), "1/sqrt(1+3)"
    assert FedBuff(size=1, discount="hinge", slope=0.5, after=4).worth(4) == 1.0
    assert FedBuff(size=1, discount="hinge", slope=0.5, after=4).worth(6) == pytest.approx(0.5)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", "fedbuff:size=5"])
def test_whatever_the_rule_a_late_update_counts_by_its_movement(rule: str) -> None:
    """Every child moved by the same, some of them from an older base far away: so does the target."""
    base, older = {"w": np.full(3, 10.0, np.float32)}, {"w": np.full(3, -50.0, np.float32)}
    fresh = [contribution(f"a{k}", {"w": base["w"] + 1}) for k in range(3)]
    late = [replace(contribution(f"b{k}", {"w": older["w"] + 1}), base=parameters(older)) for k in range(2)]
    np.testing.assert_allclose(fuse(rule, base, [*fresh, *late])["w"], 11.0, rtol=1e-6)
