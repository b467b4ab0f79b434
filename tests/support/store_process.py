"""A server of a parameter store in a process of its own that kills itself at a named point, as a power supply or a person would."""

import os
import signal
from multiprocessing import get_context
from pathlib import Path

from queues.store.reader import FileReader
from queues.store.store import Verdict
from queues.store.writer import FileWriter
from queues.stream.spec import StreamSpec
from tasks.optimisers import AdamW
from tests.support.plain_optim import parameters, stream

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


def serve(folder: Path, spec: StreamSpec, rows: bool, point: str, times: int, boot: str) -> None:
    """Send and apply what is left of the stream, as a worker and a server would that know which batches are done with."""
    KilledWriter.point, KilledWriter.left = point, times
    if point == "moving":
        _kill_while_moving(times)
    writer = KilledWriter(folder, spec, parameters(), "epoch", boot=boot)
    reader = FileReader(folder)
    for gradient in stream(COUNT, rows=rows):
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


def run(folder: Path, spec: StreamSpec, *, rows: bool, point: str = "", times: int = 0, boot: str = "boot-1") -> int:
    """Serve until the stream ends or the point is reached; tell the process's exit code."""
    process = _context.Process(target=serve, args=(folder, spec, rows, point, times, boot))
    process.start()
    process.join(60)
    assert process.exitcode is not None, "the process should have ended within a minute"
    return process.exitcode
