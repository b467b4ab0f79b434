"""What people write: TOML files, and single values as TOML has them. No pydantic: command lines start with it."""

import tomllib
from pathlib import Path
from typing import Any

from trunkline.errors import SettingsError


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table.

    :raises SettingsError: not there, not readable, not UTF-8, not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        raise SettingsError(f"`{path}` should be a TOML file, found none.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"`{path}` should be UTF-8, found {error.reason} at byte {error.start}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"`{path}` should be TOML, found: {error}.") from None
    except OSError as error:
        raise SettingsError(f"`{path}` should be readable, found: {error.strerror}.") from None


def value_of(text: str) -> Any:
    """A value as TOML has it; what is no TOML is text.

    >>> value_of("3"), value_of("true"), value_of("bert"), value_of("[1, 2]")
    (3, True, 'bert', [1, 2])
    """
    try:
        table = tomllib.loads(f"x = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["x"] if len(table) == 1 else text
