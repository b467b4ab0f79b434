"""One SuperLink for the tests that leave it as they find it. It starts when the first of them asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queues.embedded import EmbeddedServer
from tests.support.streams import server

if TYPE_CHECKING:  # Flower is slow to import: only the tests that need it should pay for it
    from master.pki import Tls
    from master.superlink import SuperLink
    from tests.support.fleet import NodeKey


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> "Tls":
    from tests.support.fleet import tls_files

    return tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def superlink(tmp_path_factory: pytest.TempPathFactory, tls: "Tls") -> "Iterator[SuperLink]":
    """TLS, node keys, state in memory."""
    from master.superlink import SuperLink
    from tests.support.fleet import free_port

    link = SuperLink(tmp_path_factory.mktemp("superlink"), free_port(), tls)
    link.start()
    yield link
    link.stop()


@pytest.fixture
def own_superlink(tmp_path: Path, tls: "Tls") -> "Iterator[SuperLink]":
    """One that a test may kill."""
    from master.superlink import SuperLink
    from tests.support.fleet import free_port

    link = SuperLink(tmp_path / "superlink", free_port(), tls)
    link.start()
    yield link
    link.stop()


@pytest.fixture
def keys(tmp_path: Path, superlink: "SuperLink") -> "list[NodeKey]":
    """Two children whose keys the SuperLink knows."""
    from tests.support.fleet import NodeKey

    made = [NodeKey(tmp_path, name) for name in ("ada", "bob")]
    for key in made:
        superlink.register_node(key.public, key.name)
    return made


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The Redis-compatible server that comes with Trunkline."""
    with server("embedded", tmp_path_factory.mktemp("embedded")) as made:
        yield made


@pytest.fixture(scope="session")
def debian_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Debian's redis-server."""
    with server("debian", tmp_path_factory.mktemp("debian")) as made:
        yield made
