"""`trunkline-child worker`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from child.cli.base import SiteGroup, open_home, verb
from trunkline.console import Running, declare
from trunkline.terminal import Result


class _Noun(SiteGroup, Running):
    """`trunkline-child worker` alone works."""


app = declare.noun("Compute gradients for a stream of this site, until told to stop; or look who does.", _Noun)


@verb(app)
def run(
    stream: Annotated[str | None, Argument(metavar="STREAM", help="Its name; may be left out where there is one.")] = None,
    stream_folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="The stream's own folder, instead of its name at this child.")
    ] = None,
    threads: Annotated[
        int | None, Option(metavar="N", min=1, help="Of torch: the cores, divided by the workers.  [default: all cores]")
    ] = None,
    pool: Annotated[str, Option(help="Of Celery: solo, or threads, which answers monitors also during a batch.")] = "solo",
    log_level: Annotated[str, Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> Result:
    """Compute gradients for a stream of this site until SIGTERM or SIGINT; the batch under way is finished."""
    from queues.stream.choose import choose
    from queues.stream.home import StreamHome
    from queues.stream.serve_worker import serve

    home = StreamHome(stream_folder) if stream_folder is not None else choose(open_home().folder / "streams", stream)
    serve(home, threads=threads, pool=pool, level=log_level)
    return Result({"stopped": True})


@verb(app)
def status(
    stream: Annotated[str | None, Argument(metavar="STREAM", help="Its name; may be left out where there is one.")] = None,
) -> Result:
    """Who works for a stream of this site: when each worker last asked for a batch, and what is in its hands."""
    from child.cli.queue import asked
    from queues.stream.crew import status as looked

    with asked(stream) as ask:
        return looked(ask)
