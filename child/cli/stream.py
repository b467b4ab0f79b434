"""`trunkline-child stream`: streams of this site. Their samples and heads stay here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from child.cli.base import noun, open_home, verb
from trunkline.console import here
from trunkline.errors import Conflict, NotFound, TrunklineError, UsageError
from trunkline.terminal import Result, table

if TYPE_CHECKING:
    from queues.stream.home import StreamHome

app = noun("Streams of this site: samples that arrive all day train an encoder and its heads.")

Name = Annotated[str, Argument(metavar="NAME", help="The stream's name.")]


def folder() -> Path:
    """Where the streams of this site lie."""
    return open_home().streams


def names() -> list[str]:
    """The streams of this site, sorted."""
    return sorted(path.parent.name for path in folder().glob("[!.]*/stream.json"))


def find(name: str | None) -> "StreamHome":
    """The folder of a stream; without a name, of the only one there is.

    :raises NotFound: there is none.
    :raises UsageError: there are several.
    """
    from queues.stream.home import StreamHome

    there = names()
    if name is not None and name not in there:
        raise NotFound(f"`NAME` should be one of {', '.join(there) or 'none yet'}, found {name!r}.")
    if not there:
        raise NotFound("there should be a stream, found none.", hint="Make one: trunkline-child stream create.")
    if name is None and len(there) > 1:
        raise UsageError(f"`--stream` should say which one of {', '.join(there)}, found nothing.")
    return StreamHome(folder() / (name or there[0]))


@verb(app)
def create(
    name: Name,
    file: Annotated[Path, Option("--file", metavar="STREAM.TOML", help="Its declaration.")],
    encoder: Annotated[Path, Option(metavar="FOLDER", help="As `trunkline encoder create NAME --keep FOLDER` leaves it.")],
    redis: Annotated[str | None, Option(metavar="URL", help="A Redis of your own: redis://, rediss:// or unix://.")] = None,
    broker: Annotated[str | None, Option(metavar="URL", help="Of Celery, where it should be another Redis.")] = None,
) -> Result:
    """Make a stream from its declaration and an encoder. Serve it with `trunkline-child stream serve`."""
    home = open_home(make=True)
    from queues.stream import create as making
    from tasks.declared import read_spec

    spec = making.declared(file, {"name": name, "encoder": read_spec(encoder).name})
    rows = making.heldout(spec, file.absolute().parent)
    made = making.create(
        home.streams / name, spec, encoder, rows=rows, modules=sorted(home.modules.glob("*.py")), redis=redis, broker=broker
    )
    data = {"name": name, "encoder": spec.encoder, "tasks": [task.name for task in spec.tasks], "folder": str(made.folder)}
    return Result(data, [f"{name}  encoder {spec.encoder}  {', '.join(data['tasks'])}", f"trunkline-child stream serve {name}"])


@verb(app, "list")
def list_() -> Result:
    """The streams of this site, and which of them are served."""
    rows = [_row(find(name)) for name in names()]
    columns = ("name", "encoder", "tasks", "served", "problem")
    return Result(rows, table(rows, columns, "none; make one: trunkline-child stream create"))


def _row(home: "StreamHome") -> dict[str, Any]:
    from queues.stream.client import StreamClient

    row: dict[str, Any] = {"name": home.folder.name, "encoder": None, "tasks": [], "served": False, "problem": None}
    try:
        spec = home.spec
        row |= {"encoder": spec.encoder, "tasks": [task.name for task in spec.tasks]}
    except TrunklineError as error:
        row["problem"] = error.message
    try:
        StreamClient(home.socket, home.folder.name, seconds=5.0).call("GET", "/v1/status")
        row["served"] = True
    except TrunklineError:
        pass
    return row


@verb(app)
def serve(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Without it the only one.")] = None,
    accept: Annotated[bool, Option("--accept-loss", help="Go on although its Redis, or its store, was lost or set back.")] = False,
) -> Result:
    """Serve a stream until told to stop by SIGTERM or SIGINT."""
    home = find(name)
    from queues.stream.process import Ending, run

    run(home, Ending(), accept=accept)
    return Result({"stopped": home.folder.name})


@verb(app)
def remove(name: Name) -> Result:
    """Delete a stream: its samples, its heads, its parameters."""
    from queues.stream.removal import remove as end

    home = find(name)
    from child import streamed
    from child.registry import Registry

    if fed := [spec.name for spec in Registry(open_home()).all() if streamed.stream_of(spec) == name]:
        raise Conflict(
            f"stream {name!r} should feed no task to be removed, found {', '.join(fed)}.",
            hint=f"Remove it first: trunkline-child task remove {fed[0]}.",
        )
    here().confirm(f"Delete stream {name!r} with all its samples, heads and parameters?")
    end(home)
    return Result({"removed": name}, [f"{name} removed"])


@verb(app)
def lineage(
    name: Name,
    most: Annotated[int, Option("--most", metavar="N", help="Batches that are shown, the newest.")] = 20,
    step: Annotated[int | None, Option(metavar="N", help="Only what made this step.")] = None,
    batch: Annotated[str | None, Option(metavar="ID", help="Only this batch.")] = None,
) -> Result:
    """What was applied: which batch of which queue made which step, computed on which, and by whom."""
    from child.cli.queue import asked
    from queues.stream import asking

    with asked(name) as ask:
        return asking.lineage(ask, most, step, batch)


@verb(app)
def snapshot(name: Name, out: Annotated[Path, Option("--out", metavar="FILE", help="A new file, safetensors.")]) -> Result:
    """Write the shared parameters as they are now, between two batches, to a file."""
    from queues.stream import asking
    from queues.stream.client import StreamClient

    home = find(name)
    return asking.snapshot(lambda target: StreamClient(home.socket, name).talk("GET", f"/v1/{target}"), out)


@verb(app)
def replay(
    name: Name,
    start: Annotated[int | None, Option(metavar="STEP", help="Of a checkpoint, or 0; without it the earliest there is.")] = None,
    threads: Annotated[int | None, Option(metavar="N", help="Of torch; as many as the workers had.")] = None,
) -> Result:
    """Compute the parameters of now anew from the record of all batches, and compare them to the bit."""
    from child.cli.queue import asked
    from queues.stream import asking

    with asked(name, asking.REPLAY_SECONDS) as ask:
        return asking.replay(ask, start, threads)
