"""Which tasks to share with which, in plain words.

Tasks are grouped by average linkage on the mean cosines of their movements: groups are joined, the best pair first, for as long as
their tasks do not pull against each other on average. Where scores of training alone are known they count for more than directions:
tasks that pull apart and lose nothing may stay together, a task that loses is better off elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from master.sharing.gains import Gain
from master.sharing.together import Task, Together

APART = -0.02
"""A mean cosine below this is a conflict; around zero tasks neither help nor hinder each other. Movements of millions of parameters
by an adaptive optimiser are nearly at right angles even within a task, so numbers are small, and so is what they vary by chance.
"""

Cosines = Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do."""

    groups: list[list[str]]  # tasks that should share an encoder
    advice: list[str]  # sentences


def advise(found: Together, gained: Sequence[Gain], hurting: Sequence[Gain]) -> Advice:
    """The groups and the words.

    :param gained: what tasks gained or lost in the newest round that tells it.
    :param hurting: those of them that lost more than noise explains.
    """
    names = [one.task for one in found.tasks]
    if len(names) < 2:
        few = "Nothing to compare yet: it takes a round in which two tasks train." if not hurting else ""
        return Advice([names] if names else [], [*([few] if few else []), *_losses(hurting)])
    apart = groups(names, found.cosines)
    known, losing = {one.task for one in gained}, {one.task for one in hurting}
    all_is_well = known >= set(names) and not losing
    suggested = [names] if all_is_well else _without(apart, losing)
    said = [*_directions(names, found.cosines), *_backwards(found.tasks)]
    if len(apart) > 1 and all_is_well:
        said.append(f"Still no task loses against training alone: one encoder for all is fine. {_listed(apart)}, might gain more.")
    elif len(suggested) == 1:
        said.append("One encoder for all.")
    elif len(apart) > 1:
        said.append(f"{_listed(suggested)}. Or keep one for all, with a rule that heeds conflicts: --rule upgrad.")
    else:
        said.append(f"Still, what loses is better off by itself. {_listed(suggested)}.")
    said += _losses(hurting)
    if losing >= set(names):
        said.append(
            "All tasks lose: look first whether the job had as many steps (rounds x steps) as the references, and its rates."
        )
    missing = [name for name in names if name not in known]
    if missing:
        said.append(
            f"No reference for {', '.join(missing)}: `trunkline-child alone` at a child makes one, and later rounds tell it here."
        )
    if found.mixed:
        pairs = ", ".join(f"{one} and {two}" for one, two in found.mixed)
        said.append(f"Some children train {pairs} in one update, which makes them look more alike than they are.")
    if found.compared < 3:
        said.append(f"Only {found.compared} round{'s' * (found.compared > 1)} so far: look again after some more.")
    return Advice(suggested, said)


def groups(names: Sequence[str], cosines: Cosines, least: float = APART) -> list[list[str]]:
    """Average linkage: join the two groups with the largest mean cosine between their tasks, while it is at least `least`.

    A pair that was never seen together counts as neither for nor against, 0. Sums over pairs of groups are kept and added up, so
    hundreds of tasks take no time.
    """
    found = [[place] for place in range(len(names))]
    sums = np.array([[cosine or 0.0 for cosine in row] for row in cosines], dtype=np.float64).reshape(len(names), len(names))
    sizes = np.ones(len(names))
    while len(found) > 1:
        linked = np.tril(sums / np.outer(sizes, sizes), -1) + np.triu(np.full_like(sums, -np.inf))  # (later, earlier)
        two, one = divmod(int(np.argmax(linked)), len(found))  # of equal ones the first
        if linked[two, one] < least:
            break
        found[one] = sorted(found[one] + found.pop(two))
        sums[one] += sums[two]
        sums[:, one] += sums[:, two]
        sizes[one] += sizes[two]
        sums, sizes = np.delete(np.delete(sums, two, 0), two, 1), np.delete(sizes, two)
    return [[names[place] for place in group] for group in found]


def _without(apart: Sequence[Sequence[str]], losing: set[str]) -> list[list[str]]:
    """The groups, and each task that loses by itself."""
    kept = [[name for name in group if name not in losing or len(group) == 1] for group in apart]
    out = [[name] for group in apart if len(group) > 1 for name in group if name in losing]
    return [group for group in kept if group] + out


def _directions(names: Sequence[str], cosines: Cosines) -> list[str]:
    pairs = [
        (cosine, names[one], names[two])
        for two in range(len(names))
        for one in range(two)
        if (cosine := cosines[one][two]) is not None
    ]
    against = sorted(pair for pair in pairs if pair[0] < APART)
    if against:
        told = "; ".join(f"{one} and {two} ({_signed(cosine)})" for cosine, one, two in against[:3])
        more = f"; and {len(against) - 3} more pairs" if len(against) > 3 else ""
        return [f"Pulling against each other: {told}{more}."]
    if not pairs:
        return ["No two tasks have moved in one round yet."]
    low, high = min(pairs)[0], max(pairs)[0]
    same = _signed(low) if _signed(low) == _signed(high) else f"{_signed(low)} to {_signed(high)}"
    return [f"No two tasks pull against each other (cosines {same})."]


def _backwards(tasks: Sequence[Task]) -> list[str]:
    back = [f"{one.task} ({one.kept:+.2f} of its way)" for one in tasks if one.kept is not None and one.kept < 0]
    return [f"The encoder went against what its children trained for {', '.join(back)}."] if back else []


def _losses(hurting: Sequence[Gain]) -> list[str]:
    return [
        f"{one.task} loses by sharing: {one.metric} {one.shared:.3f}, alone {one.alone:.3f} ({one.split}, "
        f"{one.samples} samples). Let it train alone or with other tasks."
        for one in hurting
    ]


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-0.00", "+0.00")


def _listed(parts: Sequence[Sequence[str]]) -> str:
    return "; ".join(f"{'one' if place else 'One encoder'} for {', '.join(group)}" for place, group in enumerate(parts))
