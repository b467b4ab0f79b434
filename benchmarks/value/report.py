"""The page and the picture, from the file of results alone."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import table
from benchmarks.value import compared, defaults, plot, rates
from benchmarks.value.compared import CellFigures, Other, signed
from benchmarks.value.data import ROOT, sizes
from benchmarks.value.intervals import CHILDREN, MEAN
from benchmarks.value.results import Results
from benchmarks.value.study import BATCH, CELLS, CODEC, LAYERS, LENGTH, PLACES, RULE, SEEDS, SEVERAL, TASKS, VARIANTS

PAGE, PICTURE = ROOT / "docs" / "value.md", Path(__file__).with_name("plot.svg")
START, END = "<!-- value-table:start -->", "<!-- value-table:end -->"


def write(results: Results, samples: int, page: Path = PAGE, picture: Path = PICTURE) -> int:
    """Renew what stands between the page's markers, and the picture.

    :param samples: of the bootstrap.
    :returns: 0, or 6 where runs of the main part are missing: the page says which.
    """
    figures = compared.cells(results, samples)
    if not figures:
        print("no cell has all three variants yet", file=sys.stderr)
        return 6
    before = page.read_text(encoding="utf-8")
    lines = markdown(figures, compared.others(results, samples), results, samples)
    inner = "\n".join([START, *lines, END])
    page.write_text(re.sub(f"{START}.*{END}", lambda _: inner, before, count=1, flags=re.DOTALL), encoding="utf-8")
    picture.write_text(plot.svg(figures), encoding="utf-8")
    return 0 if len(figures) == len(CELLS) and all(one.seeds == len(SEEDS) for one in figures) else 6


def markdown(figures: Sequence[CellFigures], others: Sequence[Other], results: Results, samples: int) -> list[str]:
    """What stands between the markers."""
    lines = ["", *_missing(figures)]
    for aim in compared.aims(figures):
        lines.append(f"- {'Met' if aim.met else '**Missed**'}: {aim.what}. Found: {aim.found}.")
    lines += ["", "![What sharing and pooling change, by child and cell](../benchmarks/value/plot.svg)", ""]
    lines.append(
        "Differences are in points of a hundred; the brackets hold the 95 % interval of a paired bootstrap over seeds and test "
        f"rows ({samples} samples). Sentiment counts once in the mean over tasks, as the mean of its three shops."
    )
    for one in figures:
        lines += ["", *_cell(one)]
    if others:
        lines += ["", *_others(others)]
    return [*lines, *_defaults(results), "", *_tuned(results), ""]


def _missing(figures: Sequence[CellFigures]) -> list[str]:
    there = {one.cell: one.seeds for one in figures}
    short = [f"{cell} ({there.get(cell, 0)} of {len(SEEDS)} seeds)" for cell in CELLS if there.get(cell, 0) < len(SEEDS)]
    return [f"**Not finished yet:** {'; '.join(short)}.", ""] if short else []


def _cell(one: CellFigures) -> list[str]:
    rows = []
    for place in PLACES:
        scores = [f"{one.scores[variant].found[place.child]:.3f}" for variant in VARIANTS]
        train, test = sizes(place, one.cell.rows)
        changes = [signed(one.gain(place.child)), signed(one.gap(place.child))]
        rows.append([place.child, f"{place.task} ({place.metric})", f"{train} / {test}", *scores, *changes])
    for name in (*SEVERAL, CHILDREN, MEAN):
        scores = [f"{one.scores[variant].found[name]:.3f}" for variant in VARIANTS]
        about = {MEAN: "mean over tasks", CHILDREN: "mean over children"}.get(name, f"{name}, mean")
        rows.append([f"**{about}**", "", "", *scores, f"**{signed(one.gain(name))}**", signed(one.gap(name))])
    run = one.runs["shared"]
    seeds = f"{one.seeds} seeds" if one.seeds > 1 else "1 seed, so the intervals are over test rows alone"
    used = ", ".join(f"{name} {one.runs[name].learning_rate:g} / {one.runs[name].head_learning_rate:g}" for name in VARIANTS)
    return [
        f"### {str(one.cell)[0].upper()}{str(one.cell)[1:]}",
        "",
        f"{seeds}; {run.steps} steps of {BATCH} a child, {run.rounds} rounds; rates (encoder / heads): {used}.",
        "",
        *table(("child", "task", "rows train / test", *VARIANTS, "shared - alone", "pooled - alone"), rows),
        "",
        *_words(one),
        *_own(one),
    ]


def _own(one: CellFigures) -> list[str]:
    """With the encoder that a child sent last itself."""
    if one.own is None:
        return []
    names = (*TASKS, MEAN)
    rows = [
        ["mean over tasks" if name == MEAN else name, *(signed(one.own_gain(name, way)) for way in ("shared", "own"))]
        for name in names
    ]
    about = (
        "With the fused encoder, and with the encoder that each child trained itself in the last round, before it was fused, "
        f"against alone ({one.own_seeds} of the seeds):"
    )
    return ["", about, "", *table(("task", "fused", "a child's own, from the last fused one"), rows)]


def _words(one: CellFigures) -> list[str]:
    """Where sharing loses, plainly."""
    gain, lines = one.gain(), []
    verdict = "more than" if gain.clear else "within"
    lines.append(f"Sharing changes the mean by {signed(gain)}, {verdict} the interval.")
    for task in TASKS:
        found = one.gain(task)
        if found.value < 0:
            sure = "loses" if found.high < 0 else "may lose (within the interval)"
            lines.append(f"It {sure} on {task}: {signed(found)}.")
    for task in SEVERAL:
        share = one.closed(task)
        closed = f"It closes {share:.0%} of the gap to pooled" if share is not None else "There is no clear gap to pooled to close"
        lines.append(f"{closed} on {task}, which several children have.")
    return [" ".join(lines)]


def _others(others: Sequence[Other]) -> list[str]:
    rows = [
        [
            f"`{other.rule}`",
            f"`{other.codec}`",
            other.optimizer,
            str(other.seeds),
            f"{other.mean:.3f}",
            signed(other.change),
            f"{other.worst[0]} {signed(other.worst[1])}",
            f"{other.bytes_up / 1e6 / len(PLACES):.2f} MB",
        ]
        for other in others
    ]
    change = f"change against `{RULE}`, `{CODEC}`"
    columns = ("rule", "codec", "optimizer", "seeds", "mean over tasks", change, "worst task", "update of a child")
    return ["### Other rules and codecs", "", f"In one cell ({CELLS[0]}).", "", *table(columns, rows)]


def _defaults(results: Results) -> list[str]:
    """Local steps, moments and weightings, on validation rows."""
    rows = []
    for cell in CELLS:
        found = rates.chosen(cell, results.score) if cell.poor else None
        tried = defaults.tried(results, cell, found["shared"]) if found is not None else []
        for one in tried:
            assert one.run.rounds is not None, "a shared run has rounds"
            steps = str((one.run.steps - one.run.settle_steps) // one.run.rounds)
            scores = [f"{one.task(task):.3f}" for task in TASKS]
            about = [
                str(cell),
                f"`{one.run.rule}`",
                str(one.run.rounds),
                steps,
                str(one.run.moments),
                one.run.decay,
                str(one.run.settle_steps),
                str(len(one.results)),
            ]
            rows.append([*about, *scores, f"{one.mean:.3f}", f"{100 * one.change:+.1f}"])
    if not rows:
        return []
    columns = ("cell", "rule", "rounds", "steps a round", "moments", "decay", "settle", "seeds", *TASKS, "mean", "change")
    about = (
        "On the validation rows of draws that the study does not use; the usual job first, changes against it on the same seeds."
    )
    return ["", "### Local steps, moments and weighting", "", about, "", *table(columns, rows)]


def _tuned(results: Results) -> list[str]:
    scores = {key: result.mean for key, result in results.found.items()}
    rows = [
        [str(cell), variant, f"{pair.encoder:g}", f"{pair.head:g}", f"{score:.3f}"]
        for cell, variant, pair, score in rates.tried(scores, CELLS)
    ]
    about = (
        f"MiniLM, {LAYERS} layers, embeddings frozen, {LENGTH} tokens. Mean validation score over tasks, of one draw that the "
        "study does not use."
    )
    return [
        "<details><summary>Rates that were tried</summary>",
        "",
        about,
        "",
        *table(("cell", "variant", "encoder", "heads", "validation"), rows),
        "",
        "</details>",
    ]
