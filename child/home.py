"""A child's folder. Everything a site keeps lies here, and nothing of it is shared but what `updates/` holds.

child.toml                      settings, read at start and on SIGHUP
identity.json, key.pem, ca.pem  who this child is, made by `trunkline-child enrol`; the key never leaves the folder
node.json                       the node id that the SuperLink gave it last
lock                            held by the one process that uses the folder
tasks/NAME.toml                 a task: where its samples lie, its labels, its head
modules/                        the site's own code: encoders, heads, readers (`file.py:name`)
encoders/MANIFEST/              files of an encoder (config, tokenizer, frozen weights), by the digest of their manifest
sets/DIGEST                     parameter sets from the master; the newest few are kept
updates/DIGEST                  what was trained and sent, so that it can be sent again
private/ENCODER/                heads, their optimiser state and the data order, in generations
alone/ENCODER.json              what tasks scored when this site trained alone, to compare with
cache/                          samples as token ids, read once
streams/NAME/                   samples that arrive, what learns from them, and its heads; see queues/stream/home.py
logs/
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from trunkline.errors import NotFound, StorageFailed
from trunkline.files import storage


class ChildHome:
    """Paths in a child's folder.

    :raises StorageFailed: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        for path in (self.folder, self.tasks, self.modules, self.encoders, self.sets, self.updates, self.private, self.cache):
            with storage(path):
                path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise StorageFailed(
                f"`{self.folder}` should be writable, found that it is not.", hint="Mount it writable, or name another folder."
            )

    @property
    def settings(self) -> Path:
        return self.folder / "child.toml"

    @property
    def identity(self) -> Path:
        return self.folder / "identity.json"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def master(self) -> str:
        """Tells the master that enrolled this child from every other; empty where none did."""
        try:
            return hashlib.sha256(self.ca.read_bytes()).hexdigest()[:16]
        except FileNotFoundError:
            return ""

    @property
    def node(self) -> Path:
        return self.folder / "node.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def modules(self) -> Path:
        return self.folder / "modules"

    @property
    def encoders(self) -> Path:
        return self.folder / "encoders"

    @property
    def sets(self) -> Path:
        return self.folder / "sets"

    @property
    def updates(self) -> Path:
        return self.folder / "updates"

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def alone(self) -> Path:
        return self.folder / "alone"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def streams(self) -> Path:
        return self.folder / "streams"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def held_sets(self) -> tuple[str, ...]:
        """Digests of the parameter sets that lie here whole."""
        return tuple(sorted(path.name for path in self.sets.iterdir() if not path.name.startswith(".")))

    def existing(self) -> "ChildHome":
        """:raises NotFound: nobody enrolled here."""
        if not self.identity.exists():
            raise NotFound(
                f"`{self.folder}` should be an enrolled child's folder, found that nobody enrolled.",
                hint="Run `trunkline-child enrol` first.",
            )
        return self


def keep_newest(folder: Path, count: int, spare: Iterable[str] = ()) -> None:
    """Delete all but the newest files of a folder, and those named in `spare`."""
    spared = set(spare)
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".") and path.name not in spared]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[max(0, count - len(spared)) :]:
        path.unlink(missing_ok=True)


ABANDONED = 86400.0
"""Seconds after which a download that broke is not gone on with: its round is over."""


def sweep(home: ChildHome, now: float) -> int:
    """Delete what a process that was killed left half-written, each as large as an encoder, and tell how many files that were.

    Only for the one process that uses the folder: another's files are in the making.
    """
    count = 0
    of_encoders = (f"encoders/*/**/{name}" for name in (".*.tmp", ".*.part", ".seeded-*"))  # whose own files may begin with a dot
    for pattern in ("sets/.*", "updates/.*", "private/*/.*", *of_encoders):
        for path in home.folder.glob(pattern):
            if path.is_file() and (path.suffix != ".part" or now - path.stat().st_mtime > ABANDONED):
                path.unlink(missing_ok=True)
                count += 1
    return count
