"""The programs that the demo starts. Each has its own log; all end with the demo, however it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from trunkline.clock import Clock, Deadline
from trunkline.errors import FailedError

ADMIN, CHILD = "admin", "agent"
"""The two command lines, by their functions in `trunkline.start`."""


class Processes:
    """Starts programs of this installation and ends them all."""

    def __init__(self, folder: Path, clock: Clock, environment: Mapping[str, str]) -> None:
        self.folder, self.clock = folder, clock
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}  # what stays, by name
        self._brief: set[subprocess.Popen[bytes]] = set()  # what runs to its end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def command(self, entry: str, arguments: Sequence[str]) -> list[str]:
        """A command line of ours, run by this Python whatever is on PATH."""
        return [sys.executable, "-P", "-c", f"import sys; from trunkline.start import {entry}; sys.exit({entry}())", *arguments]

    def start(self, name: str, command: Sequence[str], *, stdin: bytes | None = None) -> subprocess.Popen[bytes]:
        """Start a program that stays; its output goes to `NAME.log`, or to its reader where it is given input."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=errors if stdin is None else subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
            )
        self._running[name] = process
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None  # or `communicate` would flush it
        return process

    def run(self, name: str, command: Sequence[str], seconds: float = 120.0) -> str:
        """Run a program to its end and give what it printed.

        :raises FailedError: it failed, or took too long; the message holds its last words.
        """
        done = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment, start_new_session=True
        )
        self._brief.add(done)
        try:
            out, errors = done.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._end(done, 0.0)
            raise FailedError(f"`{name}` should end within {seconds:g} s, found it still running.") from None
        finally:
            self._brief.discard(done)
        if done.returncode != 0:
            said = (errors or out).decode(errors="replace").strip().splitlines()[-3:]
            raise FailedError(f"`{name}` should succeed, found exit code {done.returncode}: {' '.join(said)}")
        return out.decode()

    def check(self) -> None:
        """:raises FailedError: a program that should stay has ended."""
        for name, process in self._running.items():
            if process.poll() is not None and process.stdout is None:
                lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise FailedError(f"`{name}` should stay up, found that it ended: {' '.join(lines[-2:])}")

    def stop(self, seconds: float = 15.0) -> None:
        """End all: asked first, then made to."""
        for process in [*self._brief, *reversed(self._running.values())]:
            _signal(process, signal.SIGTERM)
        for process in [*self._brief, *self._running.values()]:
            self._end(process, seconds)
        self._running.clear()

    def _end(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = Deadline(self.clock, seconds, "a program to end")
        while process.poll() is None and not deadline.over():
            self.clock.sleep(0.05)
        _signal(process, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
