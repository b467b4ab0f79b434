"""A message as it came off a wire, to the answer as it goes: the same for the warm agent and the stock ClientApp."""

import json
from typing import Protocol

from trunkline.errors import Reason, RefusedValue, WireVersionMismatch
from trunkline.messages import Failure, Message, decode


class Answers(Protocol):
    """What stands behind the wire; `child.handlers.Child` in production."""

    name: str

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]: ...


def talk(child: Answers, text: str, attachment: bytes | None) -> tuple[str, bytes | None]:
    """Answer a message in the wire version it was written in. One that cannot be read is answered with a `Failure`."""
    try:
        message = decode(text)
    except WireVersionMismatch as error:
        return Failure(child=child.name, reason=Reason.WIRE, detail=error.message).encode(), None
    except RefusedValue as error:
        return Failure(child=child.name, reason=error.reason, detail=error.message).encode(), None
    reply, enclosed = child.answer(message, attachment)
    return reply.encode(wire_of(text)), enclosed


def wire_of(text: str) -> int:
    """The wire version of a message that could be read."""
    return json.loads(text)["wire"]
