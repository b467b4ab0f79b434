"""Tensors of the encoder that are private to a site, such as normalisation layers: kept with its heads, loaded beside each set."""

from child.state import Private
from tasks.encoders import Encoder

PREFIX = "@body/"
"""Of these among the private tensors; no task's name begins so."""


def load(encoder: Encoder, private: Private) -> None:
    """Give an encoder what this site has of its own; at the very start that is what every site begins with."""
    encoder.load_private({name.removeprefix(PREFIX): array for name, array in private.tensors.items() if name.startswith(PREFIX)})


def kept(private: Private, encoder: Encoder) -> Private:
    """The private state with these tensors as they stand in an encoder."""
    tensors = {name: array for name, array in private.tensors.items() if not name.startswith(PREFIX)}
    return Private({**tensors, **{PREFIX + name: array for name, array in encoder.private_tensors().items()}}, private.notes)
