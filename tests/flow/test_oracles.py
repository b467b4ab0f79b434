"""What rounds must equal. Each of these catches wrong weights, stale sets, leaking heads and drift alike."""

from pathlib import Path

import numpy as np
import torch

from child.handlers import Child
from child.train import LocalTask
from master.jobs import JobSpec
from tasks import encoders
from tasks.encoders import Encoder
from tasks.specs import TaskSpec
from tests.support import plain
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.messages import Plan, Update

torch.set_num_threads(1)

SGD = {"optimizer": "sgd", "clip_norm": 0.0, "weight_decay": 0.0, "warmup": 0.0, "learning_rate": 0.1, "head_learning_rate": 0.1}


def world_of(folder: Path, counts: dict[str, int], **spec: object) -> World:
    world = make_world(folder)
    for seed, (name, count) in enumerate(counts.items()):
        world.add_child(name, sentiment(write_reviews(folder / f"{name}.csv", count, seed), **spec))
    return world


def fresh(world: World) -> Encoder:
    """The encoder as version 1 has it."""
    return encoders.load(world.folder / "encoder")


def local(child: Child, encoder: Encoder, spec: TaskSpec) -> LocalTask:
    """A child's table and a fresh head, as it would have them."""
    return child.site.tasks(encoder, [spec], None)[spec.name]


def test_one_child_one_task_batch_of_all_is_plain_sgd(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"amy": 40}, batch_size=28)
    world.run(rounds=1, training={**SGD, "steps": 5, "batch_size": 28})
    encoder = fresh(world)
    task = local(world.children["amy"], encoder, world.children["amy"].registry.get("sentiment"))
    batch = task.table.batch(task.table.indices("train"))
    parameters = [*encoder.shared_parameters().values(), *task.head.parameters()]
    for _ in range(5):
        task.head.loss([encoder(side) for side in batch.inputs], batch).backward()
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    found = world.current()
    for name, parameter in encoder.shared_parameters().items():
        np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_one_full_batch_step_a_child_equals_one_step_on_the_union(tmp_path: Path) -> None:
    counts = {"amy": 40, "ben": 20, "cid": 70}
    world = world_of(tmp_path, counts)
    for name, count in counts.items():
        task = world.children[name].registry.get("sentiment")
        world.children[name].registry.add(task.model_copy(update={"batch_size": count * 7 // 10}), replace=True)
    job = world.run(rounds=1, training={**SGD, "steps": 1})
    for row in job.pen.updates(1):
        assert Update.of_table(row.update).samples == {"sentiment": counts[row.child] * 7 // 10}

    encoder = fresh(world)
    tasks = [local(child, encoder, child.registry.get("sentiment")) for child in world.children.values()]
    total = sum(task.table.count("train") for task in tasks)
    loss = torch.zeros(())
    for task in tasks:
        batch = task.table.batch(task.table.indices("train"))
        loss = loss + tasks[0].head.loss([encoder(side) for side in batch.inputs], batch) * (batch.size / total)
    loss.backward()
    found = world.current()
    for name, parameter in encoder.shared_parameters().items():
        if parameter.grad is None:
            continue
        step = (0.1 * parameter.grad).numpy()
        moved = parameter.detach().numpy() - step
        scale = np.abs(moved).max()
        assert np.abs(found[name] - moved).max() <= 1e-6 * max(scale, 1.0), name


def test_all_features_off_equals_the_plain_script_bit_for_bit(tmp_path: Path) -> None:
    world = world_of(tmp_path, {"amy": 40, "ben": 60})
    training = {
        "steps": 7,
        "learning_rate": 1e-3,
        "head_learning_rate": 1e-2,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "warmup": 0.2,
    }
    world.run(rounds=3, training=training, seed=5)

    encoder = fresh(world)
    children = []
    for child in world.children.values():
        task = child.site.tasks(encoder, [child.registry.get("sentiment")], None)["sentiment"]
        head = child.site.tasks(encoder, [child.registry.get("sentiment")], _plan())["sentiment"].head
        children.append(plain.Child("sentiment", task.table, head, batch=8))
    expected = plain.rounds(
        encoder,
        children,
        count=3,
        steps=7,
        rate=1e-3,
        head_rate=1e-2,
        decay=0.01,
        clip=1.0,
        warmup=int(0.2 * 21),
        seed=5,
    )
    found = world.current()
    for name, tensor in expected.items():
        assert found[name].tobytes() == tensor.tobytes(), name


def _plan() -> Plan:
    return JobSpec(encoder="tiny", seed=5).plan(1)


def test_the_head_of_an_idle_task_stays_as_it_is(tmp_path: Path) -> None:
    """Two tasks in one child, one too small to fill its queue in these steps: its head and its moments keep every bit."""
    world = make_world(tmp_path)
    large = sentiment(write_reviews(tmp_path / "large.csv", 200, 1))
    small = sentiment(write_reviews(tmp_path / "small.csv", 30, 2), name="small", batch_size=21)
    world.add_child("amy", large, small)
    world.run(rounds=3, training={"steps": 12})
    store = world.children["amy"].store("tiny")
    before = {name: array.copy() for name, array in store.newest().tensors.items() if name.startswith("small/")}
    assert any(name.startswith("small/moments/") for name in before), "it has trained, so it has moments"
    world.run(rounds=1, training={"steps": 2})
    after = {name: array for name, array in store.newest().tensors.items() if name.startswith("small/")}
    moved = {name for name, array in store.newest().tensors.items() if name.startswith("sentiment/")}
    assert moved
    assert set(after) == set(before)
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


def test_tasks_of_different_sizes_are_trained_in_proportion(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.add_child(
        "amy",
        sentiment(write_reviews(tmp_path / "large.csv", 300, 1)),
        sentiment(write_reviews(tmp_path / "small.csv", 100, 2), name="small"),
    )
    job = world.run(rounds=1, training={"steps": 40})
    applied = Update.of_table(job.pen.updates(1)[0].update).applied
    assert sum(applied.values()) == 40 * 8
    assert applied["sentiment"] / applied["small"] == 3.0
