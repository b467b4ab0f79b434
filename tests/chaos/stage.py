"""The stage: starts all processes of a stream, does to them what the schedule says, and starts them again."""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from queues.stream.home import StreamHome
from tests.chaos.nursery import Nursery
from tests.chaos.points import Point
from tests.chaos.roles import Order
from tests.chaos.schedule import Action
from tests.chaos.watch import Watch
from tests.support.disk import Disk

COPIES = 4
"""Of the server of the queues' folder, that are kept."""


@dataclass
class Actor:
    """One process, or its place while there is none."""

    role: str
    number: int
    pid: int = 0
    ours: bool = False  # its end was our doing
    pending: bool = False  # it will be started again
    stopped: bool = False
    point: Point | None = None


class Stage:
    """One run.

    :param folder: for notes, logs and copies; on a disk that is not filled.
    :param home: of the stream.
    :param disk: that the stream lies on, where it may be filled.
    """

    def __init__(
        self, folder: Path, home: StreamHome, disk: Disk | None, seed: int, *, producers: int = 2, workers: int = 2
    ) -> None:
        self.home, self.disk, self.folder, self.logs = home, disk, folder, folder / "logs"
        self.logs.mkdir()
        self.rng = random.Random(seed + 1)
        self.done: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.notes: list[str] = []
        self.boot, self.filled = 0, False
        self.actors = {"server": Actor("server", 0), "celery-0": Actor("celery", 0)}
        self.actors |= {f"worker-{number}": Actor("worker", number) for number in range(workers)}
        self.actors |= {f"producer-{number}": Actor("producer", number) for number in range(producers)}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._copies: list[Path] = []
        self._pids: list[int] = []
        self._ending = False
        self.nursery = Nursery(home.folder, self.logs)
        self.watch = Watch(home.store)
        self.begun = time.monotonic()

    @property
    def names(self) -> list[str]:
        """All that can be killed."""
        return [*self.actors, "redis"]

    # -- the run -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everybody."""
        for name in self.actors:
            self._start(name)
        self.until(lambda: bool(self.watch.rises), 120.0, "a first step")
        self.begun = time.monotonic()

    def run(self, actions: list[Action]) -> None:
        """Do all of it."""
        for action in actions:
            self.until(lambda action=action: time.monotonic() - self.begun >= action.at, 1e6, "the next action")
            getattr(self, f"_{action.kind}")(action)
            self._log(str(action))

    def quiet(self) -> None:
        """Everything up again."""
        self._later, later = [], self._later
        for _, call in later:
            call()
        for actor in self.actors.values():
            self._continue(actor.pid)
        for pid in self.redis():
            self._continue(pid)

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Keep the processes up until something is so.

        :raises AssertionError: it did not come to be in time.
        """
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"{what} should have come by now"
            self._tick()
            time.sleep(0.01)

    def stop(self, role: str, seconds: float = 60.0) -> None:
        """A clean end of all of a role."""
        pids = {name: actor.pid for name, actor in self.actors.items() if actor.role == role}
        for name, pid in pids.items():
            self.actors[name].pending = True  # not to be started again
            self._signal(pid, signal.SIGTERM)
        for name, pid in pids.items():
            code = self.nursery.ended(pid, seconds)
            good = code in (0, -signal.SIGTERM)  # the latter: it had only just begun
            assert good, f"{name} should end well when it is told to, found {code}"

    def end_producers(self, seconds: float = 90.0) -> None:
        """Each pushes its last; they are kept up until they did."""
        wanted = [actor for actor in self.actors.values() if actor.role == "producer"]
        left = {id(actor) for actor in wanted}

        def ended() -> bool:
            for actor in wanted:
                code = self.nursery.code(actor.pid)
                if code == 0:
                    actor.pending = True
                    left.discard(id(actor))
                elif code is None:
                    self._signal(actor.pid, signal.SIGTERM)
            return not left

        self.until(ended, seconds, "the end of the producers")

    def close(self) -> None:
        """Nothing is left."""
        self.watch.close()
        if self.filled and self.disk is not None:
            self.disk.empty()
        self.nursery.close(self._pids)
        for pid in self.redis():
            self._signal(pid, signal.SIGKILL)

    def _tick(self) -> None:
        now = time.monotonic()
        due = [call for at, call in self._later if at <= now]
        self._later = [(at, call) for at, call in self._later if at > now]
        for call in due:
            call()
        for name, actor in self.actors.items():
            if actor.pending:
                continue
            code = self.nursery.code(actor.pid)
            if code is not None:
                self._note_end(name, actor, code)
                self._again(name, 0.2)
            elif actor.point is not None and actor.point.victim == "stop" and not actor.stopped and self._is_stopped(actor.pid):
                self._halt(actor, self.rng.choice((0.1, 1.0, 3.0)))

    def _note_end(self, name: str, actor: Actor, code: int) -> None:
        if actor.ours:
            return
        if code == -signal.SIGKILL:
            self.watch.killed(name)
            self.done[f"{actor.role} at a point"] += 1
            self._log(f"        {name} died at {actor.point and actor.point.name}")
        else:
            self.ends[f"{actor.role} {code}"] += 1
            self._log(f"        {name} ended by itself with {code}")

    def _start(self, name: str, point: Point | None = None) -> None:
        actor = self.actors[name]
        notes = self.folder / f"{name}.json"
        order = Order(
            actor.role, str(self.home.folder), str(notes), actor.number, self.rng.randrange(1 << 30), f"boot {self.boot}", point
        )
        actor.pid = self.nursery.start(order)
        actor.ours = actor.pending = actor.stopped = False
        actor.point = point
        self._pids.append(actor.pid)

    def _again(self, name: str, seconds: float, point: Point | None = None) -> None:
        if not self.actors[name].pending:
            self.actors[name].pending = True
            self._after(seconds, lambda: self._start(name, point))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, call))

    def _log(self, line: str) -> None:
        with (self.folder / "actions.log").open("a") as log:
            log.write(f"{time.monotonic() - self.begun:8.2f} {line}\n")

    # -- what is done to them ------------------------------------------------------------------------------------------

    def _kill(self, action: Action) -> None:
        for name in action.targets:
            self._end(name, action.seconds)
        self.done[f"{action.kind} {action.targets[0].partition('-')[0]}" if action.kind == "kill" else action.kind] += 1

    _several = _all = _kill

    def _end(self, name: str, seconds: float, point: Point | None = None) -> None:
        """Kill one; it comes again."""
        self.watch.killed(name)
        if name == "redis":
            for pid in self.redis():
                self._signal(pid, signal.SIGKILL)
            return
        actor = self.actors[name]
        if actor.pending:
            return
        actor.ours = True
        self._signal(actor.pid, signal.SIGKILL)
        self.nursery.ended(actor.pid, 10.0)
        self._again(name, seconds, point)

    def _stop(self, action: Action) -> None:
        (name,) = action.targets
        self.done[f"stop {name.partition('-')[0]}"] += 1
        if name == "redis":
            for pid in self.redis():
                self._signal(pid, signal.SIGSTOP)
                self._after(action.seconds, lambda pid=pid: self._continue(pid))
        else:
            self._halt(self.actors[name], action.seconds)

    def _halt(self, actor: Actor, seconds: float) -> None:
        pid, actor.stopped = actor.pid, True
        self._signal(pid, signal.SIGSTOP)

        def go_on() -> None:
            if actor.pid == pid:
                actor.stopped, actor.point = False, None
            self._continue(pid)

        self._after(seconds, go_on)

    def _point(self, action: Action) -> None:
        (name,) = action.targets
        self.done[f"point {name.partition('-')[0]}"] += 1
        self._end(name, action.seconds, Point(action.point, action.count, action.victim, str(self.home.redis / "redis.pid")))

    def _term(self, action: Action) -> None:
        (name,) = action.targets
        actor = self.actors[name]
        self.done[f"term {actor.role}"] += 1
        if not actor.pending:
            actor.ours = True
            self._signal(actor.pid, signal.SIGTERM)

    def _copy(self, action: Action) -> None:
        pids = self.redis()
        if not pids or self.filled:
            return
        for pid in pids:
            self._signal(pid, signal.SIGSTOP)
        target = self.folder / f"copy-{self.done['copy']}"
        with suppress(shutil.Error, OSError):
            shutil.copytree(self.home.redis / "appendonlydir", target)
            self._copies.append(target)
        for pid in pids:
            self._continue(pid)
        self.done["copy"] += 1
        for old in self._copies[:-COPIES]:
            shutil.rmtree(old, ignore_errors=True)
        self._copies = self._copies[-COPIES:]

    def _back(self, action: Action) -> None:
        if not self._copies or self.filled:
            return
        server = self.actors["server"]
        if "server" in action.targets:
            self._end("server", action.seconds)
        self._signal(server.pid, signal.SIGSTOP)  # it would start another
        end = time.monotonic() + 10
        while (pids := self.redis()) and time.monotonic() < end:
            for pid in pids:
                self._signal(pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.home.redis / "appendonlydir")
        shutil.copytree(self.rng.choice(self._copies), self.home.redis / "appendonlydir")
        self._continue(server.pid)
        self.watch.killed("redis")
        self.done["back"] += 1

    def _power(self, action: Action) -> None:
        self.boot += 1
        self.done["power"] += 1
        self._end("server", action.seconds)

    def _full(self, action: Action) -> None:
        if self.disk is None or self.filled:
            return
        self.filled = True
        self.disk.fill()
        self.done["full"] += 1

        def empty() -> None:
            if self.disk is not None and self.filled:
                self.disk.empty()
                self.filled = False

        self._after(action.seconds, empty)

    def _second(self, action: Action) -> None:
        pid = self.nursery.start(Order("server", str(self.home.folder), number=1, boot=f"boot {self.boot}"))
        self._pids.append(pid)
        self.done["second"] += 1

        def look() -> None:
            code = self.nursery.code(pid)
            if code is None:  # the first was away, and this is the server now
                self._signal(pid, signal.SIGKILL)
            else:
                self.ends[f"second server {code}"] += 1

        self._after(5.0, look)

    # -- processes -----------------------------------------------------------------------------------------------------

    def redis(self) -> list[int]:
        """Process ids of servers of queues in the stream's folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (path / "cwd").readlink() == self.home.redis and b"valkey" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    @staticmethod
    def _is_stopped(pid: int) -> bool:
        with suppress(OSError, IndexError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def _continue(self, pid: int) -> None:
        self._signal(pid, signal.SIGCONT)

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
