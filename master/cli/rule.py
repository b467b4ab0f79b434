"""`trunkline rule`: how updates become the next version."""

import json
from typing import Annotated, Any

from typer import Argument, Option

from master.cli.base import LONG, noun, open_master, verb, where
from master.cli.described import overview, whole
from master.cli.job import Some, find
from trunkline.errors import UsageError
from trunkline.terminal import Result, pairs, table

app = noun("Fuse rules: how updates become the next version.")


@verb(app, "list")
def list_() -> Result:
    """Every part that a rule can be made of, with its options."""
    from master.rules import PARTS
    from master.rules.catalogue import describe

    parts = [describe(part) for part in PARTS.values()]
    lines = overview(parts, ("name", "kind", "options", "about"))
    about = [
        "A rule is FILTER+…+COMBINE+STEP, e.g. clip:norm=1+median+adam. A job that names none has mean_by_task.",
        "Options and their defaults: trunkline rule show NAME.",
    ]
    return Result(parts, [*lines, "", *about])


@verb(app)
def show(name: Annotated[str, Argument(metavar="NAME", help="Of a part, or a whole rule such as clip:norm=1+median.")]) -> Result:
    """What a part does, where it comes from, and its options."""
    from master.rules import PARTS, find_rule
    from master.rules.catalogue import describe

    if name in PARTS:
        parts = [describe(PARTS[name])]
        data: dict[str, Any] = parts[0]
    else:
        rule = find_rule(name)
        parts = [describe(type(part), part) for part in rule.parts]
        data = {"rule": str(rule), "least": rule.least, "parts": parts}
    lines: list[str] = []
    if len(parts) > 1:
        lines = [f"{data['rule']}: needs {data['least']} update{'s' * (data['least'] > 1)} a round", ""]
    for part in parts:
        lines += [*whole(part, part["kind"]), ""]
    return Result(data, lines[:-1])


@verb(app)
def test(
    job: Some = None,
    rule: Annotated[str | None, Option("--rule", metavar="RULE", help="E.g. trimmed_mean:trim=0.2.")] = None,
    number: Annotated[int | None, Option("--round", metavar="N", help="Only this round; without it all that are kept.")] = None,
) -> Result:
    """Play another rule on a job's recorded updates. Nothing is published."""
    if rule is None:
        raise UsageError("`--rule` should be a rule, such as median, found none.", hint="See trunkline rule list.")
    from master.rules import find_rule

    find_rule(rule)  # what is none is told before anybody is called
    with open_master() as https:
        body = json.dumps({"rule": rule, "round": number})
        name = find(https, job)
        found: list[dict[str, Any]] = https.call("POST", where("jobs", name, "trial"), body, answer_seconds=LONG, retry=False)
    return Result(found, _lines(name, rule, found))


def _lines(job: str, rule: str, found: list[dict[str, Any]]) -> list[str]:
    rows = [{**one, "says": one["error"] or _most_changed(one)} for one in found]
    return [
        *pairs({"job": job, "rule": rule}),
        "",
        *table(rows, ("round", "step", "published_step", "cosine", "distance", "says")),
        "",
        "step: how far the rule moves from the base; cosine and distance: to what was published; says: whose share of the weight",
        "changed most, from what it was in the round to what this rule gives it.",
    ]


def _most_changed(one: dict[str, Any]) -> str:
    """The child whose share changed most."""
    changes = {child: share - one["published_weights"].get(child, 0.0) for child, share in one["weights"].items()}
    child = max(changes, key=lambda name: (abs(changes[name]), name), default=None)
    if child is None or abs(changes[child]) < 5e-4:
        return "weights as published"
    before = one["published_weights"].get(child, 0.0)
    return f"{child} {before:.3f} -> {one['weights'][child]:.3f}"
