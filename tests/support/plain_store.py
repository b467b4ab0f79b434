"""The slow, plain version of a parameter store: one file a step, one a gradient, one a verdict; steps of plain gradient descent.

Any number of processes may read and send; one thread applies what the queues know as submitted, in that order.
"""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from queues.connection import told
from queues.queue import Claim
from queues.redis import RedisQueues
from queues.store.store import Sent, Verdict
from trunkline.errors import TrunklineError

RATE = 0.05


def move(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """One step of plain gradient descent, in place."""
    with torch.no_grad():
        for name, gradient in tensors.items():
            parameters[name].sub_(gradient, alpha=RATE)


class PlainReader:
    """The worker's side; a `StoreReader`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def step(self) -> int:
        return int((self.folder / "step").read_text())

    def read(self, into: Mapping[str, Tensor]) -> int:
        while True:
            step = self.step()
            try:
                found = load_file(self.folder / f"step-{step}")
            except FileNotFoundError:  # the next step came, and its file went
                continue
            with torch.no_grad():
                for name, tensor in into.items():
                    tensor.copy_(found[name])
            return step

    def send(self, gradient: Sent) -> None:
        about = {"task": gradient.task, "base": gradient.base, "samples": gradient.samples, "loss": gradient.loss}
        place = self.folder / f"gradient-{gradient.batch}-{gradient.attempt}"
        beside = place.with_suffix(".tmp")
        save_file({name: tensor for name, tensor in gradient.tensors.items() if isinstance(tensor, Tensor)}, beside)
        place.with_suffix(".json").write_text(json.dumps(about))
        beside.replace(place)

    def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        end = time.monotonic() + seconds
        while True:
            try:
                return Verdict((self.folder / f"verdict-{batch}-{attempt}").read_text())
            except FileNotFoundError:
                if time.monotonic() >= end:
                    return None
                time.sleep(0.002)

    def withdraw(self, batch: str, attempt: int) -> None:
        (self.folder / f"gradient-{batch}-{attempt}").unlink(missing_ok=True)


class PlainStore:
    """The writer's side; `pump` or the thread between `start` and `stop` applies."""

    def __init__(self, folder: Path, parameters: Mapping[str, Tensor], queues: RedisQueues) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.queues = folder, queues
        self.parameters = {name: p.detach().clone() for name, p in parameters.items()}
        self.step = 0
        self.log: list[tuple[str, str]] = []  # batch and task of each step
        self._publish()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.reader = PlainReader(folder)

    def _publish(self) -> None:
        save_file(self.parameters, self.folder / f"step-{self.step}")
        self._write("step", str(self.step))
        (self.folder / f"step-{self.step - 2}").unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.tmp").write_text(text)
        (self.folder / f"{name}.tmp").replace(self.folder / name)

    def submitted(self) -> list[Claim[bytes]]:
        client: Any = self.queues._client
        found: list[Claim[bytes]] = []
        with told("the server of the queues"):
            batches = client.zrange(self.queues._key("submitted"), 0, -1)
            about = [client.hmget(self.queues._key("b", batch.decode()), "queue", "attempt") for batch in batches]
        for batch, (queue, attempt) in zip(batches, about, strict=True):
            found.append(Claim(batch.decode(), int(attempt), queue.decode(), ()))
        return found

    def pump(self) -> int:
        """Apply what is submitted; tell how many."""
        done = 0
        for claim in self.submitted():
            place = self.folder / f"gradient-{claim.id}-{claim.attempt}"
            if not place.exists():
                self.queues.nack(claim, "it never arrived", counts=False)
                continue
            if claim.id not in {batch for batch, _ in self.log}:
                move(self.parameters, load_file(place))
                self.step += 1
                self.log.append((claim.id, claim.task))
                self._publish()
            self.queues.commit(claim, self.step)
            self.finish(claim, Verdict.APPLIED)
            done += 1
        return done

    def finish(self, claim: Claim[bytes], verdict: Verdict) -> None:
        self._write(f"verdict-{claim.id}-{claim.attempt}", verdict)
        self.reader.withdraw(claim.id, claim.attempt)

    def start(self) -> "PlainStore":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if not self.pump():
                    self._ended.wait(0.003)
            except TrunklineError:  # its server is away
                self._ended.wait(0.05)

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(30)
