"""One run: through queues, server and store of a stream, or a plain loop; the small task is scored on the way."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.data import Arrival, arrivals, draw, scale
from benchmarks.learning.study import BATCH, CELLS, LAYERS, LENGTH, RATES, Run, Source
from benchmarks.streams.plain import PlainLoop
from benchmarks.value.answers import Answers, ask
from master.demo.run import model_folder
from queues.connection import connect
from queues.redis import RedisQueues
from queues.store.reader import FileReader
from queues.store.writer import FileWriter
from queues.stream.create import create
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.server import ParameterServer
from queues.stream.spec import StreamSpec
from queues.stream.worker import Worker
from queues.writer import QueueWriter
from tasks import encoders
from tasks.batches import Batch
from tasks.encoders import Encoder
from tasks.optimisers import rate as share_at
from tasks.specs import EncoderSpec, Pretrained, TaskSpec
from tasks.table import SampleTable, open_table
from trunkline.clock import SystemClock
from trunkline.errors import FailedError


@dataclass
class Looker:
    """Scores the small task at even distances, the end included."""

    learner: Learner
    table: SampleTable
    spec: TaskSpec
    run: Run
    curve: list[tuple[int, int, float]] = field(default_factory=list)  # samples of small and of large, score
    last: Answers | None = None
    before: Callable[[], None] = lambda: None

    def look(self, step: int, small: int, large: int) -> None:
        """A step was made: is it time?"""
        if step * self.run.looks // self.run.steps > (step - 1) * self.run.looks // self.run.steps:
            self.before()
            self.last = ask(self.learner.encoder, self.learner.heads["small"], self.table, self.spec, self.run.split)
            self.curve.append((small, large, round(self.last.score, 4)))


def train(run: Run, encoder: Path, folder: Path, url: str) -> dict[str, Any]:
    """Carry out a run; tell its curve, the rows that the small task has right at the end, and the seconds.

    :param encoder: as `model` made it.
    :param folder: an empty one.
    :param url: of a server of queues.
    """
    began, cell = time.monotonic(), CELLS[run.cell]
    drawn = draw(cell.small, cell.large, run.seed)
    spec = declared(run, scale(cell.large, drawn.large))
    home = create(folder / "stream", spec, {path.name: path for path in encoder.iterdir() if path.is_file()})
    learner = Learner(spec, home.encoder)
    come = arrivals(run, drawn)
    with _scored(cell.small, learner.encoder, folder) as (task, table):
        looker = Looker(learner, table, task, run)
        if run.variant == "mixed":
            _mixed(learner, come, looker)
        else:
            _streamed(home, learner, come, looker, url)
    assert looker.last is not None
    return {"curve": looker.curve, **looker.last.table(), "seconds": round(time.monotonic() - began, 2)}


def model(folder: Path) -> Path:
    """The encoder that all runs begin with."""
    source = Pretrained(path=str(model_folder()))
    spec = EncoderSpec(name="measured", source=source, layers=LAYERS, freeze=("embeddings",), max_length=LENGTH)
    encoders.create(spec, folder)
    return folder


def declared(run: Run, scaled: tuple[float, float]) -> StreamSpec:
    """The stream of a run; the plain loop goes by it, too."""
    cell, (encoder, head) = CELLS[run.cell], RATES[run.rate]
    tasks = [_task("small", cell.small), {**_task("large", cell.large), "scale": scaled}]
    learning = {"learning_rate": encoder, "head_learning_rate": head, "seed": run.seed}
    learning |= {"warmup_steps": max(1, run.steps // 16), "decay": "linear", "total_steps": run.steps}
    table = {
        "name": f"learning-{secrets.token_hex(6)}",
        "encoder": "measured",
        "tasks": tasks,
        "evaluate_steps": 0,
        "learning": learning,
    }
    return StreamSpec.model_validate_json(json.dumps(table))


def _task(name: str, source: Source) -> dict[str, Any]:
    labels = {"labels": ["negative", "positive"]} if source.head == "single" else {}
    return {"name": name, "head": source.head, "fields": ["text"], "label": source.label, "batch_size": BATCH, **labels}


@contextmanager
def _scored(small: Source, encoder: Encoder, folder: Path) -> Iterator[tuple[TaskSpec, SampleTable]]:
    """The rows that the small task is scored on."""
    with as_file(files("tasks.data").joinpath(small.files[0])) as path:
        task = TaskSpec(name="small", head="single", data=str(path), fields=("text",), label="label", batch_size=BATCH)
        yield task, open_table(task, encoder, folder / "cache", folder, 256 << 20)


# -- a plain loop ------------------------------------------------------------------------------------------------------


def _mixed(learner: Learner, come: Sequence[Arrival], looker: Looker) -> None:
    """Each batch is the next samples, whichever task they are of; one step on the mean of all their losses."""
    torch.manual_seed(looker.run.seed)
    loop, learning, seen = PlainLoop(learner), learner.spec.learning, {"small": 0, "large": 0}
    for step, start in enumerate(range(0, len(come), BATCH)):
        part = come[start : start + BATCH]
        share = share_at(step, warmup_steps=learning.warmup_steps, decay=learning.decay, total_steps=learning.total_steps or 0)
        loop.step(_batches(learner, part), share)
        for task, _ in part:
            seen[task] += 1
        looker.look(step + 1, seen["small"], seen["large"])


def _batches(learner: Learner, part: Sequence[Arrival]) -> list[Batch]:
    found = []
    for task, packer in learner.packers.items():
        if mine := [row for name, row in part if name == task]:
            found.append(packer.batch(packer.pack(mine)))
    return found


# -- through the queues ------------------------------------------------------------------------------------------------


def _streamed(home: StreamHome, learner: Learner, come: Sequence[Arrival], looker: Looker, url: str) -> None:
    """The samples are pushed one by one; whenever a queue is full, its batch is trained on."""
    spec, clock, numbers = home.spec, SystemClock(), count()
    clients = [connect(url) for _ in range(2)]
    writer = QueueWriter(clients[0], spec.name, epoch=home.epoch, worker="server")
    writer.begin(home.epoch, spec.queues)
    for task in spec.tasks:
        writer.configure(task.name, task.settings)
    store = FileWriter(home.store, spec, {name: p.detach() for name, p in learner.parameters().items()}, home.epoch)
    server, reader = ParameterServer(home, spec, writer, store, clock), FileReader(home.store)
    # Batches are numbered, not named by chance, so that a run's dropout is the same whenever it is carried out.
    queues = RedisQueues(clients[1], spec.name, epoch=home.epoch, worker="one", new_id=lambda: f"batch-{next(numbers)}")
    worker = Worker(spec, learner, queues, reader, clock=clock)
    needed = {name: p.detach() for name, p in learner.needed("small").items()}
    looker.before = lambda: _read(reader, needed)
    ended, step, seen = threading.Event(), 0, {"small": 0, "large": 0}
    thread = threading.Thread(target=server.run, args=(ended.is_set,), daemon=True)
    thread.start()
    try:
        for task, row in come:
            if queues.push(task, learner.packers[task].pack([row])) < BATCH:
                continue
            worker.drain()
            step, seen[task] = step + 1, seen[task] + BATCH
            if reader.step() != step:
                raise FailedError(f"step {step} should be made, found step {reader.step()}: {worker.tally}.")
            looker.look(step, seen["small"], seen["large"])
    finally:
        ended.set()
        thread.join(60.0)
        store.close()
        for client in clients:
            client.close()


def _read(reader: FileReader, into: dict[str, torch.Tensor]) -> None:
    reader.read(into)
