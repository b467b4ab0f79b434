"""The streams of a master: a folder each in `streams/`, and the process that serves it. What it computes with is loaded there.

Each turn compares what should run with what runs: every stream that nobody stopped has one process. One that ended by itself is
started again, after a pause that grows; all end with the master, however it ends.
"""

import logging
import os
import random
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from master.pause import Pause
from master.process import give_order, spawn
from queues.stream.client import StreamClient
from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.removal import remove
from queues.stream.spec import StreamSpec
from trunkline.clock import Clock, Deadline
from trunkline.errors import Conflict, NotFound, TrunklineError, Unreachable, UsageError
from trunkline.files import storage, write_atomically

logger = logging.getLogger(__name__)

STEADY_SECONDS = 60.0
"""A process that ran for so long was well: its next pause is a short one."""

STOP_SECONDS = 30.0
"""A process that is told to end may take so long; then it is made to, which loses nothing."""

LOOK = 0.05

OFF = "off"
"""The file in a stream's folder that says that it was stopped."""


@dataclass
class _Running:
    """A stream's process, and when there may be a next one."""

    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: Pause = field(default_factory=Pause)
    reason: str | None = None  # of the last end that nobody asked for
    accept: bool = False  # the next one goes on although something was lost


class Streams:
    """All streams of one master. Any thread may use it.

    :param folder: made with the first stream.
    """

    def __init__(self, folder: Path, clock: Clock, rng: random.Random | None = None) -> None:
        self.folder, self.clock, self.rng = folder.absolute(), clock, rng or random.Random()  # noqa: S311
        self._lock = threading.RLock()
        self._running: dict[str, _Running] = {}
        self._closed = False

    # -- which there are -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All streams, sorted."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if (path / "stream.json").is_file() and path.name[0] != ".")

    def find(self, name: str | None) -> str:
        """The stream of a name; without one, the only one there is.

        :raises NotFound: there is none.
        :raises UsageError: there are several.
        """
        names = self.names()
        if name is not None and name not in names:
            raise NotFound(f"`stream` should be one of {', '.join(names) or 'none yet'}, found {name!r}.")
        if name is None and not names:
            raise NotFound("there should be a stream, found none.", hint="Make one: trunkline stream create.")
        if name is None and len(names) > 1:
            raise UsageError(f"`stream` should say which one of {', '.join(names)}, found nothing.")
        return name or names[0]

    def home(self, name: str) -> StreamHome:
        """The folder of a stream.

        :raises NotFound: there is none of this name.
        """
        return StreamHome(self.folder / self.find(name))

    def client(self, name: str) -> StreamClient:
        """Calls to a stream's server.

        :raises NotFound: there is none of this name.
        """
        return StreamClient(self.home(name).socket, name)

    def check_runs(self, name: str) -> None:
        """Whether its server should answer.

        :raises NotFound: there is no such stream.
        :raises Conflict: it was stopped.
        :raises Unreachable: it failed, or is starting; says why.
        """
        found = self.table(name)
        if found["state"] == "stopped":
            raise Conflict(f"stream {name!r} should run, found it stopped.", hint=f"Start it: trunkline stream start {name}.")
        if found["state"] != "running":
            why = f": {found['reason']}" if found["reason"] else "."
            raise Unreachable(f"the server of stream {name!r} should answer, found it {found['state']}{why}")

    def table(self, name: str) -> dict[str, Any]:
        """A stream and how its process is: running, starting, failed with a reason, or stopped."""
        home = self.home(name)
        about: dict[str, Any] = {"name": name, "encoder": None, "tasks": [], "folder": str(home.folder)}
        try:
            spec = home.spec
        except TrunklineError as error:  # its server says the same; the others are told of all the same
            return about | self._state(home) | {"reason": error.message}
        return about | {"encoder": spec.encoder, "tasks": [task.name for task in spec.tasks]} | self._state(home)

    def _state(self, home: StreamHome) -> dict[str, Any]:
        with self._lock:
            found = self._running.get(home.folder.name) or _Running()
            told = home.server() or {}
            alive = found.process is not None and found.process.poll() is None
            if alive and found.process is not None and told.get("pid") == found.process.pid:
                return {"state": "running", "pid": found.process.pid, "reason": None}
            if (home.folder / OFF).exists():
                return {"state": "stopped", "pid": None, "reason": None}
            return {"state": "failed" if found.reason else "starting", "pid": None, "reason": found.reason}

    # -- changing them -------------------------------------------------------------------------------------------------

    def create(
        self,
        spec: StreamSpec,
        encoder: Mapping[str, Path],
        *,
        rows: Mapping[str, str],
        modules: Sequence[Path] = (),
        redis: str | None = None,
        broker: str | None = None,
        since: int | None = None,
    ) -> StreamHome:
        """A new stream; see `queues.stream.create.create`. Its process starts with the next turn.

        :raises Conflict: there is one of this name.
        """
        with self._lock:
            if spec.name in self.names():
                raise Conflict(f"`NAME` should be new, found stream {spec.name!r} already.")
            with storage(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            place = self.folder / spec.name
            return create(place, spec, encoder, rows=rows, modules=modules, redis=redis, broker=broker, since=since)

    def start(self, name: str, *, accept: bool = False) -> None:
        """Let it run (again); now, whatever pause there was.

        :param accept: go on although the server of its queues, or its store, lost something.
        """
        with self._lock:
            (self.home(name).folder / OFF).unlink(missing_ok=True)
            found = self._running.setdefault(name, _Running())
            found.pause, found.reason, found.accept = Pause(), None, accept

    def stop(self, name: str) -> None:
        """End its process, until `start`; also over restarts of the master."""
        with self._lock:
            write_atomically(self.home(name).folder / OFF, b"")
            ending = self._taken([name])
        self._end(ending)

    def remove(self, name: str) -> None:
        """End its process and delete all that it has."""
        home = self.home(name)
        self.stop(name)
        with self._lock:
            remove(home)

    # -- its processes -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Start what should run and does not."""
        with self._lock:
            if self._closed:
                return
            for name in self.names():
                if not (self.folder / name / OFF).exists():
                    self._look(name)

    def _look(self, name: str) -> None:
        found, now = self._running.setdefault(name, _Running()), self.clock.monotonic()
        if found.process is not None:
            if found.process.poll() is None:
                return
            if now - found.began > STEADY_SECONDS:
                found.pause = Pause()
            found.reason = _last_words(StreamHome(self.folder / name), found.process.returncode)
            logger.warning("the server of stream %s ended: %s", name, found.reason)
            _close(found.process)
            found.process = None
            found.pause.grow(now, self.rng)
        if found.pause.over(now):
            with _told(name):
                self._spawn(name, found)

    def _spawn(self, name: str, found: _Running) -> None:
        home = StreamHome(self.folder / name)
        found.process, found.began = spawn("queues.stream", home.folder, _log(home)), self.clock.monotonic()
        give_order(found.process, {"folder": str(home.folder), "accept": found.accept})
        found.accept = False
        logger.info("the server of stream %s is process %d", name, found.process.pid)

    def close(self) -> None:
        """End all processes: the master stops."""
        with self._lock:
            self._closed = True
            ending = self._taken(list(self._running))
        self._end(ending)

    def _taken(self, names: Sequence[str]) -> list[subprocess.Popen[bytes]]:
        """Their processes, out of the hands of `turn`."""
        return [found.process for name in names if (found := self._running.pop(name, None)) and found.process is not None]

    def _end(self, ending: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in ending:
            _signal(process, signal.SIGTERM)
        deadline = Deadline(self.clock, STOP_SECONDS, "the servers of streams to end")
        for process in ending:
            while process.poll() is None and not deadline.over():
                self.clock.sleep(LOOK)
            _signal(process, signal.SIGKILL)
            process.wait()
            _close(process)


class _told:  # noqa: N801
    """An error while a process is started: logged, and tried again later."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, TrunklineError | OSError):
            logger.warning("the server of stream %s: %s", self.name, error)
            return True
        return False


def _log(home: StreamHome) -> Path:
    """What the process says that is no log line: its error, or a crash."""
    path = home.logs / "process.log"
    with suppress(OSError):
        if path.stat().st_size > 1 << 20:
            path.replace(path.with_suffix(".log.1"))
    return path


def _last_words(home: StreamHome, code: int | None) -> str:
    try:
        said = (home.logs / "process.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        said = []
    last = next((line.removeprefix("error: ") for line in reversed(said) if line.startswith("error: ")), None)
    if code is not None and code < 0:
        return f"it was ended by signal {-code}."
    return last or f"it ended with code {code}; see logs/ of the stream."


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
