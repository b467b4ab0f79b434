"""Local training: the initial set in, an update out. Samples go through per-task queues; whenever one holds a batch, that batch is
taken, and moves the shared layers and that task's head.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from child import heads
from child.heads import Outputs
from child.optimiser import LocalStore, Moments
from child.order import Line, dropout_seed, next_task
from child.state import Private
from queues.memory import MemoryQueue
from queues.queue import Claim, Outcome
from tasks.encoders import Encoder
from tasks.heads import Head
from tasks.specs import TaskSpec
from tasks.step import gradient
from tasks.table import SampleTable
from trunkline.clock import Clock
from trunkline.errors import Reason, TrainingFailed
from trunkline.messages import Plan


@dataclass(frozen=True, slots=True)
class LocalTask:
    """One task of this site, ready to train."""

    spec: TaskSpec
    table: SampleTable
    head: Head

    @property
    def outputs(self) -> Outputs:
        """What the head's outputs mean."""
        return Outputs(self.spec.head, self.table.labels)

    def batch_size(self, plan: Plan) -> int:
        return plan.batch_size or self.spec.batch_size


@dataclass(frozen=True, slots=True)
class Trained:
    """What a round of local training came to. The encoder and the heads were changed in place."""

    samples: Mapping[str, int]  # distinct samples applied, by task
    applied: Mapping[str, int]  # deliveries: steps x batch
    losses: Mapping[str, float]  # mean loss by task
    steps: int  # batches that moved the shared parameters
    private: Private
    moments: Moments  # of the shared layers' optimiser


def train(
    encoder: Encoder,
    tasks: Mapping[str, LocalTask],
    plan: Plan,
    private: Private,
    *,
    clock: Clock,
    correction: Mapping[str, Tensor] | None = None,
    moments: Moments | None = None,
    lease: float = 3600.0,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[int, str, float], None] = lambda step, task, loss: None,
) -> Trained:
    """Train an encoder that holds the initial set, for `plan.steps` batches.

    :param private: heads, moments and data order to go on from; heads are loaded into `tasks` by `load_heads` before.
    :param correction: what is added to the gradients of the shared parameters, by name.
    :param moments: of the shared layers' optimiser, to go on with.
    :param lease: seconds a step may take.
    :param stopping: asked after each step; true ends the round early, with what it has come to.
    :raises TrainingFailed: a loss is not finite, memory ran out, or a step took too long.
    """
    store = LocalStore(plan, encoder.trainable(), {name: task.head for name, task in tasks.items()}, correction)
    store.load_moments(moments or {})
    for name in tasks:
        store.load_head_moments(name, heads.tensors_of(private, f"{name}/moments/"))
    lines, queue = _lines(tasks, plan, private, clock, lease)
    seen: dict[str, set[int]] = defaultdict(set)
    losses: dict[str, list[float]] = defaultdict(list)
    encoder.train()
    for step in range(plan.steps):
        claim = _next_batch(lines, queue)
        claimed = clock.monotonic()
        loss = _step(encoder, tasks[claim.task], plan, claim, store)
        # Nobody else works here who would claim the batch anew, so the queue would take it even now.
        if clock.monotonic() - claimed > lease or queue.commit(claim) is not Outcome.OK:
            raise TrainingFailed(Reason.TRAINING, f"a step should end within its lease of {lease:g} s, found that it took longer.")
        seen[claim.task].update(claim.samples)
        losses[claim.task].append(loss)
        progress(step + 1, claim.task, loss)
        if stopping():
            break
    return Trained(
        samples={task: len(samples) for task, samples in seen.items()},
        applied={task: queue.counts(task).applied for task in seen},
        losses={task: float(np.mean(values)) for task, values in losses.items()},
        steps=max(0, store.step - plan.head_steps),
        private=_keep(private, tasks, store, lines, queue, plan),
        moments=store.moments(),
    )


def _next_batch(lines: Mapping[str, Line], queue: MemoryQueue[int]) -> Claim[int]:
    """Deliver samples until a queue is full, and take its batch."""
    while (claim := queue.claim()) is None:
        task = next_task(lines)
        queue.push(task, [lines[task].next()])
    return claim


def _step(encoder: Encoder, task: LocalTask, plan: Plan, claim: Claim[int], store: LocalStore) -> float:
    batch = task.table.batch(np.asarray(claim.samples, dtype=np.int64), plan.max_length)
    seed = dropout_seed(plan.seed, claim.task, plan.done_steps + store.step)
    result = gradient(
        encoder,
        task.head,
        batch,
        micro_batch=plan.micro_batch,
        precision=plan.precision,
        seed=seed,
        head_alone=store.step < plan.head_steps,
    )
    store.apply(result)
    return result.loss


def _lines(
    tasks: Mapping[str, LocalTask], plan: Plan, private: Private, clock: Clock, lease: float
) -> tuple[dict[str, Line], MemoryQueue[int]]:
    """Orders and queues as the last round left them; a job with another seed starts afresh."""
    notes = private.notes if private.notes.get("seed") == plan.seed and plan.done_steps else {}
    queue: MemoryQueue[int] = MemoryQueue(clock=clock, lease=lease)
    lines = {}
    for name, task in sorted(tasks.items()):
        line = Line(name, task.table.indices("train"), plan.seed).restored(notes.get("lines", {}).get(name))
        queue.open(name, task.batch_size(plan))
        known = set(line.samples.tolist())
        queue.push(name, [row for row in notes.get("waiting", {}).get(name, ()) if row in known])
        lines[name] = line
    return lines, queue


def _keep(
    before: Private,
    tasks: Mapping[str, LocalTask],
    store: LocalStore,
    lines: Mapping[str, Line],
    queue: MemoryQueue[int],
    plan: Plan,
) -> Private:
    """The private state after the round: what was trained now, beside what other tasks left.

    What is of the encoder itself (`@…`) is left out: whoever keeps that puts it back as it is now.
    """
    tensors = {name: array for name, array in before.tensors.items() if name.split("/", 1)[0] not in tasks and name[0] != "@"}
    for name, task in tasks.items():
        tensors |= heads.kept(name, task.head)
        tensors |= {f"{name}/moments/{key}": heads.as_array(value) for key, value in store.head_moments(name).items()}
    notes: dict[str, Any] = {
        "seed": plan.seed,
        "lines": {name: line.state() for name, line in lines.items()},
        "waiting": {name: list(queue.waiting(name)) for name in lines},
        "heads": dict(before.notes.get("heads", {})) | {name: task.outputs.note() for name, task in tasks.items()},
    }
    return Private(tensors, notes)


def load_heads(tasks: Mapping[str, LocalTask], private: Private) -> None:
    """Put saved heads in place; one whose labels or shape have changed starts afresh."""
    noted = heads.noted(private.notes)
    for name, task in tasks.items():
        if noted.get(name) == task.outputs:
            heads.put(task.head, name, private)
