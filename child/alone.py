"""Training on one's own samples, without a master: what a site would have without the others.

Nothing private is read or written: heads start afresh, so the figure is comparable with what a round-trained encoder scores here.
Also a program, for comparisons of many variants in one process: `python -m child.alone` reads orders, a line of JSON each, and
writes scores, a line of JSON each.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from child.home import ChildHome
from child.settings import ChildSettings
from child.state import Private
from child.train import LocalTask, train
from tasks import encoders
from tasks.encoders import Encoder
from tasks.evaluate import evaluate
from tasks.heads import make_head
from tasks.specs import TaskSpec
from tasks.step import choose_precision
from tasks.table import open_table
from trunkline.clock import SystemClock
from trunkline.errors import SampleError
from trunkline.messages import Plan, Score
from trunkline.values import SPLITS, Split

Told = Callable[[int, list[Score]], None]
"""Receives a step (counted from 1) and the scores after it."""


def run(
    home: ChildHome,
    settings: ChildSettings,
    encoder_folder: Path,
    plan: Plan,
    specs: Sequence[TaskSpec],
    *,
    every: int | None = None,
    told: Told = lambda step, scores: None,
) -> list[Score]:
    """Train an encoder and fresh heads on this site's tasks; return the scores on every split but the training one.

    :param encoder_folder: as `trunkline encoder create --keep` leaves it.
    :param every: steps between two looks at the validation scores.
    :raises SampleError: there is nothing to train on.
    """
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    encoder = encoders.load(encoder_folder, (home.modules,)).to(settings.device)
    plan = plan.model_copy(update={"precision": choose_precision(plan.precision, encoder.device)})
    tasks = {spec.name: _task(home, settings, encoder, spec, plan) for spec in specs}
    return train_tasks(encoder, tasks, plan, {name: [task] for name, task in tasks.items()}, every=every, told=told)


def train_tasks(
    encoder: Encoder,
    tasks: Mapping[str, LocalTask],
    plan: Plan,
    scored: Mapping[str, Sequence[LocalTask]],
    *,
    every: int | None = None,
    told: Told = lambda step, scores: None,
) -> list[Score]:
    """Train, and score each task's head on the tables given for it (its own, or those of several sites).

    :raises SampleError: there is nothing to train on.
    """
    if not tasks:
        raise SampleError("a task with training samples should be declared here, found none.")

    def look(splits: Iterable[Split]) -> list[Score]:
        return [
            evaluate(encoder, tasks[name].head, other.table, other.spec, split, max_length=plan.max_length)
            for name, others in sorted(scored.items())
            for other in others
            for split in splits
            if other.table.count(split)
        ]

    def progress(step: int, task: str, loss: float) -> None:
        if every is not None and step % every == 0:
            told(step, look(("validation",)))

    train(encoder, tasks, plan, Private(), clock=SystemClock(), progress=progress)
    return look([split for split in SPLITS if split != "train"])


def _task(home: ChildHome, settings: ChildSettings, encoder: Encoder, spec: TaskSpec, plan: Plan) -> LocalTask:
    table = open_table(spec, encoder, home.cache, home.folder, settings.memory, (home.modules,))
    head = make_head(spec, table.labels, encoder.hidden, plan.seed, scale=table.scale, modules=(home.modules,))
    return LocalTask(spec, table, head.to(settings.device))


def main() -> int:
    """Carry out orders from standard input.

    An order: `name`; `home`, where tables are kept; `encoder`, its folder; `plan`; `tasks` to train; `scored`, on which tasks each
    task's head is scored (empty: on itself); `every`, steps between two looks; `threads`. Its answer: `name`, `curve`, `scores`.
    """
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"name": order["name"]} | _carry_out(order)), flush=True)
    return 0


def _carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    home, settings = ChildHome(Path(order["home"])), ChildSettings(threads=order["threads"])
    torch.set_num_threads(settings.threads or 1)
    encoder = encoders.load(Path(order["encoder"]), (home.modules,))
    plan = Plan.of_table(order["plan"])
    tasks = {spec.name: _task(home, settings, encoder, spec, plan) for spec in map(TaskSpec.of_table, order["tasks"])}
    scored = {
        name: [_task(home, settings, encoder, TaskSpec.of_table(table), plan) for table in tables]
        for name, tables in order["scored"].items()
    }
    curve: list[dict[str, Any]] = []
    scores = train_tasks(
        encoder,
        tasks,
        plan,
        scored or {name: [task] for name, task in tasks.items()},
        every=order["every"],
        told=lambda step, found: curve.append({"step": step, "scores": [score.table() for score in found]}),
    )
    return {"curve": curve, "scores": [score.table() for score in scores]}


if __name__ == "__main__":
    sys.exit(main())
