"""The folder of one stream. Everything it needs to go on lies here, but what a Redis named by a URL holds.

stream.json       the declaration, and where its Redis is
epoch             a random word that this store chose when it began; a Redis that knows another is not its own
encoder/          files of the encoder, with its initial parameter set
modules/          the user's own code: encoders, heads
heldout/          labelled rows that scores are of, NAME.jsonl a task
redis/            the embedded server, unless a URL names another
store/            parameters and optimiser state; see `queues.store`
applied/          the record of what was applied, for `replay`
rounds/           where rounds meet the stream; see `queues.stream.rounds`
conflicts.jsonl   cosines of the tasks' gradients, over time
scores.jsonl      of the held-out rows, a line a look
cache/            the held-out rows as token ids, read once
lock              held by the one server that uses the folder
server.json       written while one runs: process id, incarnation, where it answers
server.sock       where it answers
logs/
"""

import hashlib
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from queues.stream.spec import StreamSpec
from trunkline.errors import DamagedFile, NotFound
from trunkline.files import Lock, storage, write_atomically

PATH_LIMIT = 100
"""Bytes of a socket's path: Linux takes 107, macOS 103."""


class StreamHome:
    """Paths in a stream's folder. Making the object touches nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.encoder = self.folder / "encoder"
        self.modules = self.folder / "modules"
        self.heldout = self.folder / "heldout"
        self.redis = self.folder / "redis"
        self.store = self.folder / "store"
        self.applied = self.folder / "applied"
        self.rounds = self.folder / "rounds"
        self.scores = self.folder / "scores.jsonl"
        self.conflicts = self.folder / "conflicts.jsonl"
        self.cache = self.folder / "cache"
        self.logs = self.folder / "logs"
        self.socket = _socket_in(self.folder)
        self.begun_file = self.folder / "begun"
        self._incarnation = self.folder / "incarnation"
        self._stream = self.folder / "stream.json"
        self._epoch = self.folder / "epoch"
        self._server = self.folder / "server.json"

    def create(self, spec: StreamSpec, redis: str | None = None, broker: str | None = None, *, since: int | None = None) -> None:
        """Write the declaration; `encoder/` must be there already.

        :param redis: address of a Redis; None: the embedded one.
        :param broker: of Celery; None: the same.
        :param since: see the property.
        :raises StorageFailed: the disk refused.
        """
        for folder in (self.folder, self.modules, self.store, self.applied, self.cache, self.logs):
            with storage(folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._epoch.exists():
            write_atomically(self._epoch, secrets.token_hex(8).encode(), mode=0o600)
        table = {"spec": spec.model_dump(mode="json"), "redis": redis, "broker": broker, "since": since}
        write_atomically(self._stream, json.dumps(table, indent=1).encode(), mode=0o600)  # an address may hold a password

    def lock(self) -> Lock:
        """Take the folder for the one who changes parameters.

        :raises AlreadyRunning: another process holds it.
        """
        return Lock(self.folder / "lock", "server of a stream")

    @property
    def spec(self) -> StreamSpec:
        """:raises NotFound, DamagedFile: there is no stream here, or the file is none."""
        try:
            return StreamSpec.model_validate_json(json.dumps(self._table()["spec"]))
        except (KeyError, ValueError):
            raise DamagedFile(f"`{self._stream}` should be the declaration of a stream, found something else.") from None

    @property
    def redis_url(self) -> str | None:
        """Of the Redis that was named; None: the embedded one."""
        return self._table().get("redis")

    @property
    def broker_url(self) -> str | None:
        """Of Celery's broker; None: the Redis that has the queues."""
        return self._table().get("broker")

    @property
    def since(self) -> int | None:
        """At a master, the encoder's newest version when the stream was made: what rounds come to later is added to it."""
        return self._table().get("since")

    @property
    def epoch(self) -> str:
        """:raises NotFound: there is no stream here."""
        return self._read(self._epoch).decode("ascii", "replace").strip()

    def _table(self) -> dict[str, Any]:
        try:
            found = json.loads(self._read(self._stream))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DamagedFile(f"`{self._stream}` should be the declaration of a stream, found something else.")
        return found

    def _read(self, path: Path) -> bytes:
        try:
            with storage(path):
                return path.read_bytes()
        except FileNotFoundError:
            raise NotFound(
                f"`{self.folder}` should be the folder of a stream, found no {path.name}.", hint="Create the stream first."
            ) from None

    @property
    def begun(self) -> bool:
        """Whether its queues were made."""
        return self.begun_file.exists()

    def note_begun(self) -> None:
        """Its queues were made."""
        if not self.begun:
            write_atomically(self.begun_file, b"")

    # -- the running server --------------------------------------------------------------------------------------------

    def next_incarnation(self) -> int:
        """The number of a new server, counted from 1; under the lock."""
        text = self._incarnation.read_text(encoding="ascii", errors="replace") if self._incarnation.exists() else "0"
        number = int(text) + 1 if text.isdecimal() else 1
        write_atomically(self._incarnation, str(number).encode())
        return number

    def write_server(self, table: dict[str, Any]) -> None:
        """Say that a server runs: `pid`, `incarnation`, `redis` (the address in use), `broker` (Celery's)."""
        write_atomically(self._server, json.dumps(table).encode(), mode=0o600)

    def forget_server(self) -> None:
        """It stopped."""
        self._server.unlink(missing_ok=True)

    def server(self) -> dict[str, Any] | None:
        """What the last server that did not stop by itself wrote; it may have been killed since."""
        try:
            return json.loads(self._server.read_bytes())  # type: ignore[no-any-return]
        except (FileNotFoundError, ValueError):
            return None


def _socket_in(folder: Path) -> Path:
    beside = folder / "server.sock"
    if len(os.fsencode(beside)) <= PATH_LIMIT:
        return beside
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"trunkline-{os.getuid()}-{name}" / "server.sock"
