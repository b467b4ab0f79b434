"""What the directions of several rounds come to: of each task, and of each pair of tasks, the mean over the rounds that have it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Look = Mapping[str, Any]
"""What `directions` told of one round."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task by itself; numbers as `directions` explains them, None where no round has one."""

    task: str
    samples: int  # in the newest round that has it
    within: float | None
    kept: float | None


@dataclass(frozen=True, slots=True)
class Together:
    """How tasks got on with each other."""

    compared: int  # rounds
    tasks: tuple[Task, ...]  # in the order of names
    cosines: Sequence[Sequence[float | None]]  # symmetric, a row a task; None where a pair was never seen together
    mixed: tuple[tuple[str, str], ...]  # pairs of tasks that some child trained both


def together(looks: Sequence[Look]) -> Together:
    """Put rounds together.

    :param looks: oldest first.
    """
    names = sorted({name for look in looks for name in look["names"]})
    pairs: dict[tuple[str, str], list[float]] = {}
    for look in looks:
        for one, row in zip(look["names"], look["cosines"], strict=True):
            for two, cosine in zip(look["names"], row, strict=True):
                if cosine is not None:
                    pairs.setdefault((one, two), []).append(cosine)
    newest = {name: look["samples"][look["names"].index(name)] for look in looks for name in look["names"]}
    return Together(
        compared=len(looks),
        tasks=tuple(Task(name, newest[name], _over(looks, "within", name), _over(looks, "kept", name)) for name in names),
        cosines=[[_mean(pairs.get((one, two), ())) for two in names] for one in names],
        mixed=tuple(sorted({(one, two) for look in looks for one, two in look["mixed"]})),
    )


def _over(looks: Iterable[Look], key: str, task: str) -> float | None:
    """The mean of a number of a task over the rounds that have it."""
    told = [value for look in looks for name, value in zip(look["names"], look[key], strict=True) if name == task]
    return _mean([value for value in told if value is not None])


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
