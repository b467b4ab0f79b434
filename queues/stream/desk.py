"""What the server of a stream does for those who ask, in plain Python: the HTTP around it is in `queues.stream.api`.

Whatever is asked is answered with JSON values. Samples never leave by here but to be looked at (`peek`, `dead`).
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from queues.queue import Claim
from queues.redis import RedisQueues, Stats
from queues.settings import QueueSettings, State
from queues.stream import replayed
from queues.stream.edge import Edge
from queues.stream.home import StreamHome
from queues.stream.keeper import Keeper
from queues.stream.rates import Rates
from queues.stream.record import Record
from queues.stream.spec import StreamSpec
from trunkline.clock import Clock
from trunkline.errors import NotFound, QueueFull, QueuePaused, StateError, UsageError
from trunkline.settings import build

PUSHES = 16
"""Pushes at a time; more are told to come again."""

SCORES = 1 << 18
"""Bytes at the end of the file of scores that are looked at."""

LOOKED_AT = 1000
"""Samples, or dead batches, of one answer at most."""


class Desk:
    """One stream, as people and producers see it. Any thread may use it.

    :param keeper: None: nobody keeps parameters, samples only wait.
    """

    def __init__(
        self, home: StreamHome, spec: StreamSpec, queues: RedisQueues, edge: Edge, keeper: Keeper | None, clock: Clock
    ) -> None:
        self.home, self.spec, self.queues, self.edge, self.keeper, self.clock = home, spec, queues, edge, keeper, clock
        self._pushing = threading.BoundedSemaphore(PUSHES)
        self._replaying = threading.Lock()
        self._rates = {task.name: Rates(clock) for task in spec.tasks}

    # -- samples -------------------------------------------------------------------------------------------------------

    def push(self, name: str, body: bytes, *, producer: str = "", first: int = 0, line: int = 1) -> dict[str, Any]:
        """Lines of JSON into the queue of a task, or those of all tasks that a name feeds: all of them, or none.

        :param producer: who pushes, where a push that is sent again should do no harm.
        :param first: the number of the first of these samples at that producer, which counts what it pushes under each name from 1
            and leaves none out.
        :param line: number of the body's first line in its file, for messages.
        :returns: how many samples, and how many wait now in each queue.
        :raises NotFound: nothing is called so.
        :raises SampleError: lines are no samples; says which, and why.
        :raises QueueFull, QueuePaused, Conflict: see `RedisQueues.push`.
        """
        tasks = self.tasks_of(name)
        if producer and name in self.spec.feeds:
            producer = f"{producer}@{name}"  # counted apart from what the same producer pushes to one of the tasks alone
        with self._turn():
            packed = self.edge.packed(tasks, body, line)
            count = len(packed[tasks[0]])
            if len(tasks) > 1:
                self._check_room(tasks, count)
            depths: dict[str, int] = {}
            for task, samples in packed.items():
                try:
                    depths[task] = self.queues.push(task, samples, producer=producer, first=first)
                except (QueueFull, QueuePaused) as error:
                    if depths:  # between the look and the push somebody else was quicker
                        error.message += f" The queues of {', '.join(depths)} took them before."
                        error.hint = "Push them again under the same producer and numbers: no queue takes a sample twice."
                    raise
        return {"samples": count, "waiting": depths}

    def tasks_of(self, name: str) -> tuple[str, ...]:
        """The tasks that a sample pushed under a name goes to.

        :raises NotFound: nothing is called so.
        """
        tasks = self.spec.fed_by(name)
        if not tasks:
            known = [*(task.name for task in self.spec.tasks), *self.spec.feeds]
            raise NotFound(f"`TASK` should be one of {', '.join(known)}, found {name!r}.")
        return tasks

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._pushing.acquire(blocking=False):
            raise QueueFull(
                f"the stream should have at most {PUSHES} pushes at a time, found more.", hint="Push again in a moment."
            )
        try:
            yield
        finally:
            self._pushing.release()

    def _check_room(self, tasks: Sequence[str], count: int) -> None:
        """Look first, so that not one queue takes what another refuses."""
        for task in tasks:
            found = self.queues.stats(task)
            depth = found.counts.queued
            if found.state not in ("open", "filling"):
                raise QueuePaused(f"queue {task!r} should be open, found it {found.state}; {depth} wait. None took a sample.")
            if depth + count > found.settings.most:
                raise QueueFull(
                    f"queue {task!r} should have room for {count} more samples, found {depth} in it. None took a sample.",
                    hint="Push them again later, or fewer at once.",
                )

    def peek(self, task: str, most: int = 10) -> list[dict[str, Any]]:
        """The samples that wait, oldest first, for people: text as far as tokens still tell it.

        :raises NotFound: no such task.
        """
        return [self.edge.shown(task, sample) for sample in self.queues.peek(task, _bounded(most))]

    # -- queues --------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note the counters, for rates. Called every now and then."""
        for task in self.spec.tasks:
            self._note(self.queues.stats(task.name))

    def _note(self, found: Stats) -> None:
        self._rates[found.queue].note({"pushed": found.counts.pushed, "applied": found.counts.applied})

    def stats(self, task: str | None = None) -> list[dict[str, Any]]:
        """Queues at one moment each: depth, age of the oldest sample in seconds, rates a second, counters, settings.

        :param task: None: all.
        :raises NotFound: no such task.
        """
        names = [one.name for one in self.spec.tasks] if task is None else [self._known(task)]
        return [self._told(self.queues.stats(name)) for name in names]

    def _told(self, found: Stats) -> dict[str, Any]:
        self._note(found)
        counts, rates = found.counts, self._rates[found.queue]
        return {
            "task": found.queue,
            "state": found.state,
            "waiting": counts.queued,
            "oldest_seconds": round(found.oldest, 3),
            "pushed_a_second": round(rates.a_second("pushed"), 3),
            "applied_a_second": round(rates.a_second("applied"), 3),
            "pushed": counts.pushed,
            "applied": counts.applied,
            "leased": counts.leased,
            "submitted": counts.submitted,
            "dead": counts.dead,
            "purged": counts.purged,
            "settings": found.settings.model_dump(mode="json"),
        }

    def set_state(self, task: str, state: State) -> dict[str, Any]:
        """Open, pause, drain or stop a queue; tell how it is then.

        :raises NotFound: no such task.
        """
        self.queues.set_state(self._known(task), state)
        return self.stats(task)[0]

    def change(self, task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Change some settings of a queue; tell how it is then.

        :raises NotFound: no such task.
        :raises SettingsError: names the setting, what should be and what was found.
        """
        before = self.queues.stats(self._known(task)).settings.model_dump()
        self.queues.configure(task, build(QueueSettings, before | dict(settings), f"the queue {task}"))
        return self.stats(task)[0]

    def purge(self, task: str) -> dict[str, Any]:
        """Give up all samples that wait."""
        return {"task": task, "samples": self.queues.purge_waiting(self._known(task))}

    def _known(self, task: str) -> str:
        if self.spec.task(task) is None:
            raise NotFound(f"`TASK` should be one of {', '.join(one.name for one in self.spec.tasks)}, found {task!r}.")
        return task

    # -- dead batches --------------------------------------------------------------------------------------------------

    def dead(self, task: str, most: int = 100, samples: int = 3) -> list[dict[str, Any]]:
        """Batches that were put aside, oldest first, with the reason and their first samples."""
        return [self._buried(claim, reason, samples) for claim, reason in self.queues.dead(self._known(task), _bounded(most))]

    def _buried(self, claim: Claim[bytes], reason: str, samples: int) -> dict[str, Any]:
        shown = [self.edge.shown(claim.task, sample) for sample in claim.samples[: _bounded(samples)]]
        return {
            "task": claim.task,
            "batch": claim.id,
            "attempt": claim.attempt,
            "size": len(claim.samples),
            "reason": reason,
            "samples": shown,
        }

    def retry(self, task: str, batches: Sequence[str] | None = None) -> dict[str, Any]:
        """Give dead batches all their attempts again.

        :param batches: None: all of the task's.
        """
        return {"task": task, "batches": self.queues.retry(self._known(task), batches)}

    def purge_dead(self, task: str, batches: Sequence[str] | None = None) -> dict[str, Any]:
        """Give up the samples of dead batches."""
        return {"task": task, "samples": self.queues.purge_dead(self._known(task), batches)}

    # -- the whole -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The server, its store, its queues."""
        found = self.home.server() or {}
        return {
            "stream": self.spec.name,
            "encoder": self.spec.encoder,
            "pid": found.get("pid"),
            "incarnation": found.get("incarnation"),
            "redis": "embedded" if self.home.redis_url is None else "named",
            "feeds": {name: list(tasks) for name, tasks in self.spec.feeds.items()},
            "store": self.keeper.status() if self.keeper is not None else None,
            "queues": self.stats(),
            "scores": list({one["task"]: one for one in self.scores(1000)}.values()),  # the newest of each task
        }

    def out(self) -> list[dict[str, Any]]:
        """Batches that are out: whose hands they are in, and for how many seconds."""
        return [asdict(one) for one in self.queues.out(LOOKED_AT)]

    def workers(self) -> list[dict[str, Any]]:
        """Who asked for batches within a day, who asked last first: `worker`, `seen` (seconds ago), `batches` in its hands."""
        held = [one for one in self.out() if one["where"] == "leased"]
        return [
            {"worker": worker, "seen": seen, "batches": [one for one in held if one["worker"] == worker]}
            for worker, seen in self.queues.workers(LOOKED_AT).items()
        ]

    def scores(self, most: int = 100) -> list[dict[str, Any]]:
        """Scores of the held-out rows, newest last."""
        try:
            with self.home.scores.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - SCORES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[-_bounded(most) :] if line.startswith("{") and line.endswith("}")]

    def snapshot(self, to: Path) -> dict[str, Any]:
        """Write the shared set as it is now to a file; tell `step` and `digest`.

        :raises StateError: nobody keeps parameters.
        """
        return self.keeping().snapshot(to)

    def lineage(self, most: int = 100, step: int | None = None, batch: str | None = None) -> list[dict[str, Any]]:
        """What was applied, newest first: which batch of which queue made which step, on parameters of which step, by whom.

        :param step: only what made this one.
        :param batch: only this one; or a round by its name.
        :raises DamagedFile: the record is not what was written.
        """
        record = Record(self.home.applied)
        if batch is not None:
            found = record.of_batch(batch)
            return [] if found is None else [found.table()]
        if step is not None:
            return [entry.table() for entry in record.of(step)]
        most, last = _bounded(most), record.last
        entries = [] if last is None else [entry.table() for entry in record.since(last - most)]
        return entries[::-1][:most]

    def replay(self, start: int | None = None, threads: int | None = None) -> dict[str, Any]:
        """Compute the parameters of now anew from the record, in another process, and compare them to the bit.

        :param start: of a checkpoint, or 0; None: the earliest that the record reaches back to.
        :param threads: of torch, as the workers had them.
        :raises StateError: nobody keeps parameters, or in memory alone; or a replay runs.
        :raises NotFound, Conflict: the record does not hold what is needed.
        """
        keeper = self.keeping()
        if self.spec.store.kind == "memory":
            raise StateError(f"stream {self.spec.name!r} should have its store in files for a replay, found it in memory.")
        if not self._replaying.acquire(blocking=False):
            raise StateError(f"stream {self.spec.name!r} should have one replay at a time, found one that runs.")
        try:
            return replayed.ask(self.home, until=keeper.checkpoint(), start=start, threads=threads)
        finally:
            self._replaying.release()

    def keeping(self) -> Keeper:
        """Who keeps the parameters.

        :raises StateError: nobody does.
        """
        if self.keeper is None:
            raise StateError(f"stream {self.spec.name!r} should keep parameters, found that its server does not.")
        return self.keeper


def _bounded(most: int) -> int:
    if not 0 <= most <= LOOKED_AT:
        raise UsageError(f"`most` should be from 0 to {LOOKED_AT}, found {most}.")
    return most
