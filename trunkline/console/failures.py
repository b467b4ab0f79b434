"""Whatever a command raised, as a result: ours as they are, click's in our words, anything else as a bug with a crash log."""

import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from trunkline.console.signals import Stopped
from trunkline.console.state import Console
from trunkline.errors import StorageFailed, TrunklineError, UsageError
from trunkline.terminal import Result

CRASH_LOG = "cli-errors.log"

CrashFolder = Callable[[Console], Path]
"""Where the traceback of an internal error is written."""


def failed(console: Console, error: BaseException, crash_folder: CrashFolder) -> Result:
    """What a run that raised this came to."""
    if isinstance(error, TrunklineError):
        return Result(error=error)
    if isinstance(error, Stopped):
        return Result(signal=error.number)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Result(signal=signal.SIGINT)
    if isinstance(error, click.UsageError):
        return Result(error=_of_click(error))
    if isinstance(error, click.ClickException):
        return Result(error=UsageError(error.format_message()))
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return Result(error=StorageFailed(f"`{error.filename}` should be usable, found: {error.strerror}."))
    place = _write_crash(error, console, crash_folder)
    said = f"{type(error).__name__} inside {console.program}; this is a bug."
    return Result(error=TrunklineError(f"the command should end well, found {said}", hint=f"The traceback is in {place}."))


def _of_click(error: click.UsageError) -> UsageError:
    path = error.ctx.command_path if error.ctx else ""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError(f"a command should follow `{path}`, found none.", hint=f"See `{path} --help`.")
    return UsageError(error.format_message(), hint=f"See `{path} --help`." if path else None)


def _write_crash(error: BaseException, console: Console, crash_folder: CrashFolder) -> str:
    text = f"{console.program} {' '.join(sys.argv[1:2])}\n{''.join(traceback.format_exception(error))}\n"
    for find in (crash_folder, lambda _: Path(tempfile.gettempdir())):
        try:
            path = find(console) / CRASH_LOG
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except (OSError, TrunklineError):
            continue
        return str(path)
    return "no file: none could be written"
