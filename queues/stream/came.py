"""What rounds brought into a stream: where the files lie, a line each in `rounds/came.jsonl`, so that a replay makes the same step.

A line is written before its step is made; of a name that is written twice the last counts. The files are the master's blobs, which
stay as long as a version names them, or sets that a child keeps the newest of: of one that is gone, a replay says so.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from queues.store.layout import SHARED, Layout
from queues.stream.home import StreamHome
from trunkline.errors import NotFound, Reason, RefusedValue
from trunkline.files import storage
from trunkline.sets import SetFile


@dataclass(frozen=True, slots=True)
class Files:
    """Of one round."""

    name: str
    target: str  # path of what it came to; or of what it begins with, where there is no base
    base: str | None = None
    fresh: bool = False  # whether the moments of the shared layers begin anew

    def note(self, home: StreamHome) -> None:
        """Write it down.

        :raises StorageFailed: the disk refused.
        """
        path = home.rounds / "came.jsonl"
        with storage(path):
            home.rounds.mkdir(mode=0o700, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def of(home: StreamHome, name: str) -> "Files | None":
        """What was written down of a round; a line that was cut short counts for nothing."""
        found = None
        try:
            lines = (home.rounds / "came.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        for line in lines:
            try:
                table = json.loads(line)
            except ValueError:
                continue
            if table["name"] == name:
                found = Files(**table)
        return found

    def read(self, layout: Layout) -> "Came":
        """:raises NotFound, DamagedFile, RefusedValue: see `tensors`."""
        found = Came(tensors(Path(self.target), layout), None if self.base is None else tensors(Path(self.base), layout))
        if found.base is not None and found.base.keys() != found.target.keys():
            raise RefusedValue(Reason.NAMES, "the base and the target of a round should have the same names, found others.")
        return found


@dataclass(frozen=True, slots=True)
class Came:
    """The shared layers of a round, by their names in the store."""

    target: Mapping[str, Tensor]
    base: Mapping[str, Tensor] | None

    def onto(self, now: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shared layers with target less base added to what they are now; without a base, the target.

        A number that is as in the base becomes the target's own: a sum of differences is not, to the last bit.
        """
        if self.base is None:
            return dict(self.target)
        pairs = {name: (now[name], self.base[name], new) for name, new in self.target.items()}
        return {name: torch.where(old == base, new, old + (new - base)) for name, (old, base, new) in pairs.items()}


def tensors(path: Path, layout: Layout) -> dict[str, Tensor]:
    """What a file has of the shared layers of a store, by their names there.

    :raises NotFound: there is no such file.
    :raises DamagedFile: it is no parameter set.
    :raises RefusedValue: `names`, `shape`, `dtype`: it has nothing of these layers, or of another kind.
    """
    try:
        with SetFile(path) as file:
            names = [name for name in layout.shared() if name.removeprefix(SHARED) in file.spec]
            found = {name: torch.from_numpy(file.read(name.removeprefix(SHARED))) for name in names}
    except FileNotFoundError:
        raise NotFound(f"`{path}` should be a parameter set, found no such file.") from None
    if not found:
        raise RefusedValue(Reason.NAMES, f"`{path.name}` should have the stream's shared layers, found none of them.")
    for name, tensor in found.items():
        if tensor.shape != layout.shapes[name]:
            raise RefusedValue(Reason.SHAPE, f"{name!r} should be {layout.shapes[name]}, found {tuple(tensor.shape)}.")
        if tensor.dtype != torch.float32:
            raise RefusedValue(Reason.DTYPE, f"{name!r} should be float32, found {tensor.dtype}.")
    return found
