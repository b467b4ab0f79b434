"""A connection to a Redis, or whatever speaks its protocol: the one module that knows the client library."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from trunkline.errors import (
    FailedError,
    NotAuthorized,
    QueueFull,
    SettingsError,
    StorageFailed,
    TrunklineError,
    Unreachable,
)

Client = redis.Redis

OLDEST = (6, 2)
"""The first Redis whose `LPOP` takes a count."""

OPTIONS = ("db", "username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
"""What may stand behind the `?` of an address: others would change what the client library answers."""


def connect(url: str, *, seconds: float = 5.0) -> Client:
    """A client of a server that answers.

    :param url: `redis://`, `rediss://` or `unix://`, with user and password where needed.
    :param seconds: how long a connection or an answer may take.
    :raises SettingsError: the address is none, or the server is not fit for queues; all that is wrong is said.
    :raises NotAuthorized: it wants another user or password.
    :raises Unreachable: it does not answer.
    """
    try:
        unknown = sorted({name for name, _ in parse_qsl(urlsplit(url).query)} - set(OPTIONS))
        if unknown:
            raise SettingsError(f"the options of {_shown(url)} should be of {', '.join(OPTIONS)}, found {', '.join(unknown)}.")
        client = _client(url, seconds)
    except ValueError:  # whose text may hold a part of a password
        raise SettingsError(
            f"the address of a Redis should be redis://, rediss:// or unix://, with a number as its port, found {_shown(url)}."
        ) from None
    try:
        with told(_shown(url)):
            _check(client, _shown(url))
    except ValueError:  # a number of its answer is none
        client.close()
        raise Unreachable(
            f"{_shown(url)} should speak the protocol of Redis, found another.", hint="Is it the right port?"
        ) from None
    except TypeError:
        client.close()
        raise SettingsError(f"the options of TLS should stand at an address of rediss://, found them at {_shown(url)}.") from None
    except BaseException:
        client.close()
        raise
    return client


def _client(url: str, seconds: float) -> Client:
    # A command is never sent twice by the library: our scripts know what to do with a repeated one, others do not.
    return Client.from_url(
        url,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=25,
        protocol=2,  # the newer one is greeted with a word that a server before 6 does not know: it could not say how old it is
        encoding_errors="backslashreplace",
    )


def waiting_client(client: Client, seconds: float) -> Client:
    """Another client of the same server, for commands that wait: one connection of its own, made when it is used first.

    :param seconds: how long an answer may take.
    """
    pool = client.connection_pool
    options = pool.connection_kwargs | {"socket_timeout": seconds}
    return Client(connection_pool=redis.ConnectionPool(pool.connection_class, max_connections=1, **options))


def loading(url: str, *, seconds: float = 2.0) -> bool:
    """Whether a server is there that still reads its data."""
    with _client(url, seconds) as client:
        try:
            return bool(client.info("persistence").get("loading"))  # type: ignore[union-attr]
        except redis.exceptions.BusyLoadingError:
            return True
        except (redis.RedisError, OSError, ValueError):
            return False


def _shown(url: str) -> str:
    """An address without what is secret in it."""
    scheme, found, rest = url.partition("?")[0].partition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"


class told:  # noqa: N801
    """The client library's errors as ours."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, redis.RedisError | OSError):
            raise _ours(self.where, error) from None


def _ours(where: str, error: redis.RedisError | OSError) -> TrunklineError:
    said = str(error)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return NotAuthorized(f"{where} should let this user in, found: {said}.", hint="Check user and password.")
    # Redis 6.2 says what went wrong in a script in the middle of its answer, newer ones at its beginning.
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in said:
        return QueueFull(f"{where} should have memory left, found none.", hint="Raise its `maxmemory`, or wait.")
    if isinstance(error, redis.ReadOnlyError) or "READONLY You can't write" in said:
        return SettingsError(f"{where} should take writes, found a replica.", hint="Name the primary.")
    if "MISCONF" in said:
        return StorageFailed(f"{where} should write to its disk, found: {said}.", hint="Free some space; nothing was lost.")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return Unreachable(f"{where} should answer, found: {said}.", hint="Is the server running?")
    if isinstance(error, redis.exceptions.InvalidResponse):
        return Unreachable(f"{where} should speak the protocol of Redis, found: {said[:200]}.", hint="Is it the right port?")
    return FailedError(f"{where} should carry out a command, found: {said}.")


def _check(client: Client, where: str) -> None:
    """All that a server needs to be for nothing to be lost.

    :raises SettingsError: it is not; says what, and how to set it.
    :raises Unreachable: it is reading its data.
    """
    info: Mapping[str, Any] = client.info()
    if info.get("loading"):
        raise Unreachable(f"{where} should answer, found that it is still reading its data.", hint="Wait until it has.")
    wrong = []
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdecimal())
    if version < OLDEST:
        wrong.append(f"a version of at least {'.'.join(map(str, OLDEST))}, found {info.get('redis_version')}")
    policy = info.get("maxmemory_policy")
    if info.get("maxmemory") and policy != "noeviction":
        wrong.append(f"`maxmemory-policy noeviction`, found {policy}: it would throw samples away")
    if info.get("role") not in (None, "master"):
        wrong.append(f"to be a primary, found a {info.get('role')}")
    if not int(info.get("aof_enabled", 0)):
        wrong.append("`appendonly yes`, found no append-only file: a restart would lose samples")
    elif info.get("aof_last_write_status") == "err":
        wrong.append("to write its append-only file, found that its last write failed: is the disk full?")
    if wrong:
        raise SettingsError(f"{where} should have {'; '.join(wrong)}.", hint="Set it in redis.conf, or with CONFIG SET.")
