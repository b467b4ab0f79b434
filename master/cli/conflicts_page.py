"""How the tasks of an encoder get on, as one HTML file that needs nothing else: a heat map, a bar for each gain, the advice."""

from collections.abc import Mapping
from html import escape
from typing import Any

from master.cli.conflicts import mean_over, number, span_of, verdict

APART, TOGETHER = (185, 28, 28), (29, 78, 216)
"""Colours of a cosine of -1 and of 1; white lies between."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.gains td, .gains th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
.gains td:nth-child(-n+3), .gains th:nth-child(-n+3), .gains td:last-child, .gains th:last-child { text-align: left; }
.heat th { font-weight: 500; padding: .2rem .6rem; } .heat th:first-child { text-align: right; }
.heat thead th { max-width: 8rem; min-width: 4.6rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.heat td { width: 4.2rem; height: 2.6rem; text-align: center; border: 2px solid Canvas; border-radius: 4px; }
.hurt, .loses { color: #b91c1c; } .hurt { font-weight: 700; } .gains .up { font-weight: 600; }
.key { display: inline-block; width: 12rem; height: .8rem; border-radius: 4px; vertical-align: middle; margin: 0 .5rem; }
small { color: #777; }
"""


def page(found: Mapping[str, Any]) -> str:
    """The whole page, from the answer of `GET /v1/admin/encoders/NAME/conflicts`."""
    said = "".join(f"<li>{escape(line)}</li>" for line in found["advice"])
    title = escape(f"How the tasks of {found['encoder']} get on")
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p><small>{escape('rounds ' + (span_of(found['rounds']) or 'none'))}</small></p><ul>{said}</ul>"
        f"{_heat(found)}{_gains(found)}</html>"
    )


def _heat(found: Mapping[str, Any]) -> str:
    names = [escape(one["task"]) for one in found["tasks"]]
    if len(names) < 2:
        return ""
    head = "".join(f"<th title='{name}'>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{name}</th>{''.join(_cell(value) for value in row)}</tr>"
        for name, row in zip(names, found["cosines"], strict=True)
    )
    scale = ", ".join(_colour(value) for value in (-1.0, 0.0, 1.0))
    return (
        f"<h2>What the tasks moved the encoder by</h2><p>Cosines, {mean_over(found['compared'])}: against each other"
        f"<span class='key' style='background: linear-gradient(to right, {scale})'></span>the same way</p>"
        f"<table class='heat'><thead><tr><th></th>{head}</tr></thead>{rows}</table>"
    )


def _cell(value: float | None) -> str:
    if value is None:
        return "<td>-</td>"
    ink = "#fff" if abs(value) > 0.6 else "#111"
    return f"<td style='background: {_colour(value)}; color: {ink}'>{number(value)}</td>"


def _colour(value: float) -> str:
    end, part = (TOGETHER if value > 0 else APART), min(1.0, abs(value))
    red, green, blue = (round(255 + (one - 255) * part) for one in end)
    return f"rgb({red}, {green}, {blue})"


def _gains(found: Mapping[str, Any]) -> str:
    if not found["gains"]:
        return ""
    losing = {one["task"] for one in found["hurt"]}
    head = "".join(f"<th>{name}</th>" for name in ("task", "split", "metric", "samples", "alone", "shared", "gain", "", "verdict"))
    widest = max(max(abs(one["gain"]), one["allowed"]) for one in found["gains"])
    rows = "".join(_gain(one, losing, widest) for one in found["gains"])
    return (
        "<h2>Against training alone</h2><p>Newest round. The grey band is what noise explains, or what does not matter.</p>"
        f"<table class='gains'><tr>{head}</tr>{rows}</table>"
    )


def _gain(one: Mapping[str, Any], losing: set[str], widest: float) -> str:
    word = verdict(one, losing)
    about = "".join(f"<td>{escape(str(one[key]))}</td>" for key in ("task", "split", "metric", "samples"))
    scores = "".join(f"<td>{one[key]:.3f}</td>" for key in ("alone", "shared"))
    kind = {"gains": "up", "hurt": "hurt", "loses": "loses"}.get(word, "")
    gain = f"<td class='{kind}'>{one['gain']:+.3f}</td><td>{_bar(one['gain'], one['allowed'], widest)}</td>"
    return f"<tr>{about}{scores}{gain}<td class='{kind}'>{word}</td></tr>"


def _bar(gain: float, allowed: float, widest: float, half: int = 70) -> str:
    """From the middle, to the left where it lost; the band around it is what is allowed."""
    room = half / widest if widest > 0 else 0.0
    length, band = abs(gain) * room, min(half, allowed * room)
    colour, start = ("#1d4ed8", half) if gain >= 0 else ("#b91c1c", half - length)
    return (
        f"<svg width='{2 * half}' height='16' role='img' aria-label='gain {gain:+.3f}'>"
        f"<rect x='{half - band:.1f}' y='0' width='{2 * band:.1f}' height='16' fill='#8883'/>"
        f"<rect x='{start:.1f}' y='3' width='{length:.1f}' height='10' fill='{colour}'/>"
        f"<line x1='{half}' x2='{half}' y1='0' y2='16' stroke='#888'/></svg>"
    )
