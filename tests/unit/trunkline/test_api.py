"""Errors and invitations survive the wire whole; nothing that arrives can break the reader."""

import base64
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import errors
from trunkline.api import BlobFile, Enrol, Invitation, Manifest
from trunkline.api_errors import STATUS, error_body, error_classes, error_from
from trunkline.errors import Reason, RefusedValue, TrainingFailed, TrunklineError, UsageError

DIGEST = "ab" * 32


def made(kind: type[TrunklineError], hint: str | None = "Do this.") -> TrunklineError:
    if issubclass(kind, RefusedValue | TrainingFailed):
        return kind(Reason.SHAPE, "`x` should be 1, found 2.", hint=hint)
    return kind("`x` should be 1, found 2.", hint=hint)


def test_the_table_names_every_error_of_the_tree() -> None:
    # An adapter may have leaves of its own (a run that is gone); they never cross the API.
    assert set(STATUS) == {kind for kind in error_classes() if kind.__module__ == errors.__name__}
    named = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TrunklineError)}
    assert set(STATUS) == named


def test_no_two_errors_share_a_code() -> None:
    assert len({kind.code for kind in STATUS}) == len(STATUS)


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hint", ["Do this.", None])
def test_an_error_arrives_as_the_same_class_with_the_same_words(kind: type[TrunklineError], hint: str | None) -> None:
    sent = made(kind, hint)
    got = error_from(STATUS[kind], json.dumps(error_body(sent)))
    assert type(got) is kind
    assert (got.message, got.hint, got.exit_code, got.retryable) == (sent.message, sent.hint, sent.exit_code, sent.retryable)
    assert getattr(got, "reason", None) == getattr(sent, "reason", None)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "not_authorized"), (404, "not_found"), (409, "conflict"), (418, "usage"), (500, "failed"), (502, "unreachable")],
)
def test_a_stranger_s_answer_becomes_the_nearest_error(status: int, code: str) -> None:
    assert error_from(status, b"<html>Bad gateway</html>").code == code
    newer = json.dumps({"error": {"code": "from_the_future", "message": "m", "hint": None}})
    assert error_from(status, newer).code == code


@given(st.binary(max_size=200), st.integers(100, 599))
def test_no_body_breaks_the_reader(body: bytes, status: int) -> None:
    assert isinstance(error_from(status, body), TrunklineError)


JSON = st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3), max_leaves=4)


@given(
    st.fixed_dictionaries({"error": JSON | st.fixed_dictionaries({"code": JSON, "message": JSON, "hint": JSON, "reason": JSON})})
)
def test_no_json_breaks_the_reader(body: object) -> None:
    assert isinstance(error_from(400, json.dumps(body)), TrunklineError)


@given(
    st.from_regex(r"\Ahttps://[a-z0-9.]{1,20}:[1-9][0-9]{1,3}\Z"), st.text(string.ascii_letters + "-_", min_size=16, max_size=64)
)
def test_an_invitation_is_one_line_and_reads_back(url: str, secret: str) -> None:
    sent = Invitation(url=url, secret=secret, fingerprint=DIGEST)
    line = sent.encode()
    assert line.isascii() and not any(c.isspace() or c in "+/=" for c in line)
    assert Invitation.decode(line) == sent
    assert Invitation.decode(f"  {line[:20]}\n{line[20:]}\n") == sent  # as a terminal may wrap it


@given(st.text(max_size=300))
def test_anything_else_is_no_invitation(text: str) -> None:
    with pytest.raises(UsageError, match="trunkline node invite"):
        Invitation.decode(text)


def test_half_an_invitation_is_none_and_is_not_repeated_in_the_error() -> None:
    line = Invitation(url="https://m.example:8440", secret="s" * 40, fingerprint=DIGEST).encode()
    with pytest.raises(UsageError) as caught:
        Invitation.decode(line[:-9])
    assert line[:20] not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://m.example:8440", "https://", "https://m.example/path", "https://user@m.example", "file:///x"]
)
def test_an_invitation_leads_to_an_https_address_and_nowhere_else(url: str) -> None:
    body = base64.urlsafe_b64encode(json.dumps({"u": url, "s": "s" * 40, "f": DIGEST}).encode()).decode()
    with pytest.raises(UsageError):
        Invitation.decode(body)


def test_a_manifest_has_one_spelling() -> None:
    one = Manifest(files={"b.json": BlobFile(digest=DIGEST, size=1), "a.json": BlobFile(digest=DIGEST, size=2)})
    two = Manifest(files=dict(reversed(one.files.items())))
    assert one.encode() == two.encode()
    assert Manifest.decode(one.encode()) == one


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "a" * 200, "x\0y", "con:1"])
def test_a_manifest_names_plain_files_only(name: str) -> None:
    with pytest.raises(RefusedValue) as caught:
        Manifest.decode(json.dumps({name: [DIGEST, 1]}).encode())
    assert caught.value.reason is Reason.MALFORMED


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_break_the_manifest_s_reader(data: bytes) -> None:
    try:
        Manifest.decode(data)
    except RefusedValue as error:
        assert error.reason is Reason.MALFORMED


def test_the_secret_is_not_shown_by_repr() -> None:
    body = Enrol(secret="a-secret-that-works-once", public_key="k", proof="p")
    assert "a-secret-that-works-once" not in repr(body)
