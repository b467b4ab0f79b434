"""A child's training against a bare PyTorch loop: the same model, the same batches, AdamW (fused), clipping.

The bare loop has its batches ready in memory; the child fills its queues, claims, reads and pads each batch, seeds the dropout, and
keeps its books. One thread. The two take turns, and the first of the two changes from pair to pair.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import nn

from benchmarks.figures import Aim, Note, Section
from child.state import Private
from child.train import LocalTask, train
from master.demo.run import model_folder
from tasks import encoders
from tasks.batches import Batch
from tasks.encoders import Encoder
from tasks.heads import make_head
from tasks.specs import EncoderSpec, Pretrained, TaskSpec
from tasks.table import SampleTable, open_table
from trunkline.clock import SystemClock
from trunkline.messages import Plan

BATCH, LENGTH, LEAST = 32, 64, 95.0

ABOUT = f"""MiniLM, two layers, embeddings frozen, one shop's reviews, batches of {BATCH}, at most {LENGTH} tokens, one
thread, float32. The bare loop has the same batches ready in memory and does nothing but forward, backward, clipping and
AdamW (fused); the child also fills its queues, claims, reads and pads each batch, seeds the dropout and keeps its
books. Both in turns; the share is the median of the quotients of neighbours."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and a task to train it on."""

    encoder: Encoder
    task: LocalTask
    plan: Plan


def measure(steps: int, pairs: int, folder: Path, note: Note) -> Section:
    """Samples a second of both, in `pairs` neighbouring runs after one pair that does not count."""
    with _threads(1):
        subject = make(folder, steps)
        batches = recorded(subject)
        note(f"training: {pairs} pairs of {steps} steps")
        runs: list[tuple[float, float]] = []
        loops = (lambda: child_loop(subject), lambda: bare_loop(subject, batches))
        for number in range(pairs + 1):
            found = {which: _timed(loops[which]) for which in ((0, 1) if number % 2 else (1, 0))}
            runs.append((found[0], found[1]))
    samples = sum(batch.size for batch in batches)
    counted = runs[1:]
    ours, bare = (median(samples / run[at] for run in counted) for at in (0, 1))
    share = 100 * median(run[1] / run[0] for run in counted)
    spread = [100 * run[1] / run[0] for run in counted]
    rows = [
        ("bare PyTorch loop", f"{bare:.1f}", "", ""),
        ("a child's training", f"{ours:.1f}", f"{share:.1f} %", f"{min(spread):.1f} to {max(spread):.1f} %"),
    ]
    aim = Aim(
        "a child's training, share of a bare loop",
        share,
        LEAST,
        "%",
        reason=f"the pairs lie between {min(spread):.1f} and {max(spread):.1f} %.",
    )
    return Section("Training", ABOUT, ("loop", "samples/s", f"share ({len(counted)} pairs)", "of single pairs"), rows, (aim,))


def make(folder: Path, steps: int) -> Subject:
    """The demo's encoder and a shop's reviews."""
    spec = EncoderSpec(name="bench", source=Pretrained(path=str(model_folder())), layers=2, freeze=("embeddings",))
    encoders.create(spec, folder / "encoder")
    encoder = encoders.load(folder / "encoder", ())
    with as_file(files("tasks.data").joinpath("reviews_yelp.csv")) as path:
        task = TaskSpec(
            name="sentiment", head="single", data=str(path), fields=("text",), label="label", batch_size=BATCH, max_length=LENGTH
        )
        table = open_table(task, encoder, folder / "cache", folder, 256 << 20)
    head = make_head(task, table.labels, encoder.hidden, 0)
    return Subject(encoder, LocalTask(task, table, head), Plan(steps=steps, total_steps=steps, threads=1))


class _Recording:
    """A table that keeps the batches it hands out."""

    def __init__(self, table: SampleTable) -> None:
        self._table, self.batches = table, list[Batch]()

    def batch(self, *arguments: Any) -> Batch:
        self.batches.append(self._table.batch(*arguments))
        return self.batches[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def recorded(subject: Subject) -> list[Batch]:
    """The batches that the child's training takes, in their order."""
    table = _Recording(subject.task.table)
    child_loop(replace(subject, task=replace(subject.task, table=cast(SampleTable, table))))
    return table.batches


def child_loop(subject: Subject) -> None:
    """A round's training as a child does it. Its samples come in the same order each time; the model goes on from where it was."""
    train(subject.encoder, {subject.task.spec.name: subject.task}, subject.plan, Private(), clock=SystemClock())


def bare_loop(subject: Subject, batches: Sequence[Batch]) -> None:
    """The same steps as anybody would write them."""
    encoder, head, plan = subject.encoder, subject.task.head, subject.plan
    encoder.train()
    head.train()
    shared, private = list(encoder.shared_parameters().values()), list(head.parameters())
    groups = [
        *_groups(shared, plan.learning_rate, plan.weight_decay),
        *_groups(private, plan.head_learning_rate, plan.weight_decay),
    ]
    optimiser = torch.optim.AdamW(groups, fused=True)
    losses = []
    for batch in batches:
        loss = head.loss([encoder(side) for side in batch.inputs], batch)
        loss.backward()
        nn.utils.clip_grad_norm_([*shared, *private], plan.clip_norm)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())


def _groups(parameters: list[nn.Parameter], rate: float, decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: decay on matrices only, as the child has it."""
    halves = [([p for p in parameters if p.ndim > 1], decay), ([p for p in parameters if p.ndim <= 1], 0.0)]
    return [{"params": part, "lr": rate, "weight_decay": weight} for part, weight in halves if part]


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
