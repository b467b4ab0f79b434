"""Learning rates of each variant, for both starts, searched for on the validation rows of a draw that the study does not use.

First the encoder's rate in the data-poor cell: three steps of a ladder, then further as long as the best lies at the end of what
was tried. The heads' rate follows, up and down from there with the encoder's rate found. The cells with all rows take the rates of
the data-poor cell of the same start: they have as many steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.value.study import POOR, TUNING_SEED, VARIANTS, Cell, Rates, Run, Variant, make

LADDER = (2.5e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
HEADS = (1e-3, 3e-3, 1e-2, 3e-2)
BEGIN: Mapping[Variant, Rates] = {"alone": Rates(2e-4, 3e-3), "shared": Rates(1e-3, 1e-2), "pooled": Rates(2e-4, 1e-2)}
"""The middle of the first three, and the heads' rate to begin with: what an earlier search, with half the steps, came to."""

Score = Callable[[Run], float | None]
"""A run's mean validation score over the tasks; None: it was not run yet."""


def wanted(cell: Cell, score: Score) -> list[Run]:
    """The runs that are needed before the search in a cell can go on; none: it is done."""
    return [run for variant in VARIANTS for run in _search(cell, variant, score)[1]]


def chosen(cell: Cell, score: Score) -> dict[Variant, Rates] | None:
    """The best rates of each variant; None: the search is not done."""
    if wanted(cell, score):
        return None
    return {variant: _search(cell, variant, score)[0] for variant in VARIANTS}


def _search(cell: Cell, variant: Variant, score: Score) -> tuple[Rates, list[Run]]:
    """The best rates so far, and the runs that must come next."""
    begin, cell = BEGIN[variant], Cell(cell.start, POOR)

    def run(encoder: float, head: float) -> Run:
        return make(variant, cell, TUNING_SEED, Rates(encoder, head), "validation")

    rate, missing = _climb(LADDER, LADDER.index(begin.encoder), lambda rate: run(rate, begin.head), score)
    if missing:
        return Rates(rate, begin.head), missing
    head, missing = _climb(HEADS, HEADS.index(begin.head), lambda head: run(rate, head), score)
    return Rates(rate, head), missing


def _climb(ladder: Sequence[float], middle: int, run: Callable[[float], Run], score: Score) -> tuple[float, list[Run]]:
    """The best step of a ladder, and the runs without which it is not known."""
    low, high = max(0, middle - 1), min(len(ladder) - 1, middle + 1)
    while True:
        tried = {rate: score(run(rate)) for rate in ladder[low : high + 1]}
        missing = [run(rate) for rate, found in tried.items() if found is None]
        if missing:
            return ladder[middle], missing
        best = max(tried, key=lambda rate: (tried[rate], -rate))
        at = ladder.index(best)
        if at == low > 0:
            low -= 1
        elif at == high < len(ladder) - 1:
            high += 1
        else:
            return best, []


def tried(score: Mapping[str, float], cells: Sequence[Cell]) -> Iterator[tuple[Cell, Variant, Rates, float]]:
    """Every pair of rates that was tried, for the page."""
    for cell in cells:
        for variant in VARIANTS:
            for encoder in LADDER:
                for head in HEADS:
                    rates = Rates(encoder, head)
                    key = make(variant, cell, TUNING_SEED, rates, "validation").key
                    if key in score:
                        yield cell, variant, rates, score[key]
