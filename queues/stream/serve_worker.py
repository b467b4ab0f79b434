"""One worker's process, as both command lines run it. Celery and torch are loaded when there is something to do."""

from typing import TYPE_CHECKING

from queues.stream.home import StreamHome
from trunkline.errors import SettingsError
from trunkline.installation import check_installation
from trunkline.logs import logging_to

if TYPE_CHECKING:
    from queues.stream.worker import Worker

QUIET = ("celery", "kombu", "transformers", "httpx")

POOLS = ("solo", "threads")

LEVELS = ("debug", "info", "warning", "error")


def serve(home: StreamHome, *, threads: int | None = None, pool: str = "solo", level: str = "info") -> None:
    """Work for a stream until told to stop; what is logged goes to standard error, and to `logs/worker.log` of its folder.

    :param threads: of torch; None: as many as it likes.
    :param pool: of Celery, one of POOLS.
    :param level: one of LEVELS.
    :raises SettingsError: a pool or a level is none of these.
    :raises NotFound: there is no stream in the folder.
    :raises Unreachable: its server does not run.
    """
    check_words(pool, level)
    _ = home.spec  # is it a stream? Nothing is made where there is none
    with logging_to(home.logs / "worker.log", level, QUIET):
        from queues import doorbell

        def make() -> "Worker":
            from queues.stream.join import join

            return join(home, threads=threads)

        doorbell.work(doorbell.station_of(home, make), pool=pool)


def check_words(pool: str, level: str) -> None:
    """:raises SettingsError: a pool or a level is none of these, or what runs here is not installed as it should be."""
    for name, found, known in (("pool", pool, POOLS), ("log-level", level, LEVELS)):
        if found not in known:
            raise SettingsError(f"`--{name}` should be {', '.join(known)}, found {found!r}.")
    check_installation()
