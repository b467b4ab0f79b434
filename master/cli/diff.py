"""How far two parameter sets are apart, tensor by tensor; memory stays at a few slices."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from trunkline.sets import SetFile
from trunkline.tensors import row_slices, widen


def compare(old: Path, new: Path) -> list[dict[str, Any]]:
    """One row a tensor, the ones that moved most first.

    :returns: name, shape, elements that changed, largest change, root mean square of the change, and that as a share of the
        tensor's own; None where a number is not finite, as a share of nothing.
    """
    with SetFile(old) as before, SetFile(new) as after:
        rows = [_compare(before, after, name) for name in sorted(before.spec.keys() | after.spec.keys())]
    return sorted(rows, key=lambda row: (math.inf if row["relative"] is None else row["relative"], row["name"]), reverse=True)


def _compare(before: SetFile, after: SetFile, name: str) -> dict[str, Any]:
    old, new = before.spec.get(name), after.spec.get(name)
    if old is None or new is None or old.shape != new.shape:
        shapes = [None if one is None else list(one.shape) for one in (old, new)]
        return {"name": name, "shape": shapes, "changed": None, "largest": None, "rms": None, "relative": None}
    changed, largest, squares, base = 0, 0.0, 0.0, 0.0
    for rows in row_slices(old):
        a = widen(before.read(name, rows), old.dtype).astype(np.float64)
        b = widen(after.read(name, rows), new.dtype).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = b - a
            changed += int(np.count_nonzero(difference))
            largest = max(largest, float(np.abs(difference).max(initial=0.0)))
            squares += float(np.square(difference).sum())
            base += float(np.square(a).sum())
    rms = math.sqrt(squares / max(1, old.elements))
    relative = math.sqrt(squares / base) if base else (0.0 if not squares else math.inf)
    finite = {"largest": largest, "rms": rms, "relative": relative}
    told = {key: value if math.isfinite(value) else None for key, value in finite.items()}
    return {"name": name, "shape": list(old.shape), "changed": changed, **told}
