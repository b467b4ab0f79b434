"""The log files of programs that stay."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from trunkline.files import storage

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

SIZE, FILES = 8 << 20, 3
"""Bytes of one file, and how many older ones are kept."""


class LogFile(RotatingFileHandler):
    """A log that is rotated by size. A line that the disk refuses is lost, and nothing else: a log is no reason to stop.

    `logging` itself prints a traceback to standard error then. Where that leads to this very log, the process waits for itself.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=SIZE, backupCount=FILES, encoding="utf-8", errors="replace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as `logging` names it
        """Go on."""


@contextmanager
def logging_to(path: Path, level: str, quiet: Sequence[str]) -> Iterator[None]:
    """While it lasts, all that is logged goes to a rotated file and to standard error.

    :param level: debug, info, warning or error.
    :param quiet: loggers of libraries that tell too much; only their warnings are kept.
    :raises StorageFailed: the file cannot be written.
    """
    with storage(path):
        path.parent.mkdir(exist_ok=True)
        handlers = (LogFile(path), logging.StreamHandler())
    root = logging.getLogger()
    before = root.level
    root.setLevel(level.upper())
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
