"""A child's daemon as it is, but for training: a round's work is to add a small number. `python -m benchmarks.agent HOME`.

It adds something, for a set that came back unchanged would have the digest of the one that went out, and nothing would travel up.
"""

import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from child.agent import Agent
from child.handlers import Child
from child.home import ChildHome
from child.identity import Identity
from child.registry import Registry
from child.settings import ChildSettings
from child.state import Private, PrivateStore
from child.train import Trained
from tasks.encoders import Encoder
from tasks.specs import TaskSpec
from trunkline.clock import SystemClock
from trunkline.files import Lock
from trunkline.messages import InitialSet, Update
from trunkline.sets import SetFile
from trunkline.tensors import Array

TASK, SAMPLES = "nothing", 10
"""What it confirms."""


def declare(home: ChildHome) -> None:
    """Write the samples and the task that are never trained on."""
    home.folder.joinpath("samples.csv").write_text("text,label\n" + "a,yes\nb,no\n" * (SAMPLES // 2), encoding="utf-8")
    task = TaskSpec(name=TASK, encoder="random", head="single", data="samples.csv", fields=("text",), label="label")
    Registry(home).add(task.model_copy(update={"fractions": (1.0, 0.0, 0.0)}))


class Shifted:
    """What an encoder reads as after its training: the base set, plus a number."""

    def __init__(self, base: SetFile, shift: float) -> None:
        self.base, self.shift = base, np.float32(shift)

    def read_shared(self, name: str, rows: slice) -> Array:
        values = self.base.read(name, rows)
        values += self.shift
        return values

    def factors(self) -> Mapping[str, tuple[Array, Array]]:
        return {}


class Idle(Child):
    """A child that does nothing with its samples. Everything else is the child's own."""

    def _train(self, message: InitialSet, attachment: bytes | None, store: PrivateStore) -> Update:
        started = time.perf_counter()
        path = self.sets.get(message.base, message.delta, message.token, attachment)
        counts = {TASK: SAMPLES}
        with SetFile(path) as base:
            trained = Trained(samples=counts, applied=counts, losses={TASK: 0.0}, steps=1, private=Private(), moments={})
            shift = 1e-3 * (1 + sum(self.name.encode()) % 7)
            changed = cast(Encoder, Shifted(base, shift))
            update = self.trainer.write(message, changed, base, trained, trained.private, time.perf_counter() - started, store)
        for old in self.home.updates.iterdir():
            if old.name != update.digest:
                old.unlink()
        return update


def main(folder: str) -> None:
    """Serve until SIGTERM."""
    home, clock, settings = ChildHome(Path(folder)), SystemClock(), ChildSettings()
    identity = Identity.read(home)
    lock = Lock(home.lock, "child")
    with identity.api(clock) as api:
        agent = Agent(home, settings, api, Idle(identity.name, home, settings, api, clock=clock), clock, random.Random())
        signal.signal(signal.SIGTERM, lambda number, frame: agent.stop.set())
        agent.run()
    lock.release()


if __name__ == "__main__":
    main(sys.argv[1])
