"""The parameters of a stream, computed anew from a checkpoint and the record of what was applied since: are they the same?"""

import hashlib
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from queues.queue import Claim
from queues.store.reader import FileReader
from queues.store.rows import thinned
from queues.store.store import Sent, StoreReader
from queues.store.writer import CHECKPOINTS, FileWriter
from queues.stream.came import Files
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.record import Entry, Record
from queues.stream.rounds import BEGINS
from queues.stream.together import join
from tasks.balance import Rule, find
from trunkline.errors import Conflict, NotFound
from trunkline.sets import SetFile

Deltas = Callable[[str], Mapping[str, Tensor]]
"""What a round of a name added, or, of one that ends with `rounds.BEGINS`, began with."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came out."""

    start: int  # the step that it began at
    step: int  # and ended at
    batches: int  # that were computed
    digest: str  # of all parameters, as computed
    kept: str | None  # as the store has them at that step; None: it has that step no more
    differs: int | None  # the first step at which a loss came out otherwise than it was recorded

    @property
    def same(self) -> bool | None:
        """Whether both are the same to the last bit; None: there was nothing to compare with."""
        return None if self.kept is None else self.digest == self.kept


def replay(
    home: StreamHome,
    learner: Learner,
    room: Path,
    *,
    start: int | None = None,
    until: int | None = None,
    deltas: Deltas | None = None,
) -> Replayed:
    """Compute the parameters anew. A server may run meanwhile.

    :param learner: of the stream, new as its workers make it: a store without checkpoints begins with its parameters. They are as
        they were when this returns.
    :param room: an empty folder for the store of the replay: as large as the stream's own, twice.
    :param start: step of a kept checkpoint, or 0; None: the oldest.
    :param until: step that it ends at; None: where the store is now.
    :param deltas: gives what rounds added; None: the files that the stream noted.
    :raises NotFound: the record does not hold all steps between the two; no such checkpoint.
    :raises Conflict: a batch was computed on parameters from before `start`.
    """
    initial = {name: p.detach().clone() for name, p in learner.parameters().items()}
    checkpoints = home.store / CHECKPOINTS
    begin = _start(checkpoints, start)
    if begin:
        name = f"{begin:012d}"
        shutil.copytree(checkpoints / name, room / CHECKPOINTS / name)
    writer = FileWriter(room, home.spec, initial, home.epoch)
    try:
        if writer.step != begin:
            raise NotFound(f"`{checkpoints}` should have a checkpoint of step {begin}, found that it is damaged.")
        run = _Run(home, learner, writer, FileReader(room), deltas)
        end = FileReader(home.store).step() if until is None else until
        batches = run.to(end)
        return Replayed(begin, end, batches, digest(run.values), _kept(home, checkpoints, end, run.values), run.differs)
    finally:
        writer.close()
        _fill(learner, initial)


def digest(values: Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters, by name."""
    found = hashlib.sha256()
    for name in sorted(values):
        found.update(name.encode() + b"\0")
        found.update(values[name].detach().contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()


class _Run:
    """One replay.

    :param writer: of its own store, which begins at the step that the replay begins at.
    """

    def __init__(self, home: StreamHome, learner: Learner, writer: FileWriter, reader: StoreReader, deltas: Deltas | None) -> None:
        self._home = home
        self.spec, self._learner, self._writer, self._reader, self._deltas = home.spec, learner, writer, reader, deltas
        self._record = Record(home.applied)
        self._live = {name: p.detach() for name, p in learner.parameters().items()}
        self._versions: dict[int, dict[str, Tensor]] = {}  # by step, the newest few
        self._together = self.spec.together.mode == "together"
        self._rule: Rule = find(self.spec.together.rule)
        self._state: Mapping[str, float] = {}
        self.differs: int | None = None
        self._note()

    @property
    def values(self) -> dict[str, Tensor]:
        """As they are now."""
        return self._versions[self._writer.step]

    def to(self, end: int) -> int:
        """Make all steps up to one; tell how many batches that were."""
        begin, count = self._writer.step, 0
        states = [entry.state for entry in self._record.of(begin) if entry.state is not None]
        self._state = states[-1] if states else {}
        entries = (entry for entry in self._record.since(begin) if entry.step <= end)
        for step, grouped in itertools.groupby(entries, key=lambda entry: entry.step):
            if step != self._writer.step + 1:
                break
            count += self._make(list(grouped))
            self._note()
        if self._writer.step != end:
            raise NotFound(
                f"the record should hold all steps from {begin + 1} to {end}, found no step {self._writer.step + 1}.",
                hint="Its size is bound by `store.record_bytes`; begin at a later checkpoint.",
            )
        return count

    def _make(self, entries: Sequence[Entry]) -> int:
        if not entries[0].task:
            self._come_in(entries[0].batch, entries[0].step)
            return 0
        gradients = tuple(self._computed(entry) for entry in entries)
        if self._together:
            found = join(self._rule, self._writer.layout, gradients, self._state, self._writer.step + 1, self.spec.learning.seed)
            self._state = found.state
            self._writer.apply(found.gradients, found.combined)
        else:
            self._writer.apply(gradients)
        return len(entries)

    def _come_in(self, name: str, step: int) -> None:
        """:raises NotFound: what the round brought is not told, or its files are gone."""
        if self._deltas is not None:
            (self._writer.put if name.endswith(BEGINS) else self._writer.add)(self._deltas(name), name)
            return
        files = Files.of(self._home, name)
        if files is None:
            raise NotFound(f"what round {name} added at step {step} should be given, found nothing.")
        self._writer.put(files.read(self._writer.layout).onto(self._writer.values()), name, fresh=files.fresh)

    def _load(self, entry: Entry) -> None:
        if entry.base not in self._versions:
            raise Conflict(
                f"the batch of step {entry.step} should have been computed on parameters since step {min(self._versions)}, found "
                f"step {entry.base}.",
                hint="Begin at an earlier checkpoint.",
            )
        _fill(self._learner, self._versions[entry.base])

    def _computed(self, entry: Entry) -> Sent:
        self._load(entry)
        found = self._learner.gradient(Claim(entry.batch, entry.attempt, entry.task, entry.samples), entry.seed)
        if found.loss != entry.loss and self.differs is None:
            self.differs = entry.step
        named = {f"shared/{name}": t for name, t in found.shared.items()}
        named |= {f"head/{entry.task}/{name}": t for name, t in found.head.items()}
        sent = Sent(entry.batch, entry.attempt, entry.task, entry.base, found.samples, found.loss, named)
        return replace(sent, tensors=thinned(named))

    def _note(self) -> None:
        """Keep this version, and those that a stale gradient may still be of."""
        step = self._writer.step
        values = {name: torch.empty_like(p) for name, p in self._live.items()}
        self._reader.read(values)
        self._versions[step] = values
        for old in [old for old in self._versions if old < step - self.spec.store.staleness]:
            del self._versions[old]


@torch.no_grad()
def _fill(learner: Learner, values: Mapping[str, Tensor]) -> None:
    for name, parameter in learner.parameters().items():
        parameter.copy_(values[name])


def _start(checkpoints: Path, start: int | None) -> int:
    steps = sorted(int(path.parent.name) for path in checkpoints.glob("*/state.json") if path.parent.name.isdigit())
    if start is None:
        return steps[0] if steps else 0
    if start and start not in steps:
        raise NotFound(f"`start` should be 0 or one of {', '.join(map(str, steps)) or 'none'}, found {start}.")
    return start


def _kept(home: StreamHome, checkpoints: Path, step: int, like: Mapping[str, Tensor]) -> str | None:
    """The digest of the store's own parameters at a step, if it still has them."""
    found = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    if FileReader(home.store).read(found) == step:
        return digest(found)
    return _of_checkpoint(checkpoints / f"{step:012d}" / "state.safetensors", like)


def _of_checkpoint(path: Path, like: Mapping[str, Tensor]) -> str | None:
    if not path.exists():
        return None
    with SetFile(path) as file:
        return digest({name: torch.from_numpy(file.read(f"value/{name}")) for name in like})
