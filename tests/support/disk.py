"""Small disks of their own: to be filled to the last byte, or mounted read-only, which stops root too."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

FILLER = "zz-filler"


@dataclass(frozen=True)
class Disk:
    """A file system mounted on a folder."""

    folder: Path

    def fill(self) -> None:
        """Leave no byte."""
        with (self.folder / FILLER).open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(os.statvfs(self.folder).f_frsize))

    def empty(self) -> None:
        """Free what was filled."""
        (self.folder / FILLER).unlink()

    def remount(self, how: str) -> None:
        """`ro` or `rw`; nothing may have a file open for writing."""
        _run("mount", "-o", f"remount,{how}", str(self.folder))


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Disk | None]:
    """A disk of this size, until the block ends; None, and a plain folder, where this user may not mount one."""
    folder.mkdir(parents=True)
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    except (OSError, subprocess.SubprocessError):
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
