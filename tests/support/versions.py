"""Another release of Trunkline beside this one: a copy of its packages that speaks other wire versions and has fields to match."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from trunkline.installation import HOME, PACKAGES

VERSION = "99.0.0"

FIELDS = {
    "class Plan(Value):": "novelty: Count = 0",
    "class Machine(Value):": 'colour: str = "red"',
    "class TaskCount(Value):": "hours: Count = 3",
    "class Confirmation(Message):": 'mood: str = "glad"',
    "class InitialSet(Message):": 'greeting: str = "hello"',
    "class Update(Message):": "effort: Count = 1",
    "class Report(Message):": 'verdict: str = "fine"',
    "class EncoderRef(Value):": "weight: Count = 5",
    "class Request(Message):": "urgent: bool = True",
}
"""What wire version 3 of the other release adds: a field each to messages, and to values deep inside them and inside greetings."""


def another_release(folder: Path, oldest: int, newest: int) -> Path:
    """Copy the packages to a folder for PYTHONPATH, and make them a release that speaks wire versions `oldest` to `newest`.

    :raises AssertionError: the text that is changed is not there; then this file has to follow.
    """
    for package in PACKAGES:
        shutil.copytree(HOME / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "data"))
    _replace(folder / "trunkline" / "__init__.py", "__version__ = ", f'__version__ = "{VERSION}"  # ')
    messages = folder / "trunkline" / "messages.py"
    wire = folder / "trunkline" / "wire.py"
    _replace(wire, "OLDEST = 1\n", f"OLDEST = {oldest}\n")
    _replace(wire, "NEWEST = 2\n", f"NEWEST = {newest}\n")
    for head, field in FIELDS.items():
        name, _, default = field.partition(" = ")
        _replace(messages, head, f"{head}\n    {name} = Field(default={default}, json_schema_extra=since(3))\n")
    return folder


def run_from(release: Path | None, command: Sequence[str]) -> list[str]:
    """A command of ours, run by another release; None: by this one."""
    if release is None:
        return list(command)
    return ["env", f"PYTHONPATH={release}", *command]


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} should hold {old!r} once"
    path.write_text(text.replace(old, new), encoding="utf-8")
