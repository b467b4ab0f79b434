"""A user's own module with one of our names is met with an error that names it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.errors import UsageError
from trunkline.installation import HOME, PACKAGES, check_installation

START = "import sys; from trunkline.start import admin; sys.exit(admin())"


def start(folder: Path, *arguments: str, code: str = START) -> subprocess.CompletedProcess[str]:
    """Start `trunkline`, or other code, with a folder of the user's first on the search path."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{HOME}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_this_installation_is_one() -> None:
    check_installation()


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"the package `trunkline_none` should lie in .*, found none\."):
        check_installation(["trunkline_none"])


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "trunkline"])
def test_a_module_of_the_user_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('it was run')")
    done = start(tmp_path, "version")
    assert done.returncode == 2
    assert f"error: the package `{name}` should lie in {HOME}, found {tmp_path / name}.py instead. Rename" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_package_of_the_user_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise SystemExit('it was run')")
    done = start(tmp_path, "version", "--output", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["status"]) == (2, 2, "error")
    assert told["error"]["code"] == "usage"
    assert f"found {tmp_path / 'tasks'} instead" in told["error"]["message"]


def test_a_stock_node_names_it_too(tmp_path: Path) -> None:
    """Given a `tasks.py` before ours, When a stock node loads the ClientApp, Then it is told which file shadows what."""
    (tmp_path / "tasks.py").write_text("raise SystemExit('it was run')")
    done = start(tmp_path, code="import child.app")
    assert done.returncode == 1
    assert f"UsageError: the package `tasks` should lie in {HOME}, found {tmp_path / 'tasks'}.py instead. Rename" in done.stderr
    assert "it was run" not in done.stderr


def test_a_plain_folder_of_the_user_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    code = "from trunkline.installation import check_installation; check_installation(); print('one')"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{HOME}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "one\n"
