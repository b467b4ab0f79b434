"""Children made of numpy: a quadratic loss each, so that every round has an answer one can compute by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from master.blobs import BlobStore
from master.tokens import Gate
from trunkline import codecs
from trunkline.errors import Reason
from trunkline.files import sha256_file
from trunkline.messages import (
    Confirmation,
    Failure,
    InitialSet,
    Instruction,
    Message,
    Report,
    ReportRequest,
    Score,
    TaskCount,
    Update,
)
from trunkline.sets import SetFile


@dataclass
class QuadraticSite:
    """Samples are points `(n, width)`; the loss is half the mean squared distance of `w` to them; a step is a full-batch SGD step.

    :param trace: receives `(child, what, round)` in the order in which it happens.
    """

    name: str
    points: NDArray[np.float64]
    folder: Path
    blobs: BlobStore
    gate: Gate
    trace: list[tuple[str, str, int]] = field(default_factory=list)
    task: str = "point"
    encoder_type: str = "vector"
    trained: int = 0
    sent: dict[tuple[str, int, str], Update] = field(default_factory=dict)

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        if isinstance(message, Instruction):
            return self.confirm(message), None
        if isinstance(message, InitialSet):
            return self.update(message, attachment)
        if isinstance(message, ReportRequest):
            return self.report(message, attachment), None
        return Failure(child=self.name, reason=Reason.MALFORMED, detail=message.kind), None

    def confirm(self, message: Instruction) -> Confirmation:
        mine = message.encoder.type == self.encoder_type
        self.trace.append((self.name, "confirm" if mine else "refuse", message.round))
        counts = (TaskCount(task=self.task, head="regression", metric="mse", higher_is_better=False, samples=len(self.points)),)
        return Confirmation(
            job=message.job,
            round=message.round,
            child=self.name,
            accepted=mine,
            reason=None if mine else Reason.NO_SAMPLES,
            tasks=counts if mine else (),
        )

    def fetch(self, digest: str, token: str, number: int, attachment: bytes | None) -> Path:
        if attachment is not None:
            self.trace.append((self.name, "bytes", number))
            path = self.folder / f"inline-{digest}"
            path.write_bytes(attachment)
            return path
        self.gate.check(token, digest=digest, direction="down", child=self.name)
        self.trace.append((self.name, "bytes", number))
        return self.blobs.path(digest)

    def update(self, message: InitialSet, attachment: bytes | None) -> tuple[Message, bytes | None]:
        key = (message.job, message.round, message.base.digest)
        if key not in self.sent:
            with SetFile(self.fetch(message.base.digest, message.token, message.round, attachment)) as base:
                self.sent[key] = self.train(message, base)
                self.trained += 1
        update = self.sent[key]
        path = self.folder / update.digest
        if message.transfer == "inline":
            return update, path.read_bytes()
        self.gate.check(message.upload_token, digest=None, direction="up", child=self.name)
        self.blobs.add_file(path)
        return update, None

    def train(self, message: InitialSet, base: SetFile) -> Update:
        w = base.read("w").astype(np.float64)
        for _ in range(message.plan.steps):
            w = w - message.plan.learning_rate * (w - self.points.mean(0))
        path = self.folder / "new"
        values = {"w": w.astype(np.float32)}
        codecs.encode(path, message.codec, base, lambda name, rows: values[name][rows])
        digest, size = sha256_file(path), path.stat().st_size
        path.rename(self.folder / digest)
        n = len(self.points)
        return Update(
            job=message.job,
            round=message.round,
            child=self.name,
            base=message.base.digest,
            digest=digest,
            size=size,
            codec=message.codec,
            samples={self.task: n},
            applied={self.task: n * message.plan.steps},
            losses={self.task: 0.0},
            seconds=0.0,
        )

    def report(self, message: ReportRequest, attachment: bytes | None) -> Report:
        reference = message.delta.digest if message.delta else message.target.digest
        path = self.fetch(reference, message.token, message.round, attachment)
        if message.delta:
            with SetFile(self.blobs.path(message.delta.held)) as base, SetFile(path) as wire:
                path = self.folder / "decoded"
                codecs.Decoder(wire, message.delta.codec, base).write(path)
        assert sha256_file(path) == message.target.digest, "digests are compared after decoding"
        with SetFile(path) as target:
            loss = float(np.nan_to_num(((target.read("w") - self.points) ** 2).mean()))
        self.trace.append((self.name, "report", message.round))
        scores = tuple(
            Score(task=self.task, split=split, metric="mse", value=loss, higher_is_better=False, samples=len(self.points))
            for split in message.splits
        )
        return Report(
            job=message.job, round=message.round, child=self.name, target=message.target.digest, scores=scores, seconds=0.0
        )


def points(seed: int, count: int, width: int = 3) -> NDArray[np.float64]:
    """Random points of one site."""
    return np.random.default_rng(seed).standard_normal((count, width)) + seed


def union_mean(sites: Mapping[str, QuadraticSite]) -> NDArray[np.float64]:
    """The mean over the samples of all sites."""
    return np.concatenate([site.points for site in sites.values()]).mean(0)
