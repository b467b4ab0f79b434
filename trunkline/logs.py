"""The log files of programs that stay."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

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
