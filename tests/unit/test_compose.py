"""docker-compose.yml and the Dockerfile hold together: names that are used are declared, and what is run is there."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from child.settings import ChildSettings
from master.settings import MasterSettings
from tests.docs import commands

ROOT = Path(__file__).parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CHILDREN = sorted(name for name in SERVICES if name.startswith("child-"))


def script(service: dict[str, Any]) -> str:
    """What a service runs, as the shell in the container sees it."""
    command = service["command"]
    if command[:2] == ["sh", "-euc"]:
        return str(command[2]).replace("$$", "$")
    return " ".join(command)


def test_there_are_redis_a_master_with_its_superlink_and_three_children() -> None:
    assert {"redis", "master"} < set(SERVICES)
    assert CHILDREN == ["child-amazon", "child-imdb", "child-yelp"]
    assert SERVICES["master"]["networks"]["rounds"]["aliases"] == ["superlink"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_uses_is_declared(name: str) -> None:
    service = SERVICES[name]
    assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(COMPOSE["volumes"])
    assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
    for other, how in service.get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
    assert "build" in service or service["image"] in {"trunkline", "redis:8-alpine"}


def test_each_child_has_state_of_its_own_and_real_data() -> None:
    states = [volume for name in CHILDREN for volume in SERVICES[name]["volumes"] if volume.endswith(":/state")]
    assert len(set(states)) == len(CHILDREN)
    for name in CHILDREN:
        shop = SERVICES[name]["environment"]["SHOP"]
        assert name == f"child-{shop}"
        assert (ROOT / f"tasks/data/reviews_{shop}.csv").is_file()
        assert shop in script(SERVICES["invitations"])


def test_children_reach_the_master_and_not_redis() -> None:
    assert all(SERVICES[name]["networks"] == ["rounds"] for name in CHILDREN)
    assert SERVICES["redis"]["networks"] == ["queues"]
    assert not any("ports" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", ["master", "invitations", *CHILDREN])
def test_the_variables_of_a_service_are_settings(name: str) -> None:
    model, prefix = (ChildSettings, "TRUNKLINE_CHILD_") if name in CHILDREN else (MasterSettings, "TRUNKLINE_")
    for key in SERVICES[name]["environment"]:
        if key.startswith("TRUNKLINE"):
            assert key.removeprefix(prefix).lower() in model.model_fields


@pytest.mark.parametrize("name", ["master", "invitations", *CHILDREN])
def test_the_commands_of_a_service_are_understood(name: str) -> None:
    text = script(SERVICES[name])
    subprocess.run([shutil.which("sh") or "sh", "-n", "-c", text], check=True, timeout=30)
    found = 0
    for line in commands.lines(re.sub(r"\$\(.*?\)[^\"']*", "VALUE", text), prompt=False):
        for words in commands.simple(line):
            start = next((at for at, word in enumerate(words) if word in commands.PROGRAMS), None)
            if start is not None:
                found += 1
                assert commands.check(words[start:]) is None
    assert found


def test_the_image_holds_each_package_and_file_that_the_build_reads() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()}
    assert copied >= {
        "trunkline",
        "tasks",
        "queues",
        "child",
        "master",
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
    }
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not copied & set(ignored)
    assert "USER trunkline" in dockerfile


def test_the_image_holds_the_libraries_of_every_rule() -> None:
    """A rule that is named in a job must not fail for want of a library that only a laptop has."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installed = {extra for found in re.findall(r"'\.\[([a-z,-]+)\]'", dockerfile) for extra in found.split(",")}
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    hint = re.search(r"trunkline\[([a-z-]+)\]", (ROOT / "tasks" / "conflict.py").read_text(encoding="utf-8"))
    assert hint is not None and {hint[1]} <= installed <= set(offered)
