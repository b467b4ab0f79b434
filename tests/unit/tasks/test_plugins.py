import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tasks import plugins
from trunkline.errors import SpecError

GROUP = "trunkline.test"


def test_a_name_is_loaded_from_the_first_folder_that_has_its_file(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "own.py").write_text(f"answer = {number}\n")
    assert plugins.load("own.py:answer", [tmp_path / "0", tmp_path / "2", tmp_path / "1"], GROUP) == 2
    assert plugins.load(f"{tmp_path / '1' / 'own.py'}:answer", [], GROUP) == 1


def test_a_changed_file_is_run_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("class Thing: pass\n")
    first = plugins.load("own.py:Thing", [tmp_path], GROUP)
    assert plugins.load("own.py:Thing", [tmp_path], GROUP) is first
    file.write_text("class Thing: x = 1\n")
    assert plugins.load("own.py:Thing", [tmp_path], GROUP).x == 1


def test_a_users_module_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import tasks\nfrom dataclasses import dataclass\n\n@dataclass\nclass Own:\n    x: int = 1\n"
    )
    assert plugins.load("tasks.py:Own", [tmp_path], GROUP)().x == 1
    import tasks

    assert tasks.__path__


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("missing.py:x", "found none"),
        ("own.py:nothing", "should define 'nothing'"),
        ("broken.py:x", "found SyntaxError"),
        ("raising.py:x", "found ZeroDivisionError"),
        ("own:x", "entry point of the group"),
        ("own", "entry point of the group"),
    ],
)
def test_what_cannot_be_loaded_is_told(reference: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("x = = 1\n")
    (tmp_path / "raising.py").write_text("x = 1 / 0\n")
    with pytest.raises(SpecError, match=said):
        plugins.load(reference, [tmp_path], GROUP)


@pytest.mark.parametrize("reference", ["../own.py:x", "sub/own.py:x", "{}/own.py:x"])
def test_a_reference_off_the_wire_stays_in_the_folders(reference: str, tmp_path: Path) -> None:
    (tmp_path / "modules" / "sub").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "modules" / "sub"):
        (folder / "own.py").write_text("x = 1\n")
    with pytest.raises(SpecError, match="plain file name"):
        plugins.load(reference.format(tmp_path), [tmp_path / "modules"], GROUP, anywhere=False)


def test_an_entry_point_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"good": EntryPoint("good", "json:dumps", GROUP), "bad": EntryPoint("bad", "json:nothing", GROUP)}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.values() if group == GROUP else ())
    assert plugins.load("good", [], GROUP) is json.dumps
    with pytest.raises(SpecError, match="found AttributeError"):
        plugins.load("bad", [], GROUP)
    with pytest.raises(SpecError, match="found the entry points: bad, good"):
        plugins.load("goood", [], GROUP)


def test_code_is_looked_for_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint("bad", "json:nothing", GROUP)])
    (tmp_path / "raising.py").write_text("x = 1 / 0\n")
    plugins.check_there("raising.py:x", [tmp_path], GROUP)
    plugins.check_there("bad", [], GROUP)
    for reference, said in {"gone.py:x": "file with your code", "goood": "found the entry points: bad"}.items():
        with pytest.raises(SpecError, match=said):
            plugins.check_there(reference, [tmp_path], GROUP)
