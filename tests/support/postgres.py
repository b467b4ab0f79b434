"""A PostgreSQL server of one's own for the time of a test run.

`TRUNKLINE_TEST_POSTGRES` may name a server that runs already (an SQLAlchemy URL; its database is emptied). Otherwise one is started
in a temporary folder, if the server's programs are installed.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from master.demo.processes import free_ports


def _programs() -> Path | None:
    """The folder of `initdb` and `postgres`; distributions keep it off the PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


@contextmanager
def postgres() -> Iterator[str]:
    """An SQLAlchemy URL of an empty database. Skips the test where there is none; fails it where one was named."""
    if importlib.util.find_spec("psycopg") is None:
        _missing("the driver: pip install 'psycopg[binary]'")
    given = os.environ.get("TRUNKLINE_TEST_POSTGRES")
    if given:
        yield given
        return
    programs = _programs()
    if programs is None:
        _missing("the programs initdb and postgres")
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        user = _user(folder)
        data = folder / "data"
        make = [programs / "initdb", "-D", data, "-A", "trust", "-U", "tests", "--no-sync", "-E", "UTF8"]
        english = ["--locale-provider=icu", "--icu-locale=en-US"]  # letters in another order than their codes, as on most servers
        if subprocess.run([*make, *english], capture_output=True, user=user, cwd=folder, timeout=60).returncode != 0:
            subprocess.run(make, check=True, capture_output=True, user=user, cwd=folder, timeout=60)
        (port,) = free_ports(1)
        start = [programs / "postgres", "-D", data, "-k", folder, "-p", str(port), "-h", "127.0.0.1", "-F"]
        with (folder / "log").open("wb") as log, subprocess.Popen(start, stdout=log, stderr=log, user=user, cwd=folder) as server:
            try:
                _wait(server, port, folder / "log")
                yield f"postgresql+psycopg://tests@127.0.0.1:{port}/postgres"
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()


def _missing(what: str) -> None:
    if os.environ.get("TRUNKLINE_TEST_POSTGRES"):
        pytest.fail(f"PostgreSQL should be here in CI, found no {what}")
    pytest.skip(f"no PostgreSQL here: {what}")


def _user(folder: Path) -> str | None:
    """The server refuses to run as root: then it runs as a user without rights, who owns the folder."""
    if os.geteuid() != 0:
        return None
    shutil.chown(folder, "nobody")
    return "nobody"


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    import psycopg

    until = time.monotonic() + 30
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=tests dbname=postgres connect_timeout=2").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"PostgreSQL did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
