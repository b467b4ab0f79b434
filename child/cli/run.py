"""`trunkline-child run`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

from child.cli.base import open_home, settings, single, verb
from trunkline.files import storage
from trunkline.logs import LogFile
from trunkline.terminal import Result

if TYPE_CHECKING:
    from child.home import ChildHome
    from child.settings import ChildSettings

app = single()


@verb(app)
def run(
    threads: Annotated[int | None, Option(metavar="N", help="Of torch; without it as set, or all cores.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1.")] = None,
    log_level: Annotated[str | None, Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
) -> Result:
    """Serve the master. SIGTERM and SIGINT: the step under way is finished and its update sent. SIGHUP: settings are read again."""
    home = open_home().existing()
    flags = {"threads": threads, "device": device, "log_level": log_level}

    def again() -> "ChildSettings":
        found = settings(home, flags)
        logging.getLogger().setLevel(found.log_level.upper())
        return found

    chosen = settings(home, flags)
    with _logging(home, chosen.log_level):
        from child import agent

        agent.run(home, chosen, again)
    return Result({"stopped": True})


@contextmanager
def _logging(home: "ChildHome", level: str) -> Iterator[None]:
    """The log goes to a rotated file and to standard error."""
    with storage(home.logs):
        home.logs.mkdir(exist_ok=True)
        file = LogFile(home.logs / "agent.log")
    root = logging.getLogger()
    before, handlers = root.level, (file, logging.StreamHandler())
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    root.setLevel(level.upper())
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
