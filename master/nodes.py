"""How children come in, and are put out again.

    admin    invite            a one-time secret, the master's address and the fingerprint of its authority, in one line
    child    enrol             shows the secret and a public key whose private half it holds; gets a name and a token
    master   register          the key becomes known to the SuperLink, which gives the node id
    admin    disable, enable   for a while; or revoke, for ever

The secret is used up and the node written before the key is registered. If something breaks after that, the child asks again with
the same key: whoever holds the private half of an active node's key is that node, and gets a new token. Nothing has to be undone.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from master.ledger import Ledger
from master.pki import check_node_key
from master.records import Node
from master.tokens import hash_token, new_token
from trunkline.api import Enrol, Invitation, proof_of
from trunkline.clock import Clock
from trunkline.errors import Conflict, NotAuthorized
from trunkline.wire import common_version

Register = Callable[[bytes], int]
"""Makes a public key (PEM) known to the SuperLink and returns the node id; a key that is known already gives the same id.

:raises Unreachable: the SuperLink does not answer.
"""


@dataclass(frozen=True)
class Registered:
    """A node that may talk, and the token that was made for it."""

    node: Node
    token: str
    wire: int  # version


def invite(ledger: Ledger, name: str | None, seconds: float, *, url: str, fingerprint: str, clock: Clock) -> str:
    """Make an invitation: one line that a new child is given, good for one use.

    :param name: the child's name; None: the child may choose.
    :param seconds: how long it can be used.
    :raises Conflict: there is a child of that name.
    """
    if name is not None and name in {node.name for node in ledger.nodes()}:
        raise Conflict(f"`name` should be new, found child {name!r}.", hint="Choose another name; a revoked one is not used again.")
    secret = new_token()
    ledger.add_invite(hash_token(secret), name, clock.now() + seconds)
    return Invitation(url=url, secret=secret, fingerprint=fingerprint).encode()


def enrol(ledger: Ledger, asked: Enrol, register: Register, clock: Clock) -> Registered:
    """Let a child in, or give a child that is in already a new token.

    :raises NotAuthorized: the invitation is not good (unknown, used, expired), or the private key is not the caller's.
    :raises UsageError: the key is not of the right kind.
    :raises WireVersionMismatch: no common wire version.
    :raises Unreachable: the SuperLink is away; the same call will do later.
    """
    wire = common_version(asked.speaks, names=(f"child {asked.name!r}" if asked.name else "the child", "the master"))
    key = check_node_key(asked.public_key.encode())
    _check_proof(key, asked)
    token = new_token()
    known = next((node for node in ledger.nodes() if node.public_key == key), None)
    if known is None:
        name = _free_name(ledger, asked.name, ledger.use_invite(hash_token(asked.secret), clock.now()))
        known = ledger.add_node(name, key, hash_token(token), speaks=asked.speaks)
    elif known.state != "active":
        raise NotAuthorized(f"child {known.name!r} should be active, found it {known.state}.", hint="Ask the admin.")
    else:
        ledger.set_node(known.name, token_hash=hash_token(token), speaks=asked.speaks)
    return Registered(registered(ledger, known, register), token, wire)


def registered(ledger: Ledger, node: Node, register: Register) -> Node:
    """The node with its id at the SuperLink; asks for one if it has none."""
    if node.flower_id is not None:
        return ledger.node(node.name)
    return ledger.set_node(node.name, flower_id=register(node.public_key))


def register_all(ledger: Ledger, register: Register) -> dict[str, int]:
    """Make every active node known to a SuperLink that may have forgotten all of them.

    :returns: node ids by name.
    """
    ids: dict[str, int] = {}
    for node in ledger.nodes():
        if node.state != "active":
            continue
        ids[node.name] = register(node.public_key)
        if ids[node.name] != node.flower_id:
            ledger.set_node(node.name, flower_id=ids[node.name])
    return ids


def disable(ledger: Ledger, name: str) -> Node:
    """Keep a child out until it is enabled: its token opens nothing, rounds do not ask it."""
    return ledger.set_node(name, state="disabled")


def enable(ledger: Ledger, name: str) -> Node:
    """Let a disabled child in again.

    :raises Conflict: it was revoked.
    """
    return ledger.set_node(name, state="active")


def revoke(ledger: Ledger, name: str, unregister: Callable[[int], None]) -> Node:
    """Put a child out for ever. The ledger says so first; the SuperLink forgets the key after."""
    node = ledger.set_node(name, state="revoked")
    if node.flower_id is not None:
        unregister(node.flower_id)
    return node


def _check_proof(key: bytes, asked: Enrol) -> None:
    """:raises NotAuthorized: the caller does not hold the private half of the key."""
    public = serialization.load_pem_public_key(key)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(base64.b64decode(asked.proof, validate=True), proof_of(asked.secret), ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, binascii.Error, ValueError):
        raise NotAuthorized("`proof` should be signed with the private key of `public_key`, found another signature.") from None


def _free_name(ledger: Ledger, wished: str | None, bound: str | None) -> str:
    """The invitation's name, or the wish, with a number behind it if it is taken (the secret is used up: no second try)."""
    taken = {node.name for node in ledger.nodes()}
    name = bound or wished or "child"
    if name not in taken:
        return name
    return next(other for number in range(2, len(taken) + 3) if (other := f"{name[:58]}-{number}") not in taken)


__all__ = ["Register", "Registered", "disable", "enable", "enrol", "invite", "register_all", "registered", "revoke"]
