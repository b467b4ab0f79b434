"""`trunkline serve`."""

from typing import Annotated

from typer import Option

from master.cli.base import settings, verb
from trunkline.console import single
from trunkline.terminal import Result

app = single()


Names = Annotated[list[str] | None, Option("--name", metavar="HOST", help="Under which children reach it; may be repeated.")]
Database = Annotated[str | None, Option(metavar="URL", help="Another database than SQLite in the folder, as SQLAlchemy names it.")]


@verb(app)
def serve(
    host: Annotated[
        str | None, Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 opens it to other machines.  [default: 127.0.0.1]")
    ] = None,
    port: Annotated[int | None, Option(metavar="N", help="Of the HTTPS API.  [default: 8440]")] = None,
    superlink_port: Annotated[
        int | None, Option(metavar="N", help="Of the SuperLink, for the children's messages.  [default: 8441]")
    ] = None,
    name: Names = None,
    ledger: Database = None,
    log_level: Annotated[str | None, Option(metavar="LEVEL", help="debug, info, warning or error.  [default: info]")] = None,
) -> Result:
    """Run the master until SIGTERM or SIGINT. The first --name goes into invitations."""
    chosen = settings(
        {
            "host": host,
            "port": port,
            "superlink_port": superlink_port,
            "names": tuple(name) if name else None,
            "ledger": ledger,
            "log_level": log_level,
        }
    )
    from master import daemon

    daemon.serve(chosen)
    return Result({"stopped": True})
