"""A worker on another machine than its stream: files come once, samples from the stream's Redis, parameters through the master.

What it has from the master is data alone. A user's own code is at each machine because its owner put it there; here it is only
compared with what the stream runs. Torch is loaded when there is something to do.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from queues import doorbell
from queues.stream.described import Described
from queues.stream.station import Station
from trunkline.clock import Deadline
from trunkline.errors import AlreadyRunning, FailedError, NotFound, SettingsError, SpecError, Unreachable, UsageError
from trunkline.files import Lock, sha256_file, storage, write_atomically
from trunkline.https import Https
from trunkline.logs import logging_to
from trunkline.retry import persist
from trunkline.transfers import fetch

if TYPE_CHECKING:  # it loads torch
    from queues.stream.worker import Worker

QUIET = ("celery", "kombu", "transformers", "httpx")

FETCH_SECONDS = 3600.0
"""That another process of this machine may take to fetch the same files."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a worker elsewhere is told by who starts it.

    :param redis: of the queues, as seen from here; None: as the stream has it.
    :param broker: of Celery; None: as the stream has it, or the Redis that was named.
    :param modules: files with the user's own code.
    :param cache: folder that files are kept in; None: the user's.
    :param half_gradients: see `RemoteReader`.
    :param half_parameters: see `RemoteReader`.
    :param threads: of torch; None: as many as it likes.
    """

    redis: str | None = None
    broker: str | None = None
    modules: Sequence[Path] = ()
    cache: Path | None = None
    half_gradients: bool = False
    half_parameters: bool = False
    threads: int | None = None

    @property
    def folder(self) -> Path:
        """Where files are kept."""
        if self.cache is not None:
            return self.cache.expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trunkline" / "streams"


def serve(https: Https, stream: str | None, machine: Machine, *, pool: str, level: str) -> None:
    """Work for a stream until told to stop; what is logged goes to standard error, and to `worker.log` of the cache.

    :param stream: its name; None: the only one that the token opens.
    :raises NotAuthorized, NotFound, UsageError: the token opens no such stream, or several.
    :raises SettingsError: the stream has no Redis that could be reached from here.
    :raises SpecError: the user's own code is not here, or the encoder cannot be made.
    :raises Unreachable: nobody answers.
    """
    path = f"/v1/streams/{named(https, stream)}/worker"
    found = described(https, path)
    queues, broker = addresses(found, machine)
    with logging_to(machine.folder / "worker.log", level, QUIET):

        def make() -> "Worker":
            from queues.stream.join_apart import join

            return join(https, path, found, queues, machine)

        station = Station(found.spec.name, make)
        doorbell.make_app(doorbell.broker_of(broker), found.spec.name, station)
        doorbell.work(station, pool=pool)


def named(https: Https, stream: str | None) -> str:
    """The stream of a name; without one, the only one that the token opens.

    :raises NotFound, UsageError: there is none, or several.
    """
    names = https.call("GET", "/v1/streams")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FailedError("the master should tell the names of streams, found something else.")
    if stream is not None and stream not in names:
        raise NotFound(f"`STREAM` should be one of {', '.join(names) or 'none yet'}, found {stream!r}.")
    if not names:
        raise NotFound("there should be a stream, found none.", hint="Make one: trunkline stream create.")
    if stream is None and len(names) > 1:
        raise UsageError(f"`STREAM` should be said where there are several, found {', '.join(names)}.")
    return str(stream or names[0])


def described(https: Https, path: str) -> Described:
    """What the stream says of itself.

    :raises FailedError: something else than a description came.
    """
    try:
        return Described.of_table(https.call("GET", path))
    except (ValidationError, SpecError) as error:
        raise FailedError(
            f"the description of a stream should be one that this version reads, found: {str(error).splitlines()[0]}.",
            hint="Are master and worker of the same version?",
        ) from None


def addresses(found: Described, machine: Machine) -> tuple[str, str]:
    """Of the queues, and of Celery's broker.

    :raises SettingsError: no other machine reaches them.
    """
    queues = machine.redis or found.redis
    if queues is None:
        raise SettingsError(
            f"stream {found.spec.name!r} should have a Redis with an address for workers on other machines, found the embedded one,"
            " which listens on a socket of its own machine alone.",
            hint="Make the stream with `trunkline stream create --redis URL`, or start its workers where the master is.",
        )
    own = found.broker if found.broker != found.redis else None  # another one than that of the queues
    return queues, machine.broker or own or queues


def fetched(https: Https, path: str, found: Described, folder: Path) -> Path:
    """The encoder's files in a folder; what is there and right does not come again.

    :raises DamagedFile, StorageFailed, Unreachable: a file could not be fetched.
    """
    deadline = Deadline(https.clock, FETCH_SECONDS, "another process to fetch the files of the encoder")
    lock = persist(lambda: _alone(folder), deadline, https.rng, most=1.0)
    try:
        for name, file in found.files.files.items():
            fetch(https, file.digest, file.size, None, folder / name, durable=False, place=f"{path}/files")
    finally:
        lock.release()
    return folder


def _alone(folder: Path) -> Lock:
    """:raises Unreachable: another process is at it."""
    try:
        return Lock(folder.parent / "lock", "worker that fetches")
    except AlreadyRunning as error:
        raise Unreachable(error.message) from None


def own_code(found: Described, given: Sequence[Path], folder: Path) -> Path:
    """A folder with the user's own code: what was given here, and is what the stream runs.

    :raises SpecError: a file is missing, or is another.
    """
    by_name = {path.name: path for path in given}
    for name, digest in found.modules.items():
        path = by_name.get(name)
        if path is None or not path.is_file():
            raise SpecError(
                f"stream {found.spec.name!r} should find its own code {name} on this machine, found none: code does not travel.",
                hint=f"Bring the file here and name it: --module {name}.",
            )
        if sha256_file(path) != digest:
            raise SpecError(f"`{path}` should be the file that the stream runs, {digest[:12]}…, found another version of it.")
    key = hashlib.sha256("".join(sorted(found.modules.values())).encode()).hexdigest()[:16]
    modules = folder / f"modules-{key}"
    with storage(modules):
        modules.mkdir(parents=True, exist_ok=True)
        for name in found.modules:
            write_atomically(modules / name, by_name[name].read_bytes())
    return modules
