"""What both command lines have in common: options that every command takes, errors and signals as exit codes, lazy commands.

    0 ok · 1 operation failed · 2 usage · 3 timeout · 4 connection, authorisation · 5 not found, conflict · 6 partial success
    70 internal · 130 SIGINT · 143 SIGTERM

A command is a function that returns a `Result`, or raises an error of `trunkline.errors`; how that is printed is decided here.
"""

import difflib
import inspect
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, get_type_hints

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from trunkline.errors import FailedError, StorageFailed, TrunklineError, UsageError
from trunkline.terminal import FORMS, Form, Result, Terminal

_META = "trunkline.console"

CRASH_LOG = "cli-errors.log"

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class Stopped(BaseException):
    """The process was told to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
    return click.get_current_context().meta[_META]


# -- options that every command takes ----------------------------------------------------------------------------------


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        console: Console = context.meta[_META]
        console.given[str(parameter.name)] = value
        _tune(console)


def _tune(console: Console) -> None:
    terminal, given = console.terminal, console.given
    terminal.form = given.get("output", terminal.form)
    terminal.quiet = bool(given.get("quiet", terminal.quiet))
    terminal.color = terminal.color and not given.get("no_color")


def common(*flags: str, **attributes: Any) -> click.Option:
    """An option whose value is kept in `Console.given`."""
    return click.Option(list(flags), expose_value=False, callback=_keep, **attributes)


def _common_options() -> list[click.Option]:
    return [
        common("--output", "-o", type=click.Choice(FORMS), help="How to print what was found or done.  [default: table]"),
        common("--quiet", "-q", is_flag=True, help="Nothing on standard error but errors."),
        common("--yes", "-y", is_flag=True, help="Do not ask."),
        common("--timeout", type=float, metavar="SECONDS", help="How long to wait."),
        common("--no-color", is_flag=True, help="No colours."),
    ]


class Command(TyperCommand):
    """A command that takes the common options. While it runs, only its terminal writes to standard output."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes | {"rich_markup_mode": None})
        self.params += self.more_options()

    def more_options(self) -> list[click.Option]:
        """A program adds its own."""
        return _common_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        helps = _argument_helps(self.callback)
        arguments = [(one.make_metavar(ctx), helps.get(str(one.name), "")) for one in parameters if isinstance(one, click.Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        records = (click.Option.get_help_record(one, ctx) for one in parameters if isinstance(one, click.Option))
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])

    def invoke(self, ctx: click.Context) -> Any:
        with redirect_stdout(here().terminal.stderr):  # what a library prints is no part of the answer
            return super().invoke(ctx)


def _argument_helps(function: Callable[..., Any] | None) -> dict[str, str]:
    """What is said of a command's arguments, by name: read from its signature, since click 8.5 loses what typer 0.20 hands it."""
    if function is None:
        return {}
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    infos = ((name, info) for name, hint in hints.items() for info in getattr(hint, "__metadata__", ()))
    return {name: info.help or "" for name, info in infos if isinstance(info, ArgumentInfo)}


class Group(TyperGroup):
    """A noun. Common options may stand before its verb too."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes | {"rich_markup_mode": None, "suggest_commands": False})
        self.params += self.more_options()

    def more_options(self) -> list[click.Option]:
        """A program adds its own."""
        return _common_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            advice = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(known)}."
            raise UsageError(f"`{ctx.command_path}` has no command {args[0]!r}.", hint=advice)
        return super().resolve_command(ctx, args)


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is loaded when it is asked for. Its module has `app`, a `typer.Typer`."""

    module: str
    help: str


class Root(Group):
    """The program itself: a list of commands by name; their modules are loaded when they are used."""

    lazy: Mapping[str, Lazy] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        command = typer.main.get_command(import_module(self.lazy[cmd_name].module).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.lazy.items()])


def completion_script(program: str, shell: str) -> str:
    """What a shell needs to complete this program's commands.

    :raises UsageError: not a shell that is known.
    """
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageError(f"`SHELL` should be one of {', '.join(SHELLS)}, found {shell!r}.")
    return get_completion_script(prog_name=program, complete_var=_completing(program), shell=shell)


def _completing(program: str) -> str:
    """The environment variable in which a shell asks for completions."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


# -- running -----------------------------------------------------------------------------------------------------------


def run(root: click.Command, program: str, arguments: Sequence[str] | None, crash_folder: Callable[[Console], Path]) -> int:
    """Run a command line and give its exit code; never raises.

    :param crash_folder: where the traceback of an internal error is written.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show is no reason to fail
    if _completing(program) in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    console = Console(program, Terminal(_form(argv), color=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    try:
        with _signals():
            found = root.main(argv, program, standalone_mode=False, parent=_above(console))
            return found if isinstance(found, int) else console.terminal.finish(found or Result())
    except BrokenPipeError:
        return _hung_up()
    except BaseException as error:  # noqa: BLE001 - the outermost frame: whatever it is ends as an exit code
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        return _say(console, _failed(console, error, crash_folder))


def _say(console: Console, result: Result) -> int:
    try:
        return console.terminal.finish(result)
    except BrokenPipeError:
        return _hung_up()


def _above(console: Console) -> click.Context:
    """A context without a name, so that options can be kept while the command line is still being read."""
    context = click.Context(click.Command(None))
    context.meta[_META] = console
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


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM end a command in an orderly way. Daemons put their own handlers in place of these."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(console: Console, error: BaseException, crash_folder: Callable[[Console], Path]) -> Result:
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


def _write_crash(error: BaseException, console: Console, crash_folder: Callable[[Console], Path]) -> str:
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


def _hung_up() -> int:
    """Whoever read standard output has gone, as `head` does. Nothing is wrong with that."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
