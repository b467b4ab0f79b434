"""Reading settings: a frozen pydantic model, a TOML file, environment variables, flags.

What is wrong is named with its place; an unknown key with the nearest known one.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trunkline.errors import SettingsError
from trunkline.toml import read_toml, value_of
from trunkline.values import NAME

Model = TypeVar("Model", bound=BaseModel)

_NAME = "It should begin with a letter or digit, and hold only these, `.`, `_` and `-`, 64 at most"
"""Instead of `NAME`, the pattern that says it to programs."""


def build(model: type[Model], table: Mapping[str, Any], source: str) -> Model:
    """Check a table against a model.

    :param source: where the table comes from, for the message.
    :raises SettingsError: names the key, what should be and what was found.
    """
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise SettingsError(explain(model, error, source)) from None


def explain(model: type[BaseModel], error: ValidationError, source: str) -> str:
    """All that is wrong with a table, a sentence each."""
    return _explained(model, error.errors(include_url=False), source)


def _explained(model: type[BaseModel], problems: Iterable[Mapping[str, Any]], source: str) -> str:
    lines = []
    for problem in problems:
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _keys(model, problem["loc"][:-1])
            advice = _nearest(model, problem["loc"], known)
            lines.append(f"`{path}` in {source} is not a known key; {advice}")
        elif problem["type"] == "missing":
            lines.append(f"`{path}` in {source} should be set, found nothing.")
        elif problem["type"] == "value_error":  # of our own validators: the sentence is complete
            said = problem["msg"].removeprefix("Value error, ")
            end = "" if said.endswith((".", "?")) else "."
            where = f"`{path}` in {source}" if path else source
            own = said.removeprefix(f"`{path}` ")  # it names the key; where that stands is added
            verb = " " if own != said and own.startswith("should ") else " is wrong: "
            lines.append(f"{where}{verb}{own}{end}")
        else:
            place = f"`{path}` in {source}" if path else source  # the whole of it
            said = _NAME if problem.get("ctx", {}).get("pattern") == NAME else problem["msg"]
            lines.append(f"{place} is wrong: {said}, found {repr(problem['input'])[:80]}.")
    return " ".join(lines)


def _nearest(model: type[BaseModel], path: tuple[int | str, ...], known: list[str]) -> str:
    """What to write for a key that is not known. One of another table that is spelt just so is surely the one that is meant."""
    key = str(path[-1])
    elsewhere = [one for one in _paths(model) if one.rpartition(".")[2] == key]
    if len(elsewhere) == 1:
        return f"did you mean `{elsewhere[0]}`?"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else f"known: {', '.join(sorted(known))}."


def _paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every key by its path; tables that stand in a list have none."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _paths(field.annotation, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        model = next(_models(model.model_fields[part].annotation), model)
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models named in an annotation, such as `tuple[Task, ...] | None`."""
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _is_text(annotation: Any) -> bool:
    """Whether a value of this annotation is taken as it is written: text or a path, also an optional one."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(_is_text(part) for part in get_args(annotation))
    return annotation in (str, Path)


def from_environment(model: type[BaseModel], prefix: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Top-level keys set as `PREFIX_KEY`. A text or a path is taken as it is; other values are read as TOML where they parse."""
    environ = os.environ if environ is None else environ
    table: dict[str, Any] = {}
    for key, field in model.model_fields.items():
        value = environ.get(f"{prefix}_{key.upper()}")
        if value is not None:
            table[key] = value if _is_text(field.annotation) else value_of(value)
    return table


def load(
    model: type[Model],
    path: Path | None,
    prefix: str,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Model:
    """Settings by precedence: flags, environment, file, defaults. A `None` flag was not given.

    :raises SettingsError: something is wrong, named with its source.
    """
    layers = {
        f"`{path}`": read_toml(path) if path is not None and path.exists() else {},
        f"the environment ({prefix}_…)": from_environment(model, prefix, environ),
        "the flags": {key: value for key, value in (flags or {}).items() if value is not None},
    }
    table: dict[str, Any] = {}
    for source, layer in layers.items():
        _check_layer(model, layer, source)
        table |= layer
    return build(model, table, "the settings")


def _check_layer(model: type[BaseModel], layer: Mapping[str, Any], source: str) -> None:
    """Name what is wrong where it is written; what is missing here, or fits badly together, may be put right by the next layer."""
    try:
        model.model_validate(dict(layer))
    except ValidationError as error:
        own = [problem for problem in error.errors(include_url=False) if problem["loc"] and problem["loc"][0] in layer]
        if own:
            raise SettingsError(_explained(model, own, source)) from None
