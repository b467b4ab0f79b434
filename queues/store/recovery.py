"""What a store goes on from when its server starts: the mapped file, else the newest good checkpoint, else what was given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from queues.store.applied import Applied
from queues.store.checkpoints import Checkpoints, other_epoch
from queues.store.layout import Layout, Slot
from queues.store.mapped import Mapped, Table, make
from trunkline.errors import DamagedFile, SpecError

Source = Literal["new", "map", "checkpoint", "parameters"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a store went on from.

    Whatever it says, whoever starts has to look which batches the queues have as applied at a later step than `step`: the one that
    was told may have been killed before it could do anything about it.
    """

    source: Source  # `parameters`: there was a store, and nothing of it is good
    step: int
    why: str | None = None  # the mapped file, or a newer checkpoint, was not gone on from
    was: int | None = None  # the step that the mapped file told, where it was not gone on from
    begun: tuple[str, ...] = ()  # parameters that begin now: the declaration has a new head

    @property
    def back(self) -> bool:
        """Whether steps were lost: the batches applied after `step` have to come back."""
        return self.source in ("checkpoint", "parameters")


@dataclass(frozen=True, slots=True)
class Found:
    """All that a store goes on from."""

    recovered: Recovered
    applied: Applied


class Recovery:
    """Puts the mapped file in its place, or leaves it where it is good.

    The list of what was applied is in its place before the mapped file is: whoever is killed between the two does the same again.

    :param path: of the mapped file.
    :param applied: of the list of what was applied.
    :param table: as a new file would have it.
    :param parameters: where what is new begins.
    :param reach: called with the name of each point that a killed process may have come to; for tests.
    """

    def __init__(
        self,
        path: Path,
        applied: Path,
        table: Table,
        parameters: Mapping[str, Tensor],
        checkpoints: Checkpoints,
        reach: Callable[[str], None],
    ) -> None:
        self._path, self._applied, self._table = path, applied, table
        self._parameters, self._checkpoints, self._reach = parameters, checkpoints, reach

    def run(self) -> Found:
        """:raises Conflict: there is a store of another epoch.
        :raises SpecError: the shared layers are not those of the store.
        :raises StorageFailed: no room, or the disk refused.
        """
        why, was = None, None
        try:
            mapped = Mapped(self._path)
            if mapped.table.epoch != self._table.epoch:
                raise other_epoch(self._path, mapped.table.epoch, self._table.epoch)
            was = mapped.step(mapped.active % 2)
            why = self._distrust(mapped)
            if why is None:
                return self._from_map(mapped.step(mapped.active), mapped.table, mapped.active)
        except FileNotFoundError:
            pass
        except DamagedFile as error:
            why = str(error)
        return self._from_checkpoint(why, was)

    def _distrust(self, mapped: Mapped) -> str | None:
        if mapped.table.boot != self._table.boot:
            return "the machine was started again, and what was not in a checkpoint may have reached its disk in part"
        return mapped.sane()

    def _from_map(self, step: int, table: Table, active: int) -> Found:
        batches, rounds = Applied.load(self._applied, step)
        if table == self._table:
            return Found(Recovered("map", step), Applied(self._applied, batches, rounds))
        values = Mapped(self._path, write=True).slot(active).tensors()  # another head, another optimiser, other room
        begun = _check(self._table.layout, values, self._path)
        return Found(Recovered("map", step, begun=begun), self._make(step, values, batches, rounds))

    def _from_checkpoint(self, why: str | None, was: int | None) -> Found:
        for step in reversed(self._checkpoints.steps()):
            try:
                state, file = self._checkpoints.open(step)
            except DamagedFile as error:
                self._checkpoints.put_aside(step)
                why = f"{why}; {error}" if why else str(error)
                continue
            with file:
                values = {name: torch.from_numpy(file.read(name)) for name in file}
            begun = _check(self._table.layout, values, self._path)
            recovered = Recovered("checkpoint", step, why or "the mapped file is not there", was, begun)
            return Found(recovered, self._make(step, values, state.applied, state.rounds))
        recovered = Recovered("new" if why is None else "parameters", 0, why, was)
        return Found(recovered, self._make(0, {}, {}, {}))

    def _make(self, step: int, values: Mapping[str, Tensor], batches: Mapping[str, int], rounds: Mapping[str, int]) -> Applied:
        """Put the list and then a file of these values in place."""
        applied = Applied(self._applied, batches, rounds)
        self._reach("list in place")
        try:
            make(self._path, self._table, step, lambda slot: _fill(slot, values, self._parameters))
        except BaseException:
            applied.close()
            raise
        return applied


def _check(layout: Layout, values: Mapping[str, Tensor], path: Path) -> tuple[str, ...]:
    """Names that begin now.

    :raises SpecError: a parameter has another shape than it had, or the encoder is another.
    """
    had = {name.removeprefix("value/"): tuple(value.shape) for name, value in values.items() if name.startswith("value/")}
    for name, shape in layout.shapes.items():
        if had.get(name, shape) != shape:
            raise SpecError(
                f"{name!r} should be {had[name]} as in `{path}`, found {shape}.", hint="Make a stream of its own for it."
            )
    shared = {name for name in had if name.startswith("shared/")}
    if shared != set(layout.shared()):
        odd = sorted(shared ^ set(layout.shared()))[0]
        raise SpecError(f"the encoder should be the one in `{path}`, found that it differs in {odd!r}.")
    return tuple(name for name in layout.shapes if name not in had)


@torch.no_grad()
def _fill(slot: Slot, values: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    for name, tensor in slot.tensors().items():
        what, _, parameter = name.partition("/")
        if name in values:
            tensor.copy_(values[name])
        elif what == "value":
            tensor.copy_(parameters[parameter].detach())
    for name, count in slot.counts.items():
        if not all(f"{moment}/{name}" in values for moment in slot.moments):
            count.zero_()  # another optimiser than before: its moments begin
