"""How rules and codecs, which are chosen by one word, are told to people."""

import textwrap
from collections.abc import Sequence
from typing import Any

from trunkline.terminal import table

WIDTH = 100
"""Characters of a line of prose."""


def overview(kinds: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """A line for each."""
    rows = [
        {
            **kind,
            "options": ", ".join(option["name"] for option in kind["options"]),
            "about": textwrap.shorten(kind["about"], WIDTH, placeholder="…"),
        }
        for kind in kinds
    ]
    return table(rows, columns)


def whole(kind: dict[str, Any], *about: str) -> list[str]:
    """All there is to say of one, with its options, and their values where it was described with them."""
    head = f"{kind['name']} ({', '.join(about)})" if about else kind["name"]
    valued = any("value" in option for option in kind["options"])
    options = table(kind["options"], ("name", *(("value",) if valued else ()), "default", "meaning"), "no options")
    return [head, *textwrap.wrap(kind["text"], WIDTH), "", *options]
