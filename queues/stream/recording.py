"""Writing the record of what was applied: a step before the store makes it, and cut off again where the store did not."""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from queues.stream.record import Entry, Record, first_of, frames
from trunkline.files import discard, storage, sync_folder, write_all

SEGMENTS = 16
"""Parts that the record has when it is full: the oldest of them goes at once."""

SEGMENT_LEAST = 1 << 20
"""Bytes of a part at least."""


class RecordWriter(Record):
    """The record of one stream, in a folder, to be written; one process does.

    :param most: bytes that are kept, about; 0: nothing is written.
    :raises StorageFailed: the folder cannot be written.
    """

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__(folder)
        self._most = most
        self._handle: int | None = None
        self._size = self._before = 0
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.parts:
            self._cut_torn(self.parts[-1])

    def append(self, entries: Sequence[Entry]) -> None:
        """Write what a step is about to apply.

        :raises StorageFailed: the disk refused; nothing was written.
        """
        if not self._most:
            return
        with storage(self.folder):
            handle = self._open(entries[0].step)
            data = b"".join(entry.encode() for entry in entries)
            try:
                write_all(handle, data)
            except OSError:
                os.ftruncate(handle, self._size)
                raise
            self._before, self._size = self._size, self._size + len(data)

    def cut(self, step: int) -> int:
        """Forget what was not applied after all: everything beyond a step; return how many entries."""
        self._close()
        gone = 0
        for part in reversed(self.parts):
            kept = 0
            for end, entry in frames(part, last=True):
                if entry.step <= step:
                    kept = end
                else:
                    gone += 1
            with storage(part):
                if kept:
                    os.truncate(part, kept)
                    break
                discard(part)
        return gone

    def undo(self) -> None:
        """Forget what was written last: the store did not move."""
        if self._handle is not None:
            with storage(self.folder):
                os.ftruncate(self._handle, self._before)
            self._size = self._before

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        if self._handle is not None:
            with storage(self.folder):
                os.fsync(self._handle)

    def prune(self, covered: int) -> None:
        """Let the oldest parts go while all are too large together, but nothing beyond a step."""
        parts = self.parts
        total = sum(part.stat().st_size for part in parts)
        for part, following in pairwise(parts):
            if total <= self._most or first_of(following) > covered:
                return
            total -= part.stat().st_size
            discard(part)

    def close(self) -> None:
        """Close the file; what was written is on the disk."""
        self.sync()
        self._close()

    def _open(self, step: int) -> int:
        if self._handle is not None and self._size >= max(SEGMENT_LEAST, self._most // SEGMENTS):
            self.sync()
            self._close()
            path = self.folder / f"{step:020d}.log"
        else:
            parts = self.parts
            path = parts[-1] if parts else self.folder / f"{step:020d}.log"
        if self._handle is None:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = self._before = os.fstat(self._handle).st_size
            sync_folder(self.folder)
        return self._handle

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _cut_torn(self, part: Path) -> None:
        """The end of what was being written when the power went."""
        end = max((end for end, _ in frames(part, last=True)), default=0)
        with storage(part):
            if part.stat().st_size > end:
                os.truncate(part, end)
