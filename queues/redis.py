"""Task queues in a Redis, or whatever speaks its protocol: the one module that knows the client library.

What a queue does, it does in one script on the server (see `queues/lua/README.md`), so producers and workers in any number, on any
machine, never see half of it. The protocol is Redis 6.2's.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queues.queue import Claim, Counts, Outcome
from queues.settings import QueueSettings, State, StreamSettings
from trunkline.clock import Clock
from trunkline.errors import (
    Conflict,
    FailedError,
    Fenced,
    NotAuthorized,
    NotFound,
    QueueFull,
    QueuePaused,
    SettingsError,
    Unreachable,
)
from trunkline.settings import build

OLDEST = (6, 2)
"""The first Redis whose `LPOP` takes a count."""

FORMAT = 1
"""Of the keys; counts up when what lies in them changes."""

STAMP = 8
"""Bytes of arrival before each sample."""

CHUNK = 1000
"""Samples of one call: what one script pushes at once."""

_POLICIES = {"arrival": ("arrival", 0.0), "equal": ("fair", 0.0), "proportional": ("fair", 1.0), "priority": ("priority", 0.0)}
"""What the server knows them as: whose turn it is, and the power of a queue's samples that its share goes with."""


def connect(url: str, *, seconds: float = 5.0) -> "redis.Redis":
    """A client of a server that answers.

    :param url: `redis://`, `rediss://` or `unix://`, with user and password where needed.
    :param seconds: how long a connection or an answer may take.
    :raises SettingsError: the address is none, or the server is not fit for queues; all that is wrong is said.
    :raises NotAuthorized: it wants another user or password.
    :raises Unreachable: it does not answer.
    """
    try:
        # A command is never sent twice by the library: our scripts know what to do with a repeated one, others do not.
        client = redis.Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0), health_check_interval=25
        )
    except ValueError as error:
        raise SettingsError(
            f"the address of a Redis should be redis://, rediss:// or unix://, found {_shown(url)}: {error}."
        ) from None
    try:
        with _told(_shown(url)):
            _check(client, _shown(url))
    except BaseException:
        client.close()
        raise
    return client


def _shown(url: str) -> str:
    """An address without what is secret in it."""
    scheme, found, rest = url.partition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"


class _told:  # noqa: N801
    """The client library's errors as ours."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
            raise NotAuthorized(f"{self.where} should let this user in, found: {error}.", hint="Check user and password.") from None
        if isinstance(error, redis.exceptions.OutOfMemoryError):
            raise QueueFull(f"{self.where} should have memory left, found none.", hint="Raise its `maxmemory`, or wait.") from None
        if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
            raise Unreachable(f"{self.where} should answer, found: {error}.", hint="Is the server running?") from None
        if isinstance(error, redis.ReadOnlyError):
            raise SettingsError(f"{self.where} should take writes, found a replica.", hint="Name the primary.") from None
        if isinstance(error, redis.ResponseError):
            raise FailedError(f"{self.where} should carry out a command, found: {error}.") from None


def _check(client: "redis.Redis", where: str) -> None:
    """All that a server needs to be for nothing to be lost.

    :raises SettingsError: it is not; says what, and how to set it.
    """
    info: Mapping[str, Any] = client.info()
    wrong = []
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
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


@cache
def script(name: str) -> str:
    """A script's whole text, as a server gets it."""
    folder = files("queues") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))


@dataclass(frozen=True, slots=True)
class Stats:
    """One queue at one moment."""

    queue: str
    counts: Counts
    settings: QueueSettings
    state: State
    oldest: float  # seconds that the oldest sample waits


class RedisQueues:
    """The queues of one stream; a `TaskQueue` of bytes.

    :param name: of the stream.
    :param epoch: of the store that owns it; a stream of another is refused. None: whichever it is.
    :param worker: who claims.
    :param clock: None: the server's own, as it should be; tests hand in theirs.
    :param new_id: makes a batch id that is never used again, also where a server lost its last seconds.
    """

    def __init__(
        self,
        client: "redis.Redis",
        name: str,
        *,
        epoch: str | None = None,
        worker: str = "",
        clock: Clock | None = None,
        new_id: Any = lambda: secrets.token_hex(12),
    ) -> None:
        self.name, self.worker = name, worker
        self._client, self._epoch, self._clock, self._new_id = client, epoch, clock, new_id
        self._prefix = f"{{trunkline:{name}}}:"
        self._scripts: dict[str, Any] = {}

    # -- the stream ----------------------------------------------------------------------------------------------------

    def begin(self, epoch: str, settings: StreamSettings | None = None) -> str:
        """Make the stream where there is none; return the epoch of the one there is.

        :raises Conflict: its keys are of another format.
        """
        settings = settings or StreamSettings()
        format_, found = self._call("stream", epoch, *_meta(settings), epoch="*")
        if int(format_) != FORMAT:
            raise Conflict(
                f"the stream {self.name!r} should have keys of format {FORMAT}, found {int(format_)}.",
                hint="Use the version of Trunkline that made it.",
            )
        return str(found.decode())

    def configure_stream(self, settings: StreamSettings) -> None:
        """Change what all its queues share, from the next script on."""
        fields = _meta(settings)
        with _told("the server"):
            self._client.hset(self._key("meta"), mapping=dict(zip(fields[::2], fields[1::2], strict=True)))

    def queues(self) -> list[str]:
        """The names of its queues, sorted."""
        start = self._key("c:")
        with _told("the server"):
            return sorted(
                key.decode().removeprefix(start) for key in self._client.scan_iter(match=_literal(start) + "*", count=1000)
            )

    def open(self, task: str, batch_size: int) -> None:
        self.configure(task, build(QueueSettings, {"batch_size": batch_size}, f"the queue {task}"))

    def configure(self, task: str, settings: QueueSettings) -> None:
        """Make a queue, or change its settings from the next claim on."""
        fields = {
            "batch": settings.batch_size,
            "most": settings.most,
            "weight": repr(settings.weight),
            "priority": settings.priority,
            "flush": round(1000 * settings.flush_seconds),
            "least": settings.flush_least,
        }
        self._set(task, fields)

    def set_state(self, task: str, state: State) -> None:
        """Pause, drain, stop or open a queue. Batches that are out may still be committed.

        :raises NotFound: no such queue.
        """
        self.stats(task)
        self._set(task, {"state": state})

    def _set(self, task: str, fields: Mapping[str, Any]) -> None:
        _checked(self._call("configure", task, *(part for item in fields.items() for part in item)))

    # -- samples -------------------------------------------------------------------------------------------------------

    def push(self, task: str, samples: Sequence[bytes], *, producer: str = "", first: int = 0) -> int:
        """Append samples; return how many wait now.

        :param producer: who pushes. Samples that came from it before, by their numbers, are not pushed again.
        :param first: the number of the first of these samples at that producer, which counts from 1.
        :raises NotFound: no such queue.
        :raises QueueFull, QueuePaused: none of these samples, or those of the last thousands of them, were taken; see the message.
        """
        depth = 0
        for start in range(0, max(1, len(samples)), CHUNK):
            part = samples[start : start + CHUNK]
            answer = self._call("push", task, producer, first + start if producer else 0, *part)
            status, depth = answer[0].decode(), int(answer[1])
            if status in ("OK", "DUPLICATE"):
                continue
            taken = f" {start} of these {len(samples)} samples were taken before." if start else ""
            if status == "BUSY":
                hint = f"Push the others again later.{taken}"
                raise QueueFull(f"queue {task!r} should have room, found {depth} samples in it and no more allowed.", hint=hint)
            if status == "PAUSED":
                raise QueuePaused(f"queue {task!r} should be open, found that it takes no samples; {depth} wait.{taken}")
            if status == "UNKNOWN":
                raise NotFound(f"task {task!r} should have a queue, found {', '.join(self.queues()) or 'none'}.")
            _checked(status.encode())
        return depth

    def waiting(self, task: str) -> tuple[bytes, ...]:
        return self.peek(task, None)

    def peek(self, task: str, most: int | None = 10) -> tuple[bytes, ...]:
        """The samples that wait, oldest first.

        :param most: how many of them; None: all.
        """
        with _told("the server"):
            found: Any = self._client.lrange(self._key("q", task), 0, -1 if most is None else most - 1)
        return _bare(found)

    # -- batches -------------------------------------------------------------------------------------------------------

    def claim(self) -> Claim[bytes] | None:
        found = self._call("claim", self.worker, self._new_id())
        if found is None:
            return None
        if len(found) == 1:
            _checked(found[0])
        batch, queue, attempt, *samples = found
        return Claim(batch.decode(), int(attempt), queue.decode(), _bare(samples))

    def renew(self, claim: Claim[bytes]) -> Outcome:
        return _outcome(self._call("renew", claim.id, claim.attempt))

    def submit(self, claim: Claim[bytes]) -> Outcome:
        """Say that the store has the batch's gradient, whole: no lease runs any more, until `commit` or `nack`."""
        return _outcome(self._call("submit", claim.id, claim.attempt))

    def commit(self, claim: Claim[bytes], step: int = 0) -> Outcome:
        """Say that the batch changed the parameters.

        :param step: of the store; its samples are kept until `release` is told of that step.
        """
        return _outcome(self._call("commit", claim.id, claim.attempt, step))

    def release(self, step: int) -> int:
        """Let the samples go that changed the parameters up to a step, for a checkpoint covers it; return how many batches."""
        total = 0
        while done := int(_checked(self._call("release", step))):
            total += done
        return total

    def nack(self, claim: Claim[bytes], reason: str, *, counts: bool = True) -> Outcome:
        """Give a batch back.

        :param counts: whether it is the batch's own fault; after too many of those it is put aside.
        """
        return _outcome(self._call("nack", claim.id, claim.attempt, reason, "fail" if counts else "redo"))

    # -- what happened -------------------------------------------------------------------------------------------------

    def counts(self, task: str) -> Counts:
        return self.stats(task).counts

    def stats(self, task: str) -> Stats:
        """One queue, all of it at one moment.

        :raises NotFound: no such queue.
        """
        found = self._call("counts", task)
        if found is None:
            raise NotFound(f"task {task!r} should have a queue, found {', '.join(self.queues()) or 'none'}.")
        depth, age, flat = int(found[0]), int(found[1]), [value.decode() for value in found[2]]
        table = dict(zip(flat[::2], flat[1::2], strict=True))
        numbers = {name: int(table[name]) for name in ("pushed", "applied", "leased", "submitted", "dead", "purged")}
        settings = QueueSettings(
            batch_size=int(table["batch"]),
            most=int(table["most"]),
            weight=float(table["weight"]),
            priority=int(table["priority"]),
            flush_seconds=int(table["flush"]) / 1000,
            flush_least=int(table["least"]),
        )
        state: State = table["state"]  # type: ignore[assignment]
        return Stats(task, Counts(queued=depth, **numbers), settings, state, age / 1000)

    def dead(self, task: str, most: int = 1000) -> tuple[tuple[Claim[bytes], str], ...]:
        """Batches that were put aside, oldest first, each with its last reason."""
        return tuple(
            (Claim(batch.decode(), int(attempt), task, _bare(samples)), reason.decode())
            for batch, attempt, reason, *samples in self._call("dead", task, most)
        )

    def retry(self, task: str, batches: Sequence[str] = ()) -> int:
        """Give dead batches all their attempts again; return how many.

        :param batches: their ids; none: all of the queue's.
        """
        return int(_checked(self._call("retry", task, *batches)))

    def purge_dead(self, task: str, batches: Sequence[str] = ()) -> int:
        """Give up the samples of dead batches; return how many samples.

        :param batches: their ids; none: all of the queue's.
        """
        return int(_checked(self._call("purge", task, "dead", *batches)))

    def purge_waiting(self, task: str) -> int:
        """Give up all samples that wait; return how many."""
        return int(_checked(self._call("purge", task, "waiting")))

    # -- the scripts ---------------------------------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _call(self, name: str, *arguments: Any, epoch: str | None = None) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self._client.register_script(script(name))
        now = "" if self._clock is None else str(round(1000 * self._clock.now()))
        with _told("the server of the queues"):
            return self._scripts[name](keys=[self._key("meta")], args=[epoch or self._epoch or "*", now, *arguments])


def _meta(settings: StreamSettings) -> list[Any]:
    policy, exponent = _POLICIES.get(settings.policy, ("fair", 1.0 / settings.temperature))
    return [
        *("lease", round(1000 * settings.lease_seconds), "attempts", settings.attempts, "budget", settings.budget),
        *("policy", policy, "exponent", repr(exponent), "aging", round(1000 * settings.aging_seconds)),
    ]


def _bare(samples: Sequence[bytes]) -> tuple[bytes, ...]:
    """Without their arrival."""
    return tuple(sample[STAMP:] for sample in samples)


def _literal(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\*?[]" else sign for sign in text)


def _outcome(answer: bytes) -> Outcome:
    return Outcome(_checked(answer).decode().lower())


def _checked(answer: Any) -> Any:
    """:raises NotFound, Fenced: there is no such stream, or it is another store's."""
    if answer == b"NO_STREAM":
        raise NotFound("the stream should have been begun, found none of this name on the server.", hint="Start the master first.")
    if answer == b"EPOCH":
        raise Fenced("the stream should be of the store's own epoch, found another: it was restored, or another store owns it.")
    return answer
