"""What a process does in chaos: push, serve, or work. Each ends well at SIGTERM, and by a kill at any time."""

import json
import logging
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from queues.redis import RedisQueues, connect
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from tests.chaos import material
from tests.chaos.points import Killer, Point
from trunkline.errors import Conflict, TrunklineError
from trunkline.files import write_atomically

DEEP = 60
"""Samples of a task that wait: a producer pushes no more while there are as many."""


@dataclass(frozen=True)
class Order:
    """Who a process is."""

    role: str  # producer, server, worker, celery
    folder: str  # of the stream
    state: str = ""  # a producer's own notes
    number: int = 0
    seed: int = 0
    boot: str = ""  # what the machine is said to have chosen when it started
    point: Point | None = None


def act(order: Order, learner: Learner) -> None:
    """Be it, until it ends.

    :param learner: of the stream, to pack samples with.
    """
    torch.set_num_threads(1)
    if order.point is not None:
        Killer(order.point).watch("worker" if order.role == "celery" else order.role)
    {"producer": produce, "server": serve, "worker": work, "celery": drained_by_celery}[order.role](order, learner)


def serve(order: Order, learner: Learner) -> None:
    """The server of the stream, as `python -m queues.stream` is."""
    import queues.store.writer
    from queues.stream import __main__

    setattr(queues.store.writer, "boot_id", lambda: order.boot)  # noqa: B010 - a power cut would change it
    sys.argv = ["queues.stream", order.folder]
    sys.exit(__main__.main())


def drained_by_celery(order: Order, learner: Learner) -> None:
    """A worker as the command lines run it."""
    from queues.stream.serve_worker import serve as work_on

    work_on(StreamHome(Path(order.folder)), threads=1)


def work(order: Order, learner: Learner) -> None:
    """A worker that no doorbell wakes."""
    from queues.stream.join import join

    home, stopping = StreamHome(Path(order.folder)), stopped()

    def once() -> None:
        worker = join(home, threads=1)
        try:
            while not stopping():
                worker.drain(stopping)
                time.sleep(0.01)
        finally:
            worker.close()

    until_stopped(once, stopping)


def until_stopped(once: Callable[[], Any], stopping: Callable[[], bool]) -> None:
    """Again and again, while what went wrong may pass."""
    while not stopping():
        try:
            once()
        except TrunklineError as error:
            if not error.retryable:
                raise
            logging.warning("%s", error)
            time.sleep(0.05)


def stopped() -> Callable[[], bool]:
    """Whether SIGTERM came since."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    return lambda: bool(told)


# -- a producer --------------------------------------------------------------------------------------------------------


class Producer:
    """Counts its samples of each task from 1, and notes how far it knows that they arrived."""

    def __init__(self, order: Order, learner: Learner, stopping: Callable[[], bool]) -> None:
        self.home, self.file, self.stopping = StreamHome(Path(order.folder)), Path(order.state), stopping
        self.name, self.number, self.learner = f"producer-{order.number}", order.number, learner
        self.rng = random.Random(order.seed)
        self.done: dict[str, int] = json.loads(self.file.read_text()) if self.file.exists() else dict.fromkeys(material.SIZES, 0)

    def run(self) -> None:
        """Push until told to end; then once more into each queue: what a server that was set back lost is pushed again."""
        table = self.home.server()
        if table is None:
            time.sleep(0.05)
            return
        client = connect(table["redis"])
        try:
            queues = RedisQueues(client, self.home.spec.name, epoch=self.home.epoch)
            while not self.stopping():
                depths = [self.push(queues, task) for task in self.rng.sample(list(self.done), len(self.done))]
                while min(depths) > DEEP and not self.stopping():
                    time.sleep(0.02)
                    depths = [queues.counts(task).queued for task in self.done]
                time.sleep(0.03 * self.rng.random())
        finally:
            client.close()

    def end(self) -> bool:
        """Push the last of each task; tell whether all arrived."""
        try:
            client = connect((self.home.server() or {"redis": "unix:///nowhere"})["redis"])
            queues = RedisQueues(client, self.home.spec.name, epoch=self.home.epoch)
            for task in self.done:
                self.push(queues, task)
            client.close()
            return True
        except TrunklineError as error:
            logging.warning("%s", error)
            time.sleep(0.1)
            return False

    def push(self, queues: RedisQueues, task: str) -> int:
        """Some more of a task, or as many as are missing; tell how many wait. After a kill it is the same again."""
        first = self.done[task] + 1
        last = self.done[task] + random.Random(f"{self.name}/{task}/{first}").randrange(1, 13)
        while True:
            try:
                depth = queues.push(task, self.packed(task, first, last), producer=self.name, first=first)
                break
            except Conflict as error:
                known = int(error.message.split("go on with sample ")[1].split(",")[0])
                logging.warning("went back from sample %d to %d", first, known)
                first = known
        self.done[task] = last
        write_atomically(self.file, json.dumps(self.done).encode())
        return depth

    def packed(self, task: str, first: int, last: int) -> list[bytes]:
        return material.samples(self.learner, task, self.number, first, last - first + 1)


def produce(order: Order, learner: Learner) -> None:
    """Push until told to end."""
    stopping = stopped()
    producer = Producer(order, learner, stopping)

    def once() -> None:
        try:
            producer.run()
        except TrunklineError as error:
            logging.warning("%s", error)
            time.sleep(0.05)

    while not stopping():
        once()
    while not producer.end():
        pass
