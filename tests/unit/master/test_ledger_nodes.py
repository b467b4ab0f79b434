"""Laws of invitations, nodes and requests."""

from typing import Any

import pytest

from master.ledger import Ledger
from tests.support.ledgers import digest, memory_ledger, owned_job
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotAuthorized, NotFound


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    return memory_ledger(clock)


def test_an_invitation_is_good_once_and_until_it_expires(ledger: Ledger) -> None:
    ledger.add_invite(digest("1"), "shop", expires=1100.0)
    ledger.add_invite(digest("2"), None, expires=1100.0)
    with pytest.raises(NotAuthorized, match="expired"):
        ledger.use_invite(digest("1"), 1100.0)
    assert ledger.use_invite(digest("1"), 1099.9) == "shop"
    with pytest.raises(NotAuthorized, match="used"):
        ledger.use_invite(digest("1"), 1099.9)
    assert ledger.use_invite(digest("2"), 1000.0) is None
    with pytest.raises(NotAuthorized, match="unknown"):
        ledger.use_invite(digest("3"), 1000.0)


def test_names_and_tokens_of_nodes_are_their_own(ledger: Ledger) -> None:
    first = ledger.add_node("shop", b"key", digest("1"))
    assert (first.state, first.created, first.seen, first.flower_id) == ("active", 1000.0, None, None)
    for name, token in (("shop", digest("2")), ("other", digest("1"))):
        with pytest.raises(Conflict, match=name):
            ledger.add_node(name, b"key", token)
    ledger.add_node("bakery", b"key", digest("2"))
    assert [node.name for node in ledger.nodes()] == ["bakery", "shop"]
    assert ledger.node_by_token_hash(digest("1")) == ledger.node("shop") == first
    assert ledger.node_by_token_hash(digest("9")) is None
    with pytest.raises(NotFound, match="'florist'"):
        ledger.node("florist")


def test_setting_changes_what_is_named_and_nothing_else(ledger: Ledger) -> None:
    before = ledger.add_node("shop", b"key", digest("1"), tasks=["a"], machine={"cpus": 2}, labels={"x": "y"}, speaks=(1, 3))
    changes: dict[str, Any] = {
        "flower_id": 2**63 + 1,
        "boot": "b1",
        "machine": {"cpus": 4},
        "tasks": ["b"],
        "speaks": (2, 3),
        "state": "disabled",
        "seen": 5.0,
        "labels": {},
        "public_key": b"new",
        "token_hash": digest("2"),
    }
    fields = {name: getattr(before, name) for name in before.__dataclass_fields__}
    for name, value in changes.items():
        after = ledger.set_node("shop", **{name: value})
        fields[name] = value
        assert {key: getattr(after, key) for key in fields} == fields
    with pytest.raises(TypeError, match="colour"):
        ledger.set_node("shop", colour="red")
    with pytest.raises(NotFound):
        ledger.set_node("florist", seen=1.0)


def test_a_revoked_node_stays_revoked(ledger: Ledger) -> None:
    ledger.add_node("shop", b"key", digest("1"))
    for state in ("disabled", "active", "active", "revoked"):
        ledger.set_node("shop", state=state)
    with pytest.raises(Conflict, match="revoked"):
        ledger.set_node("shop", state="active")
    ledger.set_node("shop", seen=9.0)
    kinds = [event.kind for event in ledger.events()]
    assert kinds == ["node.enrolled", "node.disabled", "node.active", "node.revoked"], "being seen is no event"


def test_asking_again_while_a_request_is_open_changes_nothing(ledger: Ledger) -> None:
    first = ledger.add_request("shop", type="text", tasks=("b", "a"))
    assert ledger.add_request("shop", type="text", tasks=("a", "b"), at=2000.0) == first
    others = [
        ledger.add_request("shop", type="text"),
        ledger.add_request("shop", encoder="text", tasks=("a", "b")),
        ledger.add_request("bakery", type="text", tasks=("a", "b")),
    ]
    assert [request.id for request in ledger.open_requests()] == [first.id, *(other.id for other in others)]
    job = owned_job(ledger)
    ledger.attach_request(first.id, job.job_id)
    ledger.attach_request(first.id, job.job_id)
    assert first.id not in {request.id for request in ledger.open_requests()}
    assert ledger.add_request("shop", type="text", tasks=("a", "b")).id not in {first.id, *(other.id for other in others)}
    with pytest.raises(Conflict, match=job.job_id):
        ledger.attach_request(first.id, "another")
    with pytest.raises(NotFound):
        ledger.attach_request(999, job.job_id)
