"""What a command line prints: one envelope, in the form that was asked for, alone on standard output; all else on standard error.

    table   lines for people
    json    the envelope: {"schema_version", "status", "exit_code", "data", "error"}
    jsonl   one line of JSON a row or event as it comes, then the envelope (without the rows that were told already)
    yaml    the envelope

The exit code is the same in each form, and stands in the envelope.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from trunkline.errors import TrunklineError
from trunkline.yaml import yaml

Form = Literal["table", "json", "jsonl", "yaml"]
FORMS: tuple[Form, ...] = ("table", "json", "jsonl", "yaml")

SCHEMA_VERSION = "1"

PARTIAL = 6
"""Exit code where a part of what was asked was done."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found or did.

    :param data: JSON values only.
    :param lines: the same for people.
    :param partial: only a part of what was asked could be done.
    :param error: it came to nothing good, and `data` says more than an error can.
    :param signal: the number of the signal that ended it.
    """

    data: Any = None
    lines: Sequence[str] = ()
    partial: bool = False
    error: TrunklineError | None = None
    signal: int = 0

    @property
    def exit_code(self) -> int:
        if self.signal:
            return 128 + self.signal
        if self.error is not None:
            return self.error.exit_code
        return PARTIAL if self.partial else 0

    def envelope(self) -> dict[str, Any]:
        """As `--output json` prints it."""
        told = _told(self)
        status = "error" if told is not None else "partial" if self.partial else "ok"
        return {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "exit_code": self.exit_code,
            "data": self.data,
            "error": told,
        }


def _told(result: Result) -> dict[str, Any] | None:
    """An error as the envelope has it."""
    if result.signal:
        return {"code": "interrupted", "message": f"signal {result.signal} ended it.", "hint": None, "retryable": True}
    return result.error.table() if result.error is not None else None


class Terminal:
    """Where a command prints.

    :param quiet: nothing on standard error but errors.
    :param color: whether colours may be used there.
    """

    def __init__(
        self,
        form: Form = "table",
        *,
        quiet: bool = False,
        color: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.form: Form = form
        self.quiet, self.color = quiet, color
        self.stdout, self.stderr = stdout or sys.stdout, stderr or sys.stderr

    def note(self, text: str) -> None:
        """Progress, for people."""
        if not self.quiet:
            print(text, file=self.stderr, flush=True)

    def row(self, data: Any, line: str | None = None) -> None:
        """Something that happened just now: a line of JSON Lines at once; for people a line, if there is one."""
        if self.form == "jsonl":
            print(_json(data), file=self.stdout, flush=True)
        elif self.form == "table" and line is not None:
            print(line, file=self.stdout, flush=True)

    @property
    def live(self) -> bool:
        """Whether somebody looks at standard error now, and wants to."""
        return not self.quiet and self.stderr.isatty()

    @contextmanager
    def panel(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """What shows a few lines on standard error, in the place of those it showed before. For a terminal that is `live`."""
        from rich.console import Console as Screen
        from rich.live import Live
        from rich.text import Text

        screen = Screen(file=self.stderr, no_color=not self.color, highlight=False)
        with Live(Text(""), console=screen, refresh_per_second=4, transient=False) as shown:
            yield lambda lines: shown.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))

    def finish(self, result: Result) -> int:
        """Print what a command returned, and give its exit code."""
        if result.signal:
            print("stopped by a signal.", file=self.stderr, flush=True)
        if result.error is not None:
            self._complain(result.error)
        if self.form == "table":
            for line in result.lines:
                print(line, file=self.stdout)
        elif self.form == "yaml":
            print("\n".join(yaml(result.envelope())), file=self.stdout)
        elif self.form == "jsonl":
            envelope = result.envelope()
            if isinstance(result.data, list):
                for item in result.data:
                    print(_json(item), file=self.stdout)
                envelope["data"] = None
            print(_json(envelope), file=self.stdout)
        else:
            print(json.dumps(result.envelope(), indent=2, ensure_ascii=False, allow_nan=False), file=self.stdout)
        self.stdout.flush()
        return result.exit_code

    def _complain(self, error: TrunklineError) -> None:
        word = "\x1b[31merror:\x1b[0m" if self.color else "error:"
        print(f"{word} {_CONTROL.sub(' ', str(error))}", file=self.stderr, flush=True)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


# -- for people --------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], nothing: str = "none") -> list[str]:
    """Rows in columns that line up; `nothing` where there are none."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    if not cells:
        return [nothing]
    cells.insert(0, [column.upper().replace("_", " ") for column in columns])
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def pairs(values: Mapping[str, Any], indent: str = "", *, exact: bool = False) -> list[str]:
    """One value a line, after its name; names that somebody types again are printed `exact`."""
    width = max((len(name) for name in values), default=0)
    names = {name: name if exact else name.replace("_", " ") for name in values}
    return [f"{indent}{names[name].ljust(width)}  {cell(value)}".rstrip() for name, value in values.items()]


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(cell(inner) for inner in value) or "-"
    return _CONTROL.sub(" ", str(value))  # what a child told may not steer the terminal


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
"""Control signs, and those that end a line or turn the direction of what stands after them."""


def amount(count: float) -> str:
    """Bytes for people.

    >>> amount(0), amount(2048), amount(87_000_000)
    ('0 B', '2.0 kB', '87.0 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def span(seconds: float) -> str:
    """A time span for people.

    >>> span(4.2), span(75), span(7300)
    ('4 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(at: float | None) -> str:
    """Seconds since the epoch as local time."""
    from datetime import datetime

    return "-" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
