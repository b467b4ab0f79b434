"""What the demo measured, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

VARIANTS = ("alone", "shared", "pooled")


@dataclass(frozen=True, slots=True)
class Row:
    """One child's test metric in each variant."""

    child: str
    task: str
    metric: str
    samples: int  # training rows it holds
    alone: float
    shared: float
    pooled: float

    @property
    def gain(self) -> float:
        """What sharing changed."""
        return self.shared - self.alone


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of the demo."""

    settings: Mapping[str, Any]
    rows: Sequence[Row]
    curves: Mapping[str, Mapping[str, Sequence[float]]]  # variant -> child -> validation score after each round
    seconds: Mapping[str, float]  # by phase
    bytes_down: int
    bytes_up: int

    def mean(self, variant: str) -> float:
        """Mean over the children."""
        return sum(getattr(row, variant) for row in self.rows) / len(self.rows)

    def table(self) -> dict[str, Any]:
        """As JSON data; the same figures as the table and the page show."""
        return {
            "settings": dict(self.settings),
            "rows": [asdict(row) | {"gain": row.gain} for row in self.rows],
            "mean": {variant: self.mean(variant) for variant in VARIANTS},
            "curves": {variant: dict(curve) for variant, curve in self.curves.items()},
            "seconds": dict(self.seconds),
            "bytes": {"down": self.bytes_down, "up": self.bytes_up},
        }


def verdict(figures: Figures) -> list[str]:
    """What the figures say, in words; where sharing lost, it says so."""
    said = []
    if figures.settings["quick"]:
        said.append("A quick run is a smoke test: so few steps and rows say nothing about the method.")
    alone, shared = figures.mean("alone"), figures.mean("shared")
    said.append(f"Sharing changed the mean test score by {shared - alone:+.3f} ({alone:.3f} to {shared:.3f}).")
    lost = [row for row in figures.rows if row.gain < 0]
    said += [f"It lost at {row.child} ({row.metric} {row.alone:.3f} alone, {row.shared:.3f} shared)." for row in lost]
    if not lost:
        said.append("It lost at no child.")
    if figures.settings["rows"] >= 1.0:
        said.append("With all its labels a pretrained encoder gains little from sharing; try the default of a tenth of the rows.")
    return said
