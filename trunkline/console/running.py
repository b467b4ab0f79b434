"""The frame around every command: from a command line to an exit code, with nothing raised."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

import click

from trunkline.console import completion
from trunkline.console.failures import CrashFolder, failed
from trunkline.console.signals import signals
from trunkline.console.state import META, Console
from trunkline.terminal import FORMS, Form, Result, Terminal


def run(root: click.Command, program: str, arguments: Sequence[str] | None, crash_folder: CrashFolder) -> int:
    """Run a command line and give its exit code; never raises.

    :param crash_folder: where the traceback of an internal error is written.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show is no reason to fail
    completion.prepare(program)
    console = Console(program, Terminal(_form(argv), color=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    try:
        with signals():
            found = root.main(argv, program, standalone_mode=False, parent=_above(console))
            return found if isinstance(found, int) else console.terminal.finish(found or Result())
    except BrokenPipeError:
        return _hung_up()
    except BaseException as error:  # noqa: BLE001 - the outermost frame: whatever it is ends as an exit code
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        return _say(console, failed(console, error, crash_folder))


def _say(console: Console, result: Result) -> int:
    try:
        return console.terminal.finish(result)
    except BrokenPipeError:
        return _hung_up()


def _above(console: Console) -> click.Context:
    """A context without a name, so that options can be kept while the command line is still being read."""
    context = click.Context(click.Command(None))
    context.meta[META] = console
    return context


def _form(argv: Sequence[str]) -> Form:
    """The form that was asked for, as far as one can tell from a command line that may be wrong."""
    asked = os.environ.get("TRUNKLINE_OUTPUT", "table")
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word == "--":
            break
        if word in ("--output", "-o"):
            asked = following
        elif word.startswith("--output="):
            asked = word.partition("=")[2]
    for form in FORMS:
        if form == asked:
            return form
    return "table"


def _hung_up() -> int:
    """Whoever read standard output has gone, as `head` does. Nothing is wrong with that."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
