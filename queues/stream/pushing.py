"""A file of samples on its way to the server of a stream, in pieces, as both command lines push it. No torch here."""

import csv
import json
import os
import random
import secrets
import select
import sys
from collections.abc import Iterator
from pathlib import Path

from queues.stream.asking import Ask
from trunkline.clock import Clock, Deadline
from trunkline.errors import SampleError, TrunklineError, UsageError
from trunkline.retry import persist
from trunkline.terminal import Result

LINES = 1000
"""Of one push: what one script on the server of the queues takes at once."""

BYTES = 8 << 20
"""Of one push, unless a line has more."""

LINE_LIMIT = 32 << 20
"""Bytes of a line on standard input at most; the server has a limit of its own."""

QUIET_SECONDS = 0.5
"""That standard input may be quiet before what came is pushed."""


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
        if not body.strip():
            continue
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


def _lines(file: str) -> Iterator[bytes | None]:
    """Lines of JSON, one for each of the file, so that numbers of lines are the file's own; None where no more come for now."""
    if file == "-":
        yield from _flowing(sys.stdin.fileno())
        return
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"`FILE` should be a file of samples, or - for standard input, found none at {file}.")
    form = {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower())
    if form is not None:
        yield from _cells(path, form)
        return
    with path.open("rb") as opened:
        for line in opened:
            yield line if line.endswith(b"\n") else line + b"\n"


def _flowing(handle: int) -> Iterator[bytes | None]:
    """Lines of what may stay open all day. What came is not kept waiting for what has not."""
    rest = b""
    while True:
        if not select.select([handle], [], [], QUIET_SECONDS)[0]:
            yield None
            continue
        more = os.read(handle, 1 << 16)
        if not more:
            break
        *lines, rest = (rest + more).split(b"\n")
        if len(rest) > LINE_LIMIT:
            raise SampleError(f"a line on standard input should have at most {LINE_LIMIT} bytes, found more.")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest + b"\n"


def _cells(path: Path, delimiter: str) -> Iterator[bytes]:
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


def _pieces(lines: Iterator[bytes | None]) -> Iterator[tuple[int, bytes]]:
    """Lines in bodies of a size that a server takes, each with the number of its first line."""
    number, piece, size, first = 1, list[bytes](), 0, 1
    for line in lines:
        if piece and (line is None or len(piece) == LINES or size + len(line) > BYTES):
            yield first, b"".join(piece)
            piece, size, first = [], 0, number
        if line is not None:
            piece.append(line)
            size, number = size + len(line), number + line.count(b"\n")
    if piece:
        yield first, b"".join(piece)
