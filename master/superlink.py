"""The SuperLink as a process of the master, and the ServerApp processes of its runs.

The SuperLink keeps everything in memory and may be lost at any moment: its node keys come from the ledger again, its runs are
started again. It listens on the loopback unless told otherwise.
"""

import logging
import os
import random
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from master.pki import Tls
from master.process import give_order, spawn
from trunkline.clock import Clock, Deadline, SystemClock
from trunkline.errors import AlreadyRunning, FailedError, NotAuthorized, SettingsError, StateError, Unreachable
from trunkline.files import storage, write_atomically

if TYPE_CHECKING:
    from master.flower.control import Control, Node, RunStatus

logger = logging.getLogger(__name__)

LOOK = 0.05  # seconds between two looks at a process that starts or stops


class SuperLink:
    """One SuperLink process and the runs on it.

    :param folder: for its logs and whatever Flower writes; may be deleted while nothing runs.
    :param port: of the Fleet, Control and Runtime APIs alike.
    :param tls: None serves without TLS and takes every node, for a loopback in tests only.
    :param host: where it listens.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        tls: Tls | None,
        *,
        host: str = "127.0.0.1",
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.folder, self.port, self.tls, self.host = folder.resolve(), port, tls, host
        self.clock, self.rng = clock or SystemClock(), rng or random.Random()  # noqa: S311
        self.log, self.serverapp_log = self.folder / "superlink.log", self.folder / "serverapp.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        self._runs: dict[int, subprocess.Popen[bytes]] = {}  # ServerApp processes by run
        self._spare: subprocess.Popen[bytes] | None = None  # the process of the next run

    @property
    def address(self) -> str:
        """`host:port` for programs on this machine."""
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"[{local}]:{self.port}" if ":" in local else f"{local}:{self.port}"

    @property
    def control(self) -> "Control":
        """Its Control API.

        :raises StateError: it was not started.
        """
        if self._control is None:
            raise StateError("the SuperLink should be started first, found that it is not.")
        return self._control

    # -- the process -------------------------------------------------------------------------------------------------

    def start(self, seconds: float = 60.0) -> None:
        """Start the process and wait until it answers.

        :raises AlreadyRunning: another program holds the port.
        :raises SettingsError: the port or the certificates cannot be used.
        :raises FailedError: it ended at once.
        :raises Unreachable: it did not answer in time.
        """
        self.stop()
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_files()
        self._check_port()
        secret = secrets.token_hex(32)
        write_atomically(key := self.folder / "secret", secret.encode(), mode=0o600)
        self._process = spawn("master.flower.superlinkd", self.folder, self.log)
        give_order(self._process, {"log": str(self.log), "secret": secret, "arguments": self._arguments(key)})
        from master.flower.control import Control  # slow to import: while the process starts, it costs nothing

        ca = self.tls.ca.read_bytes() if self.tls else None
        self._control = Control(self.address, ca, secret, self.clock, self.rng)
        try:
            self._wait(Deadline(self.clock, seconds, f"the SuperLink on port {self.port}"))
        except BaseException:
            self.stop()
            raise
        self._prepare()

    def _prepare(self) -> None:
        """Start the process of the next run now: it takes seconds to import what it needs, and then waits for its order."""
        if self._spare is None or self._spare.poll() is not None:
            self._spare = spawn("master.flower.serverapp", self.folder, self.serverapp_log)

    def _arguments(self, secret: Path) -> list[str]:
        common = ["--host", self.host, "--port", str(self.port), "--isolation", "process"]
        common += ["--superexec-auth-secret-file", str(secret), "--disable-runtime-dependency-installation"]
        if self.tls is None:
            return [*common, "--insecure"]
        files = {"--ssl-ca-certfile": self.tls.ca, "--ssl-certfile": self.tls.certificate, "--ssl-keyfile": self.tls.key}
        return [*common, *(word for flag, path in files.items() for word in (flag, str(path))), "--enable-supernode-auth"]

    def _check_files(self) -> None:
        for path in (self.tls.ca, self.tls.certificate, self.tls.key) if self.tls else ():
            if not path.is_file():
                raise SettingsError(f"`{path}` should be a PEM file, found none.")

    def _check_port(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the SuperLink does: a port that rests is free
            try:
                probe.bind((self.host, self.port))
            except PermissionError as error:
                raise SettingsError(
                    f"`port` should be one this user may open, found {self.port}: {error.strerror}.", hint="Take one above 1023."
                ) from None
            except (OSError, OverflowError) as error:
                raise AlreadyRunning(
                    f"the SuperLink's port {self.port} on {self.host} should be free, found: {error}.",
                    hint="Stop the program that uses it, or set another port.",
                ) from None

    def _wait(self, deadline: Deadline) -> None:
        while True:
            if not self.alive():
                raise FailedError(
                    f"the SuperLink on port {self.port} should stay up, found that it ended: {self._last_words()}",
                    hint=f"Its log is {self.log}.",
                )
            try:
                return self.control.ping()
            except NotAuthorized as error:
                raise AlreadyRunning(
                    f"port {self.port} should belong to this master's SuperLink, found another program on it: {error.message}"
                ) from None
            except Unreachable as error:
                if deadline.over():
                    raise Unreachable(
                        f"the SuperLink should answer on {self.address} within {deadline.seconds:g} s, found: {error.message}",
                        hint=f"Its log is {self.log}.",
                    ) from None
            self.clock.sleep(LOOK)

    def _last_words(self, lines: int = 3) -> str:
        try:
            said = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            return str(error)
        return " | ".join(line.strip() for line in said[-lines:] if line.strip())

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, seconds: float = 10.0) -> None:
        """End the ServerApps of its runs, which are asked first and then made to, and the process, which has nothing to lose."""
        for process in self._runs.values():
            _signal(process, signal.SIGTERM)
        for process in self._runs.values():
            self._end(process, seconds)
        self._runs.clear()
        if self._spare is not None:
            self._end(self._spare, 0.0)
            self._spare = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._end(self._process, 0.0)
            self._process = None

    def _end(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        _signal(process, signal.SIGTERM)
        deadline = Deadline(self.clock, seconds, "a process to end")
        while process.poll() is None and not deadline.over():
            self.clock.sleep(LOOK)
        _signal(process, signal.SIGKILL)  # the whole group: also what the process may have left behind
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    def register_node(self, public_key: bytes, name: str = "") -> int:
        """See `Control.register_node`."""
        return self.control.register_node(public_key, name)

    def nodes(self) -> "list[Node]":
        """See `Control.nodes`."""
        return self.control.nodes()

    def start_run(self, config: Mapping[str, str | int | float | bool]) -> int:
        """Start a run and its ServerApp, which calls `master.flower:main` with this configuration.

        :returns: the run's number at the SuperLink.
        :raises FailedError: it would not start.
        """
        started = self.control.start_run(config)
        self._prepare()
        assert self._spare is not None
        process, self._spare = self._spare, None
        ca = str(self.tls.ca) if self.tls else None
        give_order(process, {"log": str(self.serverapp_log), "address": self.address, "ca": ca, "token": started.token})
        self._runs[started.run_id] = process
        return started.run_id

    def run_alive(self, run_id: int) -> bool:
        """Whether the ServerApp process of a run is there. Flower itself needs a minute to notice that one is not."""
        process = self._runs.get(run_id)
        return process is not None and process.poll() is None

    def run_status(self, run_id: int) -> "RunStatus":
        """See `Control.run_status`."""
        return self.control.run_status(run_id)

    def stop_run(self, run_id: int, seconds: float = 10.0) -> bool:
        """End a run and its ServerApp. Its undelivered messages go with it. False: it was over already."""
        stopped = self.control.stop_run(run_id)
        process = self._runs.pop(run_id, None)
        if process is not None:
            self._end(process, seconds)
            self._prepare()
        return stopped

    def reap(self) -> list[int]:
        """Runs whose ServerApp process ended since the last call; each is stopped at the SuperLink, which did not notice."""
        gone = [run_id for run_id, process in self._runs.items() if process.poll() is not None]
        for run_id in gone:
            self.stop_run(run_id)
        return gone


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process group of ours, if any of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
