"""What a person chooses by name and options in one word, `trimmed_mean:trim=0.1`: fuse rules and codecs.

A choice is a frozen value whose fields are its options. In a file, a message and a record it is that word, in one canonical form:
options that are at their default are left out, the others stand in the order of the class.
"""

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from trunkline.errors import SpecError
from trunkline.values import Section

Chosen = TypeVar("Chosen", bound="Choice")


class Choice(Section):
    """Something chosen by name; subclasses name themselves and declare their options as fields, each with a default or required."""

    name: ClassVar[str]

    def __str__(self) -> str:
        """The canonical word."""
        changed = [
            f"{key}={_word(getattr(self, key))}"
            for key, field in type(self).model_fields.items()
            if getattr(self, key) != field.default
        ]
        return ":".join([self.name, ",".join(changed)]) if changed else self.name

    @classmethod
    def of_options(cls, parts: Sequence[str], what: str) -> Self:
        """Read what stands after the colon, cut at the commas.

        :param what: the key that a person wrote it under, for the error.
        :raises SpecError: no such option, or a value that it cannot have.
        """
        options = pairs(parts, f"`{what}` {cls.name}")
        for key in options:
            if key not in cls.model_fields:
                known = ", ".join(cls.model_fields) or "none"
                raise SpecError(f"the options of `{what}` {cls.name} should be among {known}, found {key[:80]!r}.")
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            at = ".".join(str(part) for part in first["loc"])
            found = f", found {options[at][:80]!r}" if at in options else ""
            where = f"`{what}` {cls.name}: `{at}`" if at else f"`{what}` {cls.name}"
            if first["type"] == "missing":
                hint = f"For example {cls.name}:{at}=4." if cls.model_fields[at].annotation is int else None
                raise SpecError(f"{where} should be set, found nothing.", hint=hint) from None
            raise SpecError(f"{where} is wrong: {first['msg'].removeprefix('Value error, ')}{found}.") from None


def parse(text: str, kinds: Mapping[str, type[Chosen]], what: str) -> Chosen:
    """Read `NAME` or `NAME:KEY=VALUE,KEY=VALUE`.

    :param kinds: what there is, by name.
    :param what: the key that a person wrote it under, for the error.
    :raises SpecError: no such name, no such option, or a value that it cannot have.
    """
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, n=1)
        hint = f"Did you mean {near[0]}?" if near else None
        raise SpecError(f"`{what}` should be one of {', '.join(kinds)}, found {name[:80]!r}.", hint=hint)
    return kinds[name].of_options(rest.split(",") if colon else [], what)


def pairs(parts: Iterable[str], where: str) -> dict[str, str]:
    """Options as a person writes them.

    :param where: what they are options of, for the error.
    :raises SpecError: one is no KEY=VALUE, or stands twice.
    """
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in options:
            raise SpecError(f"the options of {where} should be KEY=VALUE, each once, found {part[:80]!r}.")
        options[key] = value
    return options


def describe(kind: type[Choice], chosen: Choice | None = None) -> dict[str, Any]:
    """Name, one line, the whole text, and the options of a kind, as JSON data for people. Made from the class.

    :param chosen: one of the kind; each option then has its `value` there.
    """
    text = " ".join((inspect.getdoc(kind) or "").split())
    options: list[dict[str, str]] = list(_options(kind))
    if chosen is not None:
        options = [option | {"value": _word(getattr(chosen, option["name"]))} for option in options]
    return {"name": kind.name, "about": _first_sentence(text), "text": text, "options": options}


def _options(kind: type[Choice]) -> Iterator[dict[str, str]]:
    for key, field in kind.model_fields.items():
        default = "" if field.is_required() else _word(field.default)
        yield {"name": key, "default": default, "meaning": field.description or ""}


def _first_sentence(text: str) -> str:
    """Up to the first full stop or colon that ends a thought; sources in brackets are left out."""
    plain, depth = [], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign != ")":
            plain.append(sign)
    sentence = "".join(plain).replace("  ", " ").replace(" :", ":").replace(" ,", ",")
    end = min((place for mark in (". ", "; ") if (place := sentence.find(mark)) > 0), default=len(sentence))
    return sentence[:end].rstrip(" .")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value!r}" if isinstance(value, float) else str(value)
