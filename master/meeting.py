"""Where a stream of the master and rounds of jobs train the same encoder.

    stream -> rounds   `publish`: a snapshot at the boundary of a batch becomes a version, of kind `snapshot`, to start from
    rounds -> stream   `merge`: what a round came to, its target less its base, is one step of the stream's store

Both may be said again at any time. A store takes a round once, by its name, and tells which it has; so whoever was killed asks, and
goes on. A stream takes by itself every round that was published since it was made; a round before that is in what it began with.
"""

import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from master.blobs import BlobStore
from master.ledger import Ledger
from master.records import Encoder, Version
from queues.stream.client import StreamClient
from queues.stream.home import StreamHome
from trunkline.clock import Clock, Deadline
from trunkline.errors import (
    Conflict,
    DamagedFile,
    DeadlineExceeded,
    NotFound,
    Reason,
    RefusedValue,
    SpecError,
    TrunklineError,
)
from trunkline.retry import persist
from trunkline.sets import SetFile, write_rows
from trunkline.tensors import Array, TensorSpec

logger = logging.getLogger(__name__)

WAIT_SECONDS = 300.0
"""That a job waits for the server of its stream before a round; it may be starting, or covering its steps."""

LOOK_SECONDS = 60.0
"""That it may take to tell which rounds it has; one that hangs takes no longer of a job's time."""

ANSWER_SECONDS = 600.0
"""That one answer may take: an encoder of some gigabytes is read, and written to the disk."""

CHUNK = 1 << 20

Result = TypeVar("Result")


def round_name(version: Version) -> str:
    """What a stream knows a round as."""
    return f"{version.job}/{version.round}"


@dataclass(frozen=True, slots=True)
class Meeting:
    """One stream, and the versions of its encoder.

    :param seconds: that `before_round` waits for a server that is away.
    """

    home: StreamHome
    ledger: Ledger
    blobs: BlobStore
    clock: Clock
    seconds: float = WAIT_SECONDS
    rng: random.Random = field(default_factory=random.Random)

    @property
    def name(self) -> str:
        return self.home.folder.name

    @property
    def client(self) -> StreamClient:
        return StreamClient(self.home.socket, self.name, ANSWER_SECONDS)

    # -- the stream's parameters become a version ------------------------------------------------------------------------

    def publish(self) -> Version:
        """Make what the stream has learned the newest version of its encoder; where it has learned nothing since, the one there is.

        :raises Conflict: a round of the encoder is open, whose target would be built on another set.
        :raises SpecError: the stream trains something else than what is shared.
        :raises Unreachable: its server does not answer.
        """
        encoder = self.ledger.encoder(self.home.spec.encoder)
        with self.blobs.scratches("snapshot", "whole") as (path, whole):
            about = self._fetch(path)
            current = self.ledger.version(encoder.name)
            digest, size = self._stored(path, whole, encoder, current)
        data = {"stream": self.name, "step": about["step"], "applied": about["applied"]}
        return self.ledger.publish_snapshot(encoder.name, digest, size, data)

    def _fetch(self, to: Path) -> dict[str, Any]:
        with self.client.talk("GET", "/v1/snapshot") as answer, to.open("wb") as file:
            for chunk in answer.chunks:
                file.write(chunk)
        told = answer.headers
        return {
            "step": int(told["x-trunkline-step"]),
            "digest": told["x-trunkline-digest"],
            "applied": json.loads(told["x-trunkline-applied"]),
        }

    def _stored(self, path: Path, whole: Path, encoder: Encoder, current: Version) -> tuple[str, int]:
        """The snapshot as a blob: what the encoder shares, no more; what no gradient moves stays as the current version has it."""
        wanted = {name: TensorSpec(tuple(shape), dtype) for name, (shape, dtype) in encoder.shared.items()}
        with SetFile(path) as found:
            if found.spec == wanted:
                return self.blobs.add_file(path)
            _check(found.spec, wanted, self.name)
            with self.blobs.open_set(current.digest) as before:

                def read(name: str, rows: slice) -> Array:
                    return (found if name in found.spec else before).read(name, rows)

                digest = write_rows(whole, wanted, read, durable=False)
        return self.blobs.add_file(whole, move=True, digest=digest)

    # -- what a round came to goes into the stream -----------------------------------------------------------------------

    def merge(self, version: Version) -> dict[str, Any]:
        """Add what a round came to; once, however often it is said. Tell `step` of the store, and whether it was `new`.

        :raises Conflict: the version is of another encoder, or was not made by a round.
        :raises RefusedValue: the stream's server does not take it; says why.
        :raises Unreachable: it does not answer.
        """
        if version.encoder != self.home.spec.encoder:
            raise Conflict(f"`VERSION` should be of encoder {self.home.spec.encoder!r}, found one of {version.encoder!r}.")
        if version.kind != "round" or version.parent is None:
            raise Conflict(
                f"`VERSION` should be what a round came to, found version {version.number}, which is of kind {version.kind}.",
                hint="See `trunkline encoder versions`.",
            )
        paths = {"base": str(self.blobs.path(version.parent)), "target": str(self.blobs.path(version.digest))}
        told: dict[str, Any] = self.client.call("POST", "/v1/rounds/merge", json.dumps({"name": round_name(version), **paths}))
        if told["new"]:
            about = {"stream": self.name, "version": version.number, "step": told["step"]}
            self.ledger.event("stream.merged", job=version.job, round=version.round, data=about)
        return told | {"stream": self.name, "version": version.number}

    def missing(self) -> list[Version]:
        """Rounds that were published since the stream was made and that its store does not have, oldest first."""
        since = self.home.since
        if since is None:
            return []
        taken = self.client.call("GET", "/v1/rounds", seconds=LOOK_SECONDS)
        versions = self.ledger.versions(self.home.spec.encoder)
        return [one for one in versions if one.kind == "round" and one.number > since and round_name(one) not in taken]

    def catch_up(self) -> int:
        """Have the stream take all rounds that it lacks; tell how many. One that it refuses does not stop the others."""
        taken = 0
        for version in self.missing():
            try:
                taken += self.merge(version)["new"]
            except (RefusedValue, NotFound, DamagedFile) as error:
                logger.warning("stream %s refuses round %s: %s", self.name, round_name(version), error)
        return taken

    # -- a job that trains it too ----------------------------------------------------------------------------------------

    def before_round(self) -> Version:
        """What the next round starts from: all rounds before are in the stream, and what that has learned is published.

        :raises DeadlineExceeded: its server stayed away.
        """
        self._patiently(self.catch_up)
        return self._patiently(self.publish)

    def after_round(self) -> None:
        """A round was published. Where the server is away, the next round waits for it, or the daemon sees to it later."""
        try:
            self.catch_up()
        except TrunklineError as error:
            logger.warning("stream %s did not take a round yet: %s", self.name, error)

    def _patiently(self, once: Callable[[], Result]) -> Result:
        deadline = Deadline(self.clock, self.seconds, f"the server of stream {self.name!r}")
        try:
            return persist(once, deadline, self.rng)
        except TrunklineError as error:
            if not error.retryable:
                raise
            raise DeadlineExceeded(
                f"waited {self.seconds:g} s for stream {self.name!r}, which the round is to start from, found: {error.message}",
                hint=f"`trunkline stream show {self.name}` says how it is; start the job again then.",
            ) from error


def _check(found: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec], stream: str) -> None:
    """:raises SpecError, RefusedValue: a snapshot does not tell what an encoder shares."""
    if any("@" in name for name in found):
        raise SpecError(
            f"stream {stream!r} should train whole matrices to be published, found low-rank products.",
            hint="Make an encoder without `tuning` for it.",
        )
    alike = [name for name in wanted if name in found]
    if not alike or any(found[name] != wanted[name] for name in alike):
        raise RefusedValue(Reason.SHAPE, f"stream {stream!r} should train what encoder shares, found other names or shapes.")
