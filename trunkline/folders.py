"""Folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trunkline.errors import Conflict
from trunkline.files import storage


def check_new(folder: Path, flag: str | None = None) -> None:
    """:raises Conflict: the folder is there and not empty.

    :param flag: what the message names, where the folder was named on a command line; None: the folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(f"`{flag or folder}` should be a new folder, found {folder} in use.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill; on success it takes its place, on failure nothing happened.

    :raises Conflict: the folder is there and not empty.
    :raises StorageFailed: the disk refused.
    """
    check_new(folder)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with storage(folder):
        beside.mkdir(parents=True)
        try:
            yield beside
            beside.replace(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
