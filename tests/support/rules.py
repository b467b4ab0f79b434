"""Parameter sets and contributions in memory, and one way to play a rule on them."""

from collections.abc import Mapping, Sequence

import numpy as np

from master.rules import Buffers, Contribution, Fused, Parameters, Rule, State, find_rule
from trunkline.tensors import Array, spec_of

Tensors = Mapping[str, Array]


def parameters(tensors: Tensors) -> Parameters:
    """A set in memory, read by rows."""

    def read(name: str, rows: slice) -> Array:
        array = tensors[name]
        return array[rows].copy() if array.shape else array.copy()

    return Parameters(spec_of(tensors), read)


def contribution(child: str, tensors: Tensors, samples: int | Mapping[str, int] = 10) -> Contribution:
    """One child's update; a number counts for one task that all have."""
    counts = {"task": samples} if isinstance(samples, int) else samples
    return Contribution(child, counts, counts, parameters(tensors))


def whole(found: Parameters) -> dict[str, Array]:
    """Every tensor of a recipe."""
    return {name: found.read(name, slice(0, spec.rows)) for name, spec in found.spec.items()}


def play(
    rule: str | Rule,
    base: Tensors,
    updates: Sequence[Contribution],
    state: State | None = None,
    *,
    most: float = 1.0,
    buffers: Buffers | None = None,
) -> tuple[dict[str, Array], Fused, State | None]:
    """The target set, what the rule told, and its state written down as a file would have it."""
    rule = find_rule(rule) if isinstance(rule, str) else rule
    fused = rule.fuse(parameters(base), updates, state, most=most, buffers=buffers)
    written = None if fused.state is None else parameters(whole(fused.state.tensors))
    after = None if written is None or fused.state is None else State(written, fused.state.notes)
    return whole(fused.target(written)), fused, after


def fuse(rule: str | Rule, base: Tensors, updates: Sequence[Contribution], buffers: Buffers | None = None) -> dict[str, Array]:
    """The target set alone."""
    return play(rule, base, updates, buffers=buffers)[0]


def sets(seed: int, count: int, scale: float = 1.0) -> list[dict[str, Array]]:
    """Random sets with every kind of tensor that is hard: empty, 0-d, whole numbers, masks."""
    rng = np.random.default_rng(seed)
    return [
        {
            "w": (scale * rng.standard_normal((4, 3))).astype(np.float32),
            "b": (scale * rng.standard_normal(3)).astype(np.float32),
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.array(scale * rng.standard_normal(), np.float32),
            "count": np.array(int(rng.integers(0, 100)), np.int64),
            "mask": rng.random(5) > 0.5,
        }
        for _ in range(count)
    ]


__all__ = ["Buffers", "Tensors", "contribution", "fuse", "parameters", "play", "sets", "whole"]
