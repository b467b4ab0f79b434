"""Whether the tasks of a stream harm each other: cosines of their gradients on the shared layers, kept over time, and alarms.

Where one batch of each task makes a step, the cosines are exact. Where each batch moves the parameters by itself, now and then a
sketch of a gradient is taken (`tasks.balance.sketch`), and the cosine of decayed means is an estimate. What was estimated begins
anew with each start of the server; the rows of before stay in the file.

    conflicts.jsonl     a line a look: `step`, `one`, `other`, `cosine`; the older half goes when there are too many
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from queues.store.layout import SHARED
from queues.store.store import Sent
from queues.stream.home import StreamHome
from queues.stream.spec import StreamSpec
from tasks.balance import alarm, matrix
from tasks.balance.matrix import Row, Sketches
from trunkline.errors import RefusedValue
from trunkline.files import storage, write_atomically

log = logging.getLogger(__name__)

LINES = 50_000
"""Rows that are kept at most."""

ALARMS = 50
"""That are told to who asks, the newest."""

Scored = Mapping[str, Any]
"""A line of `scores.jsonl`."""


class Conflicts:
    """Looks at gradients as they are applied, and at scores.

    :param every: batches of a task from one sketch of its gradient to the next; 0: none is taken.
    """

    def __init__(self, home: StreamHome, spec: StreamSpec) -> None:
        self.home, self.spec, self.every = home, spec, spec.conflict_steps
        self._watch, self._state = alarm.Watch(), dict[str, float]()
        self._sketches: Sketches = {}
        self._batches: Counter[str] = Counter()
        self._newest: dict[tuple[str, str], Row] = {}
        self._alarms: list[dict[str, Any]] = []
        self._lines = sum(1 for _ in self._read())
        self._scores = 0  # bytes of the file of scores that were looked at

    def one(self, sent: Sent, step: int) -> None:
        """A batch moved the parameters by itself."""
        if len(self.spec.tasks) < 2 or not self.every:
            return
        self._batches[sent.task] += 1
        if self._batches[sent.task] % self.every and self._batches[sent.task] > 1:
            return
        from tasks.balance.sketch import sketch  # torch

        shared = {name: tensor for name, tensor in sent.tensors.items() if name.startswith(SHARED)}
        with suppress(RefusedValue):  # a sum that is beyond float32 tells nothing of directions
            self._sketches, rows = matrix.met(self._sketches, sent.task, sketch(shared, self.spec.learning.seed), step)
            self._heard(rows)

    def together(self, rows: Iterable[Row]) -> None:
        """Gradients of several tasks moved the parameters together."""
        self._heard(list(rows))

    def _heard(self, rows: list[Row]) -> None:
        self._newest |= {(row.one, row.other): row for row in rows}
        self._keep(rows)
        state, found = alarm.heard(self._watch, self._state, rows)
        self._state = dict(state)
        for one in found:
            self._tell(one)

    def look_at_scores(self) -> None:
        """Read what was scored since the last look."""
        for line in self._new_scores():
            task = self.spec.task(line["task"])
            if task is None:
                continue
            value = float(line["value"]) if task.higher_is_better else -float(line["value"])
            state, found = alarm.scored(self._watch, self._state, task.name, int(line["step"]), value)
            self._state = dict(state)
            if found is not None:
                self._tell(found)

    def _new_scores(self) -> list[Scored]:
        try:
            with self.home.scores.open("rb") as file:
                file.seek(self._scores)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._scores += len(whole)
        found = []
        for line in whole.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict) and {"task", "value", "step"} <= line.keys()]

    def _tell(self, found: alarm.Alarm) -> None:
        log.warning("%s", found)
        told = {"step": found.step, "since": found.since, "tasks": list(found.tasks), "value": found.value, "message": str(found)}
        self._alarms = [*self._alarms, told][-ALARMS:]

    # -- what was kept -------------------------------------------------------------------------------------------------

    def _keep(self, rows: list[Row]) -> None:
        if not rows:
            return
        with storage(self.home.conflicts):
            if self._lines + len(rows) > LINES:
                kept = list(self._read())[-LINES // 2 :]
                write_atomically(self.home.conflicts, b"".join(kept), mode=0o600)
                self._lines = len(kept)
            with self.home.conflicts.open("ab") as file:
                file.write(b"".join(json.dumps(row.table()).encode() + b"\n" for row in rows))
        self._lines += len(rows)

    def _read(self) -> Iterable[bytes]:
        try:
            return self.home.conflicts.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return ()

    def table(self) -> dict[str, Any]:
        """As JSON values: the newest `cosines` of each pair of tasks, whether they are `exact`, and `alarms`, newest last."""
        return {
            "cosines": [self._newest[pair].table() for pair in sorted(self._newest)],
            "exact": self.spec.together.mode == "together",
            "alarms": list(self._alarms),
        }
