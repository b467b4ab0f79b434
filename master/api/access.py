"""Who is calling: the admin, or which child. Tokens are compared by their hashes and stand in no log, event or error."""

import hashlib
import hmac
from collections.abc import Callable

from fastapi import Request

from master.api.parts import Parts
from master.records import Node
from master.tokens import hash_token
from trunkline.errors import NotAuthorized

_AGAIN = "Enrol again with a new invitation."


def bearer(request: Request) -> str:
    """The caller's token.

    :raises NotAuthorized: there is none.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthorized("the call should carry `Authorization: Bearer …`, found no token.", hint="Enrol this child first.")
    return token.strip()


def admin_only(parts: Parts) -> Callable[[Request], None]:
    """A dependency that lets only the admin through."""

    def check(request: Request) -> None:
        if not is_admin(parts, bearer(request)):
            raise NotAuthorized(
                "the token should be the admin's, found another.", hint="It lies in `secrets/admin.token` in the state folder."
            )

    return check


def is_admin(parts: Parts, token: str) -> bool:
    """Whether a token is the admin's."""
    return hmac.compare_digest(hashlib.sha256(token.encode()).digest(), parts.admin_hash)


def child_only(parts: Parts) -> Callable[[Request], Node]:
    """A dependency that gives the child that is calling."""

    def find(request: Request) -> Node:
        return find_child(parts, bearer(request))

    return find


def find_child(parts: Parts, token: str) -> Node:
    """The child whose token this is.

    :raises NotAuthorized: nobody's, or of one that was disabled or revoked.
    """
    node = parts.ledger.node_by_token_hash(hash_token(token))
    if node is None:
        raise NotAuthorized("the token should be that of an enrolled child, found another.", hint=_AGAIN)
    if node.state != "active":
        hint = "Ask the admin: trunkline node enable." if node.state == "disabled" else _AGAIN
        raise NotAuthorized(f"child {node.name!r} should be active, found it {node.state}.", hint=hint)
    return node
