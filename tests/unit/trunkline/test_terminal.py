"""What is printed: one envelope, the same in each form, and nothing a child said can steer the terminal."""

import io
import json
from typing import Any

import pytest
import yaml as reference
from hypothesis import given
from hypothesis import strategies as some

from trunkline.api_errors import error_classes
from trunkline.errors import NotFound, Reason, RefusedValue, TrunklineError
from trunkline.terminal import FORMS, Form, Result, Terminal, cell, table
from trunkline.yaml import yaml

VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**53), 2**53)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=12,
)


def printed(form: Form, result: Result, *, quiet: bool = False) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = Terminal(form, quiet=quiet, stdout=out, stderr=err).finish(result)
    return code, out.getvalue(), err.getvalue()


def envelope(form: Form, text: str) -> Any:
    if form == "yaml":
        return reference.safe_load(text)
    return json.loads(text.splitlines()[-1] if form == "jsonl" else text)


RESULTS = {
    "ok": Result({"a": 1}, ["a 1"]),
    "nothing": Result(),
    "partial": Result([1], partial=True),
    "failed with data": Result([{"check": "x"}], error=NotFound("x should be there, found none.", hint="Look.")),
    "refused": Result(error=RefusedValue(Reason.SHAPE, "it should be (3,), found (2,).")),
    "interrupted": Result(signal=2),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("form", FORMS)
def test_the_exit_code_is_the_same_in_each_form_and_stands_in_the_envelope(form: Form, name: str) -> None:
    result = RESULTS[name]
    code, out, err = printed(form, result)
    assert code == {"ok": 0, "nothing": 0, "partial": 6, "failed with data": 5, "refused": 1, "interrupted": 130}[name]
    assert bool(err) == (result.error is not None or result.signal > 0)
    if form != "table":
        told = envelope(form, out)
        assert set(told) == {"schema_version", "status", "exit_code", "data", "error"}
        assert (told["exit_code"], told["schema_version"]) == (code, "1")
        assert told["status"] == ("error" if code not in (0, 6) else "partial" if code else "ok")
        assert (told["error"] is None) == (told["status"] != "error")


def test_an_error_keeps_its_code_hint_and_reason() -> None:
    _, out, err = printed("json", RESULTS["refused"])
    told = json.loads(out)["error"]
    assert (told["code"], told["reason"], told["retryable"], told["hint"]) == ("refused", "shape", False, None)
    assert err == "error: it should be (3,), found (2,).\n"
    assert printed("table", RESULTS["failed with data"])[2] == "error: x should be there, found none. Look.\n"


def test_every_error_has_an_exit_code_of_the_table() -> None:
    codes = {kind.exit_code for kind in error_classes(TrunklineError)}
    assert codes == {1, 2, 3, 4, 5, 70}


def test_rows_of_json_lines_come_one_a_line_and_the_envelope_last() -> None:
    out = io.StringIO()
    terminal = Terminal("jsonl", stdout=out, stderr=io.StringIO())
    terminal.row({"event": 1}, "for people")
    terminal.finish(Result([{"row": 1}, {"row": 2}]))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[:3] == [{"event": 1}, {"row": 1}, {"row": 2}]
    assert lines[3]["status"] == "ok" and lines[3]["data"] is None and len(lines) == 4


@pytest.mark.parametrize(("form", "expected"), [("table", "for people\n"), ("json", ""), ("yaml", "")])
def test_what_happens_on_the_way_is_a_line_for_people_only(form: Form, expected: str) -> None:
    out = io.StringIO()
    Terminal(form, stdout=out, stderr=io.StringIO()).row({"event": 1}, "for people")
    assert out.getvalue() == expected


def test_quiet_silences_progress_but_no_error() -> None:
    err = io.StringIO()
    terminal = Terminal("table", quiet=True, stdout=io.StringIO(), stderr=err)
    terminal.note("half way")
    assert err.getvalue() == ""
    terminal.finish(Result(error=NotFound("x should be there, found none.")))
    assert "found none" in err.getvalue()


@given(VALUES)
def test_yaml_says_what_json_says(value: Any) -> None:
    assert reference.safe_load("\n".join(yaml(value))) == json.loads(json.dumps(value))


@pytest.mark.parametrize("key", ["no", "on", "null", "1", "a b", "x:", "", "ä", "1e3", "- x", "true"])
def test_yaml_keys_stay_text(key: str) -> None:
    assert reference.safe_load("\n".join(yaml({key: 1}))) == {key: 1}


def test_columns_line_up_and_an_empty_table_says_so() -> None:
    lines = table([{"name": "ada", "last_seen": None}, {"name": "b", "last_seen": 0.123456}], ("name", "last_seen"))
    assert lines == ["NAME  LAST SEEN", "ada   -", "b     0.1235"]
    assert table([], ("name",), "none yet") == ["none yet"]


def test_what_a_child_said_cannot_steer_the_terminal() -> None:
    assert cell("a\x1b[2Jb\r\nc\x9b") == "a [2Jb c "
    assert cell("a\u202e0.9\u2066b\u2028c") == "a 0.9 b c", "nor turn a line round"
    assert cell("ä \u05d0\u05d1 \u4e2d") == "ä \u05d0\u05d1 \u4e2d", "words of any script stay as they are"
    _, _, err = printed("table", Result(error=NotFound("child \x1b[31m'x'\n should be there, found none.")))
    assert err.count("\n") == 1 and "\x1b" not in err


def test_numbers_that_json_has_not_are_no_json() -> None:
    with pytest.raises(ValueError):
        printed("json", Result({"x": float("nan")}))
