"""Rows of unlike length as one array."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.batches import Inputs


def padded(rows: Sequence[NDArray[Any]], limit: int, pad: int, ends_special: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows cut to `limit` and padded to the longest, and their mask, both (B, T).

    :param ends_special: a row that is cut still ends with its last number, as the tokenizer ends a text.
    """
    width = max(min(len(row), limit) for row in rows)
    values = np.full((len(rows), width), pad, np.int64)
    mask = np.zeros((len(rows), width), np.int64)
    for place, row in enumerate(rows):
        length = min(len(row), limit)
        values[place, :length] = row[:length]
        mask[place, :length] = 1
        if length < len(row) and length > 1 and ends_special:
            values[place, length - 1] = row[-1]
    return values, mask


def text_side(rows: Sequence[NDArray[Any]], limit: int, pad: int, ends_special: bool) -> Inputs:
    """Token ids of unlike length as an encoder reads them; see `padded`."""
    ids, mask = padded(rows, limit, pad, ends_special)
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
