"""`trunkline stream`: streams of samples that train an encoder on the master's machine."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from master.cli.base import noun, open_master, verb, where
from trunkline.console import here
from trunkline.errors import FailedError, UsageError
from trunkline.terminal import Result, moment, pairs, table

app = noun("Streams: samples that arrive all day train an encoder and its heads.")

Name = Annotated[str, Argument(metavar="NAME", help="The stream's name.")]
Wait = Annotated[bool, Option("--wait/--no-wait", help="Whether to stay until its server answers.")]

START_SECONDS = 120.0
"""That a server may take to answer, where `--timeout` does not say."""

ANSWER_SECONDS = 600.0
"""That writing, or reading, the parameters may take."""

LOOK = 0.3


@verb(app)
def create(
    name: Name,
    file: Annotated[Path, Option("--file", metavar="STREAM.TOML", help="Its declaration.")],
    encoder: Annotated[str | None, Option(metavar="NAME", help="The encoder that it trains; counts more than the file.")] = None,
    version: Annotated[int | None, Option("--version", metavar="N", help="That it begins with; without it the newest.")] = None,
    redis: Annotated[str | None, Option(metavar="URL", help="A Redis of your own: redis://, rediss:// or unix://.")] = None,
    broker: Annotated[str | None, Option(metavar="URL", help="Of Celery, where it should be another Redis.")] = None,
    module: Annotated[
        list[str] | None, Option(metavar="FILE.py", help="Your own code, on the master's machine; may be repeated.")
    ] = None,
    wait: Wait = True,
) -> Result:
    """Make a stream from its declaration and an encoder of the master, and start its server."""
    from queues.stream.create import declared, heldout

    spec = declared(file, {"name": name, "encoder": encoder})
    rows = heldout(spec, file.absolute().parent)
    modules = [str(Path(path).expanduser().absolute()) for path in module or ()]
    body = {
        "spec": spec.model_dump(mode="json"),
        "version": version,
        "heldout": rows,
        "modules": modules,
        "redis": redis,
        "broker": broker,
    }
    with open_master() as https:
        made: dict[str, Any] = https.call("POST", where("streams"), json.dumps(body), retry=False)
        if wait:
            made = _until_runs(https, name)
    return Result(made, [f"{name}  encoder {made['encoder']}  {', '.join(made['tasks'])}  {made['state']}"])


def _until_runs(https: Any, name: str) -> dict[str, Any]:
    """Stay until the server answers.

    :raises FailedError: it ended; says why.
    :raises DeadlineExceeded: it took too long; it goes on.
    """
    from trunkline.clock import Deadline, SystemClock

    clock = SystemClock()
    seconds = here().timeout or START_SECONDS
    deadline = Deadline(clock, seconds, f"the server of stream {name!r} to answer; it goes on")
    hint = f"It is tried again. `trunkline stream show {name}` tells how it is, `remove` gives it up."
    while True:
        found: dict[str, Any] = https.call("GET", where("streams", name))
        if found["state"] == "failed":
            raise FailedError(f"the server of stream {name!r} should stay up, found: {found['reason']}", hint=hint)
        if found["state"] == "running" and found["server"] is not None:
            return found
        deadline.check()
        clock.sleep(LOOK)


@verb(app, "list")
def list_() -> Result:
    """All streams."""
    with open_master() as https:
        found: list[dict[str, Any]] = https.call("GET", where("streams"))
    rows = [{**one, **_sums(one)} for one in found]
    columns = ("name", "encoder", "state", "step", "waiting", "pushed", "applied", "reason")
    return Result(found, table(rows, columns, "none; make one: trunkline stream create"))


def _sums(one: dict[str, Any]) -> dict[str, Any]:
    server = one["server"]
    if server is None:
        return {}
    sums = {key: sum(queue[key] for queue in server["queues"]) for key in ("waiting", "pushed", "applied")}
    return {"step": (server["store"] or {}).get("step"), **sums}


@verb(app)
def show(name: Name) -> Result:
    """One stream: its server, its store, its queues."""
    from queues.stream.asking import status_lines

    with open_master() as https:
        found: dict[str, Any] = https.call("GET", where("streams", name))
    about = {key: found[key] for key in ("name", "encoder", "state", "reason", "folder")}
    return Result(found, [*pairs(about), *(["", *status_lines(found["server"])] if found["server"] else [])])


@verb(app)
def start(
    name: Name,
    accept: Annotated[bool, Option("--accept-loss", help="Go on although its Redis, or its store, was lost or set back.")] = False,
    wait: Wait = True,
) -> Result:
    """Start the server of a stream that was stopped; or of one that failed, at once."""
    with open_master() as https:
        found = https.call("POST", where("streams", name, "start"), json.dumps({"accept": accept}))
        if wait:
            found = _until_runs(https, name)
    return Result(found, [f"{name} is {found['state']}"])


@verb(app)
def stop(name: Name) -> Result:
    """End the server of a stream, until `start`. All that it has stays; nothing is taken meanwhile."""
    with open_master() as https:
        found = https.call("POST", where("streams", name, "stop"), retry=False)
    return Result(found, [f"{name} is {found['state']}"])


@verb(app)
def publish(name: Name) -> Result:
    """Make what the stream has learned the newest version of its encoder, as it is between two batches."""
    with open_master() as https:
        found = https.call("POST", where("streams", name, "publish"), retry=False, answer_seconds=ANSWER_SECONDS)
    about = found["data"]
    if found["kind"] != "snapshot" or about.get("stream") != name:
        return Result(found, [f"version {found['number']} is what the stream has: it has learned nothing since"])
    samples = ", ".join(f"{count} of {task}" for task, count in sorted(about["applied"].items()))
    return Result(found, [f"version {found['number']}  {found['digest'][:12]}  step {about['step']}  samples: {samples}"])


@verb(app)
def merge(name: Name, version: Annotated[int, Argument(metavar="VERSION", help="What a round came to.")]) -> Result:
    """Add what a round came to; once, however often it is said. Rounds since the stream was made are added without it."""
    with open_master() as https:
        body = json.dumps({"version": version})
        found = https.call("POST", where("streams", name, "merge"), body, retry=False, answer_seconds=ANSWER_SECONDS)
    said = "is in" if found["new"] else "was in before, since"
    return Result(found, [f"round {found['name']} (version {version}) {said} step {found['step']}"])


@verb(app)
def remove(name: Name) -> Result:
    """Delete a stream: its samples, its heads, its parameters. Versions that the encoder has stay."""
    here().confirm(f"Delete stream {name!r} with all its samples, heads and parameters?")
    with open_master() as https:
        found = https.call("DELETE", where("streams", name), retry=False)
    return Result(found, [f"{name} removed"])


@verb(app)
def lineage(
    name: Name,
    most: Annotated[int, Option("--most", metavar="N", help="Batches that are shown, the newest.")] = 20,
    step: Annotated[int | None, Option(metavar="N", help="Only what made this step.")] = None,
    batch: Annotated[str | None, Option(metavar="ID", help="Only this batch.")] = None,
) -> Result:
    """What was applied: which batch of which queue made which step, computed on which, and by whom."""
    from master.cli.queue import asked
    from queues.stream import asking

    with asked(name) as ask:
        return asking.lineage(ask, most, step, batch)


@verb(app)
def snapshot(name: Name, out: Annotated[Path, Option("--out", metavar="FILE", help="A new file, safetensors.")]) -> Result:
    """Write the shared parameters as they are now, between two batches, to a file."""
    from queues.stream import asking

    with open_master() as https:
        return asking.snapshot(lambda target: https.talk("GET", where("streams", name, "server", target)), out)


@verb(app)
def replay(
    name: Name,
    start: Annotated[int | None, Option(metavar="STEP", help="Of a checkpoint, or 0; without it the earliest there is.")] = None,
    threads: Annotated[int | None, Option(metavar="N", help="Of torch; as many as the workers had.")] = None,
) -> Result:
    """Compute the parameters of now anew from the record of all batches, and compare them to the bit."""
    from master.cli.queue import asked
    from queues.stream import asking

    with asked(name, answer=asking.REPLAY_SECONDS) as ask:
        return asking.replay(ask, start, threads)


@verb(app, "worker-token")
def worker_token(
    name: Name,
    label: Annotated[str, Option(metavar="LABEL", help="What it is called; the one that had this label opens nothing more.")] = (
        "workers"
    ),
    revoke: Annotated[bool, Option("--revoke", help="Make none: the one of this label opens nothing any more.")] = False,
    list_: Annotated[bool, Option("--list", help="Make none: the labels that there are.")] = False,
) -> Result:
    """A token for workers on other machines, which opens this stream's parameters and nothing else. It is shown once."""
    if revoke and list_:
        raise UsageError("`--revoke` and `--list` should not be given at once, found both.")
    with open_master() as https:
        if list_:
            labels: list[dict[str, Any]] = https.call("GET", where("streams", name, "worker-tokens"))
            rows = [{"label": one["label"], "made": moment(one["made"])} for one in labels]
            return Result(labels, table(rows, ("label", "made"), "none; make one: trunkline stream worker-token"))
        if revoke:
            found = https.call("DELETE", where("streams", name, "worker-tokens", label), retry=False)
            return Result(found, [f"token {label} of {name} is revoked"])
        found = https.call("POST", where("streams", name, "worker-tokens"), json.dumps({"label": label}), retry=False)
    return Result(found, [found["token"]])
