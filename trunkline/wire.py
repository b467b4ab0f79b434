"""Wire versions: which ones this side speaks, and in which one two sides understand each other.

A version counts up when a message gains a field (see `trunkline.values.since`). Every message says in which it was written, and
every greeting which ones its side speaks, so sides that share one talk in it, and sides that share none say so.
"""

from trunkline.errors import WireVersionMismatch

OLDEST = 1
NEWEST = 2

Range = tuple[int, int]
"""The oldest and the newest version that a side speaks."""

SPOKEN: Range = (OLDEST, NEWEST)
"""What this side speaks."""


def common_version(theirs: Range, ours: Range = SPOKEN, *, names: tuple[str, str] = ("the other side", "this side")) -> int:
    """The newest wire version both sides speak.

    >>> common_version((1, 3), (1, 2))
    2

    :param names: of them and us, for an error that both may read.
    :raises WireVersionMismatch: there is none.
    """
    newest = min(theirs[1], ours[1])
    if newest < max(theirs[0], ours[0]):
        raise WireVersionMismatch(
            "a common wire version should exist, "
            f"found {theirs[0]} to {theirs[1]} at {names[0]} and {ours[0]} to {ours[1]} at {names[1]}.",
            hint="Upgrade the older side.",
        )
    return newest


def nearest_version(theirs: Range, ours: Range = SPOKEN) -> int:
    """The wire version in which this side greets another: the common one, or, where there is none, the one nearest to theirs.

    >>> nearest_version((3, 5), (1, 2)), nearest_version((1, 1), (2, 4))
    (2, 2)
    """
    return max(ours[0], min(ours[1], theirs[1]))


def check_spoken(version: int) -> None:
    """:raises WireVersionMismatch: this side does not speak it."""
    if not OLDEST <= version <= NEWEST:
        raise WireVersionMismatch(
            f"the wire version should be {OLDEST} to {NEWEST}, found {version}.", hint="Upgrade the older side."
        )
