"""Seeds that are functions of names, so that a batch that is computed again gives the same gradient."""

import hashlib


def dropout_seed(seed: int, task: str, batch: str) -> int:
    """What dropout is seeded with for a batch, whichever attempt it is: the first 63 bits of SHA-256 of `seed/task/batch`.

    >>> dropout_seed(0, "sentiment", "b1") == dropout_seed(0, "sentiment", "b1")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}/{batch}".encode()).digest()[:8], "big") >> 1
