"""The edge of a stream: lines of JSON become packed samples, all of a request or none. Each is read and tokenised once, here.

A line is a row, as a file of the task would have it; or `{"packed": "…"}`, a sample in the form of `tasks.packed`, as base64.
"""

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queues.redis import CHUNK, CHUNK_BYTES
from tasks.packed import Packer
from trunkline.errors import NotFound, SampleError

BODY_LIMIT = 16 << 20
"""Bytes of one request at most."""

LINE_LIMIT = 4 << 20
"""Bytes of one line at most; what a sample of the largest packed form has as text."""

TEXT_LIMIT = 1 << 20
"""Characters of one text at most: tokenising more would keep all others waiting, and an encoder reads its beginning alone."""

SHOWN = 10
"""Lines of a request that an error tells of."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a request."""

    number: int
    row: Row | None  # None: it was packed before
    packed: bytes = b""


class Edge:
    """Packs what is pushed. Any thread may use it.

    :param packers: by task.
    """

    def __init__(self, packers: Mapping[str, Packer]) -> None:
        self._packers = packers
        self._lock = threading.Lock()  # a tokenizer belongs to one thread at a time

    def packed(self, tasks: Sequence[str], body: bytes, line: int = 1) -> dict[str, list[bytes]]:
        """The samples of a request, for each of the tasks that it feeds.

        :param line: number of the first line of the body in the file that it comes from, for messages.
        :raises SampleError: lines are not samples of the tasks; says which, and what is wrong with them. None is packed.
        :raises NotFound: no such task.
        """
        lines = list(parse(body, line))
        if len(lines) > CHUNK:
            raise SampleError(f"a push should have at most {CHUNK} samples, found {len(lines)}.", hint="Push the others next.")
        found = {task: self._of_task(task, lines) for task in tasks}
        for task, samples in found.items():
            if (size := sum(map(len, samples))) > CHUNK_BYTES:
                raise SampleError(f"a push should have at most {CHUNK_BYTES} bytes of samples, found {size} for task {task!r}.")
        return found

    def _of_task(self, task: str, lines: Sequence[Line]) -> list[bytes]:
        packer = self._packer(task)
        with self._lock:
            try:
                return [sample for run in _runs(lines) for sample in _pack(packer, run)]
            except SampleError as error:
                raise _all_of(packer, lines, error) from None

    def shown(self, task: str, sample: bytes) -> dict[str, Any]:
        """A sample for people; one that is none of the task's says why."""
        with self._lock:
            try:
                return self._packer(task).shown(sample)
            except SampleError as error:
                return {"problem": error.message, "bytes": len(sample)}

    def _packer(self, task: str) -> Packer:
        if task not in self._packers:
            raise NotFound(f"`TASK` should be one of {', '.join(self._packers)}, found {task!r}.")
        return self._packers[task]


def parse(body: bytes, first: int = 1) -> Iterator[Line]:
    """The lines of a request; blank ones are left out.

    :raises SampleError: a line is too long, no UTF-8, or no JSON object.
    """
    for number, raw in enumerate(body.split(b"\n"), first):
        if len(raw) > LINE_LIMIT:
            raise _wrong(number, f"should have at most {LINE_LIMIT} bytes, found {len(raw)}")
        if not raw.strip():
            continue
        try:
            row = json.loads(raw.decode())
        except UnicodeDecodeError as error:
            raise _wrong(number, f"should be UTF-8, found another byte at place {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise _wrong(number, f"should be a JSON object, found: {error}") from None
        if not isinstance(row, dict):
            raise _wrong(number, f"should be a JSON object, found {type(row).__name__}")
        if set(row) == {"packed"}:
            yield Line(number, None, _decoded(number, row["packed"]))
        else:
            _check_lengths(number, row)
            yield Line(number, row)


def _decoded(number: int, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise _wrong(number, "should have a sample in base64", "packed") from None


def _check_lengths(number: int, row: Row) -> None:
    for column, value in row.items():
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            raise _wrong(number, f"should have at most {TEXT_LIMIT} characters, found {len(value)}", column)


def _wrong(number: int, what: str, column: str | None = None) -> SampleError:
    place = f", column {column!r}" if column else ""
    return SampleError(f"`stream`, line {number}{place}: {what}.")


def _runs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Lines of one kind whose numbers follow each other: what a packer takes at once."""
    run: list[Line] = []
    for line in lines:
        if run and (line.number != run[-1].number + 1 or (line.row is None) != (run[-1].row is None)):
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _pack(packer: Packer, run: Sequence[Line]) -> list[bytes]:
    if run[0].row is not None:
        return packer.pack([line.row or {} for line in run], run[0].number)
    for line in run:
        try:
            packer.check(line.packed)
        except SampleError as error:
            raise SampleError(f"`stream`, line {line.number}, column 'packed': {error.message}", hint=error.hint) from None
    return [line.packed for line in run]


def _all_of(packer: Packer, lines: Sequence[Line], first: SampleError) -> SampleError:
    """What is wrong with a request, all lines of it."""
    errors: list[SampleError] = []
    for line in lines:
        try:
            _pack(packer, [line])
        except SampleError as error:
            errors.append(error)
    if len(errors) <= 1:
        return first
    said = " ".join(error.message for error in errors[:SHOWN])
    more = f" And {len(errors) - SHOWN} more." if len(errors) > SHOWN else ""
    return SampleError(f"{len(errors)} of {len(lines)} lines should be samples of task {packer.spec.name!r}, found: {said}{more}")
