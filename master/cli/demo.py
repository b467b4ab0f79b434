"""`trunkline demo`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from master.cli.base import verb
from trunkline.console import here, single
from trunkline.errors import UsageError
from trunkline.terminal import Result, amount, table

app = single()


@verb(app)
def demo(
    quick: Annotated[bool, Option("--quick", help="A smoke test: 2 rounds of 5 steps.")] = False,
    rows: Annotated[
        str, Option("--rows", metavar="SHARE", help="Share of its training rows that each child holds, or `all`.")
    ] = "0.1",
    rounds: Annotated[int | None, Option(metavar="N", help="Rounds.  [default: 8]")] = None,
    steps: Annotated[int | None, Option(metavar="N", help="A round and child.  [default: 4]")] = None,
    seed: Annotated[int, Option(metavar="N")] = 0,
    report: Annotated[Path, Option("--report", metavar="FILE", help="Where the page with the curves goes.")] = Path(
        "trunkline-demo.html"
    ),
    keep: Annotated[
        Path | None, Option("--keep", metavar="FOLDER", help="Leave the master, the children and their logs there.")
    ] = None,
) -> Result:
    """Train one encoder over five child processes on real data; compare alone, shared, pooled. Three minutes on two cores."""
    from dataclasses import replace

    from master.demo.figures import VARIANTS, verdict
    from master.demo.page import page
    from master.demo.plan import QUICK, DemoPlan
    from master.demo.run import run
    from trunkline.clock import SystemClock
    from trunkline.files import write_atomically

    console = here()
    base = QUICK if quick else DemoPlan()
    plan = replace(base, rows=_share(rows), seed=seed, rounds=rounds or base.rounds, steps=steps or base.steps)
    figures = run(plan, keep, SystemClock(), console.note)
    write_atomically(report, page(figures).encode())
    console.note(f"the curves are in {report.absolute()}")
    shown: list[dict[str, str | int]] = [
        {"child": row.child, "task": row.task, "rows": row.samples, "metric": row.metric}
        | {variant: f"{getattr(row, variant):.3f}" for variant in VARIANTS}
        | {"gain": f"{row.gain:+.3f}"}
        for row in figures.rows
    ]
    means = {variant: f"{figures.mean(variant):.3f}" for variant in VARIANTS}
    gain = f"{figures.mean('shared') - figures.mean('alone'):+.3f}"
    shown.append({"child": "mean", "task": "", "rows": "", "metric": "", **means, "gain": gain})
    lines = table(shown, ("child", "task", "rows", "metric", *VARIANTS, "gain"))
    moved = f"{amount(figures.bytes_down)} down, {amount(figures.bytes_up)} up"
    times = ", ".join(f"{name} {value:.0f} s" for name, value in figures.seconds.items())
    data = figures.table() | {"verdict": verdict(figures), "report": str(report.absolute())}
    return Result(data, [*lines, "", *verdict(figures), f"Moved: {moved}. Time: {times}."])


def _share(text: str) -> float:
    """:raises UsageError: not `all`, and not a share."""
    if text == "all":
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"`--rows` should be `all`, or a share above 0 and at most 1, found {text!r}.")
    return share
