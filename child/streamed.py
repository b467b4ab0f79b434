"""Tasks whose samples come through the queues of a stream of this site, and no file.

A round is a *turn* of the stream (`queues/stream/rounds.py`): the initial set becomes its shared layers, its workers take the steps
of the plan, and the snapshot after the last of them is the update. How a gradient moves the parameters, and how many samples make a
batch, says the stream's own declaration. Between two turns queues only fill; what they hold is what the next confirmation counts.

Such a task says `data = "stream:NAME"`. Samples and heads never leave the site; heads are copied into its private state after each
turn, so that predictions find them.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child.home import ChildHome
from queues.stream.client import StreamClient
from queues.stream.home import StreamHome
from queues.stream.spec import StreamTask
from tasks.specs import TaskSpec
from trunkline.clock import Clock, Deadline
from trunkline.errors import (
    NotFound,
    Reason,
    RefusedValue,
    SampleError,
    TrainingFailed,
    TrunklineError,
    Unreachable,
)
from trunkline.files import storage, write_atomically
from trunkline.messages import InitialSet
from trunkline.retry import persist

PREFIX = "stream:"
"""What `data` of such a task begins with."""

LOOK = 0.1
"""Seconds between two looks at a turn."""

AWAY = 60.0
"""Seconds that a stream's server may be away before a round gives up."""

ASKED = 5.0
"""Seconds that a question for counts may take."""


def stream_of(spec: TaskSpec) -> str | None:
    """The stream that a task's samples come through; None: they lie in a file."""
    return spec.data.removeprefix(PREFIX) if spec.data.startswith(PREFIX) else None


def of_stream(home: ChildHome, stream: str, task: str) -> TaskSpec:
    """A task as a stream of this site declares it.

    :raises NotFound: there is no such stream, or it has no such task.
    """
    return declared(home, stream, task).task.model_copy(update={"data": f"{PREFIX}{stream}"})


def check_together(specs: Sequence[TaskSpec]) -> None:
    """:raises SampleError: the tasks of one encoder type do not all come from files, or all through one stream."""
    sources = sorted({stream_of(spec) or "" for spec in specs})
    if len(sources) > 1:
        told = ", ".join(f"stream {name}" if name else "files" for name in sources)
        raise SampleError(
            f"the tasks of type {specs[0].encoder!r} should all come from files, or all through one stream, found {told}.",
            hint="Declare them in one stream, or push what the file holds.",
        )


def attach(home: ChildHome, stream: str, attached: bool) -> None:
    """Have a stream learn in rounds only, or at all times again; also when nobody serves it now."""
    made = _home(home, stream)
    flag = made.rounds / "attached"
    with storage(made.rounds):
        if attached:
            made.rounds.mkdir(mode=0o700, exist_ok=True)
            write_atomically(flag, b"")
        else:
            flag.unlink(missing_ok=True)
    with suppress(Unreachable):
        _client(made).call("POST", "/v1/rounds/attach", json.dumps({"attached": attached}), seconds=ASKED)


def count(home: ChildHome, spec: TaskSpec) -> int:
    """The distinct samples that the queue of a task can give, waiting or in the hands of a worker, in whole batches; where it
    gives short ones too, all of them; none where a person paused it.

    :raises SampleError: there is no such stream, or nobody serves it.
    """
    try:
        found = _client(_home(home, stream_of(spec) or "")).call("GET", f"/v1/queues/{spec.name}", seconds=ASKED)
    except TrunklineError as error:
        raise SampleError(f"the queue of task {spec.name!r} should be told of by its stream, found: {error.message}") from error
    if found["state"] in ("paused", "stopped"):
        return 0
    samples, settings = int(found["waiting"] + found["leased"] + found["submitted"]), found["settings"]
    return samples if settings["flush_seconds"] else samples - samples % int(settings["batch_size"])


def heldout(home: ChildHome, stream: str, specs: Sequence[TaskSpec]) -> list[TaskSpec]:
    """Tasks over the held-out rows of a stream's declaration, all of which count as one split, called `train`; of those that have
    some.
    """
    made = _home(home, stream)
    plain = {"format": "jsonl", "reader": None, "split": None, "fractions": (1.0, 0.0, 0.0), "rows": None}
    mine = [spec for spec in specs if (task := made.spec.task(spec.name)) is not None and task.heldout is not None]
    return [spec.model_copy(update={"data": str(made.heldout / f"{spec.name}.jsonl"), **plain}) for spec in mine]


def declared(home: ChildHome, stream: str, task: str) -> StreamTask:
    """A task as its stream declares it.

    :raises NotFound: there is no such stream, or it has no such task.
    """
    spec = _home(home, stream).spec
    found = spec.task(task)
    if found is None:
        raise NotFound(f"`--task` should be one of {', '.join(one.name for one in spec.tasks)}, found {task!r}.")
    return found


def _home(home: ChildHome, stream: str) -> StreamHome:
    made = StreamHome(home.streams / stream)
    if stream in ("", ".", "..") or "/" in stream or not (made.folder / "stream.json").is_file():
        there = sorted(path.parent.name for path in home.streams.glob("[!.]*/stream.json"))
        raise NotFound(f"`stream` should be one of {', '.join(there) or 'none yet'}, found {stream!r}.")
    return made


def _client(home: StreamHome) -> StreamClient:
    return StreamClient(home.socket, home.folder.name)


# -- what was confirmed --------------------------------------------------------------------------------------------------


def note_confirmed(home: ChildHome, stream: str, job: str, number: int, counts: Mapping[str, int]) -> None:
    """Keep what a confirmation says, so that the update never counts more. Of one that is asked again the least counts."""
    path = _home(home, stream).rounds / "confirmed.json"
    before = _confirmed(path, job, number) or {}
    least = {task: min(samples, before.get(task, samples)) for task, samples in counts.items()}
    with storage(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, json.dumps({"job": job, "round": number, "tasks": least}).encode(), mode=0o600)


def _confirmed(path: Path, job: str, number: int) -> dict[str, int] | None:
    try:
        table = json.loads(path.read_bytes())
        return dict(table["tasks"]) if (table["job"], table["round"]) == (job, number) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


# -- a round -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Played:
    """What a turn came to."""

    shared: Path  # a parameter set: the encoder's, at the boundary of a batch
    heads: Path  # another: `TASK/NAME`, at the same step
    samples: Mapping[str, int]  # distinct ones that were applied since the initial set, never more than were confirmed
    applied: Mapping[str, int]  # deliveries
    losses: Mapping[str, float]  # mean of the batches, by task
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Player:
    """Plays rounds with one stream.

    :param seconds: that its workers may take for a round; then what came of it is the update.
    """

    home: ChildHome
    stream: str
    clock: Clock
    seconds: float
    stopping: Callable[[], bool] = lambda: False

    def play(self, message: InitialSet, initial: Path) -> Played:
        """Play a round; the same one again is told what came of it.

        :param initial: where the initial set lies.
        :raises RefusedValue: `no_samples`: nothing was confirmed for it here.
        :raises TrainingFailed: the rule asks for what a stream does not do, or no batch was applied.
        :raises Unreachable: the stream's server stayed away.
        """
        if message.plan.corrected:
            raise TrainingFailed(
                Reason.TRAINING, "the rule `scaffold` should correct each gradient, found a child that learns from a stream."
            )
        made = _home(self.home, self.stream)
        confirmed = _confirmed(made.rounds / "confirmed.json", message.job, message.round)
        if not confirmed:
            raise RefusedValue(Reason.NO_SAMPLES, "samples should be here as they were when confirmed, found none.")
        began = self.clock.monotonic()
        name = f"{self.home.master}/{message.job}/{message.round}/{message.base.digest[:16]}/in"
        body = {"name": name, "initial": str(initial), "steps": message.plan.steps, "tasks": sorted(confirmed)}
        turn = self._ask("begin", body | {"fresh": message.plan.moments == "fresh"})
        done = self._done(name, turn)
        applied = {task: int(samples) for task, samples in done["applied"].items()}
        if not applied:
            raise TrainingFailed(
                Reason.TRAINING,
                f"the site's workers should have applied a batch in {self.seconds:g} s, found none: {done['why']}.",
                hint=f"Start one: trunkline-child worker {self.stream}.",
            )
        return Played(
            shared=made.rounds / done["digest"],
            heads=made.rounds / done["heads"],
            samples={task: min(samples, confirmed[task]) for task, samples in applied.items()},
            applied=applied,
            losses=done["losses"],
            steps=int(done["made"]),
            seconds=self.clock.monotonic() - began,
        )

    def _done(self, name: str, turn: dict[str, Any]) -> dict[str, Any]:
        """Wait until the turn has made its steps, or what its queues can give, or the time is over."""
        deadline = Deadline(self.clock, self.seconds, f"the batches of stream {self.stream!r}")
        while turn["done"] is None:
            if not turn["left"]:
                turn = self._end(name, "its queues held no further batch")
            elif deadline.over():
                turn = self._end(name, f"{self.seconds:g} s were over")
            elif self.stopping():
                turn = self._end(name, "the child was told to stop")
            else:
                self.clock.sleep(LOOK)
                turn = self._ask("turn")
        done: dict[str, Any] = turn["done"]
        return done | {"made": turn["made"]}

    def _end(self, name: str, why: str) -> dict[str, Any]:
        return self._ask("end", {"name": name, "why": why})

    def _ask(self, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the stream's server, which may be starting again meanwhile."""
        client = _client(_home(self.home, self.stream))

        def once() -> dict[str, Any]:
            told = None if body is None else json.dumps(body)
            found: dict[str, Any] = client.call("GET" if body is None else "POST", f"/v1/rounds/{what}", told)
            return found

        deadline = Deadline(self.clock, AWAY, f"the server of stream {self.stream!r}")
        return persist(once, deadline, random.Random(), stop=self.stopping)  # noqa: S311 - jitter
