"""The page of gradient rules has every rule there is, with the options and defaults it has."""

import re
from pathlib import Path

import pytest

from tasks import balance
from tasks.balance.alarm import Watch
from tasks.balance.sketch import SIZE

PAGE = (Path(__file__).parents[4] / "docs" / "balance.md").read_text(encoding="utf-8")
TABLE = PAGE.split("<!-- rules:start -->")[1].split("<!-- rules:end -->")[0].strip().splitlines()[2:]


def test_the_table_has_every_rule_in_its_order_with_its_options() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE]
    found = [(cells[0], re.findall(r"`([^`]*)`", cells[1]), cells[2] == "weighed") for cells in cells]
    wanted = [
        (f"`{one['name']}`", [f"{option['name']}={option['default']}" for option in one["options"]], one["heads"])
        for one in balance.catalogue()
    ]
    assert found == wanted


@pytest.mark.parametrize("word", sorted(set(re.findall(r'"([a-z_]+:[^"\s]+)"', PAGE))))
def test_every_word_with_options_on_the_page_is_a_rule(word: str) -> None:
    assert balance.find(word)


def test_the_rules_that_need_the_extra_are_named() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.split("need the extra `conflict`")[0].rpartition("<!-- rules:end -->")[2]))
    assert told == {name for name, rule in balance.RULES.items() if issubclass(rule, balance.averse.Averse)}


def test_the_alarm_is_as_the_page_says() -> None:
    watch = Watch()
    assert f"{watch.rows} rows of a pair at {watch.cosine} or less" in PAGE
    assert f"{watch.looks} looks at a held-out score that is more than {watch.margin} below" in PAGE
    assert f"{SIZE:,} numbers" in PAGE
