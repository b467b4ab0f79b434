"""A server that is not fit for queues is refused with what is wrong, and what it says is told as our errors."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from queues.connection import connect, loading, told, waiting_client
from queues.embedded import EmbeddedServer
from queues.redis import RedisQueues
from tests.support.streams import KINDS, client, raw, server, stream
from trunkline.errors import (
    FailedError,
    NotAuthorized,
    QueueFull,
    SettingsError,
    StorageFailed,
    TrunklineError,
    Unreachable,
)

pytestmark = pytest.mark.contract


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """One whose settings a test may change."""
    with server(request.param, tmp_path / "server") as made:
        yield made


@contextmanager
def changed(default: Any, **settings: str) -> Iterator[None]:
    before = {name: default.config_get(name)[name] for name in settings}
    for name, value in settings.items():
        default.config_set(name, value)
    yield
    for name, value in before.items():
        default.config_set(name, value)
    while default.info("persistence")["aof_rewrite_in_progress"] or default.info("persistence")["aof_rewrite_scheduled"]:
        pass  # a server that begins to keep a file does not end before it has one


def test_a_server_that_would_lose_samples_is_refused_and_all_is_said(own_server: EmbeddedServer) -> None:
    queues = stream(own_server)
    queues.open("a", 1)
    default = raw(queues)
    with (
        changed(default, appendonly="no", maxmemory="100mb", **{"maxmemory-policy": "allkeys-lru"}),
        pytest.raises(SettingsError) as error,
    ):
        connect(own_server.url)
    assert "appendonly yes" in str(error.value)
    assert "noeviction" in str(error.value)
    assert "allkeys-lru" in str(error.value)
    with changed(default, maxmemory="100mb"):
        connect(own_server.url).close()  # it refuses what it has no room for
    default.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(SettingsError, match="primary, found a slave"):
        connect(own_server.url)
    with pytest.raises(SettingsError, match="replica"):
        queues.push("a", [b"x"])
    with pytest.raises(SettingsError, match="replica"):
        queues.open("b", 1)
    default.execute_command("REPLICAOF", "NO", "ONE")
    assert queues.counts("a").pushed == 0


def test_users_and_passwords(own_server: EmbeddedServer) -> None:
    default = raw(stream(own_server))
    default.execute_command("ACL", "SETUSER", "reader", "on", ">se/cret@1", "~*", "+info")
    default.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
    address = own_server.url.removeprefix("unix://")
    for url in (f"unix://{address}", f"unix://:wrong@{address}", f"unix://ghost:se%2Fcret%401@{address}"):
        with pytest.raises(NotAuthorized) as error:
            connect(url)
        assert "wrong" not in str(error.value).replace("WRONGPASS", "")
    with pytest.raises(NotAuthorized):
        RedisQueues(client(own_server, f"unix://reader:se%2Fcret%401@{address}"), "a").begin("epoch")
    RedisQueues(client(own_server, f"unix://:other@{address}"), "a").begin("epoch")
    default.execute_command("ACL", "SETUSER", "default", "nopass")


# -- what is no Redis, or an old one -------------------------------------------------------------------------------------

FIT = {"redis_version": "7.0.15", "maxmemory": "0", "maxmemory_policy": "noeviction", "role": "master", "aof_enabled": "1"}


def info(**changes: str) -> bytes:
    text = "".join(f"{name}:{value}\r\n" for name, value in (FIT | changes).items()).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


def answer(command: bytes, told: bytes, script: bytes) -> bytes:
    if b"INFO\r\n" in command and b"SETINFO" not in command:
        return told
    if b"EVALSHA" in command or b"SMEMBERS" in command:
        return script
    if b"PING" in command:
        return b"+PONG\r\n"
    if b"HELLO" in command:
        return b"-ERR unknown command 'HELLO'\r\n"
    return b"+OK\r\n" * command.count(b"SETINFO") or b"+OK\r\n"


@contextmanager
def pretender(told: bytes, script: bytes = b"+OK\r\n") -> Iterator[str]:
    """A server that answers INFO and scripts with these bytes, and whatever else with OK; the address it has."""

    def serve(caller: socket.socket) -> None:
        with caller, suppress(OSError):
            while command := caller.recv(1 << 20):
                caller.sendall(answer(command, told, script))

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"redis_version": "6.0.16"}, "at least 6.2, found 6.0.16"),
        ({"redis_version": "5.0"}, "at least 6.2"),
        ({"redis_version": "unstable"}, "at least 6.2, found unstable"),
        ({"aof_enabled": "0"}, "appendonly yes"),
        ({"aof_last_write_status": "err"}, "is the disk full"),
        ({"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"}, "noeviction"),
        ({"role": "slave"}, "primary"),
    ],
)
def test_a_server_of_another_kind_is_refused(changes: dict[str, str], said: str) -> None:
    with pretender(info(**changes)) as url, pytest.raises(SettingsError, match=said):
        connect(url)


def test_a_server_that_is_fit_is_taken_as_it_is() -> None:
    for changes in ({}, {"redis_version": "6.2.0"}, {"redis_version": "255.255.255"}, {"maxmemory_policy": "allkeys-lru"}):
        with pretender(info(**changes)) as url:
            connect(url).close()


def test_a_server_that_reads_its_data_does_not_answer_yet() -> None:
    with pretender(info(loading="1")) as url:
        with pytest.raises(Unreachable, match="reading its data"):
            connect(url)
        assert loading(url)
    with pretender(b"-LOADING Redis is loading the dataset in memory\r\n") as url:
        with pytest.raises(Unreachable):
            connect(url)
        assert loading(url)
    with pretender(info()) as url:
        assert not loading(url)
    assert not loading("redis://127.0.0.1:1")


SIX = b"-ERR Error running script (call to f_0): @user_script:12: @user_script: 12: "
"""How Redis 6.2 begins to say that a command of a script failed; newer ones begin with the command's own error."""


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'. script: 0, on @user_script:1.\r\n", QueueFull, "memory"),
        (SIX + b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", QueueFull, "memory"),
        (b"-READONLY You can't write against a read only replica.\r\n", SettingsError, "replica"),
        (SIX + b"-READONLY You can't write against a read only replica.\r\n", SettingsError, "replica"),
        (b"-MISCONF Errors writing to the AOF file: No space left on device\r\n", StorageFailed, "No space left"),
        (SIX + b"-MISCONF Errors writing to the AOF file: No space left on device\r\n", StorageFailed, "No space left"),
        (b"-NOPERM this user has no permissions\r\n", NotAuthorized, "permissions"),
        (b"-ERR something else\r\n", FailedError, "something else"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Unreachable, "protocol of Redis"),
        (b"", Unreachable, "answer"),
    ],
)
def test_what_a_server_says_is_told_as_one_of_our_errors(script: bytes, error: type[TrunklineError], said: str) -> None:
    with pretender(info(), script) as url:
        queues = RedisQueues(connect(url, seconds=0.5), "a")
        for act in (lambda: queues.push("a", [b"x"]), queues.queues):
            with pytest.raises(error, match=said) as found:
                act()
            assert type(found.value) is error
        raw(queues).close()


def test_every_error_of_the_client_library_is_told_as_one_of_ours() -> None:
    def kinds(kind: Any) -> Iterator[Any]:
        yield kind
        for one in kind.__subclasses__():
            yield from kinds(one)

    there_are: list[Any] = [*kinds(redis.RedisError), OSError, ConnectionResetError, TimeoutError]
    for kind in there_are:
        error = kind.__new__(kind)  # some want arguments of their own
        error.args = ("1 x:1",)
        error.message = "x"
        with pytest.raises(TrunklineError), told("the server"):
            raise error


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"220 mail ESMTP\r\n", b":x\r\n", b"\xff"]
)
def test_what_is_no_redis_is_refused(greeting: bytes) -> None:
    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                caller, _ = listener.accept()
                with caller:
                    caller.recv(10_000)
                    caller.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with pytest.raises(Unreachable):
            connect(f"redis://127.0.0.1:{listener.getsockname()[1]}", seconds=1.0)
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis://no-such-host.invalid", "unix:///no/such.sock", "rediss://127.0.0.1:1"]
)
def test_what_does_not_answer_is_said_with_its_address(url: str) -> None:
    with pytest.raises(Unreachable, match=url.partition("://")[2].split(":")[0]):
        connect(url, seconds=2.0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://user:hush-hush@localhost:port",
        "redis://user:hush-hush#1@localhost",
        "redis://[::1",
        "redis://localhost?db=one",
        "redis://localhost?decode_responses=true",
        "redis://localhost?hush=hush-hush",
        "redis://localhost?password=hush-hush&ssl_cert_reqs=none",
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as error:
        connect(url)
    assert "hush-hush" not in str(error.value)


# -- a client that waits -------------------------------------------------------------------------------------------------


def test_a_client_that_waits_logs_in_as_the_first_did_and_has_one_connection(own_server: EmbeddedServer) -> None:
    with changed(client(own_server), requirepass="secret"):
        first = client(own_server, f"{own_server.url}?password=secret")
        waiting = waiting_client(first, 30.0)
        for _ in range(3):
            assert waiting.blpop(["nothing"], timeout=0.01) is None
        assert len([one for one in first.client_list() if one["cmd"] == "blpop"]) == 1
        waiting.connection_pool.disconnect()


def test_a_client_that_waits_has_the_same_tls_and_more_patience() -> None:
    first = redis.Redis.from_url("rediss://ada:secret@localhost:6380?ssl_ca_certs=ca.pem", socket_timeout=5.0)
    waiting = waiting_client(first, 70.0)
    before, after = first.connection_pool, waiting.connection_pool
    assert after.connection_class is before.connection_class
    own = {"socket_timeout", "maint_notifications_pool_handler"}  # the second is the library's, of each pool
    assert {name for name, value in after.connection_kwargs.items() if value != before.connection_kwargs[name]} <= own
    assert after.connection_kwargs["socket_timeout"] == 70.0
    assert after.connection_kwargs["ssl_ca_certs"] == "ca.pem"
    for one in (first, waiting):
        one.close()
