"""How far a study is, on standard error: a bar where that is a terminal, and a line for each run that ended."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console

from benchmarks.value.results import Result, Results
from benchmarks.value.study import Run


class Progress(AbstractContextManager["Progress"]):
    """A bar over the work of the runs that are wanted."""

    def __init__(self) -> None:
        self.screen = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn(), bars.TimeRemainingColumn())
        self._bar = bars.Progress(*columns, console=self.screen, disable=not self.screen.is_terminal)
        self._task = self._bar.add_task("value study", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, runs: Sequence[Run], results: Results) -> None:
        """Say how much there is to do."""
        left = [run for run in runs if run not in results]
        pace = results.pace()
        long = f", about {pace * sum(run.cost for run in left) / 60:.0f} minutes of one process" if pace else ""
        self.say(f"{len(runs)} runs, {len(left)} of them to do{long}")
        self._bar.reset(self._task, total=sum(run.cost for run in left))

    def told(self, run: Run, result: Result | None, why: str) -> None:
        """A run ended."""
        self._bar.advance(self._task, run.cost)
        self.say(f"{run}: {f'mean {result.mean:.4f} in {result.seconds:.0f} s' if result else f'no result, {why}'}")

    def say(self, line: str) -> None:
        self._bar.console.print(f"[{self.screen.get_datetime():%H:%M:%S}] {line}", markup=False)
