"""The tasks of this site, a file each. Children choose their samples by the encoder type that a task names."""

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from child import streamed
from child.home import ChildHome
from tasks.specs import TaskSpec
from tasks.survey import survey
from trunkline.errors import Conflict, NotFound
from trunkline.files import write_atomically
from trunkline.settings import build
from trunkline.toml import read_toml


class Registry:
    """Reads and writes `tasks/NAME.toml`."""

    def __init__(self, home: ChildHome) -> None:
        self.home = home

    def all(self) -> list[TaskSpec]:
        """Every task, by name.

        :raises SettingsError: a task's file is wrong.
        """
        return [build(TaskSpec, read_toml(path), f"`{path}`") for path in sorted(self.home.tasks.glob("*.toml"))]

    def get(self, name: str) -> TaskSpec:
        """:raises NotFound: no such task."""
        path = self._path(name)
        if path not in self.home.tasks.glob("*.toml"):  # a name with `..` in it reaches no other file
            known = ", ".join(spec.name for spec in self.all()) or "none"
            raise NotFound(f"task {name!r} should be declared here, found {known}.", hint="Add it with `trunkline-child task add`.")
        return build(TaskSpec, read_toml(path), f"`{path}`")

    def add(self, spec: TaskSpec, *, replace: bool = False) -> None:
        """:raises Conflict: it is there already, with other content."""
        path = self._path(spec.name)
        if path.exists() and not replace and self.get(spec.name) != spec:
            raise Conflict(
                f"task {spec.name!r} should be new or as it is declared, found other content.", hint="Say --replace to change it."
            )
        table = {key: value for key, value in spec.table().items() if value is not None}
        write_atomically(path, tomli_w.dumps(table).encode())

    def remove(self, name: str) -> None:
        """:raises NotFound: no such task."""
        self.get(name)
        self._path(name).unlink()

    def of_type(self, encoder_type: str, wanted: Sequence[str] | None = None) -> list[TaskSpec]:
        """The tasks of an encoder type, by name; with `wanted` only those."""
        return [spec for spec in self.all() if spec.encoder == encoder_type and (wanted is None or spec.name in wanted)]

    def types(self) -> list[str]:
        """Encoder types that this site has tasks of."""
        return sorted({spec.encoder for spec in self.all()})

    def count(self, spec: TaskSpec) -> dict[str, int]:
        """Distinct samples by split; of a task whose samples come through a queue, those that this can give now.

        :raises SampleError: the file is not what the task says, or the queue cannot be asked.
        :raises SpecError: the task's own reader is not here.
        """
        if streamed.stream_of(spec) is not None:
            return {"train": streamed.count(self.home, spec)}
        return dict(survey(spec, self.home.folder, self.home.cache, (self.home.modules,)).counts)

    def _path(self, name: str) -> Path:
        return self.home.tasks / f"{name}.toml"
