"""Following a job: its events as they come, and a live picture of them on standard error."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from master.cli.base import where
from master.cli.progress import Event, Progress
from master.states import ENDED_JOBS
from trunkline.clock import Clock, Deadline
from trunkline.console import Console
from trunkline.errors import FailedError
from trunkline.terminal import amount, cell, moment, span

if TYPE_CHECKING:
    from trunkline.https import Https

POLL_SECONDS = 20.0
"""How long one call is held open by the master."""


def follow(https: "Https", job: str, after: int, deadline: Deadline | None, poll: float = POLL_SECONDS) -> Iterator[Event]:
    """The events of a job after one of them, as they come. Endless: the caller stops, or the deadline does.

    :param deadline: None: no limit.
    :raises DeadlineExceeded: nothing is left of it.
    """
    while True:
        wait = poll if deadline is None else min(poll, deadline.left())
        query = {"job": job, "after": after, "wait": wait}
        told = https.call("GET", where("events"), query=query, answer_seconds=wait + 30.0)
        yield from told["events"]
        after = told["last"]
        if deadline is not None and not told["events"]:
            deadline.check()


def past(https: "Https", job: str) -> Iterator[Event]:
    """The events of a job so far."""
    after = 0
    while True:
        told = https.call("GET", where("events"), query={"job": job, "after": after, "limit": 5_000})
        yield from told["events"]
        if not told["events"]:
            return
        after = told["last"]


def until_end(
    https: "Https",
    job: Mapping[str, Any],
    deadline: Deadline | None,
    seen: Callable[[Event, Progress], None],
    poll: float = POLL_SECONDS,
) -> Progress:
    """Follow a job from its first event to its end.

    :param seen: is told of each event, and how things stand after it.
    :raises DeadlineExceeded: it did not end in time; it goes on.
    """
    progress = Progress(rounds=job["spec"]["rounds"])
    ended = job["state"] in ENDED_JOBS
    for event in past(https, job["id"]) if ended else follow(https, job["id"], 0, deadline, poll):
        progress.take(event)
        seen(event, progress)
        if progress.ended and not ended:
            break
    return progress


def wait_seconds(console: Console, clock: Clock, job: str) -> Deadline | None:
    """The limit that `--timeout` sets."""
    limit = console.timeout
    return None if limit is None else Deadline(clock, limit, f"job {job} to end; it goes on")


def verdict(job: Mapping[str, Any]) -> FailedError | None:
    """What a job that ended badly is called."""
    if job["state"] == "finished":
        return None
    reason = job["reason"] or "no reason was given"
    return FailedError(f"job {job['id']!r} should have finished, found it {job['state']}: {reason.rstrip('.')}.")


# -- pictures ----------------------------------------------------------------------------------------------------------


@contextmanager
def picture(console: Console, job: Mapping[str, Any]) -> Iterator[Callable[[Event, Progress], None]]:
    """What shows a job's progress on standard error: a live panel on a terminal, else a line an event."""
    if console.terminal.live:
        with console.terminal.panel() as show:
            yield lambda event, progress: show(panel(job, progress))
    else:
        yield lambda event, progress: console.note(line_of(event)) if event["kind"] in TOLD else None


TOLD = frozenset(
    {f"job.{word}" for word in ("started", "paused", "waiting", "finished", "failed", "aborted")}
    | {f"round.{word}" for word in ("opened", "members", "published", "closed", "skipped")}
    | {"update.accepted", "update.refused", "report.refused", "task.hurt"}
)
"""Kinds of events that are a line for people; the others are for `job logs`."""


def line_of(event: Event) -> str:
    """An event in a line."""
    parts = [moment(event["at"]), event["kind"]]
    if event["round"] is not None:
        parts.append(f"round {event['round']}")
    if event["child"] is not None:
        parts.append(str(event["child"]))
    return "  ".join([*parts, *(f"{key}={_short(key, value)}" for key, value in event["data"].items() if value not in (None, ""))])


def _short(key: str, value: Any) -> str:
    if key in ("digest", "base") and isinstance(value, str):
        return value[:12]
    if key in ("size", "bytes") and isinstance(value, int):
        return amount(value).replace(" ", "")
    if key == "report" and isinstance(value, Mapping):
        return " ".join(f"{one['task']}/{one['split']}:{cell(one['value'])}" for one in value["scores"])
    return cell(value)


def panel(job: Mapping[str, Any], progress: Progress) -> list[str]:
    """How a job stands, in a few lines; what matters fits 40 columns."""
    done = progress.fused / progress.rounds if progress.rounds else 0.0
    bar = "█" * round(30 * done) + "░" * (30 - round(30 * done))
    left = progress.left()
    lines = [
        f"job {job['id']}  encoder {job['encoder']}",
        bar,
        f"state      {progress.state}{': ' + progress.reason if progress.reason else ''}",
        f"round      {progress.number} of {progress.rounds}, {progress.phase}",
        f"children   {_children(progress)}",
        f"bytes      {amount(progress.down)} down, {amount(progress.up)} up",
    ]
    if not progress.ended:
        lines.append(f"time left  {'-' if left is None else span(left)}")
    for split in ("validation", "test"):
        scores = progress.scores(split)
        if scores:
            lines.append(
                f"{split:10} {', '.join(f'{task} {value:.3f}' for task, value in scores.items())} (round {progress.scored})"
            )
    if progress.hurt:
        losses = ", ".join(f"{task} {gain:+.3f}" for task, gain in sorted(progress.hurt.items()))
        lines.append(f"hurt       {losses}: trunkline encoder conflicts {job['encoder']}")
    return lines


def _children(progress: Progress) -> str:
    refused = ", ".join(f"{child}: {reason}" for child, reason in sorted(progress.refused.items()))
    about = (
        f"{len(progress.confirmed)} confirmed"
        if not progress.members
        else f"{len(progress.updates)} of {len(progress.members)} updates"
    )
    return f"{about}{', refused ' + refused if refused else ''}"
