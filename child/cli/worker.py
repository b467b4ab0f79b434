"""`trunkline-child worker`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from child.cli.base import open_home, verb
from trunkline.console import single
from trunkline.terminal import Result

app = single()


@verb(app)
def worker(
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
