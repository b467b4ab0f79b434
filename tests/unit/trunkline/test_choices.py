"""Names with options in one word."""

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from trunkline.choices import Choice, describe, parse
from trunkline.errors import SpecError


class Plain(Choice):
    name: ClassVar = "plain"


class Rich(Choice):
    """Rich in options (Somebody, 2020). And more."""

    name: ClassVar = "rich"
    trim: Annotated[float, Field(ge=0, lt=0.5, description="Share cut off.")] = 0.1
    count: Annotated[int, Field(ge=1)]
    fair: bool = False
    form: Literal["a", "b"] = "a"


KINDS: dict[str, type[Choice]] = {"plain": Plain, "rich": Rich}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("plain", "plain"),
        ("rich:count=3", "rich:count=3"),
        ("rich: count=3 , trim=0.1", "rich:count=3"),
        ("rich:form=b,fair=true,count=3,trim=0.25", "rich:trim=0.25,count=3,fair=true,form=b"),
    ],
)
def test_a_word_is_read_and_written_in_one_form(text: str, canonical: str) -> None:
    found = parse(text, KINDS, "rule")
    assert str(found) == canonical
    assert parse(canonical, KINDS, "rule") == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "`rule` should be one of plain, rich, found ''"),
        ("other", "`rule` should be one of plain, rich, found 'other'"),
        ("plain:x=1", "should be among none, found 'x'"),
        ("plain:", "should be KEY=VALUE"),
        ("rich:count", "should be KEY=VALUE, each once, found 'count'"),
        ("rich:count=1,count=2", "each once"),
        ("rich", "`count`"),
        ("rich:count=0", "found '0'"),
        ("rich:count=1,trim=nan", "`trim`"),
        ("rich:count=1,trim=0.5", "found '0.5'"),
        ("rich:count=1,form=c", "`form`"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, KINDS, "rule")
    assert said in caught.value.message


def test_a_name_that_is_nearly_one_is_told() -> None:
    with pytest.raises(SpecError) as caught:
        parse("plane:x=1", KINDS, "rule")
    assert caught.value.hint == "Did you mean plain?"


def test_a_kind_describes_itself() -> None:
    told = describe(Rich)
    assert (told["name"], told["about"]) == ("rich", "Rich in options")
    assert told["options"][0] == {"name": "trim", "default": "0.1", "meaning": "Share cut off."}
    assert told["options"][1] == {"name": "count", "default": "", "meaning": ""}
