"""What a person chooses by name and options in one word, `trimmed_mean:trim=0.1`: fuse rules and codecs.

A choice is a frozen value whose fields are its options. In a file, a message and a record it is that word, in one canonical form:
options that are at their default are left out, the others stand in the order of the class.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Self, TypeVar

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
            raise SpecError(f"{where} is wrong: {first['msg'].removeprefix('Value error, ')}{found}.") from None


def parse(text: str, kinds: Mapping[str, type[Chosen]], what: str) -> Chosen:
    """Read `NAME` or `NAME:KEY=VALUE,KEY=VALUE`.

    :param kinds: what there is, by name.
    :param what: the key that a person wrote it under, for the error.
    :raises SpecError: no such name, no such option, or a value that it cannot have.
    """
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    if name not in kinds:
        raise SpecError(f"`{what}` should be one of {', '.join(kinds)}, found {name[:80]!r}.")
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


def options_of(kind: type[Choice]) -> Iterator[tuple[str, str, str, str]]:
    """Each option of a kind: name, type, default (empty: it must be given), meaning. For people."""
    for key, field in kind.model_fields.items():
        default = "" if field.is_required() else _word(field.default)
        annotation = field.annotation
        shown = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        yield key, shown, default, field.description or ""


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value!r}" if isinstance(value, float) else str(value)
