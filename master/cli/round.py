"""`trunkline round`: what happened in a round."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument

from master.cli.base import LONG, noun, open_master, verb, where
from master.cli.conflicts import gains, matrix
from master.cli.job import Some, find, round_row
from trunkline.errors import FailedError, NotFound
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
    return Result(found, lines(found))


@verb(app)
def replay(
    number: Annotated[int | None, Argument(metavar="[NUMBER]", help="Without it the newest that came to a version.")] = None,
    job: Some = None,
) -> Result:
    """Recompute a published version from the recorded updates, bit for bit. Nothing is published."""
    with open_master() as https:
        name = find(https, job)
        if number is None:
            rounds: list[dict[str, Any]] = https.call("GET", where("jobs", name, "rounds"))
            fused = [one["number"] for one in rounds if one["target"]]
            if not fused:
                raise NotFound(f"job {name!r} should have a round that came to a version, found none.")
            number = int(fused[-1])
        found: dict[str, Any] = https.call(
            "POST", where("jobs", name, "rounds", number, "replay"), answer_seconds=LONG, retry=False
        )
    same = "the same, bit for bit" if found["same"] else "ANOTHER"
    about = {
        "job": name,
        "round": number,
        "version": found["version"],
        "published": found["published"][:12],
        "recomputed": f"{found['recomputed'][:12]}, {same}",
        "seconds": round(found["seconds"], 1),
    }
    error = (
        None
        if found["same"]
        else FailedError(
            f"round {number} should come to {found['published'][:12]} again, found {found['recomputed'][:12]}.",
            hint="An update or a base on the disk was changed, or another release of the libraries computes otherwise.",
        )
    )
    return Result(found, pairs(about), error=error)


def lines(found: dict[str, Any]) -> list[str]:
    """The answer of `GET /v1/admin/jobs/JOB/rounds/NUMBER`, as `trunkline round show` prints it."""
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
    shown = [*pairs(about), "", "members"]
    members = [_member(one, found["weights"]) for one in found["members"]]
    shown += table(members, ("child", "state", "samples", "weight", "reason", "detail"))
    updates = [_update(one, found["weights"]) for one in found["updates"]]
    late = any(one["origin"] not in (None, found["number"]) for one in found["updates"])
    columns = ("child", *(("arrival", "origin", "weight") if late else ()), "samples", "losses", "size", "seconds", "digest")
    shown += ["", "updates", *table(updates, columns)]
    if seen := (found["notes"] or {}).get("rule"):
        shown += ["", "what the rule saw", *(f"{part}: {json.dumps(_short(told))}" for part, told in seen.items())]
    shown += ["", "refused values", *table(found["refusals"], ("child", "reason", "detail"))]
    scores = [{"child": one["child"], **score} for one in found["reports"] for score in one["report"]["scores"]]
    shown += ["", "reports", *table(scores, ("child", "task", "split", "metric", "value", "samples"))]
    look = (found["notes"] or {}).get("tasks")
    if look is not None:
        shown += ["", "cosines of what the tasks moved the encoder by", "", *matrix(look["names"], look["cosines"])]
    if found["gains"]:
        shown += ["", "against training alone", *gains(found)]
    return shown


def _short(told: Any) -> Any:
    """The same with numbers as `cell` has them; `--output json` has every digit."""
    if isinstance(told, Mapping):
        return {key: _short(value) for key, value in told.items()}
    if isinstance(told, list):
        return [_short(value) for value in told]
    return float(f"{told:.4g}") if isinstance(told, float) else told


def _member(one: dict[str, Any], weights: dict[str, float]) -> dict[str, Any]:
    samples = {task["task"]: task["samples"] for task in one["confirmation"].get("tasks", ())}
    return {**one, "samples": samples, "weight": weights.get(one["child"])}


def _update(one: dict[str, Any], weights: dict[str, float]) -> dict[str, Any]:
    told = one["update"]
    return {
        "child": one["child"],
        "arrival": one["arrival"],
        "origin": one["origin"],
        "weight": weights.get(one["child"]),
        "samples": told["samples"],
        "losses": told["losses"],
        "size": amount(one["size"]),
        "seconds": told["seconds"],
        "digest": one["digest"][:12],
    }
