"""The folder in which a master keeps everything. Copy it while nothing runs, and the master has moved.

    lock                 held by the one daemon that uses the folder; holds its process id
    daemon.json          written while a daemon runs: process id, address and ports for the admin CLI, the ledger for the rounds
    ledger.sqlite3       encoders, versions, jobs, rounds, nodes, events (unless `ledger` in the settings names another database)
    blobs/               parameter sets, updates and encoder files, each named by the SHA-256 of its bytes
    tls/                 ca.pem, ca.key: the authority that every child trusts; server.pem, server.key: what the ports show
    secrets/             admin.token: who can read it is the admin; grant.secret: signs the transfer grants
    superlink/           whatever the SuperLink writes; may be deleted while nothing runs
    streams/             a folder a stream, see queues/stream/home.py; these hold samples and heads, which came to the master itself
    logs/                of the daemon, the SuperLink and the ServerApp

Folders are made with mode 0700 and secrets with 0600. Nothing else here is made of samples or heads: those stay at the children.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Self

from trunkline.errors import DamagedFile, NotFound
from trunkline.files import Lock, storage, write_atomically

DEFAULT_STATE = "~/.local/state/trunkline"
"""Where a master keeps everything unless told otherwise."""


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """How to reach the daemon that runs on a state folder. No pydantic: every command of the admin reads it."""

    pid: int
    url: str  # of the HTTPS API, e.g. https://127.0.0.1:8440
    port: int
    superlink_port: int
    started: float  # seconds since the epoch
    version: str  # of Trunkline
    ledger: str | None = field(default=None, repr=False)  # SQLAlchemy URL, which may hold a password; None: SQLite in the folder

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Self:
        """What a daemon wrote; keys of a newer one are left out.

        :raises ValueError: it is something else.
        """
        if not isinstance(table, Mapping) or any(type(table.get(key)) not in kinds for key, kinds in _KINDS.items()):
            raise ValueError("not what a daemon writes")
        return cls(**{key: table[key] for key in _KINDS if key in table})


_KINDS: Mapping[str, tuple[type, ...]] = {
    "pid": (int,),
    "url": (str,),
    "port": (int,),
    "superlink_port": (int,),
    "started": (int, float),
    "version": (str,),
    "ledger": (str, NoneType),
}


class MasterHome:
    """The state folder of one master, by the names at the head of this file. Making the object touches nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()
        self.ledger = self.folder / "ledger.sqlite3"
        self.blobs = self.folder / "blobs"
        self.tls = self.folder / "tls"
        self.secrets = self.folder / "secrets"
        self.grant_secret = self.secrets / "grant.secret"
        self.superlink = self.folder / "superlink"
        self.streams = self.folder / "streams"
        self.logs = self.folder / "logs"
        self._daemon = self.folder / "daemon.json"

    def create(self) -> None:
        """Make the folders that are not there yet.

        :raises StorageFailed: the disk refused.
        """
        for folder in (self.folder, self.blobs, self.tls, self.secrets, self.superlink, self.logs):
            with storage(folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def lock(self) -> Lock:
        """Take the folder for this process, until `release` or its end.

        :raises AlreadyRunning: another daemon holds it.
        """
        return Lock(self.folder / "lock", "master")

    def ledger_url(self) -> str:
        """The ledger that lies in this folder, as SQLAlchemy names it."""
        return f"sqlite:///{self.ledger}"

    def admin_token(self, make: Callable[[], str] | None = None) -> str:
        """The token that opens the admin part of the API. Made by the daemon's first start, read by the CLI.

        :param make: makes the token that is written where there is none yet; only the daemon gives it.
        :raises NotFound: there is none, so no master was ever started here.
        :raises StorageFailed: this user may not read it, so is no admin.
        :raises DamagedFile: it is no token.
        """
        path = self.secrets / "admin.token"
        with storage(path):
            found = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
        if not (found.isascii() and found.isprintable()):
            raise DamagedFile(
                f"`{path}` should hold the admin's token, found other bytes.",
                hint="Stop the master, delete the file, and start it again: it makes a new one.",
            )
        if found or make is None:
            if not found:
                raise NotFound(f"`{path}` should hold the admin's token, found none.", hint="Start it once: trunkline serve.")
            return found
        write_atomically(path, (token := make()).encode("ascii"), mode=0o600)
        return token

    # -- the running daemon -------------------------------------------------------------------------------------------

    def write_daemon(self, info: DaemonInfo) -> None:
        """Tell the CLI where the daemon listens."""
        write_atomically(self._daemon, json.dumps(asdict(info), indent=2).encode(), mode=0o600)

    def forget_daemon(self) -> None:
        """The daemon stopped."""
        self._daemon.unlink(missing_ok=True)

    def daemon(self) -> DaemonInfo | None:
        """The daemon that runs on this folder, or None. A file that a killed daemon left behind does not count.

        :raises DamagedFile: the file is not what a daemon writes.
        """
        try:
            text = self._daemon.read_bytes()
        except FileNotFoundError:
            return None
        try:
            info = DaemonInfo.of_table(json.loads(text))
        except ValueError:
            raise DamagedFile(f"`{self._daemon}` should say where the daemon listens, found something else.") from None
        return info if _alive(info.pid) else None


def _alive(pid: int) -> bool:
    """Whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
