"""The store of one host, as its one writer has it: a mapped file, gradients that workers lay beside it, and checkpoints.

map          see `queues.store.mapped`
applied.log  see `queues.store.applied`
slabs/       see `queues.store.slabs`
checkpoints/ see `queues.store.checkpoints`
lock         held by the writer
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from queues.store import publish
from queues.store.checkpoints import Checkpoints
from queues.store.layout import Layout, Slot
from queues.store.mapped import Mapped, Table
from queues.store.moves import Mover, twice
from queues.store.recovery import Recovery
from queues.store.slabs import Slabs
from queues.store.store import Rows, Sent, Verdict
from queues.stream.spec import StreamSpec
from trunkline.errors import DamagedFile, Fenced
from trunkline.files import Lock, discard, storage

MAP, APPLIED, SLABS, CHECKPOINTS = "map", "applied.log", "slabs", "checkpoints"

Moved = Mapping[str, Tensor | None]
"""What a step changed: a whole parameter (None), or rows of it."""


def boot_id() -> str:
    """A word that the machine chose when it started; empty where it does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


class FileWriter:
    """A `StoreWriter` of a folder.

    :param folder: `StreamHome.store`; made if it is not there.
    :param parameters: where a new store begins, and a head that the store has not yet.
    :param epoch: of the stream, `StreamHome.epoch`.
    :param boot: of the machine; what another boot left in the mapped file is not believed. None: as it is.
    :param slabs: gradients that may wait.
    :param slab_bytes: that they may have together.
    :raises AlreadyRunning: another process writes.
    :raises Conflict: the folder has a store of another epoch.
    :raises SpecError: a parameter is not float32, or the shared layers are not those that the store has.
    :raises StorageFailed: no room, or the disk refused.
    """

    def __init__(
        self,
        folder: Path,
        spec: StreamSpec,
        parameters: Mapping[str, Tensor],
        epoch: str,
        *,
        boot: str | None = None,
        slabs: int = 64,
        slab_bytes: int = 8 << 30,
    ) -> None:
        self.folder = folder
        self._lock = Lock(folder / "lock", "writer of a parameter store")
        try:
            self._open(spec, parameters, epoch, boot_id() if boot is None else boot, slabs, slab_bytes)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, spec: StreamSpec, parameters: Mapping[str, Tensor], epoch: str, boot: str, slabs: int, slab_bytes: int) -> None:
        layout = Layout.of(parameters, spec.learning)
        table = Table(
            epoch=epoch,
            boot=boot,
            moments=layout.moments,
            tensors=tuple(layout.shapes.items()),
            slabs=slabs,
            slab_bytes=slab_bytes,
        )
        self.layout = layout
        self._mover = Mover(spec, layout)
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, epoch, spec.store.checkpoints, self._reach)
        for path in self.folder.rglob(".*.tmp"):  # of a writer that was killed
            discard(path)
        places = (self.folder / MAP, self.folder / APPLIED)
        found = Recovery(*places, table, parameters, self._checkpoints, self._reach).run()
        self.recovered = found.recovered
        self._applied = found.applied
        self._slabs = Slabs(self.folder / SLABS, slabs, slab_bytes)
        self._slabs.sweep()
        self._laid: dict[tuple[str, int], Sent] = {}
        self._map = Mapped(self.folder / MAP, write=True)
        self._slots = (self._map.slot(0), self._map.slot(1))
        self._behind: dict[str, Tensor | None] = dict.fromkeys(layout.shapes)  # what the other slot lacks
        self._checkpointed = max(self._checkpoints.steps(), default=0)
        self._owner = secrets.randbits(63)
        self._map.owner = self._owner

    def _reach(self, point: str) -> None:
        """A point that a killed process may have come to. Tests are killed there."""

    @property
    def step(self) -> int:
        """Of the parameters as they are now."""
        return self._map.step(self._map.active)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def received(self, batch: str, attempt: int) -> Sent | None:
        """A gradient that was laid down; None: it is not there, or not whole. Its tensors lie in a map, valid until `done`."""
        key = (batch, attempt)
        if key not in self._laid:
            try:
                found = self._slabs.load(batch, attempt)
            except DamagedFile:
                found = None
            if found is None:
                return None
            self._laid[key] = found
        return self._laid[key]

    def done(self, batch: str, attempt: int, verdict: Verdict) -> None:
        """Tell the reader what became of its gradient, and let it go with those of earlier attempts."""
        self._own()
        self._map.verdicts.tell(batch, attempt, verdict)
        self._reach("told")
        self._laid.pop((batch, attempt), None)
        with storage(self._slabs.folder):
            self._slabs.free(batch, attempt, earlier=True)

    def applied(self, batch: str) -> int | None:
        """The step at which a batch was applied, if it is among those since the oldest checkpoint kept; None: it was not."""
        return self._applied.batches.get(batch)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def apply(self, gradients: tuple[Sent, ...], combined: Mapping[str, Tensor] | None = None) -> int:
        """One step: all parameters of the gradients move, visible to readers at once; tell the new step.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`; nothing moved.
        :raises StorageFailed: the disk refused; nothing moved.
        :raises Conflict: a batch was applied already.
        :raises Fenced: somebody else writes.
        """
        for sent in gradients:
            if (step := self.applied(sent.batch)) is not None:
                raise twice(sent.batch, step)
        planned = self._mover.plan(gradients, combined, self.step)
        # Copied: the gradient's own numbers change when its file is written over.
        moved = {name: grad.index.clone() if isinstance(grad, Rows) else None for name, grad in planned.gradients.items()}
        whole = {name for name, rows in moved.items() if rows is None}

        def change(old: Slot, new: Slot) -> None:
            self._mover.move(old, new, planned)

        return self._advance(change, moved, whole, [sent.batch for sent in gradients])

    def add(self, delta: Mapping[str, Tensor], name: str) -> int:
        """One step that adds to shared parameters what a round came to; done once a name; tell the step.

        :raises RefusedValue: `names`, `shape`, `dtype`, `not_finite`; nothing moved.
        :raises StorageFailed: the disk refused; nothing moved.
        :raises Fenced: somebody else writes.
        """

        def change(old: Slot, new: Slot) -> None:
            for key, more in delta.items():
                torch.add(old.values[key], more, out=new.values[key])

        return self._once(delta, name, change)

    def put(self, values: Mapping[str, Tensor], name: str, *, fresh: bool = False) -> int:
        """One step that sets shared parameters to those that a round begins with; done once a name; tell the step.

        :param fresh: whether their moments begin anew; else they stay.
        :raises RefusedValue, StorageFailed, Fenced: as `add`.
        """

        def change(old: Slot, new: Slot) -> None:
            for key, value in values.items():
                new.values[key].copy_(value)
                if fresh:
                    new.forget(key)

        return self._once(values, name, change)

    def _once(self, tensors: Mapping[str, Tensor], name: str, change: Callable[[Slot, Slot], None]) -> int:
        if (step := self._applied.rounds.get(name)) is not None:
            return step
        self._mover.check_delta(tensors)
        return self._advance(change, dict.fromkeys(tensors), set(), (), (name,))

    def added(self) -> Mapping[str, int]:
        """The rounds that were added or put, by name, and at which step each was."""
        return dict(self._applied.rounds)

    @torch.no_grad()
    def _advance(
        self,
        change: Callable[[Slot, Slot], None],
        moved: Moved,
        whole: set[str],
        batches: Sequence[str],
        rounds: Sequence[str] = (),
    ) -> int:
        """Bring the other slot up to this step, change it, and make it the active one.

        :param whole: what `change` writes all of, so that it need not be brought up.
        """
        self._own()
        active = self._map.active
        other, step = 1 - active, self._map.step(active) + 1
        old, new = self._slots[active], self._slots[other]
        self._map.begin(other)
        self._reach("begun")
        for name in [name for name in self._behind if name not in whole]:
            _bring_up(name, self._behind.pop(name), old, new)
        self._reach("brought up")
        self._behind |= dict.fromkeys(moved)  # if it fails half-way, they are of neither step
        change(old, new)
        self._reach("changed")
        self._map.finish(other, step)
        self._reach("finished")
        self._applied.append(step, batches, rounds)
        self._reach("written down")
        self._map.flip(other)
        self._behind = dict(moved)
        self._reach("flipped")
        return step

    def _own(self) -> None:
        """:raises Fenced: the folder was given to another writer, by hand: the lock does not let it happen."""
        if self._map.owner != self._owner:
            raise Fenced(f"`{self.folder}` should have one writer, found that another one took over.")

    # -- what lasts ----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Make all steps up to now survive a power cut; tell the step that is covered.

        :raises StorageFailed: the disk refused; the checkpoints before are as they were.
        """
        self._own()
        step = self.step
        if step != self._checkpointed or step not in self._checkpoints.steps():
            self._checkpoints.save(step, self._slots[self._map.active].tensors(), self._applied.batches, self._applied.rounds)
            self._checkpointed = step
            self._applied.forget(self._checkpoints.steps()[0])
            self._slabs.sweep()
        return step

    def checkpointed(self) -> int:
        """The newest step that is covered."""
        return self._checkpointed

    def values(self) -> Mapping[str, Tensor]:
        """All parameters at this step, by name; to read, until the next step."""
        return self._slots[self._map.active].values

    def write_shared(self, path: Path) -> str:
        """Write the encoder's part at this step as a parameter set; tell the digest of the file."""
        return publish.write_shared(path, self._slots[self._map.active].values)

    def close(self) -> None:
        """Let go of files."""
        self._laid.clear()
        self._applied.close()
        self._lock.release()


def _bring_up(name: str, rows: Tensor | None, old: Slot, new: Slot) -> None:
    new.counts[name].copy_(old.counts[name])
    for source, target in zip(old.parts(name), new.parts(name), strict=True):
        if rows is None:
            target.copy_(source)
        else:
            target.index_copy_(0, rows, source.index_select(0, rows))
