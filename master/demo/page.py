"""The demo's figures as one HTML file that needs nothing else: a table, and a learning curve a child."""

from collections.abc import Sequence
from html import escape

from master.demo.figures import VARIANTS, Figures, Row, verdict
from trunkline.terminal import amount

COLOURS = {"alone": "#b45309", "shared": "#1d4ed8", "pooled": "#6b7280"}
DASHES = {"alone": "6 4", "shared": "", "pooled": "2 3"}
ABOUT = {
    "alone": "each child on its own rows",
    "shared": "one encoder over all children, private heads",
    "pooled": "all rows in one place: the upper bound, not to be had where data must stay",
}

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 320, 200, 44, 28, 14, 12

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; }
tr:last-child td { font-weight: 600; border-top: 2px solid #8888; }
.best { font-weight: 700; } .loss { color: #b91c1c; }
figure { display: inline-block; margin: 0 1rem 1rem 0; } figcaption { font-weight: 600; }
svg { background: #fff; border: 1px solid #8884; border-radius: 4px; }
.key span { display: inline-block; margin-right: 1.2rem; } .key svg { border: 0; background: none; vertical-align: middle; }
small { color: #777; }
"""


def page(figures: Figures) -> str:
    """The whole page."""
    charts = "".join(_chart(figures, row) for row in figures.rows)
    said = "".join(f"<li>{escape(line)}</li>" for line in verdict(figures))
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Trunkline demo</title><style>{STYLE}</style>"
        "<h1>One shared encoder, five places</h1>"
        f"<p>{_settings(figures)}</p><ul>{said}</ul>"
        f"<h2>Test scores</h2>{_table(figures)}"
        f"<h2>Learning curves (validation)</h2><p class='key'>{_key()}</p>{charts}"
        f"<h2>Cost</h2><p>{_cost(figures)}</p></html>"
    )


def _settings(figures: Figures) -> str:
    settings = figures.settings
    return (
        f"MiniLM, {settings['layers']} layers, embeddings frozen, {settings['max_length']} tokens; {settings['rounds']} rounds of "
        f"{settings['steps']} steps with batches of {settings['batch_size']}; each child holds {settings['rows']:.0%} of its "
        f"training rows; seed {settings['seed']}. Learning rates, each the best of a few on the validation rows: alone "
        f"{settings['alone_learning_rate']:g}, rounds {settings['learning_rate']:g}, pooled {settings['pooled_learning_rate']:g}. "
        "Every figure is from this run."
    )


def _table(figures: Figures) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("child", "task", "rows", "metric", *VARIANTS, "gain"))
    body = "".join(_row(row) for row in figures.rows)
    means = "".join(f"<td>{figures.mean(variant):.3f}</td>" for variant in VARIANTS)
    gain = figures.mean("shared") - figures.mean("alone")
    return f"<table><tr>{head}</tr>{body}<tr><td>mean</td><td></td><td></td><td></td>{means}{_gain(gain)}</tr></table>"


def _row(row: Row) -> str:
    best = max(row.alone, row.shared)
    cells = "".join(
        f"<td class='{'best' if variant != 'pooled' and getattr(row, variant) == best else ''}'>{getattr(row, variant):.3f}</td>"
        for variant in VARIANTS
    )
    about = f"<td>{escape(row.child)}</td><td>{escape(row.task)}</td><td>{row.samples}</td><td>{escape(row.metric)}</td>"
    return f"<tr>{about}{cells}{_gain(row.gain)}</tr>"


def _gain(gain: float) -> str:
    return f"<td class='{'loss' if gain < 0 else ''}'>{gain:+.3f}</td>"


def _key() -> str:
    return "".join(
        f"<span><svg width='34' height='10'><line x1='0' x2='34' y1='5' y2='5' {_stroke(variant)}/></svg> "
        f"<b>{variant}</b> <small>{ABOUT[variant]}</small></span>"
        for variant in VARIANTS
    )


def _cost(figures: Figures) -> str:
    times = ", ".join(f"{escape(name)} {value:.1f} s" for name, value in figures.seconds.items())
    return (
        f"{amount(figures.bytes_down)} went from the master to the children, {amount(figures.bytes_up)} came back "
        f"as updates. Time: {times}."
    )


def _chart(figures: Figures, row: Row) -> str:
    """Validation score after each round, all variants on one scale."""
    curves = {variant: figures.curves[variant][row.child] for variant in VARIANTS}
    low, high = _range([value for curve in curves.values() for value in curve])
    lines = "".join(_line(variant, curve, low, high) for variant, curve in curves.items())
    marks = "".join(_mark(value, low, high) for value in (low, (low + high) / 2, high))
    rounds = max(len(curve) for curve in curves.values())
    ends = "".join(
        f"<text x='{_x(number, rounds):.1f}' y='{HEIGHT - 10}' font-size='11' fill='#555' text-anchor='middle'>{number + 1}</text>"
        for number in range(rounds)
    )
    title = f"{escape(row.child)}: {escape(row.metric)} by round"
    return (
        f"<figure><figcaption>{title}</figcaption><svg width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='{title}'>"
        f"{marks}{ends}{lines}</svg></figure>"
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.02, (high - low) * 0.1)
    return low - room, high + room


def _line(variant: str, curve: Sequence[float], low: float, high: float) -> str:
    points = " ".join(f"{_x(number, len(curve)):.1f},{_y(value, low, high):.1f}" for number, value in enumerate(curve))
    return f"<polyline fill='none' points='{points}' {_stroke(variant)}/>"


def _stroke(variant: str) -> str:
    return f"stroke='{COLOURS[variant]}' stroke-width='2' stroke-dasharray='{DASHES[variant]}'"


def _mark(value: float, low: float, high: float) -> str:
    y = _y(value, low, high)
    return (
        f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
        f"<text x='{LEFT - 6}' y='{y + 4:.1f}' font-size='11' fill='#555' text-anchor='end'>{value:.2f}</text>"
    )


def _x(number: int, rounds: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (number / max(1, rounds - 1))


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))
