"""How the tasks of an encoder get on with each other, for people on a terminal."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from trunkline.terminal import cell, pairs, table

WIDE = 100
"""Columns of advice, and of a table of cosines with the tasks' names above it; where that is wider, numbers stand there."""


def lines(found: Mapping[str, Any]) -> list[str]:
    """The answer of `GET /v1/admin/encoders/NAME/conflicts`, as `trunkline encoder conflicts` prints it."""
    about = {"encoder": found["encoder"], "tasks": len(found["tasks"]) or None, "rounds": span_of(found["rounds"])}
    shown = list(pairs(about))
    if len(found["tasks"]) > 1:
        names = [cell(one["task"]) for one in found["tasks"]]
        shown += ["", f"cosines of what the tasks moved the encoder by, {mean_over(found['compared'])}", ""]
        shown += matrix(names, found["cosines"])
        rows = [{**one, "within": number(one["within"]), "kept": number(one["kept"])} for one in found["tasks"]]
        shown += ["", "each task by itself", "", *table(rows, ("task", "samples", "within", "kept"))]
    if found["gains"]:
        shown += ["", "against training alone, newest round", "", *gains(found)]
    shown += ["", "advice", ""]
    for line in found["advice"]:
        shown += wrap(cell(line), WIDE, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return shown


COLUMNS = ("task", "split", "metric", "samples", "children", "alone", "shared", "gain", "allowed", "verdict")


def gains(found: Mapping[str, Any]) -> list[str]:
    """What each task gains, of an answer that has `gains` and `hurt`."""
    losing = {one["task"] for one in found["hurt"]}
    return table([_gain(one, losing) for one in found["gains"]], COLUMNS)


def _gain(one: Mapping[str, Any], losing: set[str]) -> dict[str, Any]:
    """A row. `allowed` is the loss that noise explains, or that does not matter."""
    told = {key: f"{one[key]:.3f}" for key in ("alone", "shared", "allowed")}
    return {**one, **told, "gain": f"{one['gain']:+.3f}", "verdict": verdict(one, losing)}


def verdict(one: Mapping[str, Any], losing: set[str]) -> str:
    """In a word."""
    if one["task"] in losing:
        return "hurt"
    if abs(one["gain"]) <= one["allowed"]:
        return "no clear difference"
    return "gains" if one["gain"] > 0 else "loses"


def matrix(names: Sequence[str], cosines: Sequence[Sequence[float | None]]) -> list[str]:
    """Rows and columns of cosines that line up at the point. Where names are too wide for columns, numbers stand for them."""
    first, cells = max(len(name) for name in names), [[number(value) for value in row] for row in cosines]
    heads = list(names)
    if first + sum(2 + max(5, len(name)) for name in names) > WIDE:
        heads = [str(place) for place in range(1, len(names) + 1)]
        names = [f"{place}  {name}" for place, name in zip(heads, names, strict=True)]
        first = max(len(name) for name in names)
    widths = [max(5, len(head)) for head in heads]
    top = "  ".join([" " * first, *(head.rjust(width) for head, width in zip(heads, widths, strict=True))])
    rows = [
        "  ".join([name.ljust(first), *(text.rjust(width) for text, width in zip(row, widths, strict=True))])
        for name, row in zip(names, cells, strict=True)
    ]
    return [top, *rows]


def number(value: float | None) -> str:
    """A cosine.

    >>> number(-0.1234), number(1.0), number(None)
    ('-0.12', '1.00', '-')
    """
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def mean_over(rounds: int) -> str:
    """How many rounds a mean is of."""
    return "one round" if rounds == 1 else f"mean over {rounds} rounds"


def span_of(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Which rounds were looked at, by job.

    >>> span_of([{"job": "a", "round": 2}, {"job": "a", "round": 3}, {"job": "b", "round": 1}])
    'a 2 to 3, b 1'
    """
    by_job: dict[str, list[int]] = {}
    for one in rounds:
        by_job.setdefault(str(one["job"]), []).append(int(one["round"]))
    told = [f"{job} {min(seen)}" + (f" to {max(seen)}" if len(seen) > 1 else "") for job, seen in by_job.items()]
    return ", ".join(told) or None
