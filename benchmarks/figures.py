"""What was measured, as ratios, aims and Markdown; nothing here measures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Note = Callable[[str], None]
"""Receives a line of progress."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rounds of one side at one size."""

    rounds: Sequence[float]  # seconds of each whole round, in their order
    exchanges: Sequence[
        float
    ]  # seconds from the members' being fixed to the published target; those of stock Flower are its rounds
    moved: int  # bytes of parameters between a child and its master in one round, down and up, all children together
    wire: int | None  # bytes over the loopback in one round; None where the system does not tell

    @property
    def first(self) -> float:
        """Seconds of the first round, which also starts things up."""
        return self.rounds[0]

    @property
    def usual(self) -> float:
        """Median seconds of the rounds after the first."""
        return later(self.rounds)

    @property
    def exchange(self) -> float:
        """Median seconds of the exchanges after the first."""
        return later(self.exchanges)


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure, what it should be, and why it is not if it is not."""

    what: str
    found: float
    least: float
    unit: str = "x"
    reason: str = ""  # stated where the aim is missed
    most: bool = False  # the other way round: `least` is what it should be at most

    @classmethod
    def at_most(cls, what: str, found: float, most: float, unit: str = "x", reason: str = "") -> "Aim":
        """A figure that should not be above something."""
        return cls(what, found, most, unit, reason, most=True)

    @property
    def met(self) -> bool:
        return self.found <= self.least if self.most else self.found >= self.least


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the results: what was done, a table, and what it comes to."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    aims: Sequence[Aim] = field(default_factory=tuple)


def later(values: Sequence[float]) -> float:
    """The median without the first.

    >>> later([9.0, 1.0, 3.0, 2.0])
    2.0

    :raises ValueError: nothing is left.
    """
    if len(values) < 2:
        raise ValueError(f"two values at least should be there, found {len(values)}.")
    return median(values[1:])


def ratio(theirs: float, ours: float) -> float:
    """How many times as long theirs takes.

    >>> ratio(10.0, 0.5)
    20.0

    :raises ValueError: a time is not positive.
    """
    if theirs <= 0 or ours <= 0:
        raise ValueError(f"times should be positive, found {theirs:g} and {ours:g}.")
    return theirs / ours


def between(events: Iterable[Mapping[str, object]], begin: str, end: str) -> list[float]:
    """Seconds from one kind of event to another in each round that has both, in the order of the rounds.

    >>> between([{"kind": "a", "round": 1, "at": 1.0}, {"kind": "b", "round": 1, "at": 1.5}], "a", "b")
    [0.5]
    """
    times: dict[str, dict[int, float]] = {begin: {}, end: {}}
    for event in events:
        if event["kind"] in times and isinstance(event["round"], int) and isinstance(event["at"], float):
            times[str(event["kind"])].setdefault(event["round"], event["at"])
    return [times[end][number] - at for number, at in sorted(times[begin].items()) if number in times[end]]


def seconds(value: float) -> str:
    """A time with three digits that count.

    >>> [seconds(value) for value in (0.12345, 1.2345, 12.345)]
    ['0.123', '1.23', '12.3']
    """
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def megabytes(count: int | None) -> str:
    """Bytes as MB of a million bytes, or kB below that.

    >>> megabytes(88_000_000), megabytes(1_024), megabytes(None)
    ('88.0 MB', '1.0 kB', 'not told')
    """
    if count is None:
        return "not told"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def markdown(sections: Sequence[Section], machine: Mapping[str, str], notes: Sequence[str]) -> str:
    """The whole page."""
    missed = [aim for section in sections for aim in section.aims if not aim.met]
    head = "All aims are met." if not missed else f"Missed: {'; '.join(aim.what for aim in missed)}. The reasons stand below."
    parts = ["# Results", "", "Written by `make bench` (`python -m benchmarks.run`); not by hand.", "", head, ""]
    parts += table(("", ""), [(name, value) for name, value in machine.items()])
    for section in sections:
        parts += ["", f"## {section.title}", "", section.about, "", *table(section.columns, section.rows)]
        parts += ["", *map(_line, section.aims)] if section.aims else []
    if notes:
        parts += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(parts) + "\n"


def _line(aim: Aim) -> str:
    verdict = "met" if aim.met else f"**missed**: {aim.reason or 'no reason found yet.'}"
    unit = f" {aim.unit}" if aim.unit else ""
    bound = "at most" if aim.most else "at least"
    return f"- {aim.what}: {aim.found:.4g}{unit}, aim {bound} {aim.least:g}{unit}: {verdict}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; a bar in a cell is written so that it stays one.

    >>> table(("a", "b"), [("1", "x|y")])
    ['| a | b |', '| --- | --- |', '| 1 | x\\\\|y |']

    :raises ValueError: a row has not as many cells as there are columns.
    """
    lines = [_row(columns), _row(["---"] * len(columns))]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row should have {len(columns)} cells, found {len(row)}.")
        lines.append(_row([cell.replace("|", "\\|").replace("\n", " ") for cell in row]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
