"""Which batches changed the parameters, and at which step: a line each, appended before the step happens.

A line beyond the step that a store has is of a step that never happened. The file survives a killed process as the map does; what a
power cut leaves of it is not read: each checkpoint has a list of its own.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trunkline.errors import DamagedFile
from trunkline.files import replacing, storage, write_all

REMEMBERED = 1 << 13
"""Batches that are not forgotten though a checkpoint covers them: a queue set back to an older copy gives them out again."""


class Applied:
    """The list of one store.

    :param batches: batch -> step.
    :param rounds: name of a round -> step; never forgotten, they are few.
    :raises StorageFailed: the disk refused.
    """

    def __init__(self, path: Path, batches: Mapping[str, int], rounds: Mapping[str, int]) -> None:
        self.path = path
        self.batches = dict(sorted(batches.items(), key=lambda item: item[1]))  # the oldest first
        self.rounds = dict(rounds)
        self._handle = -1
        self._rewrite()

    @staticmethod
    def load(path: Path, step: int) -> tuple[dict[str, int], dict[str, int]]:
        """Batches and rounds up to a step.

        :raises DamagedFile: a line other than the last is none, or there is no file.
        """
        found: dict[str, dict[str, int]] = {"batch": {}, "round": {}}
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise DamagedFile(f"`{path}` should be the list of what was applied, found no such file.") from None
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            if entry is not None and entry[0] <= step:
                found[entry[1]][entry[2]] = entry[0]
            elif entry is None and number < len(lines):
                raise DamagedFile(f"`{path}` should be the list of what was applied, found something else in line {number}.")
        return found["batch"], found["round"]

    def append(self, step: int, batches: Sequence[str], rounds: Sequence[str] = ()) -> None:
        """Write down what a step is made of, before it happens.

        :raises StorageFailed: the disk refused; the file is as it was.
        """
        lines = b"".join(_line(step, kind, name) for kind, names in (("batch", batches), ("round", rounds)) for name in names)
        size = os.fstat(self._handle).st_size
        with storage(self.path):
            try:
                write_all(self._handle, lines)
            except OSError:
                os.truncate(self._handle, size)
                raise
        self.batches |= dict.fromkeys(batches, step)
        self.rounds |= dict.fromkeys(rounds, step)

    def forget(self, step: int) -> None:
        """Leave out batches up to a step, but for the newest ones."""
        old = len(self.batches) - REMEMBERED
        kept = {name: at for number, (name, at) in enumerate(self.batches.items()) if at > step or number >= old}
        if len(kept) < len(self.batches):
            self.batches = kept
            self._rewrite()

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            os.close(self._handle)

    def _rewrite(self) -> None:
        lines = [_line(step, "batch", name) for name, step in self.batches.items()]
        lines += [_line(step, "round", name) for name, step in self.rounds.items()]
        with storage(self.path):
            with replacing(self.path, mode=0o600, durable=False) as handle:
                write_all(handle, b"".join(lines))
            before, self._handle = self._handle, os.open(self.path, os.O_WRONLY | os.O_APPEND)
        if before >= 0:
            os.close(before)


def _line(step: int, kind: str, name: str) -> bytes:
    text = json.dumps([step, kind, name]).encode()
    return text + b" %08x\n" % zlib.crc32(text)


def _entry(line: bytes) -> tuple[int, str, str] | None:
    text, _, check = line.rpartition(b" ")
    if check != b"%08x" % zlib.crc32(text):
        return None
    try:
        step, kind, name = json.loads(text)
    except ValueError:
        return None
    good = type(step) is int and kind in ("batch", "round") and isinstance(name, str)
    return (step, kind, name) if good else None
