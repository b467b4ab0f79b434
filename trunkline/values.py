"""What messages, specifications and settings are made of: frozen values that refuse unknown fields, and the words they use.

A field that a later wire version adds is marked `since(2)`: writing for an older side leaves it out, reading from an older side
gives its default.
"""

import json
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trunkline.errors import SpecError

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a file's bytes, lower-case hex."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
"""What a person calls a child, task, encoder or job; safe as a file name."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""How many; every reader of JSON has whole numbers up to here."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

Split = Literal["train", "validation", "test"]
"""A part of a child's samples."""

SPLITS: tuple[Split, ...] = get_args(Split)


def _codec(word: str) -> str:
    from trunkline import codecs  # it stands on this module, and on numpy, which a command line starts without

    try:
        return str(codecs.find(word))
    except SpecError as error:
        raise ValueError(str(error)) from None


Codec = Annotated[str, AfterValidator(_codec)]
"""How a parameter set travels, in its canonical form: `bf16`, `topk:share=0.05`; see `trunkline.codecs`."""

CodecName = Annotated[str, AfterValidator(_codec), AfterValidator(lambda word: word.partition(":")[0])]
"""A codec by its name, whatever its options."""

Transfer = Literal["blob", "inline"]
"""Whether it travels beside the messages, by digest, or inside them."""

Precision = Literal["float32", "bf16", "auto"]
"""Of the forward pass; `auto` is bf16 where that is fast."""

Optimizer = Literal["adamw", "sgd"]

Moments = Literal["fresh", "kept"]
"""Of the shared layers' optimiser, at the start of a round: zero, or as the child's last round of the job left them."""

Decay = Literal["none", "linear"]
"""Of the learning rate, after the warm-up."""


def since(version: int) -> dict[str, Any]:
    """Mark a field as added in a wire version: `x: int = Field(default=0, json_schema_extra=since(2))`."""
    return {"since": version}


class Value(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def table(self) -> dict[str, Any]:
        """This value as JSON data, for a record."""
        return self.model_dump(mode="json")

    def told(self, wire: int) -> dict[str, Any]:
        """This value as JSON data in a wire version: what later ones added, however deep it lies, is left out."""
        return _older(self, self.table(), wire)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> Self:
        """The value back from a record that `table` made."""
        return cls.model_validate_json(json.dumps(table))


class Section(Value):
    """A part of a file of settings. TOML has no tuples, so lists are taken for them."""

    model_config = ConfigDict(strict=False)


def _older(value: Any, body: Any, wire: int) -> Any:
    """Leave out what the given wire version does not know, however deep it lies."""
    if isinstance(value, tuple):
        return [_older(part, inner, wire) for part, inner in zip(value, body, strict=True)]
    if not isinstance(value, BaseModel):
        return body
    kept = {}
    for name, field in type(value).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and int(extra.get("since", 1)) > wire:  # type: ignore[arg-type]
            continue
        kept[name] = _older(getattr(value, name), body[name], wire)
    return kept


RECORD, TEXT, ATTACHMENT = "trunkline", "json", "attachment"
"""Where a message of ours lies in a transport's: its record, and in it the text and the bytes beside it."""
