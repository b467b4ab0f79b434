"""Wire versions: what two sides that speak some of them talk in."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import WireVersionMismatch
from trunkline.wire import common_version, nearest_version

RANGES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda pair: (min(pair), max(pair)))


@given(RANGES, RANGES)
def test_the_common_version_is_the_newest_that_both_speak(theirs: tuple[int, int], ours: tuple[int, int]) -> None:
    both = set(range(theirs[0], theirs[1] + 1)) & set(range(ours[0], ours[1] + 1))
    if both:
        assert common_version(theirs, ours) == common_version(ours, theirs) == max(both)
    else:
        with pytest.raises(WireVersionMismatch, match="a common wire version should exist, found "):
            common_version(theirs, ours)


@given(RANGES, RANGES)
def test_a_greeting_is_in_the_common_version_or_in_the_nearest_to_theirs(theirs: tuple[int, int], ours: tuple[int, int]) -> None:
    found = nearest_version(theirs, ours)
    assert ours[0] <= found <= ours[1]
    with suppress(WireVersionMismatch):
        assert found == common_version(theirs, ours)
