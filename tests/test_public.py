"""The public names are those of docs/public.md; each is there and says what it is, and so do all errors."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from trunkline import errors

PAGE = (Path(__file__).parent.parent / "docs" / "public.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.MULTILINE)
PUBLIC = {module: re.findall(r"`(\w+)`", names) for module, names in ROWS}
PUBLIC["trunkline.errors"] += [name for name, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)]


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_there_and_says_what_it_is(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__doc__
    for name in PUBLIC[module]:
        thing = getattr(found, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__module__ == module, f"{module}.{name} should be named where it lives, in {thing.__module__}"
            assert inspect.getdoc(thing), f"{module}.{name} should say what it is"
