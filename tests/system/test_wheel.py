"""What is built for others: the packages, the data of the demo, the two programs, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("trunkline", "tasks", "queues", "child", "master")


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(600)
def test_the_wheel_holds_the_packages_their_data_and_both_programs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=550, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("trunkline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    ours = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in ours} == set(PACKAGES)
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours == wanted
    assert {f"tasks/data/reviews_{shop}.csv" for shop in ("amazon", "imdb", "yelp")} | {"tasks/data/README.md"} <= ours
    assert "trunkline = trunkline.start:admin" in scripts
    assert "trunkline-child = trunkline.start:agent" in scripts
    assert "default = child.handlers:open_child" in scripts
