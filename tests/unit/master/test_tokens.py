"""A grant opens what it was made for and nothing else, and every changed byte closes it."""

import base64
import json
import os
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.tokens import Gate, Grant, hash_token, new_secret, new_token
from trunkline.clock import ManualClock
from trunkline.errors import DamagedFile, NotAuthorized, SettingsError, StorageFailed

SECRET, DIGEST, OTHER = bytes(range(32)), "a" * 64, "b" * 64
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(SECRET, clock)


@settings(max_examples=50, deadline=None)
@given(
    child=NAMES,
    job=NAMES,
    number=st.integers(1, 2**31),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    direction=st.sampled_from(["down", "up"]),
    size=st.integers(0, 2**53),
)
def test_a_grant_comes_back_as_it_was_made(child: str, job: str, number: int, digest: str, direction: str, size: int) -> None:
    gate = Gate(SECRET, ManualClock(1000.0))
    token = gate.issue(child, job, number, digest, direction, size, 60.0)  # type: ignore[arg-type]
    assert set(token) <= set(string.ascii_letters + string.digits + "-_."), "fits into a header and a URL"
    grant = gate.check(token, digest=digest, direction=direction, child=child)  # type: ignore[arg-type]
    assert grant == Grant(child, job, number, digest, direction, size, 1060.0)  # type: ignore[arg-type]


def test_every_changed_byte_closes_it(gate: Gate) -> None:
    """Also the bits that base64 does not use: another text for the same bytes is another token."""
    token = gate.issue("a", "job-1", 1, DIGEST, "down", 100, 60.0)
    gate.check(token, digest=DIGEST, direction="down")
    alphabet = string.ascii_letters + string.digits + "-_"
    last = len(token) - 1
    for place, letter in enumerate(token):
        others = alphabet if place == last else (alphabet[(alphabet.find(letter) + 1) % 64], ".", "=", "é", "\0")
        for other in others:
            if other != letter:
                with pytest.raises(NotAuthorized, match="changed"):
                    gate.check(token[:place] + other + token[place + 1 :], digest=DIGEST, direction="down")
    for wrong in (
        token[:-1],
        token + "=",
        token + "A",
        token[1:],
        token.replace(".", ""),
        token + ".",
        "." + token,
        "",
        ".",
        token * 20,
    ):
        with pytest.raises(NotAuthorized, match="changed"):
            gate.check(wrong, digest=DIGEST, direction="down")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_no_text_opens_the_gate(text: str) -> None:
    with pytest.raises(NotAuthorized):
        Gate(SECRET, ManualClock()).check(text, digest=DIGEST, direction="down")


def test_it_expires_to_the_second(gate: Gate, clock: ManualClock) -> None:
    token = gate.issue("a", "job-1", 1, DIGEST, "down", 100, 60.0)
    clock.seconds = 1059.999
    gate.check(token, digest=DIGEST, direction="down")
    clock.seconds = 1060.0
    with pytest.raises(NotAuthorized, match="expired"):
        gate.check(token, digest=DIGEST, direction="down")


def test_it_is_for_one_child_one_digest_and_one_direction(gate: Gate) -> None:
    token = gate.issue("a", "job-1", 1, DIGEST, "down", 100, 60.0)
    with pytest.raises(NotAuthorized, match="another digest"):
        gate.check(token, digest=OTHER, direction="down")
    with pytest.raises(NotAuthorized, match="another digest"):
        gate.check(token, digest=None, direction="down")
    with pytest.raises(NotAuthorized, match="another child"):
        gate.check(token, digest=DIGEST, direction="down", child="b")
    with pytest.raises(NotAuthorized, match="going up, found one for going down"):
        gate.check(token, digest=DIGEST, direction="up")


def test_an_upload_is_bound_to_the_base_and_carries_a_limit(gate: Gate) -> None:
    token = gate.issue("a", "job-1", 2, DIGEST, "up", 1 << 20, 60.0)
    assert gate.check(token, digest=None, direction="up", child="a").size == 1 << 20
    assert gate.check(token, digest=DIGEST, direction="up").round == 2
    for wrong in ({"digest": OTHER, "direction": "up"}, {"digest": DIGEST, "direction": "down"}):
        with pytest.raises(NotAuthorized):
            gate.check(token, **wrong)  # type: ignore[arg-type]


def test_another_secret_and_another_version_are_refused(gate: Gate, clock: ManualClock) -> None:
    other = Gate(bytes(32), clock)
    with pytest.raises(NotAuthorized, match="changed"):
        gate.check(other.issue("a", "job-1", 1, DIGEST, "down", 1, 60.0), digest=DIGEST, direction="down")
    text = gate.issue("a", "job-1", 1, DIGEST, "down", 1, 60.0).partition(".")[0]
    payload = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) | {"v": 2}
    newer = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()
    with pytest.raises(NotAuthorized, match="version 1, found 2"):
        gate.check(f"{newer}.{gate._sign(newer)}", digest=DIGEST, direction="down")
    with pytest.raises(SettingsError, match="32 bytes, found 31"):
        Gate(bytes(31), clock)


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: new_secret(path), range(8)))
    assert found == {path.read_bytes()} and len(found.pop()) == 32
    assert [file.name for file in path.parent.iterdir()] == ["secret"]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(DamagedFile, match="32 bytes, found 5"):
        new_secret(path)


def test_where_there_are_no_hard_links_a_secret_is_made_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "no links on this disk")

    monkeypatch.setattr(os, "link", link)
    assert new_secret(tmp_path / "secret") == new_secret(tmp_path / "secret")
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]


def test_tokens_differ_and_their_hashes_say_nothing() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100 and min(map(len, tokens)) >= 43
    hashes = {hash_token(token) for token in tokens}
    assert len(hashes) == 100 and all(len(known) == 64 for known in hashes)
    assert hash_token("\ud800") == hash_token("?"), "odd text is a wrong token, not an error"


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFailed, match="No space left"):
        new_secret(tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []
