"""Moments of the shared layers' optimiser that a site keeps from one round of a job to its next, beside its heads.

They were gathered on what the site trained itself, which the fused set is near to. With few steps a round it pays: a fresh AdamW
takes its first steps in nearly full size wherever a gradient points, noise and all.
"""

from child.heads import as_array, tensors_of
from child.optimiser import Moments
from child.state import Private

PREFIX = "@moments/"
"""Of these among the private tensors; no task's name begins so."""


def of(job: str, private: Private) -> Moments:
    """What is kept for a job; empty in its first round, and where another was played since."""
    return tensors_of(private, PREFIX) if private.notes.get("moments") == job else {}


def kept(private: Private, job: str, moments: Moments) -> Private:
    """The private state with the moments as they are after a round."""
    return private.replaced(PREFIX, {name: as_array(value) for name, value in moments.items()}, moments=job)
