"""Anything in any order: a store in a folder holds what one in memory holds, which is compared with `torch.optim` elsewhere."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from queues.store import applied
from queues.store.memory import MemoryStore
from queues.store.reader import FileReader
from queues.store.writer import FileWriter
from tests.support.plain_optim import SHAPES, TASKS, parameters, read, same, sent, spec_of

Store = MemoryStore | FileWriter
Step = Callable[[Store], object]


def steps(lot: random.Random) -> Iterator[Step]:
    """Steps of all kinds."""
    names = list(SHAPES)
    for number in range(10**9):
        kind = lot.choice(["batch", "batch", "batch", "rows", "rows", "together", "round", "nothing"])
        skip = tuple(lot.sample(names, lot.randrange(len(names))))
        if kind in ("batch", "rows", "nothing"):
            gradient = sent(number, lot.choice(TASKS), skip=names if kind == "nothing" else skip, rows=kind == "rows")
            yield lambda store, gradient=gradient: store.apply((gradient,))
        elif kind == "together":
            both = tuple(sent(1000 * (number + 1) + at, task, base=number, skip=skip) for at, task in enumerate(TASKS))
            combined = {name: torch.full(SHAPES[name], lot.random()) for name in names[:4] if name not in skip}
            yield lambda store, both=both, combined=combined: store.apply(both, combined)
        else:
            delta: dict[str, Tensor] = {name: torch.full(SHAPES[name], lot.random()) for name in names[:4] if name not in skip}
            yield lambda store, delta=delta, name=f"round-{number}": store.add(delta, name)


@pytest.mark.parametrize("learning", [{}, {"lazy": True}, {"optimizer": "sgd", "momentum": 0.9}], ids=["adamw", "lazy", "momentum"])
@pytest.mark.parametrize("seed", range(4))
def test_a_folder_holds_what_memory_holds(tmp_path: Path, learning: dict[str, object], seed: int) -> None:
    lot, spec, boot = random.Random(seed), spec_of(learning), 0
    made: list[Step] = []
    memory, writer = MemoryStore(spec, parameters()), FileWriter(tmp_path, spec, parameters(), "epoch", boot="0")
    reader = FileReader(tmp_path)
    new = steps(lot)
    for _ in range(60):
        what = lot.random()
        if what < 0.75:
            step = next(new)
            made.append(step)
            assert step(writer) == step(memory)
        elif what < 0.85:
            assert writer.checkpoint() == memory.step
        else:
            covered = writer.checkpointed()
            writer.close()
            boot += what > 0.95
            writer = FileWriter(tmp_path, spec, parameters(), "epoch", boot=str(boot))
            if what > 0.95:  # power cut
                assert writer.step == covered
                made, memory = made[:covered], MemoryStore(spec, parameters())
                for step in made:
                    step(memory)
        assert read(reader)[0] == memory.step
        assert same(read(reader)[1], read(memory.reader())[1])
        assert same(writer._slots[writer._map.active].tensors(), memory._slot.tensors())
    writer.close()


def test_what_was_applied_is_remembered_since_the_oldest_checkpoint_and_a_number_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applied, "REMEMBERED", 2)
    writer = FileWriter(tmp_path, spec_of(), parameters(), "epoch", boot="0")  # two checkpoints are kept
    for number in range(12):
        writer.apply((sent(number, "mood"),))
        if writer.step in (3, 6, 10):
            writer.checkpoint()
    known = [writer.applied(f"batch-{number}") for number in range(12)]
    assert known == [None] * 6 + [7, 8, 9, 10, 11, 12]
    writer.checkpoint()
    assert [writer.applied(f"batch-{number}") for number in range(12)] == [None] * 10 + [11, 12]
    for number in range(12, 14):
        writer.apply((sent(number, "mood"),))
    writer.checkpoint()
    assert [writer.applied(f"batch-{number}") for number in range(10, 14)] == [None, None, 13, 14]
    writer.close()
    for boot in ("0", "1"):
        writer = FileWriter(tmp_path, spec_of(), parameters(), "epoch", boot=boot)
        assert writer.applied("batch-13") == 14
        assert list(writer._applied.batches.values()) == sorted(writer._applied.batches.values())
        writer.close()
