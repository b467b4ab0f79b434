"""What a worker on another machine is told of a stream before it begins. No torch here."""

from typing import Annotated

from pydantic import Field

from queues.stream.spec import StreamSpec
from trunkline.api import Manifest
from trunkline.values import Digest, Value

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}\.py$")]


class Described(Value):
    """`GET …/worker`."""

    spec: StreamSpec
    epoch: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,200}$")]  # of the store: queues of another are not this stream's
    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # all parameters, in their order
    files: Manifest  # of the encoder
    modules: dict[ModuleName, Digest]  # the user's own code, which every machine has from its owner
    redis: Annotated[str | None, Field(repr=False)]  # of the queues; None: the embedded one, which no other machine reaches
    broker: Annotated[str | None, Field(repr=False)]  # of the doorbell
