"""The page of queues: its settings are those there are, and what it shows in a terminal is what a terminal shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from queues.embedded import EmbeddedServer
from queues.redis import CHUNK, CHUNK_BYTES, RedisQueues
from queues.settings import Policy, QueueSettings, State, StreamSettings
from tests.docs import commands
from tests.support.streams import client, close_clients

PAGE = (Path(__file__).parent.parent.parent / "docs" / "queues.md").read_text(encoding="utf-8")


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


@pytest.mark.parametrize(("name", "model"), [("queue", QueueSettings), ("stream", StreamSettings)])
def test_the_settings_are_those_there_are(name: str, model: type[BaseModel]) -> None:
    table = PAGE.split(f"<!-- {name}:start -->")[1].split(f"<!-- {name}:end -->")[0]
    defaults = {
        f"`{key}`": "" if field.default is PydanticUndefined else str(field.default) for key, field in model.model_fields.items()
    }
    assert {row[0]: row[1] for row in rows(table)} == defaults


def test_the_policies_and_states_are_those_there_are() -> None:
    table = PAGE.split("<!-- stream:end -->")[1].split("\n\n")[1]
    assert [row[0].strip("`") for row in rows(table)] == list(get_args(Policy))
    for state in get_args(State):
        assert f"`{state}`" in PAGE


def test_the_limits_of_a_call_are_those_that_ours_keeps() -> None:
    assert CHUNK == 1000
    assert CHUNK_BYTES <= 17_000_000


def test_what_a_terminal_shows(tmp_path: Path) -> None:
    found = shutil.which("redis-cli")
    if found is None:
        pytest.skip("no redis-cli on this machine: apt-get install redis-tools")
    server = EmbeddedServer(tmp_path / "redis", durable=False)
    server.start()
    queues = RedisQueues(client(server), "reviews")
    queues.begin("epoch")
    queues.open("sentiment", 100)
    # It shows a person what a program does not get; and it should find our server.
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "redis-cli"
    shown = 'case "$1" in -x) shown=;; *) shown=--no-raw;; esac'
    wrapper.write_text(f'#!/bin/sh\n{shown}\nexec {found} -s "{server.socket}" $shown "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        blocks = [block for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "redis-cli" in block]
        assert len(blocks) == 1
        lines = list(commands.lines(blocks[0], prompt=True))
        script = "\n".join(f"echo {_quoted('$ ' + line)}\n{line}" for line in lines)
        done = subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=tmp_path,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout + done.stderr == blocks[0]
        assert queues.waiting("sentiment") == (b"sample one", b"sample two", b"sample three")
    finally:
        close_clients(server)
        server.stop()


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
