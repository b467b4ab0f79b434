"""The folder of a new stream: its declaration, the encoder's files, the user's own code, the held-out rows, read and checked."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec, StreamTask
from tasks.declared import read_spec
from tasks.readers import records
from tasks.samples import row_of
from trunkline.errors import SampleError, SpecError
from trunkline.files import storage
from trunkline.folders import new_folder
from trunkline.settings import build
from trunkline.toml import read_toml


def declared(path: Path, flags: Mapping[str, Any]) -> StreamSpec:
    """A stream's declaration.

    :param flags: keys that count more than the file; None: not said.
    :raises SettingsError: names the key, what should be and what was found.
    """
    table = read_toml(path) | {key: value for key, value in flags.items() if value is not None}
    return build(StreamSpec, table, f"`{path}`")


def heldout(spec: StreamSpec, base: Path) -> dict[str, str]:
    """The held-out rows of each task that has some, as JSON Lines of the columns that it reads.

    :param base: the folder that their files are relative to.
    :raises SampleError: no such file, or a row is not what its task says.
    """
    return {task.name: "".join(_rows(task, base)) for task in spec.tasks if task.heldout is not None}


def _rows(task: StreamTask, base: Path) -> Iterator[str]:
    spec = task.task.model_copy(update={"data": task.heldout})
    columns = [*dict.fromkeys(spec.fields), *([spec.label] if spec.label else [])]
    for line, values in records(spec, base):
        row_of(spec, line, values)
        try:
            yield json.dumps({name: values.get(name) for name in columns}, ensure_ascii=False) + "\n"
        except (TypeError, ValueError):
            raise SampleError(f"`{task.heldout}`, line {line}: should be text, numbers or lists of them, found others.") from None


def create(
    folder: Path,
    spec: StreamSpec,
    encoder: Path | Mapping[str, Path],
    *,
    rows: Mapping[str, str] | None = None,
    modules: Sequence[Path] = (),
    redis: str | None = None,
    broker: str | None = None,
    since: int | None = None,
) -> StreamHome:
    """Make a stream's folder, whole or not at all.

    :param encoder: an encoder's folder with its initial parameter set; or its files, by name.
    :param rows: held-out ones, as `heldout` gives them.
    :param modules: files of the user's own code.
    :param redis: address of a Redis; None: the embedded one.
    :param broker: of Celery; None: the same.
    :param since: at a master, the encoder's newest version.
    :raises Conflict: the folder is in use.
    :raises SpecError: the encoder is none, or reads something else than the tasks have.
    :raises StorageFailed: the disk refused.
    """
    rows = rows or {}
    files = {path.name: path for path in encoder.iterdir() if path.is_file()} if isinstance(encoder, Path) else encoder
    wanted = [
        task.model_copy(update={"heldout": f"heldout/{task.name}.jsonl" if task.name in rows else None}) for task in spec.tasks
    ]
    spec = spec.model_copy(update={"tasks": tuple(wanted)})
    with new_folder(folder) as beside, storage(folder):
        beside.chmod(0o700)
        made = StreamHome(beside)
        made.encoder.mkdir(mode=0o700)
        for name, path in files.items():
            shutil.copyfile(path, made.encoder / name)
        _check_type(spec, made.encoder)
        made.create(spec, redis, broker, since=since)
        made.heldout.mkdir()
        for task, text in rows.items():
            (made.heldout / f"{task}.jsonl").write_text(text, encoding="utf-8")
        for path in modules:
            shutil.copyfile(path, made.modules / path.name)
    return StreamHome(folder)


def _check_type(spec: StreamSpec, encoder: Path) -> None:
    kind = read_spec(encoder).type
    if wrong := [task for task in spec.tasks if task.encoder != kind]:
        raise SpecError(
            f"task {wrong[0].name!r} should be of the encoder's type {kind!r}, found {wrong[0].encoder!r}.",
            hint="Set `encoder` of the task to that type, or take another encoder.",
        )
