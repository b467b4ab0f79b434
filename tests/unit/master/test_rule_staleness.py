"""How much a late update is worth."""

import itertools

import pytest

from master.rules.fedbuff import FedBuff

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
