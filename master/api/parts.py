"""What every route of the API works with, and the seam to what only the daemon can do."""

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Protocol

from master.blobs import BlobStore
from master.ledger import Ledger
from master.nodes import Register
from master.settings import MasterSettings
from master.streams import Streams
from master.tokens import Gate
from trunkline.clock import Clock


class Actions(Protocol):
    """What the API asks of the daemon. The ledger was written before, so nothing is lost if the daemon dies here."""

    def wake(self, job: str) -> None:
        """A job was started, paused, resumed or aborted: act on the state that the ledger has."""

    def unregister(self, flower_id: int) -> None:
        """A node was revoked: the SuperLink should forget its key."""

    def online(self) -> frozenset[int] | None:
        """Ids of the nodes that the SuperLink hears of now; None where it does not answer."""


@dataclass(frozen=True)
class Parts:
    """One master as its API sees it."""

    ledger: Ledger
    blobs: BlobStore
    gate: Gate
    settings: MasterSettings
    register: Register
    actions: Actions
    clock: Clock
    admin_token: str = field(repr=False)
    ca: str  # PEM
    flower: str  # host:port of the SuperLink, as children reach it
    url: str  # of this API, as children reach it
    streams: Streams | None = None
    stopping: threading.Event = field(default_factory=threading.Event)  # set when the daemon stops: long polls answer at once

    @property
    def admin_hash(self) -> bytes:
        return hashlib.sha256(self.admin_token.encode()).digest()
