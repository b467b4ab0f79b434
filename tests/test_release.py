"""What is released fits together: version, changelog, pinned and installed dependencies."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import pytest

import trunkline

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra if not line.startswith("trunkline["))]
PINS = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return plain(match[0])


PINNED = {plain(pin.split("==")[0]): pin.split("==")[1] for pin in PINS if "==" in pin}


def test_the_changelog_speaks_of_this_version() -> None:
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert released[0] == trunkline.__version__
    assert released == sorted(released, key=lambda text: [int(part) for part in text.split(".")], reverse=True)


def test_the_installed_package_is_this_one() -> None:
    assert version("trunkline") == trunkline.__version__
    scripts = {entry.name: entry.value for entry in entry_points(group="console_scripts")}
    assert {name: scripts[name] for name in PROJECT["scripts"]} == PROJECT["scripts"]
    children = {entry.name: entry.value for entry in entry_points(group="trunkline.child")}
    assert children == PROJECT["entry-points"]["trunkline.child"]


def test_each_constraint_is_one_version() -> None:
    assert [pin for pin in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", pin)] == []
    assert len(PINNED) == len(PINS)


@pytest.mark.parametrize("requirement", DIRECT, ids=name_of)
def test_what_is_installed_is_what_was_pinned(requirement: str) -> None:
    name = name_of(requirement)
    assert name in PINNED, f"{name} should be pinned in constraints.txt"
    try:
        installed = version(name).split("+")[0]
    except PackageNotFoundError:
        pytest.fail(f"{name} should be installed: make install")
    assert installed == PINNED[name]


NOT_IMPORTED = {"packaging": "a bound for the others"}
COME_ALONG = {"google": "protobuf, with flwr", "starlette": "with fastapi"}


def imported() -> set[str]:
    """Top-level names that our packages import, from anywhere."""
    found: set[str] = set()
    for package in ("trunkline", "tasks", "queues", "child", "master"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"trunkline", "tasks", "queues", "child", "master"}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    wanted = {name_of(line) for line in PROJECT["dependencies"]}
    optional = {name_of(line) for extra in ("lora", "datasets", "sentence-transformers", "conflict") for line in EXTRAS[extra]}
    used = {plain(name) for name in imported()}
    assert used - wanted - optional - set(COME_ALONG) == set()
    assert wanted - used - set(NOT_IMPORTED) == set()


def test_each_bound_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for requirement in DIRECT:
        after = text.partition(f'"{requirement}"')[2].partition("\n")[0]
        assert re.search(r"# \S.{10}", after), f"{requirement} should have its reason beside it"


def test_the_licence_travels_with_the_package() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    for pattern in PROJECT["license-files"]:
        assert (ROOT / pattern).is_file()


def test_every_data_file_has_its_licence_line() -> None:
    for folder in (ROOT / "tasks/data", ROOT / "tests/data"):
        readme = (folder / "README.md").read_text(encoding="utf-8")
        rows = [line for line in readme.splitlines() if line.startswith("| `")]
        named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
        assert named == {path.name for path in folder.iterdir()} - {"README.md"}
        assert all(re.search(r"CC BY|CC0|PDDL|MIT|WordNet licence|Apache", row) for row in rows)


def test_a_second_run_installs_nothing() -> None:
    if not (ROOT / ".venv" / ".installed").exists() or Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("these tests run in an environment that `make` did not make")
    asked = subprocess.run(["make", "--question", "install"], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert asked.returncode == 0, "pyproject.toml or constraints.txt changed since `make install`"
