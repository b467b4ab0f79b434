"""The picture: what sharing and pooling change against training alone, child by child, as SVG that needs nothing else."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor

from benchmarks.value.compared import CellFigures
from benchmarks.value.intervals import MEAN, Estimate
from benchmarks.value.study import PLACES, STEPS

BLUE, GREY, AMBER, INK = "#1d4ed8", "#6b7280", "#b45309", "#1f2937"  # shared, pooled, alone: the colours of the demo's page

PANEL, ROW, LABEL, SCORE, TOP, BOTTOM, GAP = 300, 24, 104, 52, 34, 30, 28  # pixels
ACROSS = 2  # panels
HEAD = 64  # above the panels: title and key

NAMES = [place.child for place in PLACES]


def svg(figures: Sequence[CellFigures]) -> str:
    """All cells on one scale."""
    low, high = _range(figures)
    wide, tall = LABEL + PANEL + SCORE, TOP + ROW * (len(NAMES) + 1) + BOTTOM
    width = GAP + (wide + GAP) * ACROSS  # also with one panel: title and key need it
    height = HEAD + tall * ceil(len(figures) / ACROSS) + 8
    font = "font-family='system-ui, -apple-system, Helvetica, Arial, sans-serif' font-size='12'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {font}>",
        f"<rect width='{width}' height='{height}' fill='#fff'/>",
        *_key(),
    ]
    for number, one in enumerate(figures):
        x, y = GAP + (wide + GAP) * (number % ACROSS), HEAD + tall * (number // ACROSS)
        parts += [f"<g transform='translate({x} {y})'>", *_panel(one, low, high), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _range(figures: Sequence[CellFigures]) -> tuple[float, float]:
    """In whole fives of points, so that every whisker and mark is inside."""
    ends = [0.0]
    for one in figures:
        for name in (*NAMES, MEAN):
            gain = one.gain(name)
            ends += [gain.low, gain.high, one.gap(name).value]
    return 5.0 * floor(100 * min(ends) / 5), 5.0 * ceil(100 * max(ends) / 5)


def _key() -> Iterator[str]:
    yield _text(GAP, 26, "Change of the test score against training alone, in points", size=15, weight=600)
    x, y = GAP + 4, 46
    yield f"<line x1='{x}' x2='{x}' y1='{y - 8}' y2='{y + 4}' stroke='{AMBER}' stroke-width='2'/>"
    yield _text(x + 8, y + 2, "alone (its score at the right)")
    yield _whisker(x + 190, x + 226, y - 2, BLUE) + _dot(x + 208, y - 2)
    yield _text(x + 234, y + 2, "shared, 95 % interval")
    yield _diamond(x + 384, y - 2)
    yield _text(x + 394, y + 2, "pooled in one place")


def _panel(one: CellFigures, low: float, high: float) -> Iterator[str]:
    def x(points: float) -> float:
        return LABEL + PANEL * (points - low) / (high - low)

    bottom = TOP + ROW * (len(NAMES) + 1)
    yield _text(LABEL, 14, f"{str(one.cell)[0].upper()}{str(one.cell)[1:]}", weight=600)
    yield _text(LABEL, 28, f"{one.seeds} seed{'s' if one.seeds > 1 else ''}, {STEPS} steps a child", fill=GREY, size=11)
    yield f"<rect x='{LABEL}' y='{bottom - ROW}' width='{PANEL}' height='{ROW}' fill='#f3f4f6'/>"
    step = 5 if high - low <= 40 else 10
    for points in range(int(-(-low // step)) * step, int(high) + 1, step):
        yield f"<line x1='{x(points):.1f}' x2='{x(points):.1f}' y1='{TOP}' y2='{bottom}' stroke='#e5e7eb'/>"
        yield _text(x(points), bottom + 15, f"{points:+d}" if points else "0", anchor="middle", fill=GREY, size=11)
    yield f"<line x1='{x(0):.1f}' x2='{x(0):.1f}' y1='{TOP}' y2='{bottom}' stroke='{AMBER}' stroke-width='2'/>"
    for number, name in enumerate((*NAMES, MEAN)):
        y = TOP + ROW * (number + 0.5)
        weight = 600 if name == MEAN else 400
        yield _text(LABEL - 8, y + 4, "mean over tasks" if name == MEAN else name, anchor="end", weight=weight)
        yield _text(LABEL + PANEL + 8, y + 4, f"{one.scores['alone'].found[name]:.3f}", fill=AMBER, weight=weight)
        yield _diamond(x(100 * one.gap(name).value), y)
        yield _gain(one.gain(name), x(100 * one.gain(name).low), x(100 * one.gain(name).value), x(100 * one.gain(name).high), y)


def _gain(gain: Estimate, low: float, at: float, high: float, y: float) -> str:
    """The shared variant's mark; its title says the figures where a pointer rests on it."""
    said = escape(f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]")
    return f"<g><title>{said}</title>{_whisker(low, high, y, BLUE)}{_dot(at, y)}</g>"


def _whisker(low: float, high: float, y: float, colour: str) -> str:
    ends = "".join(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y - 4:.1f}' y2='{y + 4:.1f}' stroke='{colour}'/>" for x in (low, high))
    return f"<line x1='{low:.1f}' x2='{high:.1f}' y1='{y:.1f}' y2='{y:.1f}' stroke='{colour}' stroke-width='1.5'/>{ends}"


def _dot(x: float, y: float) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{BLUE}'/>"


def _diamond(x: float, y: float) -> str:
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((0, -5), (5, 0), (0, 5), (-5, 0)))
    return f"<polygon points='{points}' fill='#fff' stroke='{GREY}' stroke-width='1.5'/>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = INK, size: int = 12, weight: int = 400) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{fill}' font-size='{size}' font-weight='{weight}'>"
        f"{escape(text)}</text>"
    )
