"""Strict tests: seeds are fixed, nothing of this user's environment gets in, no network is used; and warnings are errors.

Which warnings of other people's code are not is listed in pyproject.toml, each with its reason.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from master.database import Database

_FOREIGN = ("TRUNKLINE", "HF_", "TRANSFORMERS_", "FLWR_", "XDG_", "PYTHONPATH", "PYTHONWARNINGS", "CUDA_VISIBLE_DEVICES")

_HOME = Path(tempfile.mkdtemp(prefix="trunkline-tests-"))

# Set before any library reads them; processes that tests start inherit them.
for _name in list(os.environ):
    if (_name.startswith(_FOREIGN) and not _name.startswith("TRUNKLINE_TEST_")) or _name.lower().endswith("_proxy"):
        del os.environ[_name]
os.environ |= {
    "HOME": str(_HOME),
    "XDG_CACHE_HOME": str(_HOME / "cache"),
    "XDG_CONFIG_HOME": str(_HOME / "config"),
    "XDG_STATE_HOME": str(_HOME / "state"),
    "FLWR_HOME": str(_HOME / "flwr"),
    "FLWR_TELEMETRY_ENABLED": "0",
    "HF_HOME": str(_HOME / "hf"),
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "COLUMNS": "120",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}

hypothesis.settings.register_profile("strict", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("strict")


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """What a test changes in the environment, the folder or the search path ends with it."""
    environment, folder, path = dict(os.environ), Path.cwd(), list(sys.path)
    yield
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path


@pytest.fixture(autouse=True)
def _closed_ledgers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files that a test opened are closed after it: Python 3.13 warns of connections to SQLite that are merely forgotten."""
    opened: list[Database] = []
    opening = Database.__init__

    def open_noted(self: Database, url: str) -> None:
        opened.append(self)
        opening(self, url)

    monkeypatch.setattr(Database, "__init__", open_noted)
    yield
    for database in opened:
        if not getattr(database, "_shared", True):  # one in memory is kept for later tests; one that failed has closed itself
            database.close()
