"""Users' own code: by file and name, or by entry point; never by a bare module name."""

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from trunkline.errors import SpecError


def load(reference: str, folders: Sequence[Path], group: str, *, anywhere: bool = True) -> Any:
    """The object that `file.py:name`, or the name of an entry point, stands for.

    :param folders: where relative files are looked for, in this order.
    :param group: of entry points, `trunkline.<kind>`.
    :param anywhere: False for a reference that came off a wire: then only files directly in `folders` will do.
    :raises SpecError: no such file, name or entry point, or the file does not run.
    """
    file, name = _file_and_name(reference)
    if file is None:
        return _entry_point(reference, group)
    module = _module(_find(file, folders, anywhere))
    if not hasattr(module, name):
        raise SpecError(f"`{file}` should define {name!r}, found no such name.")
    return getattr(module, name)


def file_of(reference: str, folders: Sequence[Path]) -> Path | None:
    """The file that `file.py:name` is taken from; None for an entry point, or where there is none."""
    file, _ = _file_and_name(reference)
    try:
        return None if file is None else _find(file, folders, anywhere=True)
    except SpecError:
        return None


def check_there(reference: str, folders: Sequence[Path], group: str) -> None:
    """Look for what `load` would load, and run nothing.

    :raises SpecError: no such file or entry point.
    """
    file, _ = _file_and_name(reference)
    if file is None:
        _entry(reference, group)
    else:
        _find(file, folders, anywhere=True)


def _file_and_name(reference: str) -> tuple[str | None, str]:
    """The two halves of `file.py:name`; for an entry point no file, and its name."""
    file, colon, name = reference.rpartition(":")
    return (file, name) if colon and file.endswith(".py") else (None, reference)


def _entry(reference: str, group: str) -> EntryPoint:
    found = {entry.name: entry for entry in entry_points(group=group)}
    if reference not in found:
        known = ", ".join(sorted(found)) or "none"
        raise SpecError(
            f"`{reference}` should be `file.py:name` or an entry point of the group {group}, found the entry points: {known}."
        )
    return found[reference]


def _entry_point(reference: str, group: str) -> Any:
    entry = _entry(reference, group)
    try:
        return entry.load()
    except Exception as error:
        raise SpecError(f"the entry point `{reference}` should load, found {type(error).__name__}: {error}.") from error


def _find(file: str, folders: Sequence[Path], anywhere: bool) -> Path:
    wanted = Path(file).expanduser()
    if not anywhere and wanted.name != file:
        raise SpecError(f"`{file}` should be a plain file name, found a path.", hint="Code comes only from the folders set here.")
    places = [wanted] if wanted.is_absolute() else [folder / wanted for folder in folders]
    for place in places:
        if place.is_file():
            return place.resolve()
    searched = ", ".join(str(place) for place in places) or "no folder"
    raise SpecError(f"`{file}` should be a file with your code, found none.", hint=f"Looked at: {searched}.")


def _module(path: Path) -> ModuleType:
    """Run a file once for each content; its name in `sys.modules` cannot shadow anything."""
    try:
        code = path.read_bytes()
    except OSError as error:
        raise SpecError(f"`{path}` should be readable, found: {error.strerror}.") from None
    name = f"trunkline_user_{hashlib.sha256(str(path).encode() + code).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise SpecError(f"`{path}` should be a Python file, found one that cannot be loaded.")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module  # dataclasses look their own module up
    try:
        description.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SpecError(f"`{path}` should run, found {type(error).__name__}: {error}.") from error
    return module
