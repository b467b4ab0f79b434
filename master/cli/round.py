"""`trunkline round`: what happened in a round."""

from typing import Annotated, Any

from typer import Argument

from master.cli.base import noun, open_master, verb, where
from master.cli.job import Some, find, round_row
from trunkline.errors import NotFound
from trunkline.terminal import Result, amount, moment, pairs, table

app = noun("Rounds of a job: who took part, what was refused.")


@verb(app, "list")
def list_(job: Some = None) -> Result:
    """The rounds of a job."""
    with open_master() as https:
        rounds: list[dict[str, Any]] = https.call("GET", where("jobs", find(https, job), "rounds"))
    rows = [round_row(one) for one in rounds]
    return Result(rounds, table(rows, ("round", "state", "version", "opened", "seconds", "reason"), "none yet"))


@verb(app)
def show(
    number: Annotated[int | None, Argument(metavar="[NUMBER]", help="Without it the newest.")] = None, job: Some = None
) -> Result:
    """One round: members with what they confirmed, weights, updates, refusals with their reason codes, reports."""
    with open_master() as https:
        name = find(https, job)
        if number is None:
            rounds: list[dict[str, Any]] = https.call("GET", where("jobs", name, "rounds"))
            if not rounds:
                raise NotFound(f"job {name!r} should have begun a round, found none.")
            number = int(rounds[-1]["number"])
        found: dict[str, Any] = https.call("GET", where("jobs", name, "rounds", number))
    return Result(found, _lines(found))


def _lines(found: dict[str, Any]) -> list[str]:
    about = {
        "job": found["job"],
        "round": found["number"],
        "state": found["state"],
        "reason": found["reason"],
        "opened": moment(found["opened"]),
        "closed": moment(found["closed"]),
        "base": found["base"][:12],
        "target": (found["target"] or "")[:12],
        "version": found["version"],
    }
    lines = [*pairs(about), "", "members"]
    members = [_member(one, found["weights"]) for one in found["members"]]
    lines += table(members, ("child", "state", "samples", "weight", "reason", "detail"))
    updates = [_update(one) for one in found["updates"]]
    lines += ["", "updates", *table(updates, ("child", "samples", "losses", "size", "seconds", "digest"))]
    lines += ["", "refused values", *table(found["refusals"], ("child", "reason", "detail"))]
    scores = [{"child": one["child"], **score} for one in found["reports"] for score in one["report"]["scores"]]
    return [*lines, "", "reports", *table(scores, ("child", "task", "split", "metric", "value", "samples"))]


def _member(one: dict[str, Any], weights: dict[str, float]) -> dict[str, Any]:
    samples = {task["task"]: task["samples"] for task in one["confirmation"].get("tasks", ())}
    return {**one, "samples": samples, "weight": weights.get(one["child"])}


def _update(one: dict[str, Any]) -> dict[str, Any]:
    told = one["update"]
    return {
        "child": one["child"],
        "samples": told["samples"],
        "losses": told["losses"],
        "size": amount(one["size"]),
        "seconds": told["seconds"],
        "digest": one["digest"][:12],
    }
