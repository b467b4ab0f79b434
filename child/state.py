"""What is private to a site and must survive its process: heads, their optimiser state, the data order.

It is kept in two generations. Training in a round writes the *pending* one, keyed (job, round, base digest), together with a note
of the update that was sent; the *committed* one is what it started from. So a repeated initial set finds the pending generation,
sends the same update again and trains nothing; a round that is played again from another base starts from the same heads as the
first time. The pending generation is committed when a later message shows that its round is over.

    generations.json                which generation is which, with checksums, and of which master; replaced whole
    gen-SHA256                      a generation: a parameter set of the site's private tensors
    owed-KEY                        what a lossy codec left out of that generation's update; KEY is of job, round and base
    spare                           one of these that is not needed any more; the next is written over it
    set                             digest of the encoder's parameter set that came last
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trunkline.codecs import Owed, Write
from trunkline.errors import DamagedFile
from trunkline.files import sha256_file, write_atomically
from trunkline.sets import SetFile, SetWriter, write_set
from trunkline.tensors import Array, SetSpec

Key = tuple[str, int, str]
"""Job, round, digest of the base set."""


OF_A_JOB = ("moments", "control")
"""Notes that name the job that some tensors are of."""

SET = "set"
"""The file that names the parameter set that came last."""


@dataclass(frozen=True, slots=True)
class Private:
    """A site's private state for one encoder."""

    tensors: Mapping[str, Array] = field(default_factory=dict)  # `TASK/…`: heads and moments; `@…/…`: of the encoder itself
    notes: Mapping[str, Any] = field(default_factory=dict)  # JSON: data order, what the outputs of heads mean

    def under(self, prefix: str) -> dict[str, Array]:
        """The tensors whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): array for name, array in self.tensors.items() if name.startswith(prefix)}

    def replaced(self, prefix: str, tensors: Mapping[str, Array], **notes: Any) -> "Private":
        """This state with other tensors under a prefix, and notes beside those there are."""
        others = {name: array for name, array in self.tensors.items() if not name.startswith(prefix)}
        return Private(others | {prefix + name: array for name, array in tensors.items()}, {**self.notes, **notes})


@dataclass(frozen=True, slots=True)
class Generation:
    """One saved state, and the update that was sent when it was made."""

    digest: str
    key: Key
    notes: Mapping[str, Any]
    update: Mapping[str, Any]  # the Update message as a table; where heads were settled, on which set
    owed: str | None = None  # the file with what was left out of it


class PrivateStore:
    """Generations of one encoder's private state in a folder of their own.

    :param master: whose jobs they are trained in; None: only to look. Heads go over to another master, what is of a job does not:
        it begins to count its jobs anew, so one of them may be called as one of the last master's.
    """

    def __init__(self, folder: Path, master: str | None = None) -> None:
        self.folder, self._master = folder, master
        self._pointer, self._set, self._spare = folder / "generations.json", folder / SET, folder / "spare"
        self.committed: Generation | None = None
        self.pending: Generation | None = None
        self._read_pointer()

    def load(self) -> Private:
        """The committed state; empty at the very start.

        :raises DamagedFile: its bytes are not what was saved.
        """
        if self.committed is None:
            return Private()
        return self._load(self.committed)

    def newest(self) -> Private:
        """The state after the last training, committed or not: what a prediction should use."""
        generation = self.pending or self.committed
        return Private() if generation is None else self._load(generation)

    def note_set(self, digest: str) -> None:
        """Remember the parameter set of this encoder that came last: what a prediction should use."""
        write_atomically(self._set, digest.encode("ascii"))

    def last_set(self) -> str | None:
        """Digest of the parameter set that came last."""
        return noted_set(self._set)

    def sent(self, key: Key) -> Mapping[str, Any] | None:
        """The update that was made for this job, round and base, if there is one."""
        for generation in (self.pending, self.committed):
            if generation is not None and generation.key == key:
                return generation.update
        return None

    def turn_to(self, key: Key) -> None:
        """Settle the pending generation before training for `key`: commit it if its round is over, drop it if played again."""
        if self.pending is None or self.pending.key == key:
            return
        job, number, _ = self.pending.key
        if job == key[0] and number >= key[1]:
            self._point(self.committed, None)
        else:
            self.commit()

    def commit(self, job: str | None = None, number: int | None = None) -> None:
        """Make the pending generation the committed one; with `job` and `number` only if it is of that round or an earlier one."""
        if self.pending is None:
            return
        if job is None or (self.pending.key[0] == job and number is not None and self.pending.key[1] <= number):
            self._point(self.pending, None)

    @contextmanager
    def owed(self, job: str) -> Iterator[Owed | None]:
        """What the committed state still owes the master in this job; another job owes nothing.

        It is as large as the encoder, so it is read by slices. It is not flushed to the disk: a power cut may take it, a kill does
        not. Without it, one round's rest is lost, and nothing else.
        """
        generation = self.committed
        if generation is None or generation.owed is None or generation.key[0] != job:
            yield None
            return
        try:
            file = SetFile(self.folder / generation.owed)
        except (FileNotFoundError, DamagedFile):
            yield None
            return
        with file:
            yield Owed(file.spec, file.read)

    @contextmanager
    def owing(self, key: Key, spec: SetSpec) -> Iterator[Write | None]:
        """Takes, by slices, what an update leaves out; it is in place when the block ends, and counts once `save` was told of it.

        :param spec: the tensors of which something may be left. None are: nothing is taken.
        """
        if not spec:
            self._spare.unlink(missing_ok=True)
            yield None
            return
        with SetWriter(self.folder / _owed_name(key), spec, durable=False, mode=0o600, spare=self._spare) as writer:
            yield writer.write

    def save(self, key: Key, private: Private, update: Mapping[str, Any], *, owes: bool = False) -> None:
        """Write the pending generation: its file first, then the pointer.

        :param owes: whether what the update left out was taken by `owing`.
        """
        beside = self.folder / "gen-new"
        digest = write_set(beside, {name: np.asarray(array) for name, array in private.tensors.items()}, mode=0o600)
        beside.replace(self.folder / f"gen-{digest}")
        self._point(self.committed, Generation(digest, key, dict(private.notes), dict(update), _owed_name(key) if owes else None))

    def _load(self, generation: Generation) -> Private:
        path = self.folder / f"gen-{generation.digest}"
        if not path.exists() or sha256_file(path) != generation.digest:
            raise DamagedFile(
                f"`{path}` should hold the private heads as they were saved, and does not.",
                hint="Restore it from a backup, or start afresh with `trunkline-child reset`.",
            )
        with SetFile(path) as file:
            return Private(file.tensors(), generation.notes)

    def _point(self, committed: Generation | None, pending: Generation | None) -> None:
        table: dict[str, Any] = {
            name: asdict(gen) if gen else None for name, gen in (("committed", committed), ("pending", pending))
        }
        table["master"] = self._master
        write_atomically(self._pointer, json.dumps(table).encode(), mode=0o600)
        self.committed, self.pending = committed, pending
        generations = [generation for generation in (committed, pending) if generation]
        kept = {f"gen-{generation.digest}" for generation in generations} | {generation.owed for generation in generations}
        for path in self.folder.glob("gen-*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
        for path in self.folder.glob("owed-*"):
            if path.name not in kept:
                path.replace(self._spare)

    def _read_pointer(self) -> None:
        if not self._pointer.exists():
            return
        try:
            table = json.loads(self._pointer.read_text(encoding="utf-8"))
            self.committed, self.pending = (_generation(table[name]) for name in ("committed", "pending"))
            before = table.get("master")
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(
                f"`{self._pointer}` should name the generations of private state, found {error!r}.",
                hint="Restore it from a backup, or start afresh with `trunkline-child reset`.",
            ) from None
        if self._master is not None and before not in (None, self._master) and (newest := self.pending or self.committed):
            notes = {name: note for name, note in newest.notes.items() if name not in OF_A_JOB}
            self._point(Generation(newest.digest, ("", 0, ""), notes, {}), None)


def noted_set(path: Path) -> str | None:
    """The digest in a file that `note_set` wrote. A file that holds no digest counts for nothing: the next set is noted again."""
    try:
        found = path.read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return found if re.fullmatch("[0-9a-f]{64}", found) else None


def _owed_name(key: Key) -> str:
    return f"owed-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}"


def _generation(table: Mapping[str, Any] | None) -> Generation | None:
    if table is None:
        return None
    job, number, base = table["key"]
    fields: dict[str, Any] = {**table, "key": (job, number, base)}
    return Generation(**fields)
