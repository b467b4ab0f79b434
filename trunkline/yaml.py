"""JSON values as YAML, of which a command line needs little: written, never read, and without a library."""

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def yaml(value: Any) -> list[str]:
    """JSON values as YAML in block style; strings are always quoted.

    >>> print("\\n".join(yaml({"a": [1, {"b": None}], "c": {}})))
    a:
      - 1
      - b: null
    c: {}
    """
    if isinstance(value, Mapping) and value:
        lines: list[str] = []
        for key, inner in value.items():
            lines += _after(f"{_key(str(key))}:", inner)
        return lines
    if isinstance(value, list | tuple) and value:
        lines = []
        for inner in value:
            first, *rest = yaml(inner)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(_escaped(letter) for letter in value) + '"'
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes no other form for a number
    return text


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    number = ord(letter)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _after(head: str, value: Any) -> list[str]:
    lines = yaml(value)
    return (
        [head, *(f"  {line}" for line in lines)] if isinstance(value, Mapping | list | tuple) and value else [f"{head} {lines[0]}"]
    )


def _key(key: str) -> str:
    return key if _PLAIN.fullmatch(key) and key.lower() not in _WORDS else _scalar(key)
