"""Inner products and weighted sums of gradients. They are never laid side by side: one slice of each is looked at in turn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tasks.balance.rule import Floats, Gradients
from trunkline.errors import Reason, RefusedValue

SLICE = 1 << 16
"""Elements of a tensor that are looked at together: those of all tasks, in float64, should stay in a processor's cache."""


def check(gradients: Gradients) -> Mapping[str, torch.Size]:
    """The shape of each shared tensor that a task has, in the order of the names.

    :raises RefusedValue: a tensor is not float32, or has another shape than the same tensor of another task.
    """
    shapes: dict[str, torch.Size] = {}
    for task in sorted(gradients):
        for name, tensor in gradients[task].items():
            if tensor.dtype != torch.float32:
                raise RefusedValue(Reason.DTYPE, f"the gradient of {task} should be float32, found {tensor.dtype} at {name!r}.")
            if shapes.setdefault(name, tensor.shape) != tensor.shape:
                found = f"found {tuple(tensor.shape)} at {name!r}"
                raise RefusedValue(Reason.SHAPE, f"the gradient of {task} should be {tuple(shapes[name])} there, {found}.")
    return dict(sorted(shapes.items()))


def gramian(gradients: Gradients, tasks: Sequence[str], names: Mapping[str, torch.Size]) -> Floats:
    """Inner products of the tasks' gradients `(K, K)`, products and sums in float64.

    A sum of squares of float32 values is finite in float64 whatever they are, so one look finds what is not finite as well.

    :raises RefusedValue: a gradient is not finite; the message names its task.
    """
    total = torch.zeros(len(tasks), len(tasks), dtype=torch.float64)
    slab = torch.empty(len(tasks), SLICE, dtype=torch.float64)
    with _one_thread(), torch.no_grad():
        for name in names:
            there = [place for place, task in enumerate(tasks) if name in gradients[task]]
            flat = [gradients[tasks[place]][name].reshape(-1) for place in there]
            part = torch.zeros(len(there), len(there), dtype=torch.float64)
            for rows in _slices(flat[0].numel()):
                size = rows.stop - rows.start
                for row, values in enumerate(flat):
                    slab[row, :size] = values[rows]
                now = slab[: len(there), :size]
                part.addmm_(now, now.T)
            for place, square in zip(there, part.diagonal().tolist(), strict=True):
                if not np.isfinite(square):
                    raise RefusedValue(
                        Reason.NOT_FINITE, f"the gradient of {tasks[place]} should be finite, found that it is not at {name!r}."
                    )
            total[np.ix_(there, there)] += part
    found: Floats = total.numpy()
    return (found + found.T) / 2


def mixed(gradients: Gradients, factors: Mapping[str, float], names: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The weighted sum, float32, in memory of its own; tasks in the order of their names."""
    with _one_thread(), torch.no_grad():
        return {name: _mixed(gradients, factors, name, shape) for name, shape in names.items()}


def _mixed(gradients: Gradients, factors: Mapping[str, float], name: str, shape: torch.Size) -> Tensor:
    parts = [(tensors[name].reshape(-1), factors[task]) for task, tensors in sorted(gradients.items()) if name in tensors]
    parts = [(values, factor) for values, factor in parts if factor]
    total = torch.zeros(shape.numel())
    for rows in _slices(len(total)) if parts else ():
        torch.mul(parts[0][0][rows], parts[0][1], out=total[rows])
        for values, factor in parts[1:]:
            total[rows].add_(values[rows], alpha=factor)
    return total.reshape(shape)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Products this small gain nothing by a second thread, which waits for its turn and burns what others need (up to fifty times
    the time, on two busy cores); and the same bits come out, however many there are.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _slices(size: int) -> Iterator[slice]:
    return (slice(start, min(start + SLICE, size)) for start in range(0, size, SLICE))
