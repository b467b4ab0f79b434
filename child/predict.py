"""Predictions at a site: the shared encoder as the last round left it here, with this site's own head on top."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child import body, heads
from child.home import ChildHome
from child.settings import ChildSettings
from child.site import READY
from child.state import Private, PrivateStore
from tasks import encoders, evaluate
from tasks.declared import read_spec
from tasks.encoders import Encoder
from tasks.heads import Head, make_head
from tasks.specs import TaskSpec
from trunkline.errors import NotFound, SpecError, UsageError
from trunkline.sets import SetFile

_TRAIN = "Take part in a round first: trunkline-child run."


@dataclass(frozen=True, slots=True)
class Predictor:
    """An encoder and a head that belong together."""

    encoder: Encoder
    head: Head
    spec: TaskSpec
    labels: tuple[str, ...]

    def answer(self, samples: Sequence[Any]) -> list[dict[str, Any]]:
        """See `tasks.evaluate.predict`."""
        return evaluate.predict(self.encoder, self.head, self.spec, self.labels, samples)


def open_predictor(home: ChildHome, settings: ChildSettings, spec: TaskSpec, *, encoder: str | None = None) -> Predictor:
    """The task's head as it was last trained here, on the parameters that came last.

    :param encoder: name; None: the one that the head was trained with, if there is one such.
    :raises NotFound: the head was not trained here yet, or the encoder's files or parameters are gone.
    :raises UsageError: several encoders have a head of this task.
    """
    name, private = _trained(home, spec, encoder)
    loaded = encoders.load(_files(home, name), (home.modules,)).to(settings.device)
    with SetFile(_last_set(home, name)) as parameters:
        loaded.load_shared(parameters.read)
    body.load(loaded, private)
    labels = _labels(spec, private)
    head = make_head(spec, labels, loaded.hidden, modules=(home.modules,), seed=0)
    if not heads.put(head, spec.name, private):
        raise NotFound(f"task {spec.name!r} should have a head of its labels as they are now, found another.", hint=_TRAIN)
    return Predictor(loaded, head.to(settings.device), spec, labels)


def _trained(home: ChildHome, spec: TaskSpec, encoder: str | None) -> tuple[str, Private]:
    """The encoder that the head was trained with, and its private state."""
    stores = {path.name: PrivateStore(path) for path in sorted(home.private.iterdir()) if (path / "generations.json").exists()}
    found = {
        name: private
        for name, store in stores.items()
        if spec.name in heads.noted((private := store.newest()).notes) and encoder in (None, name)
    }
    if not found:
        with_ = f" with encoder {encoder!r}" if encoder else ""
        raise NotFound(f"task {spec.name!r} should have a head that was trained here{with_}, found none.", hint=_TRAIN)
    if len(found) > 1:
        names = ", ".join(found)
        raise UsageError(f"task {spec.name!r} should have one head, found one for each of {names}.", hint="Say --encoder NAME.")
    return next(iter(found.items()))


def _files(home: ChildHome, name: str) -> Path:
    """The newest files of an encoder of this name."""
    folders = [path.parent for path in home.encoders.glob(f"*/{READY}")]
    mine = [folder for folder in folders if _name_of(folder) == name]
    if not mine:
        raise NotFound(f"the files of encoder {name!r} should lie in `{home.encoders}`, found none.", hint=_TRAIN)
    return max(mine, key=lambda folder: (folder / READY).stat().st_mtime)


def _name_of(folder: Path) -> str | None:
    try:
        return read_spec(folder).name
    except SpecError:
        return None


def _last_set(home: ChildHome, name: str) -> Path:
    """The parameter set of this encoder that came last."""
    digest = PrivateStore(home.private / name).last_set()
    if digest is None or not (home.sets / digest).exists():
        raise NotFound(f"parameters of encoder {name!r} should lie in `{home.sets}`, found none.", hint=_TRAIN)
    return home.sets / digest


def _labels(spec: TaskSpec, private: Private) -> tuple[str, ...]:
    """Label names in the order of the head's outputs: as they were when it was trained, whatever the file says now."""
    found = heads.noted(private.notes)[spec.name]
    if found.kind != spec.head:
        raise NotFound(f"task {spec.name!r} should have a head of kind {spec.head}, found one of kind {found.kind}.", hint=_TRAIN)
    return found.labels
