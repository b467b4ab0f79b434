"""What both command lines ask the server of a stream, and how they show its answers. No torch, and no command line, here."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from trunkline.clock import Clock, Deadline
from trunkline.errors import Conflict, FailedError, Reason, RefusedValue, UsageError
from trunkline.files import replacing, storage, write_all
from trunkline.terminal import Result, Terminal, cell, moment, pairs, span, table

REPLAY_SECONDS = 24 * 3600.0
"""That a replay may take."""


class Ask(Protocol):
    """A call to the server of a stream, however it is reached."""

    def __call__(self, method: str, path: str, body: bytes | str | None = None, **query: Any) -> Any:
        """The JSON that it answers. `path` is what comes after `/v1/`.

        :raises TrunklineError: what it said.
        """
        ...


# -- queues ------------------------------------------------------------------------------------------------------------


def peek(ask: Ask, task: str, most: int) -> Result:
    """The samples that wait, oldest first."""
    found = ask("GET", f"queues/{task}/samples", most=most)
    rows = [{**one, "input": one.get("inputs") or one.get("problem")} for one in found]
    return Result(found, table(rows, ("label", "numbers", "input"), "none wait"))


COLUMNS = ("task", "state", "waiting", "oldest", "in/s", "applied/s", "pushed", "applied", "out", "dead")


def stats(ask: Ask, task: str | None) -> Result:
    """One queue, or all."""
    found = [ask("GET", f"queues/{task}")] if task else ask("GET", "queues")
    lines = table([shown(one) for one in found], COLUMNS)
    if task:
        lines += ["", *pairs(found[0]["settings"], exact=True)]
    return Result(found, lines)


def shown(one: dict[str, Any]) -> dict[str, Any]:
    """A queue as a row of a table."""
    return {
        **one,
        "oldest": span(one["oldest_seconds"]) if one["waiting"] else None,
        "in/s": f"{one['pushed_a_second']:.1f}",
        "applied/s": f"{one['applied_a_second']:.1f}",
        "out": one["leased"] + one["submitted"],
    }


def set_state(ask: Ask, task: str, state: str) -> Result:
    """Open, pause, drain or stop a queue."""
    found = ask("POST", f"queues/{task}/state", json.dumps({"state": state}))
    return Result(found, [f"{task} is {found['state']}; {found['waiting']} wait"])


def change(ask: Ask, task: str, settings: dict[str, Any]) -> Result:
    """Change settings of a queue.

    :raises UsageError: nothing was said.
    """
    said = {key: value for key, value in settings.items() if value is not None}
    if not said:
        raise UsageError("a setting should be said, found none.", hint="For example --weight 2; see --help.")
    found = ask("PATCH", f"queues/{task}", json.dumps({"settings": said}))
    return Result(found, pairs(found["settings"], exact=True))


# -- dead batches ------------------------------------------------------------------------------------------------------


def dead(ask: Ask, task: str, most: int) -> Result:
    """Batches that were put aside, with the reason."""
    found = ask("GET", f"queues/{task}/dead", most=most)
    rows = [{**one, "first": _first(one)} for one in found]
    return Result(found, table(rows, ("batch", "size", "attempt", "reason", "first"), "none"))


def _first(batch: dict[str, Any]) -> str:
    samples: Sequence[dict[str, Any]] = batch["samples"]
    return cell(samples[0].get("inputs") or samples[0].get("problem"))[:60] if samples else ""


def retry(ask: Ask, task: str, batches: Sequence[str]) -> Result:
    """Give dead batches all their attempts again."""
    found = ask("POST", f"queues/{task}/dead/retry", _chosen(batches))
    return Result(found, [f"{found['batches']} batches are tried again"])


def purge(ask: Ask, task: str, batches: Sequence[str]) -> Result:
    """Give up the samples of dead batches."""
    found = ask("POST", f"queues/{task}/dead/purge", _chosen(batches))
    return Result(found, [f"{found['samples']} samples were given up"])


def _chosen(batches: Sequence[str]) -> str:
    return json.dumps({"batches": list(batches) or None})


# -- the whole ---------------------------------------------------------------------------------------------------------


def status_lines(found: dict[str, Any]) -> list[str]:
    """The server of a stream, its store, its queues."""
    about = {key: found[key] for key in ("stream", "encoder", "pid", "incarnation", "redis")}
    store = found["store"] or {}
    about |= {key: store[key] for key in ("step", "checkpoint", "mode", "staleness", "came_back", "trouble") if store.get(key)}
    rows = [_row(one, found) for one in found["queues"]]
    refused = [{**one, "at": moment(one["at"])} for one in store.get("refused", ())][-5:]
    columns = ("at", "task", "batch", "attempt", "worker", "reason")
    lines = [*pairs(about), "", *table(rows, WATCHED), *conflict_lines(store.get("conflicts") or {})]
    return [*lines, *(["", "refused:", *table(refused, columns)] if refused else [])]


def conflict_lines(found: dict[str, Any]) -> list[str]:
    """How the tasks' gradients go together, and what was alarming; nothing where nothing is known."""
    rows = [
        {"tasks": f"{one['one']}, {one['other']}", **one, "cosine": f"{one['cosine']:+.2f}"} for one in found.get("cosines", ())
    ]
    head = "gradients of the tasks:" if found.get("exact") else "gradients of the tasks (estimated):"
    alarms = [f"alarm at step {one['step']}: {one['message']}" for one in found.get("alarms", ())][-5:]
    return [*(["", head, *table(rows, ("tasks", "cosine", "step"))] if rows else []), *(["", *alarms] if alarms else [])]


WATCHED = ("task", "state", "waiting", "oldest", "in/s", "updates", "stale", "loss", "score", "dead")


def _row(one: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A queue, and what its task learned."""
    scores = {score["task"]: f"{score['metric']} {score['value']:.3f}" for score in found["scores"]}
    task = ((found["store"] or {}).get("tasks") or {}).get(one["task"], {})
    learned = {"updates": task.get("batches"), "stale": task.get("staleness"), "loss": task.get("loss")}
    return {**shown(one), **learned, "score": scores.get(one["task"])}


def lineage(ask: Ask, most: int, step: int | None = None, batch: str | None = None) -> Result:
    """What was applied, newest first."""
    found = ask("GET", "lineage", most=most, step=step, batch=batch)
    return Result(found, lineage_lines(found))


def lineage_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Steps of a stream, for people; those that a round made have its name."""
    rows = [{**one, "at": moment(one["at"]), "queue": one["task"] or "(a round)"} for one in found]
    columns = ("step", "queue", "batch", "samples", "attempt", "base", "staleness", "loss", "worker", "at")
    return table(rows, columns, "nothing was applied yet")


def replay(ask: Ask, start: int | None, threads: int | None) -> Result:
    """Compute the parameters anew; a difference is an error."""
    found = ask("POST", "replay", json.dumps({"start": start, "threads": threads}))
    about = {
        "steps": f"{found['start']} to {found['step']}",
        "batches": found["batches"],
        "digest": found["digest"],
        "of the store": found["kept"],
        "the same": found["same"],
    }
    if found["same"] is not False:
        return Result(found, pairs(about))
    first = f"the losses differ from step {found['differs']} on" if found["differs"] else "no loss differs"
    error = FailedError(
        f"the replay should come to the store's parameters, found others; {first}.",
        hint="Workers with another number of threads, or another kind of processor, compute other bits: try --threads.",
    )
    return Result(found, pairs(about), error=error)


def snapshot(fetch: Callable[[str], AbstractContextManager[Any]], out: Path) -> Result:
    """The shared parameters as they are now, in a new file.

    :raises Conflict: the file is there.
    :raises RefusedValue: what came is not what was sent.
    """
    if out.exists():
        raise Conflict(f"`--out` should be a new file, found {out} there.")
    with fetch("snapshot") as answer:
        step, digest = int(answer.headers["x-trunkline-step"]), answer.headers["x-trunkline-digest"]
        size, found = 0, hashlib.sha256()
        with storage(out), replacing(out) as handle:
            for chunk in answer.chunks:
                write_all(handle, chunk)
                found.update(chunk)
                size += len(chunk)
            if found.hexdigest() != digest:
                raise RefusedValue(
                    Reason.DIGEST, f"a snapshot should have the digest {digest[:12]}, found {found.hexdigest()[:12]}."
                )
    return Result({"step": step, "digest": digest, "size": size, "out": str(out.absolute())}, [f"step {step} is in {out}"])


def watch(ask: Ask, every: float, clock: Clock, deadline: Deadline | None, terminal: Terminal) -> Result:
    """Show how a stream is, again and again: a live table on a terminal; lines of JSON where those are asked for.

    :param every: seconds between two looks.
    :param deadline: None: the caller is stopped.
    """
    found: dict[str, Any] = {}
    with terminal.panel() if terminal.live else nullcontext() as show:
        while True:
            found = ask("GET", "status")
            if show is not None:
                show(panel(found))
            terminal.row(found)
            if deadline is not None and deadline.over():
                break
            clock.sleep(every if deadline is None else min(every, deadline.left()))
    return Result(None if terminal.form == "jsonl" else found, [] if show is not None else panel(found))


def panel(found: dict[str, Any]) -> list[str]:
    """How a stream is, in a few lines."""
    store = found["store"] or {}
    head = {
        "stream": found["stream"],
        "step": store.get("step"),
        "staleness": store.get("staleness"),
        "trouble": store.get("trouble"),
    }
    lines = pairs({key: value for key, value in head.items() if value not in (None, {})})
    return [*lines, "", *table([_row(one, found) for one in found["queues"]], WATCHED)]
