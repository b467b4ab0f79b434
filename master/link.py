"""The seam between a round and the children that take part in it: who can be reached, and one exchange of messages with them.

A link is given by `master.local` (children in this process) or `master.flower` (children on other machines).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.clock import Deadline
from trunkline.messages import Confirmation, Failure, Message, Report, Update

Reply = Confirmation | Update | Report | Failure
"""What a child may answer."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for one child, and the parameter set that travels with it where `transfer = "inline"`."""

    message: Message
    attachment: bytes | None = None


class Link(Protocol):
    """Where a round sends its messages."""

    def children(self) -> Sequence[str]:
        """Names of the children that can be reached now."""
        ...

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        """Send each child its message, and give every answer as it arrives: child, reply, inline attachment.

        At most one answer a child. Ends when all have answered or the deadline is over; a child without an answer was silent.
        Closing the iterator stops the waiting. The same message may reach a child twice, so children answer a repeated one with
        what they answered before.

        :raises Fenced: this run was ended from outside, or its transport is gone; its owner stops writing, and the master starts
            another.
        """
        ...
