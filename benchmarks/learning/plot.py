"""The picture: the small task's score against the samples that were learned from, as SVG that needs nothing else."""

from collections.abc import Callable, Iterator, Mapping
from html import escape
from math import ceil, floor

from benchmarks.learning.compared import Figures
from benchmarks.learning.study import BATCH, CELLS, STEPS, VARIANTS, Variant

BLUE, GREY, AMBER, GREEN, INK = "#1d4ed8", "#6b7280", "#b45309", "#047857", "#1f2937"
COLOURS: Mapping[Variant, str] = {"stream": BLUE, "mixed": GREEN, "alone": AMBER, "longer": GREY}
WORDS: Mapping[Variant, str] = {
    "stream": "through the queues",
    "mixed": "batches of both tasks",
    "alone": "alone, as often",
    "longer": "alone, as many steps",
}

WIDE, TALL, LEFT, RIGHT, TOP, BOTTOM, GAP, HEAD = 330, 190, 40, 28, 26, 36, 16, 64  # pixels of a panel and around it
ACROSS = 2  # panels

Place = Callable[[float, float], tuple[float, float]]
"""Samples and score to pixels."""


def svg(figures: Figures) -> str:
    """All cells on one scale."""
    low, high = _range(figures)
    wide, tall = LEFT + WIDE + RIGHT, TOP + TALL + BOTTOM
    width, height = GAP + (wide + GAP) * ACROSS, HEAD + tall * ceil(len(CELLS) / ACROSS)
    font = "font-family='system-ui, -apple-system, Helvetica, Arial, sans-serif' font-size='12'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {font}>",
        f"<rect width='{width}' height='{height}' fill='#fff'/>",
        *_key(),
    ]
    for cell in range(len(CELLS)):
        x, y = GAP + (wide + GAP) * (cell % ACROSS), HEAD + tall * (cell // ACROSS)
        parts += [f"<g transform='translate({x} {y})'>", *_panel(figures, cell, low, high), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _range(figures: Figures) -> tuple[float, float]:
    """In whole fives of points."""
    ends = [score for cell in range(len(CELLS)) for variant in VARIANTS for _, score in figures.curve(cell, variant)]
    ends += [end for cell in range(len(CELLS)) for variant in VARIANTS for end in figures.interval(cell, variant)]
    return 5.0 * floor(100 * min(ends) / 5), 5.0 * ceil(100 * max(ends) / 5)


def _key() -> Iterator[str]:
    yield _text(GAP, 26, "Test accuracy of the small task against samples learned from, of both tasks", size=15, weight=600)
    x = GAP + 4
    for variant in VARIANTS:
        yield f"<line x1='{x}' x2='{x + 22}' y1='44' y2='44' stroke='{COLOURS[variant]}' stroke-width='2.5'{_dashes(variant)}/>"
        yield _text(x + 28, 48, WORDS[variant])
        x += 42 + round(6.4 * len(WORDS[variant]))


def _dashes(variant: Variant) -> str:
    return " stroke-dasharray='5 3'" if variant == "longer" else ""


def _panel(figures: Figures, cell: int, low: float, high: float) -> Iterator[str]:
    most = STEPS * BATCH

    def at(samples: float, score: float) -> tuple[float, float]:
        return LEFT + WIDE * samples / most, TOP + TALL * (high - 100 * score) / (high - low)

    yield _text(LEFT, 14, f"{CELLS[cell]}", weight=600)
    for points in range(int(low), int(high) + 1, 5 if high - low <= 30 else 10):
        _, y = at(0, points / 100)
        yield f"<line x1='{LEFT}' x2='{LEFT + WIDE}' y1='{y:.1f}' y2='{y:.1f}' stroke='#e5e7eb'/>"
        yield _text(LEFT - 6, y + 4, f"{points}", anchor="end", fill=GREY, size=11)
    for samples in range(0, most + 1, 400):
        x, _ = at(samples, 0)
        yield _text(x, TOP + TALL + 16, f"{samples:,}", anchor="middle", fill=GREY, size=11)
    for place, variant in enumerate(VARIANTS):
        points = [at(samples, score) for samples, score in figures.curve(cell, variant)]
        drawn, colour = " ".join(f"{x:.1f},{y:.1f}" for x, y in points), COLOURS[variant]
        yield f"<polyline points='{drawn}' fill='none' stroke='{colour}' stroke-width='2'{_dashes(variant)}/>"
        yield from (f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{colour}'/>" for x, y in points)
        yield _whisker(figures, cell, variant, LEFT + WIDE + 6 + 6 * place, at)


def _whisker(figures: Figures, cell: int, variant: Variant, x: float, at: Place) -> str:
    """The interval of the score at the end; its title says it where a pointer rests on it."""
    (low, high), score = figures.interval(cell, variant), figures.score(cell, variant)
    (_, top), (_, bottom), (_, y) = at(0, high), at(0, low), at(0, score)
    said = escape(f"{WORDS[variant]}: {score:.3f} [{low:.3f}, {high:.3f}]")
    line = f"<line x1='{x}' x2='{x}' y1='{top:.1f}' y2='{bottom:.1f}' stroke='{COLOURS[variant]}' stroke-width='1.5'/>"
    return f"<g><title>{said}</title>{line}<circle cx='{x}' cy='{y:.1f}' r='3' fill='{COLOURS[variant]}'/></g>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = INK, size: int = 12, weight: int = 400) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{fill}' font-size='{size}' font-weight='{weight}'>"
        f"{escape(text)}</text>"
    )
