"""What both command lines ask the server of a stream, and how they show its answers. No torch, and no command line, here."""

import csv
import json
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from trunkline.clock import Clock, Deadline
from trunkline.errors import SampleError, TrunklineError, UsageError
from trunkline.retry import persist
from trunkline.terminal import Result, Terminal, cell, moment, pairs, span, table

LINES = 1000
"""Of one push: what one script on the server of the queues takes at once."""

BYTES = 8 << 20
"""Of one push, unless a line has more."""


class Ask(Protocol):
    """A call to the server of a stream, however it is reached."""

    def __call__(self, method: str, path: str, body: bytes | str | None = None, **query: Any) -> Any:
        """The JSON that it answers. `path` is what comes after `/v1/`.

        :raises TrunklineError: what it said.
        """
        ...


# -- samples -----------------------------------------------------------------------------------------------------------


def push(ask: Ask, task: str, file: str, *, producer: str | None, first: int, clock: Clock, seconds: float) -> Result:
    """Push all lines of a file. Where the queue has no room, it is tried again for a while.

    :param file: JSON Lines, CSV or TSV; `-`: JSON Lines on standard input.
    :param producer: None: a new name, so that a push whose answer was lost does no harm when it is sent again.
    :param first: the number of the file's first sample at the producer.
    :param seconds: that a queue without room is waited for, each time.
    :raises SampleError: a line is wrong; what came before it was pushed, and the message says how much.
    """
    name, done, waiting = producer or f"cli-{secrets.token_hex(6)}", 0, {}
    for line, body in _pieces(_lines(file)):
        query = {"producer": name, "first": first + done, "line": line}
        try:
            told = persist(
                lambda body=body, query=query: ask("POST", f"queues/{task}/samples", body, **query),
                Deadline(clock, seconds, "room in the queue"),
                random.Random(),  # noqa: S311 - jitter
                most=1.0,
            )
        except TrunklineError as error:
            if done:
                error.message += f" {done} samples before line {line} were pushed."
                again = f"To push the file again without them twice: --producer {name}" + (f" --first {first}" if first > 1 else "")
                error.hint = f"{error.hint} {again}." if error.hint else f"{again}."
            raise
        done, waiting = done + told["samples"], told["waiting"]
    data = {"task": task, "samples": done, "waiting": waiting, "producer": name, "next": first + done}
    depth = ", ".join(f"{one} {count}" for one, count in waiting.items())
    return Result(data, [f"{done} samples pushed" + (f"; waiting: {depth}" if depth else "")])


@contextmanager
def _open(file: str) -> Iterator[Any]:
    if file == "-":
        yield sys.stdin.buffer
        return
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"`FILE` should be a file of samples, or - for standard input, found none at {file}.")
    with path.open("rb") as opened:
        yield opened


def _lines(file: str) -> Iterator[bytes]:
    """Lines of JSON, one for each line of the file, so that numbers of lines are the file's own."""
    form = {".csv": ",", ".tsv": "\t"}.get(Path(file).suffix.lower())
    if form is not None:
        yield from _cells(Path(file), form)
        return
    with _open(file) as opened:
        for line in opened:
            yield line if line.endswith(b"\n") else line + b"\n"


def _cells(path: Path, delimiter: str) -> Iterator[bytes]:
    if not path.is_file():
        raise UsageError(f"`FILE` should be a file of samples, found none at {path}.")
    with path.open(encoding="utf-8-sig", newline="") as opened:
        reader = csv.DictReader(opened, delimiter=delimiter, strict=True)
        try:
            yield b"\n"  # the names of the columns
            before = reader.line_num or 1
            for row in reader:
                if None in row:
                    raise SampleError(f"`{path}`, line {reader.line_num}: should have as many cells as the first line, found more.")
                yield b"\n" * (reader.line_num - before - 1) + json.dumps(row, ensure_ascii=False).encode() + b"\n"
                before = reader.line_num
        except (csv.Error, UnicodeDecodeError) as error:
            raise SampleError(f"`{path}`, line {reader.line_num}: should be a row of cells, found: {error}.") from None


def _pieces(lines: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines in bodies of a size that a server takes, each with the number of its first line."""
    number, piece, size, first = 1, list[bytes](), 0, 1
    for line in lines:
        if piece and (len(piece) == LINES or size + len(line) > BYTES):
            yield first, b"".join(piece)
            piece, size, first = [], 0, number
        piece.append(line)
        size, number = size + len(line), number + line.count(b"\n")
    if any(line.strip() for line in piece):
        yield first, b"".join(piece)


def peek(ask: Ask, task: str, most: int) -> Result:
    """The samples that wait, oldest first."""
    found = ask("GET", f"queues/{task}/samples", most=most)
    rows = [{**one, "input": one.get("inputs") or one.get("problem")} for one in found]
    return Result(found, table(rows, ("label", "numbers", "input"), "none wait"))


# -- queues ------------------------------------------------------------------------------------------------------------

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
    rows = [_row(one, found, {}) for one in found["queues"]]
    refused = [{**one, "at": moment(one["at"])} for one in store.get("refused", ())][-5:]
    columns = ("at", "task", "batch", "attempt", "worker", "reason")
    return [*pairs(about), "", *table(rows, WATCHED), *(["", "refused:", *table(refused, columns)] if refused else [])]


WATCHED = ("task", "state", "waiting", "oldest", "in/s", "applied/s", "updates", "loss", "score", "out", "dead")


def _row(one: dict[str, Any], found: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    """A queue, and what its task learned."""
    task = ((found["store"] or {}).get("tasks") or {}).get(one["task"], {})
    return {**shown(one), "updates": task.get("batches"), "loss": task.get("loss"), "score": scores.get(one["task"])}


def watch(ask: Ask, every: float, clock: Clock, deadline: Deadline | None, terminal: Terminal) -> Result:
    """Show how a stream is, again and again: a live table on a terminal; lines of JSON where those are asked for.

    :param every: seconds between two looks.
    :param deadline: None: the caller is stopped.
    """
    found: dict[str, Any] = {}
    with terminal.panel() if terminal.live else nullcontext() as show:
        while True:
            found = ask("GET", "status") | {"scores": ask("GET", "scores", most=1000)}
            if show is not None:
                show(panel(found))
            terminal.row(found)
            if deadline is not None and deadline.over():
                break
            clock.sleep(every if deadline is None else min(every, deadline.left()))
    return Result(None if terminal.form == "jsonl" else found, [] if show is not None else panel(found))


def panel(found: dict[str, Any]) -> list[str]:
    """How a stream is, in a few lines."""
    scores = {one["task"]: f"{one['metric']} {one['value']:.3f}" for one in found["scores"]}  # the newest comes last
    store = found["store"] or {}
    head = {
        "stream": found["stream"],
        "step": store.get("step"),
        "staleness": store.get("staleness"),
        "trouble": store.get("trouble"),
    }
    lines = pairs({key: value for key, value in head.items() if value not in (None, {})})
    return [*lines, "", *table([_row(one, found, scores) for one in found["queues"]], WATCHED)]
