"""What a store survives a power cut with: some of its steps whole on the disk, the newest few.

checkpoints/STEP/state.safetensors   `value/NAME`, its moments as `exp_avg/NAME`, `count/NAME`: a parameter set
checkpoints/STEP/state.json          what else a store is, and the digest of that file; written last, so a folder with it is whole
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from trunkline.errors import Conflict, DamagedFile
from trunkline.files import sha256_file, storage, sync_folder, write_atomically
from trunkline.sets import SetFile, write_set
from trunkline.tensors import spec_of
from trunkline.values import Count, Digest, Value

FORM = 1


class State(Value):
    """A store at one step, but for its tensors."""

    form: int = FORM
    epoch: str
    step: Count  # the schedule goes on from it
    digest: Digest  # of the tensors' file
    applied: dict[str, Count]  # batches since the oldest checkpoint kept, with their steps
    rounds: dict[str, Count]


class Checkpoints:
    """The folder of them.

    :param keep: how many.
    :param epoch: of the store.
    :param reach: called with the name of each point that a killed process may have come to; for tests.
    """

    def __init__(self, folder: Path, epoch: str, keep: int, reach: Callable[[str], None]) -> None:
        self.folder, self._epoch, self._keep, self._reach = folder, epoch, keep, reach

    def steps(self) -> list[int]:
        """Of those that are whole by their files, ascending."""
        found = [path for path in self.folder.glob("*/state.json") if path.parent.name.isdigit()]
        return sorted(int(path.parent.name) for path in found)

    def save(self, step: int, tensors: Mapping[str, Tensor], applied: Mapping[str, int], rounds: Mapping[str, int]) -> None:
        """Write one, then drop the oldest ones.

        :raises StorageFailed: the disk refused; those before are as they were.
        """
        place = self._place(step)
        with storage(place):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            try:
                digest = write_set(place / "state.safetensors", arrays, spec_of(arrays), mode=0o600)
                self._reach("checkpoint: tensors")
                state = State(epoch=self._epoch, step=step, digest=digest, applied=dict(applied), rounds=dict(rounds))
                write_atomically(place / "state.json", _sealed(state), mode=0o600)
            except BaseException:
                if not (place / "state.json").exists():
                    shutil.rmtree(place, ignore_errors=True)
                raise
            self._reach("checkpoint: state")
            sync_folder(self.folder)
            self._prune(step)

    def _prune(self, newest: int) -> None:
        kept = self.steps()[-self._keep :]
        for place in self.folder.iterdir():
            if not place.name.isdigit() or (int(place.name) not in kept and int(place.name) < newest):
                (place / "state.json").unlink(missing_ok=True)
                self._reach("checkpoint: half dropped")
                shutil.rmtree(place, ignore_errors=True)

    def open(self, step: int) -> tuple[State, SetFile]:
        """One of them, checked to the last byte.

        :raises DamagedFile: it is not what was written.
        :raises Conflict: it is another store's.
        """
        place = self._place(step)
        with storage(place):
            try:
                state = _opened((place / "state.json").read_bytes(), place)
                digest = sha256_file(place / "state.safetensors")
            except FileNotFoundError as error:
                raise DamagedFile(f"`{place}` should be a checkpoint, found no {Path(error.filename).name}.") from None
        if state.epoch != self._epoch:
            raise other_epoch(place, state.epoch, self._epoch)
        if state.step != step or digest != state.digest:
            raise DamagedFile(f"`{place}` should hold the tensors of step {step} whose digest it tells, found others.")
        return state, SetFile(place / "state.safetensors")

    def put_aside(self, step: int) -> None:
        """Move what is no checkpoint out of the way; it goes when the next one is written."""
        with storage(self.folder):
            self._place(step).rename(self._place(step).with_suffix(".damaged"))

    def _place(self, step: int) -> Path:
        return self.folder / f"{step:012d}"


def other_epoch(path: Path, found: str, wanted: str) -> Conflict:
    """What is said of files of another store."""
    return Conflict(
        f"`{path}` should be of the store {wanted}, found one of {found}.",
        hint="The folder was put together from two streams; bring back the one that belongs here.",
    )


def _sealed(state: State) -> bytes:
    body = json.dumps(state.table(), sort_keys=True)
    return json.dumps({"state": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}).encode()


def _opened(data: bytes, place: Path) -> State:
    try:
        table = json.loads(data)
        body = table["state"]
        if hashlib.sha256(body.encode()).hexdigest() != table["sha256"]:
            raise ValueError
        state = State.model_validate_json(body)
        if state.form != FORM:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedFile(f"`{place}` should hold the state of a checkpoint, found something else.") from None
    return state
