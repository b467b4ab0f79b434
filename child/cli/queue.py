"""`trunkline-child queue`: the queues of a stream of this site, through the socket in its folder. Nothing leaves this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from typer import Argument, Option

from child.cli.base import noun, verb
from child.cli.stream import find
from trunkline.console import here
from trunkline.errors import UsageError
from trunkline.terminal import Result

if TYPE_CHECKING:
    from queues.stream.asking import Ask

app = noun("Queues of samples: push, look, pause.")
dead = noun("Batches that failed too often.")
app.add_typer(dead, name="dead")

Task = Annotated[str, Argument(metavar="TASK", help="The task's name.")]
Some = Annotated[str | None, Argument(metavar="[TASK]", help="Without it all.")]
Which = Annotated[str | None, Option("--stream", metavar="NAME", help="Where there are several.")]
Batches = Annotated[list[str] | None, Argument(metavar="[BATCH]...", help="Ids; without them all.")]

PUSH_SECONDS = 10.0
"""That a queue without room is waited for, where `--timeout` does not say."""


@contextmanager
def asked(stream: str | None, answer: float | None = None) -> "Iterator[Ask]":
    """Calls to the server of a stream.

    :param answer: seconds that an answer may take; None: as usual.
    :raises NotFound: there is no such stream.
    :raises UsageError: there are several, and none was named.
    """
    from queues.stream.client import StreamClient

    home = find(stream)
    client = StreamClient(home.socket, home.folder.name)

    def ask(method: str, path: str, body: bytes | str | None = None, **query: Any) -> Any:
        target = "/".join(quote(part, safe="") for part in path.split("/"))
        return client.call(method, f"/v1/{target}", body, query=query, seconds=answer)

    yield ask


@verb(app)
def push(
    task: Annotated[str, Argument(metavar="TASK", help="The task's name, or one that feeds several.")],
    file: Annotated[str, Argument(metavar="FILE", help="JSON Lines, CSV or TSV; - reads JSON Lines from standard input.")],
    stream: Which = None,
    producer: Annotated[str | None, Option(metavar="NAME", help="Who pushes; the same samples again do no harm.")] = None,
    first: Annotated[int, Option(metavar="N", help="Number of the first sample at that producer, from 1 on.")] = 1,
) -> Result:
    """Push samples. A queue without room is waited for, for 10 seconds or `--timeout`."""
    from queues.stream.pushing import push as send
    from trunkline.clock import SystemClock

    seconds = here().timeout or PUSH_SECONDS
    with asked(stream) as ask:
        return send(ask, task, file, producer=producer, first=first, clock=SystemClock(), seconds=seconds)


@verb(app)
def stats(task: Some = None, stream: Which = None) -> Result:
    """Depth, age of the oldest sample, rates, counts; with a task its settings too."""
    from queues.stream import asking

    with asked(stream) as ask:
        return asking.stats(ask, task)


@verb(app)
def peek(task: Task, most: Annotated[int, Option("--most", metavar="N")] = 10, stream: Which = None) -> Result:
    """The samples that wait, oldest first."""
    from queues.stream import asking

    with asked(stream) as ask:
        return asking.peek(ask, task, most)


@verb(app)
def watch(
    stream: Which = None,
    every: Annotated[float, Option(metavar="SECONDS", help="Between two looks.")] = 1.0,
) -> Result:
    """Look on: depth, age, rates, updates, staleness and the last score of each task. Ends by Ctrl-C, or after `--timeout`."""
    from queues.stream import asking
    from trunkline.clock import Deadline, SystemClock

    if not 0.1 <= every <= 3600:
        raise UsageError(f"`--every` should be from 0.1 to 3600 seconds, found {every:g}.")
    clock, limit = SystemClock(), here().timeout
    deadline = None if limit is None else Deadline(clock, limit, "the end of the watch")
    with asked(stream) as ask:
        return asking.watch(ask, every, clock, deadline, here().terminal)


@verb(app)
def pause(task: Task, stream: Which = None) -> Result:
    """Take no samples and give no batches, until `resume`."""
    return _state(task, stream, "paused")


@verb(app)
def resume(task: Task, stream: Which = None) -> Result:
    """Take samples and give batches again."""
    return _state(task, stream, "open")


@verb(app)
def drain(task: Task, stream: Which = None) -> Result:
    """Take no samples, but give what is left, the last batch short."""
    return _state(task, stream, "draining")


@verb(app)
def stop(task: Task, stream: Which = None) -> Result:
    """Take nothing and give nothing for good: the task's head stays as it is, to the bit."""
    return _state(task, stream, "stopped")


def _state(task: str, stream: str | None, state: str) -> Result:
    from queues.stream import asking

    with asked(stream) as ask:
        return asking.set_state(ask, task, state)


@verb(app, "set")
def set_(
    task: Task,
    weight: Annotated[float | None, Option(metavar="X", help="Its share of the turns, where turns are fair.")] = None,
    priority: Annotated[int | None, Option(metavar="N", help="Higher comes first, where turns go by priority.")] = None,
    batch_size: Annotated[int | None, Option(metavar="N", help="Samples, from the next batch on.")] = None,
    most: Annotated[int | None, Option(metavar="N", help="Samples that wait at most.")] = None,
    flush_seconds: Annotated[float | None, Option(metavar="X", help="A sample waits so long at most; 0: for ever.")] = None,
    flush_least: Annotated[int | None, Option(metavar="N", help="Samples without which nothing is flushed.")] = None,
    out: Annotated[int | None, Option(metavar="N", help="Batches that may be out at once; 0: any number.")] = None,
    stream: Which = None,
) -> Result:
    """Change settings of a queue, from the next batch on."""
    from queues.stream import asking

    said = {
        "weight": weight,
        "priority": priority,
        "batch_size": batch_size,
        "most": most,
        "flush_seconds": flush_seconds,
        "flush_least": flush_least,
        "out": out,
    }
    with asked(stream) as ask:
        return asking.change(ask, task, said)


@verb(dead, "list")
def dead_list(task: Task, most: Annotated[int, Option("--most", metavar="N")] = 100, stream: Which = None) -> Result:
    """Which they are, and why."""
    from queues.stream import asking

    with asked(stream) as ask:
        return asking.dead(ask, task, most)


@verb(dead, "retry")
def dead_retry(task: Task, batches: Batches = None, stream: Which = None) -> Result:
    """Give them all their attempts again."""
    from queues.stream import asking

    with asked(stream) as ask:
        return asking.retry(ask, task, batches or ())


@verb(dead, "purge")
def dead_purge(task: Task, batches: Batches = None, stream: Which = None) -> Result:
    """Give up their samples."""
    from queues.stream import asking

    here().confirm(f"Give up the samples of {'these' if batches else 'all'} dead batches of task {task!r}?")
    with asked(stream) as ask:
        return asking.purge(ask, task, batches or ())
