"""One run of a command line: what was said on it, and where it prints."""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import click

from trunkline.errors import FailedError, UsageError
from trunkline.terminal import Terminal

META = "trunkline.console"
"""Where click's contexts keep it."""


@dataclass
class Console:
    """One run of a command line."""

    program: str
    terminal: Terminal
    given: dict[str, Any] = field(default_factory=dict)  # common options that were on the command line

    @property
    def yes(self) -> bool:
        return bool(self.given.get("yes"))

    @property
    def timeout(self) -> float | None:
        """Seconds that the command may wait; None: its own default."""
        value = self.given.get("timeout")
        if value is not None and not 0 < value <= 366 * 86_400:
            raise UsageError(f"`--timeout` should be more than 0 seconds and less than a year, found {value:g}.")
        return value

    def option(self, name: str, variable: str) -> str | None:
        """A common option: the flag, else the environment variable, else None."""
        value = self.given.get(name)
        return str(value) if value is not None else os.environ.get(variable) or None

    def note(self, text: str) -> None:
        """Progress, on standard error."""
        self.terminal.note(text)

    def confirm(self, question: str) -> None:
        """Ask before something that cannot be undone.

        :raises UsageError: nobody can be asked, and `--yes` was not said.
        :raises FailedError: the answer was no.
        """
        if self.yes:
            return
        if not sys.stdin.isatty() or self.terminal.form != "table":
            raise UsageError(f"`--yes` should be said where nobody can be asked: {question}")
        print(f"{question} [y/N] ", end="", file=self.terminal.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise FailedError("the answer was no; nothing was done.")


def here() -> Console:
    """The run that the calling command belongs to."""
    return click.get_current_context().meta[META]
