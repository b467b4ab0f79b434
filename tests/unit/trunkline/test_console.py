"""The frame around every command: what it returns or raises becomes an exit code and an envelope; there is never a traceback."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
import typer

from trunkline.api_errors import error_classes
from trunkline.console import CRASH_LOG, Command, Console, Group, Lazy, Root, Running, common, here, run
from trunkline.errors import Reason, RefusedValue, TrainingFailed, TrunklineError
from trunkline.terminal import FORMS, Result

Done = tuple[int, str, str]

WHAT: dict[str, Callable[[], Any]] = {}
"""What the command `do` does, by word."""


class Own(Command):
    def more_options(self) -> list[click.Option]:
        return [common("--home", metavar="FOLDER"), *super().more_options()]


def program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    app.callback(help="A noun.")(lambda: None)

    @app.command("do", cls=Own)
    def do(what: str, number: Annotated[int, typer.Option()] = 1) -> Any:
        """Do what is said."""
        return WHAT[what]()

    root = typer.main.get_command(app)

    def call(*words: str) -> Done:
        code = run(root, "prog", words, lambda console: tmp_path / "logs")
        out, err = capsys.readouterr()
        return code, out, err

    return call


prog = pytest.fixture(program)


def raises(error: BaseException) -> Callable[[], Any]:
    def do() -> Any:
        raise error

    return do


def made(kind: type[TrunklineError]) -> TrunklineError:
    if issubclass(kind, RefusedValue | TrainingFailed):
        return kind(Reason.INTERNAL, "it should be so, found otherwise.")
    return kind("it should be so, found otherwise.", hint="Do this.")


@pytest.mark.parametrize("kind", list(error_classes(TrunklineError)), ids=lambda kind: kind.__name__)
def test_each_error_ends_with_its_exit_code_in_each_form(prog: Callable[..., Done], kind: type[TrunklineError]) -> None:
    WHAT["fail"] = raises(made(kind))
    for form in FORMS:
        code, out, err = prog("do", "fail", "--output", form)
        assert code == kind.exit_code
        assert err.startswith("error: it should be so, found otherwise.") and err.count("\n") == 1
        if form == "table":
            assert out == ""
        if form == "json":
            assert json.loads(out)["error"]["code"] == kind.code


WRONG = {
    "no such option": ["do", "fine", "--bogus"],
    "no such command": ["undo"],
    "an argument is missing": ["do"],
    "a number is none": ["do", "fine", "--number", "x"],
    "no such form": ["do", "fine", "--output", "xml"],
    "nothing": [],
    "a time that is none": ["do", "wait", "--timeout", "-1"],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_what_is_typed_wrong_ends_with_2_also_in_the_envelope(prog: Callable[..., Done], words: list[str]) -> None:
    WHAT["wait"] = lambda: Result(here().timeout)
    code, out, err = prog(*words)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    if "xml" in words:
        return
    code, out, err = prog("--output=json", *words)
    assert code == 2 and json.loads(out)["error"]["code"] == "usage"


def test_the_form_may_stand_before_or_behind_and_the_later_counts(prog: Callable[..., Done]) -> None:
    WHAT["fine"] = lambda: Result({"a": 1}, ["a 1"])
    assert prog("do", "fine")[1] == "a 1\n"
    for words in (["-o", "json", "do", "fine"], ["do", "fine", "-o", "json"], ["-o", "yaml", "do", "fine", "--output=json"]):
        assert json.loads(prog(*words)[1])["data"] == {"a": 1}


def test_the_environment_says_the_form_where_no_flag_does(prog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    WHAT["fine"] = lambda: Result({"a": 1}, ["a 1"])
    monkeypatch.setenv("TRUNKLINE_OUTPUT", "json")
    assert json.loads(prog("do", "fine")[1])["data"] == {"a": 1}
    assert prog("do", "fine", "--output", "table")[1] == "a 1\n"


def test_a_flag_counts_more_than_the_environment(prog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    WHAT["home"] = lambda: Result(here().option("home", "PROG_HOME"))
    monkeypatch.setenv("PROG_HOME", "from the environment")
    assert json.loads(prog("do", "home", "-o", "json")[1])["data"] == "from the environment"
    assert json.loads(prog("do", "home", "-o", "json", "--home", "said")[1])["data"] == "said"


def test_help_goes_to_standard_output_and_is_no_error(prog: Callable[..., Done]) -> None:
    code, out, err = prog("do", "--help")
    assert (code, err) == (0, "") and "Do what is said." in out and "--timeout" in out


def test_what_a_library_prints_is_not_in_the_answer(prog: Callable[..., Done]) -> None:
    def chatty() -> Result:
        print("Loading weights: 100%")
        here().note("half way")
        return Result([1])

    WHAT["chat"] = chatty
    code, out, err = prog("do", "chat", "--output", "json")
    assert (code, json.loads(out)["data"]) == (0, [1])
    assert err == "Loading weights: 100%\nhalf way\n"


def test_an_internal_error_is_one_line_and_its_traceback_lies_in_a_file(prog: Callable[..., Done], tmp_path: Path) -> None:
    WHAT["break"] = raises(ZeroDivisionError("1 / 0"))
    code, out, err = prog("do", "break", "--output", "json")
    assert code == 70 and err.count("\n") == 1 and "Traceback (" not in out + err
    told = json.loads(out)["error"]
    path = tmp_path / "logs" / CRASH_LOG
    assert told["code"] == "internal" and str(path) in told["hint"]
    assert "ZeroDivisionError: 1 / 0" in path.read_text()


def test_where_no_log_can_be_written_the_error_still_says_where_it_is(prog: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    WHAT["break"] = raises(ValueError("x"))
    code, _, err = prog("do", "break")
    assert code == 70 and CRASH_LOG in err
    Path(err.split("The traceback is in ")[1].strip().rstrip(".")).unlink()


def test_a_command_that_returns_something_else_is_a_bug(prog: Callable[..., Done]) -> None:
    WHAT["odd"] = lambda: {"a": 1}
    assert prog("do", "odd")[0] == 70


def test_what_the_disk_says_is_told_with_its_path(prog: Callable[..., Done]) -> None:
    WHAT["full"] = raises(OSError(errno.ENOSPC, "No space left on device", "there/file"))
    code, _, err = prog("do", "full")
    assert (code, err) == (1, "error: `there/file` should be usable, found: No space left on device.\n")


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_its_code(prog: Callable[..., Done], number: signal.Signals, expected: int) -> None:
    closed: list[str] = []

    def waits() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            closed.append("cleaned up")

    WHAT["wait"] = waits
    before = signal.getsignal(number)
    code, out, err = prog("do", "wait", "--output", "json")
    assert (code, closed, err) == (expected, ["cleaned up"], "stopped by a signal.\n")
    assert json.loads(out)["exit_code"] == expected and json.loads(out)["error"]["code"] == "interrupted"
    assert signal.getsignal(number) is before


def test_what_cannot_be_undone_is_asked_for(prog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    def delete() -> Result:
        here().confirm("Delete it?")
        return Result("deleted")

    WHAT["delete"] = delete
    code, _, err = prog("do", "delete")
    assert code == 2 and "--yes" in err
    assert prog("do", "delete", "--yes")[0] == 0

    class Person:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer

    for answer, expected in (("y\n", 0), ("\n", 1), ("no\n", 1), ("", 1)):
        monkeypatch.setattr(sys, "stdin", Person(answer))
        assert prog("do", "delete")[0] == expected
        assert prog("do", "delete", "--output", "json")[0] == 2  # a program does not answer


def test_a_lazy_command_is_loaded_only_when_it_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    class Here(Root):
        lazy = {"gone": Lazy("trunkline.no_such_module", "Is not there.")}

    root = Here(name="prog")
    assert run(root, "prog", ["--help"], lambda console: tmp_path) == 0
    assert "Is not there." in capsys.readouterr().out
    assert run(root, "prog", ["gone"], lambda console: tmp_path) == 70
    assert run(root, "prog", ["gnoe"], lambda console: tmp_path) == 2
    assert "Did you mean `gone`?" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import sys; from master.cli import main; sys.stdin.readline(); "
        "code = main(['version']); sys.stderr.write(f'code {code}'); sys.exit(code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate("go\n", timeout=60)
    assert (process.returncode, err) == (0, "code 0")


def test_the_console_is_not_shared_between_runs(prog: Callable[..., Done]) -> None:
    seen: list[Console] = []
    WHAT["look"] = lambda: seen.append(here())
    assert prog("do", "look", "--yes")[0] == prog("do", "look")[0] == 0
    assert [console.yes for console in seen] == [True, False]


def test_a_noun_that_does_something_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(cls=Running, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    app.callback(help="A noun.")(lambda: None)

    @app.command("run", cls=Command)
    def run_(name: Annotated[str, typer.Argument()] = "nobody", number: Annotated[int, typer.Option()] = 1) -> Any:
        return Result({"ran": name, "number": number})

    @app.command("status", cls=Command)
    def status() -> Any:
        return Result({"looked": True})

    def told(*words: str) -> Any:
        assert run(typer.main.get_command(app), "prog", [*words, "--output", "json"], lambda console: tmp_path / "logs") == 0
        return json.loads(capsys.readouterr().out)["data"]

    assert told() == {"ran": "nobody", "number": 1}
    assert told("amy") == told("run", "amy") == {"ran": "amy", "number": 1}
    assert told("--number", "3", "amy") == {"ran": "amy", "number": 3}
    assert told("status") == told("--quiet", "status") == {"looked": True}
    assert run(typer.main.get_command(app), "prog", ["--help"], lambda console: tmp_path / "logs") == 0
    assert "status" in capsys.readouterr().out
