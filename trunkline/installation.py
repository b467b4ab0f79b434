"""One installation: a user's own `tasks.py` in the working directory must not take the place of ours unseen."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from trunkline.errors import UsageError

PACKAGES = ("trunkline", "tasks", "queues", "child", "master")

HOME = Path(__file__).resolve().parent.parent
"""The folder that holds this installation's packages."""


def check_installation(packages: Sequence[str] = PACKAGES, home: Path = HOME) -> None:
    """Check that importing our packages brings ours. Nothing is imported for it. Each entry point calls it first.

    :raises UsageError: something else is found under one of the names; the message says where it lies.
    """
    for name in packages:
        spec = find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
        place = _place(spec)
        if place is None:
            raise UsageError(f"the package `{name}` should lie in {home}, found none.", hint="Install trunkline again.")
        if place.parent != home or spec is None or not spec.submodule_search_locations:
            raise UsageError(
                f"the package `{name}` should lie in {home}, found {place} instead.",
                hint="Rename that one, or take its folder off PYTHONPATH or start in another folder.",
            )


def _place(spec: ModuleSpec | None) -> Path | None:
    """The folder of a package, or the file of a module."""
    if spec is None:
        return None
    if spec.origin and spec.origin != "namespace":
        file = Path(spec.origin).resolve()
        return file.parent if file.name.startswith("__init__.") else file
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]).resolve() if folders else None
