"""Carries out runs in processes of their own, one thread each, until they are done or a budget of seconds is used up.

A process that is killed loses the run it was in, no more. Each has a folder of its own, so two never write the same file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock as ThreadLock
from threading import Thread
from typing import Any

from benchmarks.value.results import Result, Results
from benchmarks.value.study import Run
from trunkline.clock import Clock, Deadline
from trunkline.files import Lock

FOLDER = Path(__file__).parents[1] / "out" / "value"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

WORKER = (sys.executable, "-m", "benchmarks.value.worker")
"""Called with a folder of its own; reads runs, a line of JSON each, and answers each with a line."""

Told = Callable[[Run, Result | None, str], None]
"""Receives a run that ended, with its result, or with none and the reason."""


@dataclass
class Drive:
    """What is done with how many processes, and until when.

    :param deadline: when everything stops, finished or not.
    """

    results: Results
    workers: int
    deadline: Deadline
    told: Told
    folder: Path = FOLDER
    program: Sequence[str] = WORKER
    failed: dict[str, str] = field(default_factory=dict)  # key -> why; not tried again by this process

    def carry_out(self, runs: Sequence[Run]) -> bool:
        """Do the runs that have no result yet, in their order.

        :returns: whether all of them have one, or have failed.
        """
        waiting = [run for run in runs if run not in self.results and run.key not in self.failed]
        lock = ThreadLock()
        with _alone(self.folder), _processes(min(self.workers, len(waiting)), self.folder, self.program) as processes:
            threads = [Thread(target=self._serve, args=(process, waiting, lock), daemon=True) for process in processes]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self.deadline.over():
                    thread.join(0.2)
        for process, thread in zip(processes, threads, strict=True):
            thread.join()  # its process has ended, so it has nothing to wait for
            _close(process)
        return all(run in self.results or run.key in self.failed for run in runs)

    def _serve(self, process: "subprocess.Popen[str]", waiting: list[Run], lock: ThreadLock) -> None:
        while True:
            with lock:
                if not waiting or not self._fits(waiting[0]):
                    return
                run = waiting.pop(0)
            answer = _ask(process, run)
            with lock:
                self._note(run, answer)
            if answer is None:
                return

    def _fits(self, run: Run) -> bool:
        """Whether a run would end in time, as far as one can tell."""
        return self.deadline.left() > (self.results.pace() or 0.0) * run.cost

    def _note(self, run: Run, answer: dict[str, Any] | None) -> None:
        if answer is not None and "failed" not in answer:
            self.told(run, self.results.add(run, answer), "")
            return
        why = answer["failed"] if answer is not None else "its process ended"
        if not self.deadline.over():
            self.failed[run.key] = why
        self.told(run, None, why)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """:raises AlreadyRunning: another study works in this folder."""
    lock = Lock(folder / "lock", "value study")
    try:
        yield
    finally:
        lock.release()


def _ask(process: "subprocess.Popen[str]", run: Run) -> dict[str, Any] | None:
    """A worker's answer; None: it has ended."""
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    try:
        print(json.dumps(run.table()), file=process.stdin, flush=True)
        line = process.stdout.readline()
    except (BrokenPipeError, ValueError):
        return None
    return json.loads(line) if line.endswith("\n") else None


@contextmanager
def _processes(count: int, folder: Path, program: Sequence[str]) -> Iterator["list[subprocess.Popen[str]]"]:
    started = []
    try:
        for number in range(count):
            mine = folder / f"worker-{number}"
            mine.mkdir(parents=True, exist_ok=True)
            with (mine / "log").open("w", encoding="utf-8") as log:
                started.append(
                    subprocess.Popen(
                        [*program, str(mine)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        env={**os.environ, **ENVIRONMENT},
                        cwd=Path(__file__).parents[2],
                    )
                )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _close(process: "subprocess.Popen[str]") -> None:
    """Its ends of the pipes; what was not read by a process that was killed is nobody's."""
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()


def until(clock: Clock, seconds: float | None) -> Deadline:
    """The end of a budget; None: a day."""
    return Deadline(clock, 86_400.0 if seconds is None else seconds, "the value study")
