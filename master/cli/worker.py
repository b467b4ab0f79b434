"""`trunkline worker`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from master.cli.base import AdminGroup, open_master, state_folder, verb
from trunkline.console import Running, declare, here
from trunkline.errors import UsageError
from trunkline.terminal import Result


class _Noun(AdminGroup, Running):
    """`trunkline worker` alone works."""


app = declare.noun("Compute gradients for a stream, until told to stop; or look who does.", _Noun)

Numbers = Literal["float32", "bfloat16"]


@verb(app)
def run(
    stream: Annotated[str | None, Argument(metavar="STREAM", help="Its name; may be left out where there is one.")] = None,
    stream_folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="The stream's own folder, instead of its name at this master.")
    ] = None,
    threads: Annotated[
        int | None, Option(metavar="N", min=1, help="Of torch: the cores, divided by the workers.  [default: all cores]")
    ] = None,
    pool: Annotated[str, Option(help="Of Celery: solo, or threads, which answers monitors also during a batch.")] = "solo",
    log_level: Annotated[str, Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    redis: Annotated[
        str | None, Option(metavar="URL", help="With --url: the stream's Redis, where its address from here is another.")
    ] = None,
    broker: Annotated[str | None, Option(metavar="URL", help="With --url: Celery's, where it is another Redis.")] = None,
    module: Annotated[
        list[str] | None, Option(metavar="FILE.py", help="With --url: the stream's own code on this machine; may be repeated.")
    ] = None,
    cache: Annotated[
        Path | None, Option(metavar="FOLDER", help="With --url: keeps the encoder's files.  [default: ~/.cache/trunkline/streams]")
    ] = None,
    gradients: Annotated[
        Numbers, Option(help="With --url: how they travel. bfloat16 is half the bytes, and rounds them.")
    ] = "float32",
    parameters: Annotated[
        Numbers, Option(help="With --url: how they travel. Gradients of bfloat16 are of rounded parameters.")
    ] = "float32",
) -> Result:
    """Compute gradients for a stream until SIGTERM or SIGINT; the batch under way is finished. Run as many as you like.

    On another machine than the master: --url with its address, --ca, and --token-file with what `trunkline stream worker-token`
    printed. The stream needs a Redis with an address.
    """
    given = (redis, broker, module, cache)
    if here().option("url", "TRUNKLINE_URL") is None or stream_folder is not None:
        if any(one is not None for one in given) or "bfloat16" in (gradients, parameters):
            raise UsageError("`--url` should say where the master is with options of workers on other machines, found none.")
        from queues.stream.choose import choose
        from queues.stream.home import StreamHome
        from queues.stream.serve_worker import serve

        home = StreamHome(stream_folder) if stream_folder is not None else choose(state_folder() / "streams", stream)
        serve(home, threads=threads, pool=pool, level=log_level)
    else:
        from queues.stream.serve_worker import check_words

        check_words(pool, log_level)
        from queues.stream.apart import Machine
        from queues.stream.apart import serve as serve_apart

        machine = Machine(
            redis=redis,
            broker=broker,
            modules=[Path(path).expanduser().absolute() for path in module or ()],
            cache=cache,
            half_gradients=gradients == "bfloat16",
            half_parameters=parameters == "bfloat16",
            threads=threads,
        )
        with open_master(progress=5.0) as https:
            serve_apart(https, stream, machine, pool=pool, level=log_level)
    return Result({"stopped": True})


@verb(app)
def status(
    stream: Annotated[str | None, Argument(metavar="STREAM", help="Its name; may be left out where there is one.")] = None,
) -> Result:
    """Who works for a stream: when each worker last asked for a batch, and what is in its hands."""
    from master.cli.queue import asked
    from queues.stream.crew import status as looked

    with asked(stream) as ask:
        return looked(ask)
