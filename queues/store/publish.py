"""The encoder's part of a store as a parameter set, to be published."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from queues.store.layout import SHARED
from trunkline.sets import write_set


def write_shared(path: Path, values: Mapping[str, Tensor]) -> str:
    """Write what all tasks share, under the names that the encoder has for it; tell the digest of the file.

    :raises StorageFailed: the disk refused.
    """
    return write_set(path, {name.removeprefix(SHARED): t.numpy() for name, t in values.items() if name.startswith(SHARED)})
