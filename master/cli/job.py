"""`trunkline job`: trainings of an encoder."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from master.cli.base import noun, open_master, verb, where
from master.cli.job_flags import JobCommand, asked
from master.states import OPEN_JOBS
from trunkline.console import here
from trunkline.errors import NotFound, UsageError
from trunkline.terminal import Result, moment, pairs, span, table

app = noun("Trainings: start, watch, stop.")

Some = Annotated[str | None, Argument(metavar="[JOB]", help="Id or name; without it the one that is open, or the newest.")]
One = Annotated[str, Argument(metavar="JOB", help="Id or name.")]
Why = Annotated[str, Option("--reason", help="For people who read it later.")]

FOLLOW = 60.0
"""Seconds that a master may be away while a job is followed; it may be starting again."""


@verb(app, cls=JobCommand)
def start(
    file: Annotated[Path | None, Argument(metavar="[JOB.TOML]", help="A job's file; flags count more than it.")] = None,
    more: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Any key by its path, e.g. training.steps=20.")
    ] = None,
    name: Annotated[str | None, Option(help="What people call it; its id begins with it.")] = None,
    key: Annotated[str | None, Option("--idempotency-key", metavar="TEXT", help="The same key again gives the same job.")] = None,
    wait: Annotated[bool, Option("--wait/--no-wait", show_default=False, help="Stay until the job ends.")] = False,
    dry: Annotated[bool, Option("--dry-run", help="Start nothing; show the whole job, defaults too.")] = False,
) -> Result:
    """Start a job from a file, from flags, or from both."""
    import uuid

    spec = asked(file, more or [])
    whole = _checked(spec, file)
    if dry:
        with open_master() as https:
            https.call("GET", where("encoders", whole["encoder"]))  # whether it is there
            _note_unknown(https, whole["tasks"])
        return Result({"dry_run": True, "spec": whole}, [*pairs(_flat(whole), exact=True), "", "nothing was started"])
    body = json.dumps({"spec": spec, "name": name, "key": key or uuid.uuid4().hex})  # a try that is repeated starts no second job
    with open_master(FOLLOW if wait else 3.0) as https:
        made: dict[str, Any] = https.call("POST", where("jobs"), body)
        job = made["job"]
        here().note(f"job {job['id']} {'started' if made['new'] else 'was started before'}")
        _note_unknown(https, whole["tasks"])
        if wait:
            return _ended(https, job)
    return Result(made, [job["id"]])


def _checked(spec: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """The whole job, defaults too. Here, where the file's name is known, and before anybody is called."""
    from master.jobs import JobSpec
    from trunkline.settings import build

    place = f"`{file}`" if file is not None else "the job"
    if "encoder" not in spec:
        raise UsageError(
            f"`encoder` in {place} should be set, found nothing.", hint="Say --encoder NAME; see trunkline encoder list."
        )
    return build(JobSpec, spec, place).model_dump(mode="json")


def _note_unknown(https: Any, tasks: list[str]) -> None:
    """Tell of tasks that no child has spoken of: they may still come, but a wrong letter would be waited for just as long."""
    known = [one["task"] for one in https.call("GET", where("tasks"))] if tasks else []
    for task in tasks:
        if task not in known:
            here().note(f"no child has told of a task {task!r} yet; known: {', '.join(known) or 'none'}")


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Every key by its path, as `--set` takes it."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return flat


@verb(app, "list")
def list_() -> Result:
    """All jobs, oldest first."""
    with open_master() as https:
        jobs: list[dict[str, Any]] = https.call("GET", where("jobs"))
    rows = [{**job, "created": moment(job["created"]), "rounds": job["spec"]["rounds"]} for job in jobs]
    return Result(jobs, table(rows, ("id", "encoder", "state", "rounds", "created", "reason"), "none yet"))


@verb(app)
def show(job: Some = None) -> Result:
    """One job with its rounds."""
    with open_master() as https:
        found: dict[str, Any] = https.call("GET", where("jobs", find(https, job)))
    return Result(found, lines(found))


@verb(app)
def watch(job: Some = None) -> Result:
    """Look on until it ends: round, children, scores, bytes, time left. With `--output jsonl` its events, a line each."""
    with open_master(FOLLOW) as https:
        return _ended(https, https.call("GET", where("jobs", find(https, job))))


@verb(app)
def wait(job: Some = None) -> Result:
    """Stay until it ends, quietly; `--timeout` limits it."""
    with open_master(FOLLOW) as https:
        here().terminal.quiet = True
        return _ended(https, https.call("GET", where("jobs", find(https, job))), events=False)


@verb(app)
def pause(job: One, reason: Why = "") -> Result:
    """Let it rest; what the open round has so far is kept."""
    return _move(job, "pause", reason)


@verb(app)
def resume(job: One) -> Result:
    """Go on where it was."""
    return _move(job, "resume", None)


@verb(app)
def abort(job: One, reason: Why = "") -> Result:
    """End it; versions that were published stay."""
    here().confirm(f"End job {job!r} for ever?")
    return _move(job, "abort", reason)


@verb(app)
def logs(
    job: Some = None,
    follow: Annotated[bool, Option("--follow/--no-follow", "-f", show_default=False, help="Go on until the job ends.")] = False,
) -> Result:
    """What happened in a job, a line an event, oldest first."""
    from master.cli import watch as watching

    console = here()
    with open_master(FOLLOW if follow else 3.0) as https:
        found: dict[str, Any] = https.call("GET", where("jobs", find(https, job)))
        if follow:
            show_event = lambda event, _: console.terminal.row(event, watching.line_of(event))  # noqa: E731
            deadline = watching.wait_seconds(console, https.clock, found["id"])
            watching.until_end(https, found, deadline, show_event)
            return Result({"job": found["id"]})
        events = list(watching.past(https, found["id"]))
    return Result(events, [watching.line_of(event) for event in events])


# -- shared ------------------------------------------------------------------------------------------------------------


def find(https: Any, job: str | None) -> str:
    """The job that is meant: named, else the newest that is open, else the newest.

    :raises NotFound: there is none at all.
    """
    if job is not None:
        return job
    jobs: list[dict[str, Any]] = https.call("GET", where("jobs"))
    if not jobs:
        raise NotFound("a job should have been started, found none.", hint="Start one: trunkline job start --encoder NAME.")
    still = [one for one in jobs if one["state"] in OPEN_JOBS]
    return str((still or jobs)[-1]["id"])


def _ended(https: Any, job: dict[str, Any], *, events: bool = True) -> Result:
    """Follow a job to its end, and say what became of it."""
    from master.cli import watch as watching

    console = here()
    with watching.picture(console, job) as draw:

        def seen(event: Any, progress: Any) -> None:
            draw(event, progress)
            if events:
                console.terminal.row(event)

        deadline = watching.wait_seconds(console, https.clock, job["id"])
        progress = watching.until_end(https, job, deadline, seen)
    found: dict[str, Any] = https.call("GET", where("jobs", job["id"]))
    split = "test" if progress.scores("test") else "validation"
    scores = {f"{task} ({split})": score for task, score in progress.scores(split).items()}
    shown = [*lines(found), "", *pairs(scores, exact=True)]
    return Result(found | {"progress": progress.table()}, shown, error=watching.verdict(found))


def _move(job: str, action: str, reason: str | None) -> Result:
    body = None if reason is None else json.dumps({"reason": reason})
    with open_master() as https:
        moved: dict[str, Any] = https.call("POST", where("jobs", job, action), body)
    return Result(moved, [f"{moved['id']}  {moved['state']}"])


def lines(job: dict[str, Any]) -> list[str]:
    """The answer of `GET /v1/admin/jobs/JOB`, as `trunkline job show` prints it."""
    spec = job["spec"]
    about = {
        "job": job["id"],
        "encoder": job["encoder"],
        "state": job["state"],
        "reason": job["reason"],
        "started": moment(job["created"]),
        "took": span(job["ended"] - job["created"]) if job["ended"] else None,
        "asked by": job["requested_by"] or "the admin",
        "rounds": spec["rounds"],
        "rule": spec["rule"],
        "codec": spec["codec"],
        "steps": spec["training"]["steps"],
    }
    if job.get("hurt"):
        losses = ", ".join(f"{one['task']} {one['gain']:+.3f} {one['metric']}" for one in job["hurt"])
        about["hurt by sharing"] = f"{losses}; see trunkline encoder conflicts {job['encoder']}"
    rounds = [round_row(one) for one in job["rounds"]]
    return [*pairs(about), "", *table(rounds, ("round", "state", "version", "opened", "seconds", "reason"), "no round yet")]


def round_row(one: dict[str, Any]) -> dict[str, Any]:
    """A round in a table."""
    seconds = round(one["closed"] - one["opened"], 1) if one["closed"] is not None else None
    return {**one, "round": one["number"], "opened": moment(one["opened"]), "seconds": seconds}
