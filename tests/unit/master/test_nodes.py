"""How children come in: one invitation, one child; a key says who somebody is; what breaks midway is repaired by asking again."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from master import nodes
from master.ledger import Ledger
from master.tokens import hash_token
from trunkline.api import Enrol, Invitation, proof_of
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotAuthorized, Unreachable, UsageError, WireVersionMismatch

URL, FINGERPRINT = "https://127.0.0.1:8440", "ab" * 32


class Link:
    """A SuperLink that may be away."""

    def __init__(self) -> None:
        self.ids: dict[bytes, int] = {}
        self.away = False

    def register(self, key: bytes) -> int:
        if self.away:
            raise Unreachable("the SuperLink should answer, found nothing.")
        return self.ids.setdefault(key, 2**64 - 1 - len(self.ids))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Iterator[Ledger]:
    found = Ledger.open("sqlite://", clock)
    yield found
    found.close()


def secret(ledger: Ledger, clock: ManualClock, name: str | None = None, seconds: float = 60.0) -> str:
    return Invitation.decode(nodes.invite(ledger, name, seconds, url=URL, fingerprint=FINGERPRINT, clock=clock)).secret


def asked(secret: str, key: ec.EllipticCurvePrivateKey, name: str | None = None, **changes: object) -> Enrol:
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    proof = base64.b64encode(key.sign(proof_of(secret), ec.ECDSA(hashes.SHA384()))).decode()
    return Enrol.model_validate({"secret": secret, "name": name, "public_key": public.decode(), "proof": proof} | changes)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def test_an_invited_child_gets_name_token_and_node_id(ledger: Ledger, clock: ManualClock) -> None:
    link, key = Link(), new_key()
    got = nodes.enrol(ledger, asked(secret(ledger, clock, "shop-a"), key, "other"), link.register, clock)
    assert got.node.name == "shop-a", "the invitation decides the name"
    assert got.node.flower_id == link.ids[got.node.public_key] > 2**63
    found = ledger.node_by_token_hash(hash_token(got.token))
    assert found is not None and found.name == "shop-a"
    assert got.token not in repr(ledger.nodes()), "only the hash of a token is kept"


def test_an_invitation_lets_one_child_in(ledger: Ledger, clock: ManualClock) -> None:
    link, once = Link(), secret(ledger, clock)
    nodes.enrol(ledger, asked(once, new_key()), link.register, clock)
    with pytest.raises(NotAuthorized, match="used"):
        nodes.enrol(ledger, asked(once, new_key()), link.register, clock)
    assert len(ledger.nodes()) == len(link.ids) == 1


@pytest.mark.parametrize("later", [59.9, 60.0, 1e6])
def test_an_invitation_ends(ledger: Ledger, clock: ManualClock, later: float) -> None:
    link, once = Link(), secret(ledger, clock, seconds=60.0)
    clock.sleep(later)
    if later < 60.0:
        nodes.enrol(ledger, asked(once, new_key()), link.register, clock)
        return
    with pytest.raises(NotAuthorized, match="expired"):
        nodes.enrol(ledger, asked(once, new_key()), link.register, clock)
    assert not ledger.nodes() and not link.ids


def test_a_stranger_leaves_no_trace(ledger: Ledger, clock: ManualClock) -> None:
    link = Link()
    with pytest.raises(NotAuthorized, match="unknown"):
        nodes.enrol(ledger, asked("x" * 40, new_key()), link.register, clock)
    assert not ledger.nodes() and not link.ids


def test_the_same_key_may_ask_again_and_the_old_token_ends(ledger: Ledger, clock: ManualClock) -> None:
    link, key, once = Link(), new_key(), secret(ledger, clock, "shop-a")
    first = nodes.enrol(ledger, asked(once, key), link.register, clock)
    again = nodes.enrol(ledger, asked(once, key), link.register, clock)
    assert (again.node.name, again.node.flower_id) == (first.node.name, first.node.flower_id)
    assert ledger.node_by_token_hash(hash_token(first.token)) is None
    assert ledger.node_by_token_hash(hash_token(again.token)) is not None
    assert len(ledger.nodes()) == 1


def test_somebody_else_s_key_is_no_use(ledger: Ledger, clock: ManualClock) -> None:
    """Given a child that is in, When another shows the child's public key, Then it gets nothing: it cannot sign."""
    link, key, once = Link(), new_key(), secret(ledger, clock)
    first = nodes.enrol(ledger, asked(once, key), link.register, clock)
    thief = asked(once, new_key(), public_key=first.node.public_key.decode())
    with pytest.raises(NotAuthorized, match="proof"):
        nodes.enrol(ledger, thief, link.register, clock)
    replayed = asked(secret(ledger, clock), key).model_copy(update={"proof": asked(once, key).proof})
    with pytest.raises(NotAuthorized, match="proof"):
        nodes.enrol(ledger, replayed, link.register, clock)
    assert ledger.node_by_token_hash(hash_token(first.token)) is not None


@pytest.mark.parametrize("proof", ["", "%%%", "AAAA", "ä"])
def test_a_proof_that_is_none_uses_nothing_up(ledger: Ledger, clock: ManualClock, proof: str) -> None:
    link, key, once = Link(), new_key(), secret(ledger, clock)
    with pytest.raises(NotAuthorized, match="proof"):
        nodes.enrol(ledger, asked(once, key, proof=proof), link.register, clock)
    nodes.enrol(ledger, asked(once, key), link.register, clock)


@pytest.mark.parametrize(
    ("changes", "error"), [({"public_key": "garbage"}, UsageError), ({"speaks": (90, 99)}, WireVersionMismatch)]
)
def test_what_cannot_work_uses_nothing_up(
    ledger: Ledger, clock: ManualClock, changes: dict[str, Any], error: type[Exception]
) -> None:
    link, key, once = Link(), new_key(), secret(ledger, clock)
    with pytest.raises(error):
        nodes.enrol(ledger, asked(once, key, **changes), link.register, clock)
    nodes.enrol(ledger, asked(once, key), link.register, clock)


def test_a_superlink_that_is_away_costs_a_second_try_only(ledger: Ledger, clock: ManualClock) -> None:
    """Given a SuperLink that is away, When a child enrols, Then the same call does later, with the used invitation."""
    link, key, once = Link(), new_key(), secret(ledger, clock, "shop-a")
    link.away = True
    with pytest.raises(Unreachable):
        nodes.enrol(ledger, asked(once, key), link.register, clock)
    link.away = False
    got = nodes.enrol(ledger, asked(once, key), link.register, clock)
    assert (got.node.name, got.node.flower_id) == ("shop-a", link.ids[got.node.public_key])


def test_a_wish_that_is_taken_gets_a_number(ledger: Ledger, clock: ManualClock) -> None:
    link = Link()
    names = [nodes.enrol(ledger, asked(secret(ledger, clock), new_key(), "a" * 64), link.register, clock).node.name for _ in "123"]
    assert names == ["a" * 64, f"{'a' * 58}-2", f"{'a' * 58}-3"]


def test_a_name_is_invited_once(ledger: Ledger, clock: ManualClock) -> None:
    link = Link()
    nodes.enrol(ledger, asked(secret(ledger, clock, "shop-a"), new_key()), link.register, clock)
    with pytest.raises(Conflict, match="shop-a"):
        secret(ledger, clock, "shop-a")


def test_a_superlink_that_forgot_everything_is_told_again(ledger: Ledger, clock: ManualClock) -> None:
    link = Link()
    for name in ("a", "b", "c"):
        nodes.enrol(ledger, asked(secret(ledger, clock, name), new_key()), link.register, clock)
    nodes.revoke(ledger, "c", lambda flower_id: None)
    fresh = Link()
    fresh.ids[b"somebody else"] = 5
    ids = nodes.register_all(ledger, fresh.register)
    assert set(ids) == {"a", "b"}
    assert {node.name: node.flower_id for node in ledger.nodes() if node.name in ids} == ids


def test_a_revoked_child_stays_out(ledger: Ledger, clock: ManualClock) -> None:
    link, key, once = Link(), new_key(), secret(ledger, clock, "shop-a")
    got = nodes.enrol(ledger, asked(once, key), link.register, clock)
    forgotten: list[int] = []
    nodes.revoke(ledger, "shop-a", forgotten.append)
    assert forgotten == [got.node.flower_id]
    with pytest.raises(NotAuthorized, match="revoked"):
        nodes.enrol(ledger, asked(secret(ledger, clock), key), link.register, clock)
    with pytest.raises(Conflict):
        nodes.enable(ledger, "shop-a")


def test_a_disabled_child_may_come_back(ledger: Ledger, clock: ManualClock) -> None:
    link, key, once = Link(), new_key(), secret(ledger, clock, "shop-a")
    nodes.enrol(ledger, asked(once, key), link.register, clock)
    nodes.disable(ledger, "shop-a")
    with pytest.raises(NotAuthorized, match="disabled"):
        nodes.enrol(ledger, asked(once, key), link.register, clock)
    assert nodes.enable(ledger, "shop-a").state == "active"
