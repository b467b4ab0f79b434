"""Tensors of the encoder that are private to a site, such as normalisation layers: kept with its heads, loaded beside each set."""

from child.state import Private
from tasks.encoders import Encoder

PREFIX = "@body/"
"""Of these among the private tensors; no task's name begins so."""


def load(encoder: Encoder, private: Private) -> None:
    """Give an encoder what this site has of its own; at the very start that is what every site begins with."""
    encoder.load_private(private.under(PREFIX))


def kept(private: Private, encoder: Encoder) -> Private:
    """The private state with these tensors as they stand in an encoder."""
    return private.replaced(PREFIX, encoder.private_tensors())
