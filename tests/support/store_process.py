"""Servers and workers of a parameter store, each in a process of its own; some kill themselves at a named point."""

import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from queues.store import slabs
from queues.store.reader import FileReader
from queues.store.store import Verdict
from queues.store.writer import FileWriter
from queues.stream.spec import StreamSpec
from tasks.optimisers import AdamW
from tests.support.plain_optim import SHAPES, parameters, read, sent, spec_of, stream

COUNT = 12
"""Batches of the stream."""

EVERY = 4
"""Steps between two checkpoints."""

_context = get_context("forkserver")  # libraries are loaded once; each process starts with threads that nobody had before
_context.set_forkserver_preload(["tests.support.store_process"])


class KilledWriter(FileWriter):
    """A writer that comes to a point so many times, and no further."""

    point, left = "", 0

    def _reach(self, point: str) -> None:
        super()._reach(point)
        if point == self.point:
            type(self).left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def serve(folder: Path, spec: StreamSpec, rows: bool, point: str, times: int, boot: str, count: int = COUNT) -> None:
    """Send and apply what is left of the stream, as a worker and a server would that know which batches are done with."""
    KilledWriter.point, KilledWriter.left = point, times
    if point == "moving":
        _kill_while_moving(times)
    writer = KilledWriter(folder, spec, parameters(), "epoch", boot=boot)
    reader = FileReader(folder)
    for gradient in stream(count, rows=rows):
        if writer.applied(gradient.batch) is None:
            reader.send(gradient)
            found = writer.received(gradient.batch, 1)
            assert found is not None
            writer.apply((found,))
        writer.done(gradient.batch, 1, Verdict.APPLIED)
        assert reader.verdict(gradient.batch, 1, 60.0) == Verdict.APPLIED
        if writer.step % EVERY == 0:
            writer.checkpoint()
    writer.close()


def _kill_while_moving(times: int) -> None:
    whole = AdamW.move
    left = times

    def move(self: AdamW, *tensors: list) -> None:  # type: ignore[type-arg]
        nonlocal left
        left -= 1
        if left == 0:
            for values, gradients in zip(tensors[0], tensors[3], strict=True):  # half of it, and wrong
                values.view(-1)[::2].add_(gradients.view(-1)[::2])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(self, *tensors)

    AdamW.move = move  # type: ignore[method-assign]


def die_sending(folder: Path, number: int, writes: int) -> None:
    """A worker that is killed after it has written so many pieces of a gradient."""
    whole, left = slabs._put, writes

    def put(handle: int, data: memoryview, at: int) -> None:
        nonlocal left
        if left == 0:
            whole(handle, data[: len(data) // 2], at)
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        whole(handle, data, at)

    slabs._put = put
    FileReader(folder).send(sent(number, "mood"))


def watch(folder: Path, shapes: Mapping[str, tuple[int, ...]], last: int) -> None:
    """A worker that reads until the last step, and fails if a number is of another step than the one that it was told."""
    into = {name: torch.empty(shape) for name, shape in shapes.items()}
    reader, step, reads = FileReader(folder), -1, 0
    while step < last:
        before, step = step, reader.read(into)
        reads += 1
        assert step >= before, "steps do not go back"
        assert all(tensor.eq(step).all() for tensor in into.values()), step
    assert reads > 1


def send_many(folder: Path, worker: int, count: int) -> None:
    """A worker that sends, waits for its verdict, and sends the next."""
    reader = FileReader(folder)
    for number in range(count):
        gradient = sent(1000 * worker + number, "mood", base=0)
        reader.send(gradient)
        (folder.parent / f"submitted-{gradient.batch}").touch()
        assert reader.verdict(gradient.batch, 1, 60.0) == Verdict.APPLIED


def look(folder: Path) -> None:
    """A worker that reads once and ends."""
    read(FileReader(folder))


def grow(folder: Path, steps: int) -> None:
    """A server and a worker in one process; it fails if its memory grows."""
    writer, reader = FileWriter(folder, spec_of(store={"checkpoint_steps": 500}), parameters(), "epoch"), FileReader(folder)
    into = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    skip = ("shared/embedding", "shared/dense")
    begin = 0
    for number in range(steps):
        gradient = sent(number, "mood", skip=skip)
        reader.send(gradient)
        found = writer.received(gradient.batch, 1)
        assert found is not None
        writer.apply((found,))
        del found
        writer.done(gradient.batch, 1, Verdict.APPLIED)
        assert reader.verdict(gradient.batch, 1, 60.0) == Verdict.APPLIED
        reader.read(into)
        if writer.step % 500 == 0:
            writer.checkpoint()
        if number == steps // 4:
            begin = own_memory()
    writer.close()
    assert own_memory() - begin < 5 << 20, f"{(own_memory() - begin) / 2**20:.1f} MiB"


def own_memory() -> int:
    """Bytes of this process that are in memory and no file's."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10


def start(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """Do this in a process of its own."""
    process = _context.Process(target=work, args=arguments)
    process.start()
    return process


def run(folder: Path, spec: StreamSpec, *, rows: bool, point: str = "", times: int = 0, boot: str = "boot-1") -> int:
    """Serve until the stream ends or the point is reached; tell the process's exit code."""
    return ended(start(serve, folder, spec, rows, point, times, boot))


def ended(process: BaseProcess) -> int:
    """Wait for a process; its exit code."""
    process.join(60)
    assert process.exitcode is not None, "the process should have ended within a minute"
    return process.exitcode
