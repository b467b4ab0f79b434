"""One run: seven children alone, sharing an encoder over rounds, or with all their rows in one place. Equal budgets of steps."""

import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.value.answers import Answers, ask
from benchmarks.value.bench import Bench, Kept
from benchmarks.value.data import Draw, draw
from benchmarks.value.study import LAYERS, LENGTH, PLACES, Run
from benchmarks.value.support import job
from child.state import Private
from child.train import LocalTask, load_heads, train
from master.demo.run import model_folder
from master.jobs import JobSpec
from tasks import encoders
from tasks.encoders import Encoder
from tasks.folder import SHARED
from tasks.heads import make_head
from tasks.specs import Config, EncoderSpec, Pretrained, TaskSpec
from tasks.table import open_table
from trunkline.clock import SystemClock
from trunkline.messages import Plan
from trunkline.sets import SetFile

MEMORY = 256 << 20  # bytes that reading samples may take


@dataclass(frozen=True, slots=True)
class Workplace:
    """A folder of one worker: nobody else writes there."""

    folder: Path

    def draw(self, run: Run) -> Draw:
        return draw(run.rows, run.seed, self.folder / "draws")

    def kept(self, run: Run) -> Kept:
        drawn = f"{run.rows:g}-{run.seed}" if run.rows < 1.0 else "all"
        return Kept(self.folder / "tables" / drawn, self.folder / "encoders")

    def encoder(self, run: Run) -> Path:
        """The encoder that every variant of a run starts from; from scratch it follows from the seed."""
        made = self.folder / "made" / ("pretrained" if run.start == "pretrained" else f"scratch-{run.seed}")
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            model = str(model_folder())
            source = Pretrained(path=model) if run.start == "pretrained" else Config(path=model, seed=run.seed)
            spec = EncoderSpec(name="value", source=source, layers=LAYERS, freeze=("embeddings",), max_length=LENGTH)
            encoders.create(spec, made)
        return made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    children: Mapping[str, Answers]
    seconds: float
    bytes_up: int  # of one round's updates, all children together; 0 where nothing is sent
    own: Mapping[str, Answers] | None = None  # after rounds, with the encoder that the child itself sent last, before it was fused

    def table(self) -> dict[str, Any]:
        table = {"children": _told(self.children), "seconds": round(self.seconds, 1), "bytes_up": self.bytes_up}
        return table | ({} if self.own is None else {"own": _told(self.own)})


def _told(answers: Mapping[str, Answers]) -> dict[str, Any]:
    return {child: found.table() for child, found in answers.items()}


def carry_out(run: Run, place: Workplace) -> Outcome:
    """Train and score.

    :raises TrunklineError: what the product says where it cannot.
    """
    started = time.perf_counter()
    torch.set_num_threads(1)
    if run.variant == "shared":
        outcome = _shared(run, place)
    else:
        outcome = Outcome(_alone(run, place) if run.variant == "alone" else _pooled(run, place), 0.0, 0)
    return replace(outcome, seconds=time.perf_counter() - started)


def _shared(run: Run, place: Workplace) -> Outcome:
    files, kept = place.draw(run).children, place.kept(run)
    scratch = tempfile.TemporaryDirectory(prefix="trunkline-value-", dir=place.folder)
    with scratch as folder, closing(Bench(Path(folder), place.encoder(run))) as bench:
        for one in PLACES:
            bench.add_child(one.child, one.spec(str(files[one.child])), kept)
        sizes = bench.play(job(run))
        encoder = encoders.load(place.encoder(run))
        tasks = {one.child: _task(encoder, one.spec(str(files[one.child])), kept.tables / one.child, run.seed) for one in PLACES}
        for child, task in tasks.items():
            load_heads({task.spec.name: task}, bench.private(child).newest())
        with bench.target() as target:
            encoder.load_shared(target.read)
        answers = {child: ask(encoder, task.head, task.table, task.spec, run.split) for child, task in tasks.items()}
        own: dict[str, Answers] = {}
        with bench.updates() as updates:
            for child, task in tasks.items():
                sent = updates[child]
                encoder.load_shared(lambda name, sent=sent: sent.read(name, slice(0, sent.spec[name].rows)))
                own[child] = ask(encoder, task.head, task.table, task.spec, run.split)
    return Outcome(answers, 0.0, sum(sizes.values()), own)


def _alone(run: Run, place: Workplace) -> dict[str, Answers]:
    files, tables = place.draw(run).children, place.kept(run).tables
    encoder, answers = encoders.load(place.encoder(run)), {}
    for one in PLACES:
        with SetFile(place.encoder(run) / SHARED) as first:
            encoder.load_shared(first.read)
        task = _task(encoder, one.spec(str(files[one.child])), tables / one.child, run.seed)
        train(encoder, {one.task: task}, _plan(run, 1), Private(), clock=SystemClock())
        answers[one.child] = ask(encoder, task.head, task.table, task.spec, run.split)
    return answers


def _pooled(run: Run, place: Workplace) -> dict[str, Answers]:
    """One head a task; the rows of the children that share a task are one table; scored child by child."""
    drawn, tables = place.draw(run), place.kept(run).tables
    encoder = encoders.load(place.encoder(run))
    tasks: dict[str, LocalTask] = {}
    for one in PLACES:
        if one.task not in tasks:
            several = one.task in drawn.merged
            file, name = (drawn.merged[one.task], one.task) if several else (drawn.children[one.child], one.child)
            tasks[one.task] = _task(encoder, one.spec(str(file)), tables / name, run.seed)
    train(encoder, tasks, _plan(run, len(PLACES)), Private(), clock=SystemClock())
    answers = {}
    for one in PLACES:
        mine = _task(encoder, one.spec(str(drawn.children[one.child])), tables / one.child, run.seed)
        answers[one.child] = ask(encoder, tasks[one.task].head, mine.table, mine.spec, run.split)
    return answers


def _task(encoder: Encoder, spec: TaskSpec, tables: Path, seed: int) -> LocalTask:
    tables.mkdir(parents=True, exist_ok=True)
    table = open_table(spec, encoder, tables, tables, MEMORY)
    return LocalTask(spec, table, make_head(spec, table.labels, encoder.hidden, seed, scale=table.scale))


def _plan(run: Run, children: int) -> Plan:
    """What the rounds' children are told, as one stretch with the steps of so many children."""
    steps = run.steps * children
    base = JobSpec.model_validate({"encoder": "value", "rounds": 1, "seed": run.seed, "training": {"threads": 1}})
    schedule = {"steps": steps, "total_steps": steps, "warmup_steps": int(base.training.warmup * steps)}
    rates = {"learning_rate": run.learning_rate, "head_learning_rate": run.head_learning_rate, "decay": run.decay}
    return Plan.of_table(base.plan(1).model_copy(update=schedule | rates).table())
