"""The page and the picture, from the file of results alone."""

import re
import sys
from pathlib import Path

from benchmarks.figures import table
from benchmarks.learning import plot
from benchmarks.learning.compared import MEAN, Figures, claims, figures
from benchmarks.learning.results import Results
from benchmarks.learning.study import CELLS, RATES, SEEDS, TUNING, VARIANTS, Run
from benchmarks.value.compared import signed

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs" / "learning.md", Path(__file__).with_name("plot.svg")
START, END = "<!-- learning-table:start -->", "<!-- learning-table:end -->"


def write(results: Results, samples: int, page: Path = PAGE, picture: Path = PICTURE) -> int:
    """Renew what stands between the page's markers, and the picture.

    :param samples: of the bootstrap.
    :returns: 0, or 6 where runs are missing: the page says which.
    """
    found = figures(results, samples)
    if found is None:
        print("no seed has all of its runs yet", file=sys.stderr)
        return 6
    before = page.read_text(encoding="utf-8")
    inner = "\n".join([START, *markdown(found, results, samples), END])
    page.write_text(re.sub(f"{START}.*{END}", lambda _: inner, before, count=1, flags=re.DOTALL), encoding="utf-8")
    picture.write_text(plot.svg(found), encoding="utf-8")
    return 0 if len(found.seeds) == len(SEEDS) else 6


def markdown(found: Figures, results: Results, samples: int) -> list[str]:
    """What stands between the markers."""
    lines = [""]
    if len(found.seeds) < len(SEEDS):
        lines += [f"**Not finished yet:** {len(found.seeds)} of {len(SEEDS)} seeds.", ""]
    for claim in claims(found):
        lines.append(f"- {'Met' if claim.met else '**Missed**'}: {claim.what}. Found: {signed(claim.found)}.")
    lines += ["", "![The small task's score against samples](../benchmarks/learning/plot.svg)", ""]
    lines.append(
        f"{len(found.seeds)} seeds. Differences are in points of a hundred; the brackets hold the 95 % interval of a paired "
        f"bootstrap over seeds and test rows ({samples} samples)."
    )
    lines += ["", *_scores(found), "", *_tuned(found, results), ""]
    return lines


def _scores(found: Figures) -> list[str]:
    rows = []
    for cell in (*range(len(CELLS)), MEAN):
        name = "**mean**" if cell == MEAN else str(CELLS[cell])
        scores = [f"{found.score(cell, variant):.3f}" for variant in VARIANTS]
        rows.append([name, *scores, *(signed(found.minus(cell, "stream", other)) for other in VARIANTS[1:])])
    return table(("small task", *VARIANTS, *(f"stream - {other}" for other in VARIANTS[1:])), rows)


def _tuned(found: Figures, results: Results) -> list[str]:
    """What each rate came to."""
    rows = []
    for place, (encoder, head) in enumerate(RATES):
        cells = []
        for variant in VARIANTS:
            runs = [results.get(Run(variant, cell, TUNING, place, "validation")) for cell in range(len(CELLS))]
            mean = sum(run.score for run in runs if run is not None) / len(CELLS)
            cells.append(f"**{mean:.3f}**" if found.rates[variant] == place else f"{mean:.3f}")
        rows.append([f"{encoder:g} / {head:g}", *cells])
    head_line = "Rates that were tried (encoder / heads), on validation rows of a draw of its own; each variant has its best:"
    return [head_line, "", *table(("rates", *VARIANTS), rows)]
