"""The page of rules has every part there is, with the options and defaults it has."""

import re
from pathlib import Path

import pytest

from master.rules import PARTS, find_rule
from master.rules.catalogue import KINDS
from master.rules.robust import Robust
from trunkline.choices import describe

PAGE = (Path(__file__).parent.parent.parent / "docs" / "rules.md").read_text(encoding="utf-8")
TABLE = PAGE.split("<!-- parts:start -->")[1].split("<!-- parts:end -->")[0].strip().splitlines()[2:]


def row(name: str) -> tuple[str, str, list[str]]:
    """A part as the page should show it: name, kind, its own options (those that all robust rules have stand in the text)."""
    part = PARTS[name]
    kind = next(word for base, word in KINDS.items() if issubclass(part, base))
    shared = set(Robust.model_fields) if issubclass(part, Robust) else set()
    told = {one["name"]: one["default"] for one in describe(part)["options"]}
    options = [f"{key}={default}" if default else key for key, default in told.items() if key not in shared]
    return f"`{name}`", f"{kind}, robust" if issubclass(part, Robust) else kind, options


def test_the_table_has_every_part_in_its_order_with_its_options() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE]
    assert [(one[0], one[1], re.findall(r"`([^`]*)`", one[2])) for one in cells] == [row(name) for name in PARTS]


def test_the_options_of_robust_rules_are_explained() -> None:
    for key in Robust.model_fields:
        assert f"`{key}=" in PAGE


@pytest.mark.parametrize("word", sorted(set(re.findall(r"`((?:[a-z_]+:[^`\s]+|[a-z_]+\+[^`\s]+))`", PAGE))))
def test_every_rule_on_the_page_is_one(word: str) -> None:
    assert find_rule(word)
