"""The house stands: arrows point down, third parties keep to their rooms, nothing dangerous and nothing private is in the code."""

import ast
import fnmatch
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("trunkline", "tasks", "queues", "child", "master")

ARROWS = {
    "trunkline": set[str](),
    "tasks": {"trunkline"},
    "queues": {"trunkline", "tasks"},
    "child": {"trunkline", "tasks", "queues"},
    "master": {"trunkline", "tasks", "queues"},
}
"""Who may import whom; master and child never each other: they share values only, as they do on two machines."""

ROOMS = {
    "flwr": ("master/flower/*", "master/superlink.py", "child/fleet/*", "child/app.py"),
    "sqlalchemy": ("master/ledger*.py", "master/schema.py", "master/database.py", "master/migrations/*"),
    "alembic": ("master/database.py", "master/migrations/*"),
    "fastapi": ("master/api/*",),
    "starlette": ("master/api/*", "master/flower/*", "queues/stream/api/*"),
    "uvicorn": ("master/api/*", "queues/stream/api/*", "master/connection.py", "master/flower/superlinkd.py"),
    "typer": ("master/cli/*", "child/cli/*", "trunkline/console/*", "trunkline/terminal.py"),
    "torch": ("tasks/*", "child/*", "queues/store/*", "queues/stream/*"),
    "transformers": ("tasks/*", "child/*"),
    "tokenizers": ("tasks/*",),
    "peft": ("tasks/*",),
    "datasets": ("tasks/*",),
    "sentence_transformers": ("tasks/*",),
    "pyarrow": ("tasks/*",),
    "safetensors": ("tasks/*",),
    "redis": ("queues/connection.py",),
    "celery": ("queues/doorbell.py",),
    "torchjd": ("tasks/conflict.py",),
    "scipy": ("tasks/conflict.py",),
}
"""Third parties live in few named modules each, so that an upgrade touches one place."""

LAZY = {"torch", "transformers", "peft", "datasets", "sentence_transformers", "pyarrow", "scipy", "pandas", "cvxpy"}
"""What takes long to import: never loaded by the command lines, nor by anything of the master."""


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import, also those within functions and those by text."""
    package = shown(path).removesuffix(".py").split("/")[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            yield node.lineno, ".".join(part for part in (base, node.module) if part)
        elif isinstance(node, ast.Call) and _called(node) in (
            "import_module",
            "importlib.import_module",
            "__import__",
            "find_spec",
        ):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _called(node: ast.Call) -> str:
    parts: list[str] = []
    target = node.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    if isinstance(target, ast.Name):
        parts.append(target.id)
    return ".".join(reversed(parts))


def places(found: Iterator[tuple[Path, int, str]]) -> list[str]:
    return [f"{shown(path)}:{line}: {what}" for path, line, what in found]


# -- arrows and rooms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_point_down(package: str) -> None:
    allowed = ARROWS[package] | {package}
    wrong = (
        (path, line, name)
        for path in sources(package)
        for line, name in imports(path)
        if name.split(".")[0] in {*PACKAGES, "tests", "benchmarks"} - allowed
    )
    assert places(wrong) == []


@pytest.mark.parametrize("library", ROOMS)
def test_third_parties_keep_to_their_rooms(library: str) -> None:
    wrong = (
        (path, line, name)
        for path in sources(*PACKAGES)
        for line, name in imports(path)
        if name.split(".")[0] == library and not any(fnmatch.fnmatch(shown(path), room) for room in ROOMS[library])
    )
    assert places(wrong) == []


MASTER = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in sources("master")]
QUICK = [name for name in MASTER if not name.startswith("master.migrations")]
AGENT = ["child.cli", "child.settings", "child.home", "child.policy"]


@pytest.mark.parametrize("modules", [QUICK, AGENT, ["trunkline.start"]], ids=["master", "child.cli", "trunkline.start"])
def test_starting_does_not_load_what_takes_long(modules: list[str]) -> None:
    known = [name for name in modules if (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or "__init__" in _files(name)]
    assert known
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {known}]; print(*sorted({LAZY} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def _files(module: str) -> set[str]:
    return {path.stem for path in (ROOT / module.replace(".", "/")).glob("*.py")}


def test_the_command_lines_start_without_the_libraries_of_the_daemons() -> None:
    code = "import master.cli, child.cli, sys; print(*sorted({'flwr', 'sqlalchemy', 'fastapi', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


# -- nothing dangerous -------------------------------------------------------------------------------------------------

UNPICKLERS = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {"eval", "os.system", "os.popen", "torch.load", "torch.save", "pickle.loads", "yaml.load", "yaml.unsafe_load"}
STARTERS = ("run", "Popen", "call", "check_call", "check_output")
RUNNERS = ("tasks/plugins.py",)
"""Where a user's own file is run."""


def dangers(path: Path) -> Iterator[tuple[Path, int, str]]:
    for line, name in imports(path):
        if name.split(".")[0] in UNPICKLERS:
            yield path, line, f"import {name}"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield path, node.lineno, "bare except"
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        if called in CALLS or (called == "exec" and shown(path) not in RUNNERS):
            yield path, node.lineno, f"{called}()"
        for keyword in node.keywords:
            risky = keyword.arg in ("allow_pickle", "trust_remote_code") or (keyword.arg == "shell" and called.endswith(STARTERS))
            if risky and not _is_false(keyword.value):
                yield path, node.lineno, f"{keyword.arg}="


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_nothing_is_unpickled_evaluated_or_run_through_a_shell() -> None:
    assert places(found for path in sources(*PACKAGES, "benchmarks", "examples") for found in dangers(path)) == []


DANGEROUS = """
import pickle
from joblib import load
def f(text):
    try:
        return eval(text)
    except:
        return subprocess.run(text, shell=True)
model = torch.load("x")
array = np.load("x", allow_pickle=True)
encoder = AutoModel.from_pretrained("x", trust_remote_code=flag)
exec(text)
"""


def test_the_check_itself_finds_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dangerous.py"
    path.write_text(DANGEROUS)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert sorted(what for _, _, what in dangers(path)) == [
        "allow_pickle=",
        "bare except",
        "eval()",
        "exec()",
        "import joblib",
        "import pickle",
        "shell=",
        "torch.load()",
        "trust_remote_code=",
    ]


# -- nothing private ---------------------------------------------------------------------------------------------------

PATHS = re.compile(r"(?<![\w.}/])/(?:home|root|work|opt|Users)/[\w.]")
"""A folder of somebody's machine."""
INDEXES = re.compile(r"\b(?:pypi|pythonhosted|npmjs|deb\.debian)\.(?:org|com)\b")
"""Where packages come from is the choice of who installs them."""
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def tracked() -> Iterator[Path]:
    git = shutil.which("git") or pytest.skip("git is not here to list the files")
    command = [git, "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        pytest.skip("this is no clone: git lists no files")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix not in (".csv", ".jsonl") and path != Path(__file__):
            yield path


@pytest.mark.parametrize("pattern", [PATHS, INDEXES, UNFINISHED], ids=["paths", "indexes", "unfinished"])
def test_nothing_private_or_unfinished_is_in_any_file(pattern: re.Pattern[str]) -> None:
    found: list[str] = []
    for path in tracked():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [f"{shown(path)}:{number}: {line.strip()[:100]}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []


def test_modules_stay_short() -> None:
    long = {shown(path): lines for path in sources(*PACKAGES) if (lines := path.read_text(encoding="utf-8").count("\n")) > 400}
    assert long == {}
