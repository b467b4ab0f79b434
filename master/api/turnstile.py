"""Who may move which blob, and the trace of what moved.

    caller   GET                                HEAD (how much is there?), PUT
    admin    any blob                           any blob
    child    files of encoders; a parameter     with a grant to send: any one update of its round
             set with a grant to fetch it

Every byte that goes out to a child is announced in the ledger before it leaves (`blob.sent`: child, job, round, digest, first
byte), so the order of events proves that no set left before its confirmation. What was moved in the end is `blob.moved`.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path, Request

from master.api.access import bearer, find_child, is_admin
from master.api.files import Files
from master.api.parts import Parts
from master.tokens import Direction, Grant
from trunkline.api_errors import GRANT_HEADER
from trunkline.errors import NotAuthorized, RefusedValue

BLOBS_A_GRANT = 4
"""Different blobs that one child may send in one round: an update, and a few tries that were made anew."""

REMEMBERED = 10_000
"""Rounds of children that are remembered for that; older ones have ended."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A transfer that may take place."""

    digest: str
    direction: Direction
    child: str | None  # None: the admin
    grant: Grant | None  # None: the admin, or a file of an encoder
    limit: int  # bytes at most, upwards

    @property
    def owner(self) -> str:
        """Whose half-finished upload it goes on with."""
        return self.child or ""


class Turnstile:
    """Lets a transfer through, and writes down what went through and who was refused."""

    def __init__(self, parts: Parts, files: Files) -> None:
        self._parts, self._files = parts, files
        self._lock = threading.Lock()
        self._sent: OrderedDict[tuple[str, str, int], set[str]] = OrderedDict()  # blobs begun, by (child, job, round)

    def __call__(self, request: Request, digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Ticket:
        """:raises NotAuthorized: the caller may not."""
        direction: Direction = "down" if request.method == "GET" else "up"
        token, most = bearer(request), self._parts.settings.max_blob_bytes
        if is_admin(self._parts, token):
            return Ticket(digest, direction, None, None, most)
        child = find_child(self._parts, token).name
        shown = request.headers.get(GRANT_HEADER)
        if shown is None and direction == "down" and self._files.public(digest):
            return Ticket(digest, direction, child, None, most)
        try:
            grant = self._checked(shown, digest, direction, child)
            if request.method == "PUT":
                self._count(grant, digest)
        except NotAuthorized as error:
            told = {"digest": digest, "direction": direction, "detail": error.message}
            self._parts.ledger.event("transfer.refused", child=child, data=told)
            raise
        return Ticket(digest, direction, child, grant, min(most, grant.size))

    def _checked(self, shown: str | None, digest: str, direction: Direction, child: str) -> Grant:
        if shown is None:
            raise NotAuthorized(f"blob {digest[:12]} should be moved with a grant of this round, found none.")
        return self._parts.gate.check(shown, digest=digest if direction == "down" else None, direction=direction, child=child)

    def _count(self, grant: Grant, digest: str) -> None:
        with self._lock:
            begun = self._sent.setdefault((grant.child, grant.job, grant.round), set())
            if digest not in begun and len(begun) >= BLOBS_A_GRANT:
                raise NotAuthorized(f"a round should take one update of a child, found more than {BLOBS_A_GRANT} blobs sent.")
            begun.add(digest)
            while len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)

    # -- the trace ---------------------------------------------------------------------------------------------------

    def announce(self, ticket: Ticket, first: int, size: int) -> None:
        """Before the first byte leaves for a child."""
        kind = "file.sent" if ticket.grant is None else "blob.sent"
        if ticket.child is not None:
            self._event(kind, ticket, {"first": first, "size": size})

    def moved(self, ticket: Ticket, count: int) -> None:
        """After a transfer of a parameter set ended, however it ended."""
        if ticket.grant is not None:
            self._event("blob.moved", ticket, {"direction": ticket.direction, "bytes": count})

    def refused(self, ticket: Ticket, error: RefusedValue) -> None:
        """What was sent is not what was promised."""
        told = {"direction": ticket.direction, "reason": str(error.reason), "detail": error.message}
        self._event("transfer.refused", ticket, told)

    def _event(self, kind: str, ticket: Ticket, told: dict[str, Any]) -> None:
        grant = ticket.grant
        self._parts.ledger.event(
            kind,
            job=grant.job if grant else None,
            round=grant.round if grant else None,
            child=ticket.child,
            data={"digest": ticket.digest} | told,
        )
