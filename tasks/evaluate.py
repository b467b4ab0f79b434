"""What an encoder and a head score on a split, and what they say of new samples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks import metrics
from tasks.batches import IGNORED, Batch, Inputs
from tasks.encoders import Encoder
from tasks.heads import Head, Multi, Single
from tasks.padding import text_side
from tasks.processors import Processor, VectorProcessor
from tasks.samples import Row, words
from tasks.specs import TaskSpec
from tasks.table import SampleTable
from trunkline.errors import Reason, SampleError, TrainingFailed
from trunkline.messages import Score
from trunkline.values import Split

CANDIDATES = 2000
"""Pairs are searched among at most this many candidates of a split."""


@contextmanager
def _resting(*modules: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients; the modes are given back as they were."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.train(training)


def evaluate(
    encoder: Encoder,
    head: Head,
    table: SampleTable,
    spec: TaskSpec,
    split: Split,
    batch_size: int = 64,
    max_length: int | None = None,
) -> Score:
    """The task's metric on a split.

    :param max_length: tokens at most; None: the task's own.
    :raises SampleError: the split is empty.
    :raises TrainingFailed: `not_finite`: the parameters give no number.
    """
    indices = table.indices(split)
    if not len(indices):
        raise SampleError(f"`{spec.data}` should have samples in the split {split!r} for task {spec.name!r}, found none.")
    if spec.head == "pairs":
        indices = indices[:CANDIDATES]
    found, wanted = [], []
    with _resting(encoder, head):
        for batch in _batches(table, indices, batch_size, max_length):
            mine, truth = _answers(encoder, head, batch.to(encoder.device))
            found.append(mine)
            wanted.append(truth)
    value = metrics.score(spec.measure, spec.head, np.concatenate(found), np.concatenate(wanted))
    return Score(
        task=spec.name,
        split=split,
        metric=spec.measure,
        value=value,
        higher_is_better=spec.higher_is_better,
        samples=len(indices),
    )


def _batches(table: SampleTable, indices: NDArray[np.int64], size: int, max_length: int | None) -> Iterator[Batch]:
    """Samples of like length together, so that little is padded."""
    order = np.argsort(table.lengths(indices), kind="stable")
    for start in range(0, len(order), size):
        yield table.batch(indices[order[start : start + size]], max_length)


def _answers(encoder: Encoder, head: Head, batch: Batch) -> tuple[NDArray[Any], NDArray[Any]]:
    """What was found and what was wanted; for pairs the embeddings of the two sides."""
    sides = [encoder(side) for side in batch.inputs]
    for side in sides:
        _check_finite(side.pooled, batch.task)
    if head.spec.head == "pairs":
        first, second = (side.pooled.float().cpu().numpy() for side in sides)
        return first, second
    answer = head.predict(sides)
    _check_finite(answer, batch.task)
    found, wanted = answer.cpu().numpy(), batch.labels.cpu().numpy()
    if head.spec.head == "tokens":
        kept = wanted != IGNORED
        return found[kept], wanted[kept]
    return found, wanted


def _check_finite(values: torch.Tensor, task: str) -> None:
    """A metric would hide it: the largest of NaNs is a class like any other."""
    if not torch.isfinite(values).all():
        raise TrainingFailed(Reason.NOT_FINITE, f"what task {task!r} predicts should be finite, found NaN or infinity.")


# -- new samples -------------------------------------------------------------------------------------------------------


def predict(
    encoder: Encoder, head: Head, spec: TaskSpec, labels: tuple[str, ...], rows: Sequence[Any], batch_size: int = 64
) -> list[dict[str, Any]]:
    """What the head says of new samples, in their order.

    :param rows: a value each (text, list of tokens, vector), or a sequence of them where the task has several fields.
    :return: `single` label and probability; `multi` labels and probabilities; `regression` value; `tokens` labels, one a word
        (None for a word that was cut off); `pairs` similarity.
    :raises SampleError: a row is not what the task reads.
    """
    samples = [_row(spec, number, value) for number, value in enumerate(rows, start=1)]
    answers: list[dict[str, Any]] = []
    with _resting(encoder, head):
        for start in range(0, len(samples), batch_size):
            answers += _predict(encoder, head, spec, labels, samples[start : start + batch_size])
    return answers


def _row(spec: TaskSpec, number: int, value: Any) -> Row:
    fields = (value,) if len(spec.fields) == 1 else tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(fields) != len(spec.fields):
        raise SampleError(f"row {number} should have the fields {', '.join(spec.fields)}, found {len(fields)}.")
    return Row(number, fields, None, "test")


def _predict(encoder: Encoder, head: Head, spec: TaskSpec, labels: tuple[str, ...], samples: list[Row]) -> list[dict[str, Any]]:
    inputs, firsts = _inputs(encoder.processor, spec, samples)
    device = encoder.device
    sides = [encoder({name: tensor.to(device) for name, tensor in side.items()}) for side in inputs]
    if isinstance(head, Single):
        chances, best = head(sides).softmax(-1).max(-1)
        return [{"label": labels[k], "probability": p} for k, p in zip(best.tolist(), chances.tolist(), strict=True)]
    if isinstance(head, Multi):
        table = head(sides).sigmoid().tolist()
        return [
            {"labels": [labels[k] for k, p in enumerate(row) if p > 0.5], "probabilities": dict(zip(labels, row, strict=True))}
            for row in table
        ]
    found = head.predict(sides)  # of a user's own head too, whose outputs are no probabilities
    if spec.head == "tokens":
        each = zip(firsts, found.tolist(), samples, strict=True)
        return [{"labels": _of_words(first, row, labels, sample, spec)} for first, row, sample in each]
    if spec.head == "pairs":
        return [{"similarity": value} for value in found.diagonal().tolist()]
    if spec.head == "single":
        return [{"label": labels[int(k)]} for k in found.tolist()]
    if spec.head == "multi":
        return [{"labels": [labels[k] for k, on in enumerate(row) if on]} for row in found.tolist()]
    return [{"value": float(value)} for value in found.tolist()]


def _inputs(processor: Processor, spec: TaskSpec, samples: list[Row]) -> tuple[list[Inputs], list[list[int]]]:
    """The sides of a batch, and for tokens the word that each token is the first piece of."""
    if isinstance(processor, VectorProcessor):
        sides = [np.stack([processor.vector(spec, row, cut) for row in samples]) for cut in spec.sides]
        return [{"features": torch.from_numpy(side.reshape(-1, *processor.shape))} for side in sides], []
    if spec.head == "tokens":
        found = processor.words([processor.check_words(spec, row) for row in samples])
        return [_side([ids for ids, _ in found], processor.pad_id)], [first for _, first in found]
    texts = [processor.texts([processor.check_texts(spec, row, cut) for row in samples]) for cut in spec.sides]
    return [_side(side, processor.pad_id) for side in texts], []


def _side(lists: list[list[int]], pad: int) -> Inputs:
    rows = [np.array(ids, np.int64) for ids in lists]
    return text_side(rows, max(map(len, rows)), pad, ends_special=False)  # nothing is cut


def _of_words(first: list[int], found: list[int], labels: tuple[str, ...], sample: Row, spec: TaskSpec) -> list[str | None]:
    count = len(words(spec, sample.line, spec.fields[0], sample.fields[0]))
    answer: list[str | None] = [None] * count
    for place, word in enumerate(first):
        if word >= 0:
            answer[word] = labels[found[place]]
    return answer
