"""Messages: there and back, older and newer sides, and whatever else may come off a wire."""

import json
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from trunkline import messages, wire
from trunkline.errors import Reason, RefusedValue, TrunklineError, WireVersionMismatch
from trunkline.messages import (
    Confirmation,
    DeltaRef,
    EncoderRef,
    Failure,
    InitialSet,
    Instruction,
    Machine,
    Message,
    Plan,
    Report,
    ReportRequest,
    Request,
    Score,
    SetRef,
    TaskCount,
    Update,
    decode,
)
from trunkline.values import Value, since

DIGEST = "0123456789abcdef" * 4
ENCODER = EncoderRef(name="reviews", type="text", manifest=DIGEST)
SET = SetRef(digest=DIGEST, size=84_000_000, version=3)
PLAN = Plan(steps=20, total_steps=200, done_steps=40, prox=0.01, batch_size=32)
SCORE = Score(task="sentiment", split="validation", metric="accuracy", value=0.9, samples=71)

EXAMPLES: list[Message] = [
    Request(child="amazon", type="text", tasks=("sentiment",)),
    Instruction(job="nightly", round=2, encoder=ENCODER, base=SET, plan=PLAN, codec="bf16"),
    Confirmation(
        job="nightly",
        round=2,
        child="amazon",
        accepted=True,
        tasks=(TaskCount(task="sentiment", head="single", metric="accuracy", samples=690),),
        holds=(DIGEST,),
        machine=Machine(cpus=2, memory=1 << 34, gpus=("T4",)),
    ),
    Confirmation(job="nightly", round=2, child="mail", accepted=False, reason=Reason.POLICY, detail="hours"),
    InitialSet(job="nightly", round=2, child="amazon", encoder=ENCODER, base=SET, plan=PLAN, token="t", upload_token="u"),
    Update(
        job="nightly",
        round=2,
        child="amazon",
        base=DIGEST,
        digest=DIGEST,
        size=84_000_000,
        codec="float32",
        samples={"sentiment": 640},
        applied={"sentiment": 640},
        losses={"sentiment": 0.25},
        seconds=3.5,
    ),
    ReportRequest(
        job="nightly",
        round=2,
        child="amazon",
        encoder=ENCODER,
        target=SET,
        token="t",
        delta=DeltaRef(held=DIGEST, digest=DIGEST, size=42_000_000, codec="bf16"),
    ),
    Report(job="nightly", round=2, child="amazon", target=DIGEST, scores=(SCORE,), seconds=0.5),
    Failure(child="amazon", reason=Reason.MEMORY, detail="out of memory"),
]


def test_there_is_an_example_of_every_kind() -> None:
    kinds = {kind.kind for kind in Message.__subclasses__() if kind.__module__ == messages.__name__}
    assert {example.kind for example in EXAMPLES} == kinds


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_there_and_back(message: Message) -> None:
    text = message.encode()
    assert decode(text) == decode(text.encode()) == type(message).decode(text) == message
    assert json.loads(text)["wire"] == wire.NEWEST
    assert type(message).of_table(message.table()) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_nothing_in_a_message_can_be_changed(message: Message) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        message.child = "somebody"  # type: ignore[attr-defined]


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(RefusedValue, match="the message should be a report, found a failure") as caught:
        Report.decode(EXAMPLES[-1].encode())
    assert caught.value.reason is Reason.MALFORMED


# -- older and newer sides ---------------------------------------------------------------------------------------------


class Part(Value):
    """What a later version adds a field to, deep inside."""

    a: int
    b: int = Field(default=7, json_schema_extra=since(2))


class Later(Message):
    """A message of a later version."""

    kind: ClassVar[str] = "later"
    child: str
    parts: tuple[Part, ...] = ()
    note: str = Field(default="none", json_schema_extra=since(2))
    more: str = Field(default="none", json_schema_extra=since(3))


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "NEWEST", 3)
    monkeypatch.setitem(messages._KINDS, "later", Later)


@pytest.mark.usefixtures("newer")
def test_a_newer_side_writes_what_an_older_one_reads() -> None:
    message = Later(child="c", parts=(Part(a=1, b=2),), note="n", more="m")
    bodies = {wire: json.loads(message.encode(wire))["body"] for wire in (1, 2, 3)}
    assert bodies[1] == {"child": "c", "parts": [{"a": 1}]}
    assert bodies[2] == {"child": "c", "parts": [{"a": 1, "b": 2}], "note": "n"}
    assert bodies[3] == {"child": "c", "parts": [{"a": 1, "b": 2}], "note": "n", "more": "m"}
    assert decode(message.encode(3)) == message
    assert decode(message.encode(1)) == Later(child="c", parts=(Part(a=1),))


@pytest.mark.parametrize("message", EXAMPLES[:-1], ids=lambda message: message.kind)
def test_a_message_in_a_version_that_is_not_spoken_is_named(message: Message) -> None:
    with pytest.raises(WireVersionMismatch, match="the wire version should be 1 to 2, found 3"):
        decode(message.encode(3))
    with pytest.raises(WireVersionMismatch, match="found 0"):
        decode(message.encode().replace('"wire":2', '"wire":0'))


def test_a_failure_is_understood_in_any_version() -> None:
    failure = EXAMPLES[-1]
    assert decode(failure.encode(99)) == failure


# -- whatever comes off a wire -----------------------------------------------------------------------------------------

GARBAGE: dict[str, str | bytes] = {
    "nothing": b"",
    "no JSON": "{",
    "no UTF-8": b"\xff\xfe{}",
    "a number": "1",
    "null": "null",
    "a list": "[]",
    "no envelope": "{}",
    "no body": '{"wire":1,"kind":"report"}',
    "a body that is a list": '{"wire":1,"kind":"report","body":[]}',
    "a wire version in words": '{"wire":"1","kind":"report","body":{}}',
    "a wire version that is a truth": '{"wire":true,"kind":"report","body":{}}',
    "an unknown kind": '{"wire":1,"kind":"order","body":{}}',
    "a kind that is a list": '{"wire":1,"kind":[],"body":{}}',
    "a kind that is a table": '{"wire":1,"kind":{},"body":{}}',
    "nested without end": '{"wire":1,"kind":"report","body":' + '{"a":' * 100_000,
    "nested to the brink": '{"wire":1,"kind":"report","body":{"a":' + "[" * 900 + "]" * 900 + "}}",
    "half a surrogate pair": '{"wire":1,"kind":"failure","body":{"child":"\\ud800","reason":"memory","detail":""}}',
    "NaN": EXAMPLES[-2].encode().replace("0.9", "NaN"),
    "infinity": EXAMPLES[-2].encode().replace("0.9", "1e999"),
    "an unknown field": EXAMPLES[-2].encode().replace('"job"', '"jobs":1,"job"'),
    "a path for a name": EXAMPLES[-2].encode().replace('"amazon"', '"../../etc"'),
    "a number in quotes": EXAMPLES[-2].encode().replace('"round":2', '"round":"2"'),
    "a digest in capitals": EXAMPLES[-2].encode().replace(DIGEST, DIGEST.upper()),
    "a negative count": EXAMPLES[-2].encode().replace('"samples":71', '"samples":-1'),
    "a count beyond 2**53": EXAMPLES[-2].encode().replace('"samples":71', f'"samples":{2**53 + 1}'),
}


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_with_one_short_reason(text: str | bytes) -> None:
    with pytest.raises(RefusedValue) as caught:
        decode(text)
    assert caught.value.reason is Reason.MALFORMED
    assert len(str(caught.value)) < 400


def test_a_refusal_does_not_repeat_what_came() -> None:
    for text in (b'{"secret sample \xff', '{"wire":1,"kind":"report","body":{"child":"secret sample"}}', '{"secret sample":1}'):
        with pytest.raises(RefusedValue) as caught:
            decode(text)
        assert "secret" not in str(caught.value)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a0.-", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(EXAMPLES), st.data())
def test_any_field_may_hold_anything_and_only_one_error_comes_of_it(message: Message, data: st.DataObject) -> None:
    envelope = json.loads(message.encode())
    table: dict[str, Any] = data.draw(st.sampled_from([envelope, envelope["body"]]))
    table[data.draw(st.sampled_from(sorted(table)))] = data.draw(JSON)
    try:
        decode(json.dumps(envelope))
    except TrunklineError as error:
        assert isinstance(error, RefusedValue | WireVersionMismatch)
