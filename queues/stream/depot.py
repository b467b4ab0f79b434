"""What the server of a stream does for workers on other machines, in plain Python: the HTTP around it is in `api.parameters`."""

import threading
from pathlib import Path

from queues.store.arrivals import Arrivals
from queues.store.reader import FileReader
from queues.store.snapshots import Snapshots
from queues.stream.described import Described
from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec
from trunkline.api import BlobFile, Manifest
from trunkline.clock import Clock
from trunkline.errors import NotFound
from trunkline.files import sha256_file, storage


class Depot:
    """One stream, as workers elsewhere see it. Any thread may use it.

    :param reader: of its store, which is of the kind `file`.
    :param incarnation: of the server.
    """

    def __init__(self, home: StreamHome, spec: StreamSpec, reader: FileReader, incarnation: int, clock: Clock) -> None:
        self.home, self.spec, self.reader, self.clock = home, spec, reader, clock
        layout = reader.layout
        self.snapshots = Snapshots(reader, layout, incarnation, clock)
        self.arrivals = Arrivals(reader, layout, [task.name for task in spec.tasks])
        self._shapes = layout.shapes
        self._lock = threading.Lock()
        self._files: dict[str, Path] | None = None  # by digest
        self._manifest = Manifest(files={})

    def described(self) -> Described:
        """What a worker needs to begin."""
        self._hash()
        redis = self.home.redis_url
        return Described(
            spec=self.spec,
            epoch=self.home.epoch,
            tensors=tuple(self._shapes.items()),
            files=self._manifest,
            modules={path.name: sha256_file(path) for path in sorted(self.home.modules.glob("*.py"))},
            redis=redis,
            broker=self.home.broker_url or redis,
        )

    def file(self, digest: str) -> Path:
        """A file of the encoder.

        :raises NotFound: none has this digest.
        """
        files = self._hash()
        if digest not in files:
            raise NotFound(f"a file of the encoder should have the digest {digest[:12]}…, found none.")
        return files[digest]

    def _hash(self) -> dict[str, Path]:
        """Read the encoder's files once: they never change."""
        with self._lock:
            if self._files is None:
                with storage(self.home.encoder):
                    found = {path.name: path for path in sorted(self.home.encoder.iterdir()) if path.is_file()}
                digests = {name: sha256_file(path) for name, path in found.items()}
                self._manifest = Manifest(
                    files={name: BlobFile(digest=digests[name], size=path.stat().st_size) for name, path in found.items()}
                )
                self._files = {digests[name]: path for name, path in found.items()}
            return self._files

    def look(self) -> None:
        """Let go of what nobody uses. Called every now and then."""
        self.snapshots.look()
