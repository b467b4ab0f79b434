"""Reading settings: a frozen pydantic model, a TOML file, environment variables, flags. Unknown keys are named, with the nearest known one."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from trunkline.errors import SettingsError

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table.

    :raises SettingsError: not there, not readable, not UTF-8, not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"`{path}` should be a settings file, found none.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"`{path}` should be UTF-8, found {error.reason} at byte {error.start}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"`{path}` should be TOML, found: {error}.") from None
    except OSError as error:
        raise SettingsError(f"`{path}` should be readable, found: {error.strerror}.") from None


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
    lines = []
    for problem in error.errors(include_url=False):
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _keys(model, problem["loc"][:-1])
            near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.5)
            advice = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(sorted(known))}."
            lines.append(f"`{path}` in {source} is not a known key; {advice}")
        elif problem["type"] == "missing":
            lines.append(f"`{path}` in {source} should be set, found nothing.")
        else:
            lines.append(f"`{path}` in {source} is wrong: {problem['msg']}, found {problem['input']!r}.")
    return " ".join(lines)


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = model.model_fields[part].annotation
        for candidate in (inner, *get_args(inner)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)


def from_environment(model: type[BaseModel], prefix: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Top-level keys set as `PREFIX_KEY`; values are read as TOML where they parse, as text otherwise."""
    environ = os.environ if environ is None else environ
    table: dict[str, Any] = {}
    for key in model.model_fields:
        value = environ.get(f"{prefix}_{key.upper()}")
        if value is None:
            continue
        try:
            table[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            table[key] = value
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
    table = read_toml(path) if path is not None and path.exists() else {}
    if path is not None:
        build(model, table, f"`{path}`")
    table |= from_environment(model, prefix, environ)
    table |= {key: value for key, value in (flags or {}).items() if value is not None}
    return build(model, table, "the settings")
