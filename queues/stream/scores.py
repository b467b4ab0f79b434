"""What the parameters score on held-out rows while a stream runs: a line a task and a look, in `scores.jsonl` of the stream.

    {"at": 1.7e9, "step": 400, "consumed": {"sentiment": 6400}, "task": "sentiment", "metric": "accuracy",
     "value": 0.91, "rows": 872}

`consumed` are the samples of each task that had changed the parameters by then; `at` is in seconds since the epoch. All rows
of `heldout/NAME.jsonl` count, whatever they say of splits.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from queues.redis import RedisQueues
from queues.store.store import StoreReader
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.spec import StreamTask
from tasks.evaluate import evaluate
from tasks.specs import TaskSpec
from tasks.table import SampleTable, open_table
from trunkline.clock import Clock
from trunkline.errors import AlreadyRunning, SampleError, StorageFailed, TrainingFailed
from trunkline.files import Lock, storage

log = logging.getLogger(__name__)

MEMORY = 256 << 20
"""Bytes that reading the rows may take."""

TAIL = 1 << 16
"""Bytes at the end of the file that are read for the last step."""


class Scores:
    """Looks at the held-out rows every `evaluate_steps` steps, whichever worker comes by then; one at a time.

    :param store: a look is at parameters of one step.
    """

    def __init__(self, home: StreamHome, learner: Learner, queues: RedisQueues, store: StoreReader, clock: Clock) -> None:
        self.home, self.learner, self.queues, self.store, self.clock = home, learner, queues, store, clock
        self.every = learner.spec.evaluate_steps
        self._tables: dict[str, tuple[TaskSpec, SampleTable]] = {}
        self._next = 0  # the step before which there is nothing to do
        self._tasks = [task for task in learner.spec.tasks if task.heldout is not None]

    def look(self, step: int) -> None:
        """A step was made: evaluate if it is time. Nothing that goes wrong here stops the training."""
        if not self.every or not self._tasks or step < self._next:
            return
        try:
            lock = Lock(self.home.folder / "scores.lock", "worker that evaluates")
        except AlreadyRunning:
            return  # another does it
        try:
            last = last_step(self.home.scores)
            if last is None or step >= last + self.every:
                last = self.evaluate()
            self._next = last + self.every
        except (SampleError, TrainingFailed, StorageFailed) as error:
            log.warning("the held-out rows have no scores at step %d: %s", step, error)
            self._next = step + self.every
        finally:
            lock.release()

    def evaluate(self) -> int:
        """Score all tasks that have held-out rows, on the parameters as they are now; tell their step.

        :raises SampleError: rows are not what their task says.
        :raises TrainingFailed: the parameters give no number.
        """
        step = self.store.read({name: p.detach() for name, p in self.learner.parameters().items()})
        consumed = {task.name: self.queues.counts(task.name).applied for task in self.learner.spec.tasks}
        lines = [self._score(task) | {"step": step, "consumed": consumed, "at": self.clock.now()} for task in self._tasks]
        self._append(lines)
        return step

    def _score(self, task: StreamTask) -> dict[str, Any]:
        spec, table = self._table(task)
        learner = self.learner
        found = evaluate(learner.encoder, learner.heads[task.name], table, spec, "train", batch_size=max(64, spec.batch_size))
        log.info("task %s: %s %.4f on %d held-out rows", task.name, found.metric, found.value, found.samples)
        return {"task": task.name, "metric": found.metric, "value": found.value, "rows": found.samples}

    def _table(self, task: StreamTask) -> tuple[TaskSpec, SampleTable]:
        if task.name not in self._tables:
            # A table wants training rows: here all rows are one split, which is called that.
            plain = {"format": "jsonl", "reader": None, "split": None, "fractions": (1.0, 0.0, 0.0), "rows": None}
            spec = task.task.model_copy(update={"data": f"{task.name}.jsonl", **plain})
            self._tables[task.name] = spec, open_table(spec, self.learner.encoder, self.home.cache, self.home.heldout, MEMORY)
        return self._tables[task.name]

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with storage(self.home.scores), self.home.scores.open("a", encoding="utf-8") as file:
            file.write(text)


def last_step(path: Path) -> int | None:
    """The step of the last look; None: there was none. A line that was cut short counts for nothing."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
