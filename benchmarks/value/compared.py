"""What the results come to: the three variants in each cell, the other rules and codecs against the usual, and the aims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.value import rates, study
from benchmarks.value.intervals import MEAN, Estimate, Sampled, bootstrap
from benchmarks.value.results import Result, Results
from benchmarks.value.study import CELLS, OTHERS, SEEDS, SEVERAL, TASKS, VARIANTS, Cell, Run, Variant, make

CLOSED = 0.8
"""Of the gap between alone and pooled, at least, for the tasks that several children have."""


@dataclass(frozen=True, slots=True)
class CellFigures:
    """The three variants in one cell, over the seeds that all three have."""

    cell: Cell
    seeds: int
    runs: Mapping[Variant, Run]  # of the first seed, for the settings
    scores: Mapping[str, Sampled]  # by variant
    own_seeds: int = 0
    own: Mapping[str, Sampled] | None = None  # alone, shared, and with the encoders that the children sent last, on these seeds

    def gain(self, what: str = MEAN) -> Estimate:
        """What sharing changed, for a child, a task or the mean over tasks."""
        return self.scores["shared"].minus(self.scores["alone"], what)

    def gap(self, what: str = MEAN) -> Estimate:
        """What having all rows in one place would change."""
        return self.scores["pooled"].minus(self.scores["alone"], what)

    def closed(self, what: str) -> float | None:
        """The share of that gap which sharing closes; None: there is no clear gap to close."""
        gap = self.gap(what)
        return self.gain(what).value / gap.value if gap.low > 0 else None

    def own_gain(self, what: str = MEAN, way: str = "own") -> Estimate:
        """What a child's own last encoder changes against alone; or the fused one, on the same seeds."""
        assert self.own is not None, "there are such results"
        return self.own[way].minus(self.own["alone"], what)

    def losses(self) -> list[str]:
        """Tasks that sharing makes worse by more than the interval."""
        return [task for task in TASKS if self.gain(task).high < 0]


def cells(results: Results, samples: int) -> list[CellFigures]:
    """Every cell that has all variants for a seed at least."""
    return [figures for cell in CELLS if (figures := _cell(results, cell, samples)) is not None]


def _cell(results: Results, cell: Cell, samples: int) -> CellFigures | None:
    """With the rates that the search came to; runs with other ones, of a search that went on later, do not count."""
    chosen = rates.chosen(cell, results.score)
    if chosen is None:
        return None
    found = {
        variant: {seed: result for seed in SEEDS if (result := results.get(make(variant, cell, seed, chosen[variant])))}
        for variant in VARIANTS
    }
    seeds = sorted(set.intersection(*(set(of) for of in found.values())))
    if not seeds:
        return None
    ways: dict[str, list[Result]] = {variant: [of[seed] for seed in seeds] for variant, of in found.items()}
    first = {variant: of[seeds[0]].run for variant, of in found.items()}
    kept = [number for number, result in enumerate(ways["shared"]) if result.own is not None]
    own = {name: [of[number] for number in kept] for name, of in ways.items() if name != "pooled"}
    own["own"] = [replace(result, children=result.own) for result in own["shared"] if result.own is not None]
    figures = CellFigures(cell, len(seeds), first, bootstrap(ways, samples))
    return replace(figures, own_seeds=len(kept), own=bootstrap(own, samples)) if kept else figures


@dataclass(frozen=True, slots=True)
class Other:
    """Another rule or codec in the one cell, against the usual ones on the same seeds."""

    rule: str
    codec: str
    optimizer: str
    seeds: int
    mean: float
    change: Estimate
    worst: tuple[str, Estimate]  # the task that it changes most for the worse
    bytes_up: int  # of one round's updates, all children together


def others(results: Results, samples: int) -> list[Other]:
    """In the order of their means, best first."""
    chosen = rates.chosen(OTHERS, results.score)
    if chosen is None:
        return []
    ways: dict[tuple[str, str, str], dict[int, Result]] = {}
    for run in study.others(chosen["shared"]):
        if (result := results.get(run)) is not None:
            ways.setdefault((run.rule or "", run.codec or "", run.optimizer), {})[run.seed] = result
    usual = {seed: results.get(make("shared", OTHERS, seed, chosen["shared"])) for seed in SEEDS}
    plain = {seed: result for seed, result in usual.items() if result is not None}
    found = [_other(*way, of, plain, samples) for way, of in ways.items() if set(of) <= set(plain)]
    return sorted(found, key=lambda other: -other.mean)


def _other(rule: str, codec: str, optimizer: str, found: Mapping[int, Result], plain: Mapping[int, Result], samples: int) -> Other:
    seeds = sorted(found)
    scored = bootstrap({"this": [found[seed] for seed in seeds], "plain": [plain[seed] for seed in seeds]}, samples)
    this, other = scored["this"], scored["plain"]
    changes = {task: this.minus(other, task) for task in TASKS}
    worst = min(changes, key=lambda task: changes[task].value)
    size = found[seeds[0]].bytes_up
    return Other(rule, codec, optimizer, len(seeds), this.found[MEAN], this.minus(other, MEAN), (worst, changes[worst]), size)


@dataclass(frozen=True, slots=True)
class Aim:
    """What was hoped for, and what was found."""

    what: str
    met: bool
    found: str


def aims(figures: Sequence[CellFigures]) -> list[Aim]:
    """The three aims of the study."""
    poor = [one for one in figures if one.cell.poor]
    said = "; ".join(f"{one.cell}: {signed(one.gain())}" for one in poor)
    first = Aim(
        "in the data-poor cells sharing beats alone on the mean over tasks by more than the interval",
        bool(poor) and all(one.gain().low > 0 for one in poor),
        said,
    )
    lost = [f"{task} ({one.cell}, {signed(one.gain(task))})" for one in figures for task in one.losses()]
    second = Aim("sharing loses on no task by more than the interval", not lost, "; ".join(lost) or "it does not")
    gaps = [(one, task, share) for one in figures for task in SEVERAL if (share := one.closed(task)) is not None]
    third = Aim(
        f"sharing closes at least {CLOSED:.0%} of the gap to pooled for tasks that several children have",
        bool(gaps) and all(share >= CLOSED for _, _, share in gaps),
        "; ".join(f"{task}, {one.cell}: {share:.0%}" for one, task, share in gaps) or "no cell has a clear gap",
    )
    return [first, second, third]


def signed(estimate: Estimate) -> str:
    """A difference in points of a hundred, with its interval.

    >>> signed(Estimate(0.0123, -0.004, 0.03))
    '+1.2 [-0.4, +3.0]'
    """
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
