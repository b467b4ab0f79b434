"""`trunkline-child run`."""

import logging
from typing import TYPE_CHECKING, Annotated

from typer import Option

from child.cli.base import open_home, settings, verb
from trunkline.console import single
from trunkline.logs import logging_to
from trunkline.terminal import Result

if TYPE_CHECKING:
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
    with logging_to(home.logs / "agent.log", chosen.log_level, quiet=("httpx", "httpcore", "urllib3")):
        from child import agent

        agent.run(home, chosen, again)
    return Result({"stopped": True})
