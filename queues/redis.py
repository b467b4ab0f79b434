"""Task queues in a Redis, or whatever speaks its protocol.

What a queue does, it does in one script on the server (see `queues/lua/README.md`), so producers and workers in any number, on any
machine, never see half of it. The protocol is Redis 6.2's.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from queues.connection import Client, told
from queues.connection import connect as connect
from queues.pieces import CHUNK as CHUNK
from queues.pieces import CHUNK_BYTES as CHUNK_BYTES
from queues.pieces import SAMPLE_LIMIT as SAMPLE_LIMIT
from queues.pieces import bare, fields, meta, named, pieces, queue_settings
from queues.queue import Claim, Counts, Outcome
from queues.settings import QueueSettings, State, StreamSettings
from trunkline.clock import Clock
from trunkline.errors import (
    Conflict,
    Fenced,
    NotFound,
    QueueFull,
    QueuePaused,
    SampleError,
    SettingsError,
    Unreachable,
)
from trunkline.settings import build

FORMAT = 1
"""Of the keys; counts up when what lies in them changes."""


@cache
def script(name: str) -> str:
    """A script's whole text, as a server gets it."""
    folder = files("queues") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))


@dataclass(frozen=True, slots=True)
class Out:
    """A batch that is out."""

    batch: str
    queue: str
    attempt: int
    worker: str
    where: Literal["leased", "back", "submitted"]  # `back`: in nobody's hands, it will be claimed again
    seconds: float  # since it was claimed or submitted


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
        client: Client,
        name: str,
        *,
        epoch: str | None = None,
        worker: str = "",
        clock: Clock | None = None,
        new_id: Any = lambda: secrets.token_hex(12),
    ) -> None:
        self.name, self.worker = named(name, "a stream"), worker
        self._client, self._epoch, self._clock, self._new_id = client, epoch, clock, new_id
        self._prefix = f"{{trunkline:{name}}}:"
        self._scripts: dict[str, Any] = {}

    # -- the stream ----------------------------------------------------------------------------------------------------

    def begin(self, epoch: str, settings: StreamSettings | None = None) -> str:
        """Make the stream where there is none; return the epoch of the one there is.

        :raises Conflict: its keys are of another format.
        """
        settings = settings or StreamSettings()
        if epoch in ("", "*") or "@" in epoch:
            raise SettingsError(f"the epoch of a store should be a word without '@', found {epoch!r}.")
        format_, found = self._call("stream", epoch, *meta(settings), epoch="*")
        if format_ != str(FORMAT).encode() or found is None:
            raise Conflict(
                f"the stream {self.name!r} should have keys of format {FORMAT}, found {(format_ or b'none').decode()}.",
                hint="Use the version of Trunkline that made it.",
            )
        return str(found.decode())

    def begun(self) -> bool:
        """Whether the server knows the stream."""
        with told("the server of the queues"):
            return bool(self._client.exists(self._key("meta")))

    def configure_stream(self, settings: StreamSettings) -> None:
        """Change what all its queues share, from the next script on.

        :raises NotFound, Fenced: the stream was not begun, or is another store's.
        """
        self._said(self._call("settings", *meta(settings)))

    def queues(self) -> list[str]:
        """The names of its queues, sorted."""
        with told("the server of the queues"):
            found: Any = self._client.smembers(self._key("queues"))
        return sorted(name.decode() for name in found)

    def open(self, task: str, batch_size: int) -> None:
        """Make a queue, or change the batch size of the one there is and nothing else."""
        try:
            before = self.stats(task).settings.model_dump()
        except NotFound:
            before = {}
        self.configure(task, build(QueueSettings, before | {"batch_size": batch_size}, f"the queue {task}"))

    def configure(self, task: str, settings: QueueSettings) -> None:
        """Make a queue, or change its settings from the next claim on."""
        self._set(task, fields(settings))

    def set_state(self, task: str, state: State) -> None:
        """Pause, drain, stop or open a queue. Batches that are out may still be committed.

        :raises NotFound: no such queue.
        """
        if state not in get_args(State):
            raise SettingsError(f"the state of a queue should be {', '.join(get_args(State))}, found {state!r}.")
        self.stats(task)
        self._set(task, {"state": state})

    def _set(self, task: str, values: Mapping[str, Any]) -> None:
        named(task, "a queue")
        self._said(self._call("configure", task, *(part for item in values.items() for part in item)))

    # -- samples -------------------------------------------------------------------------------------------------------

    def push(self, task: str, samples: Sequence[bytes], *, producer: str = "", first: int = 0) -> int:
        """Append samples; return how many wait now.

        :param producer: who pushes. Samples that came from it before, by their numbers, are not pushed again.
        :param first: the number of the first of these samples at that producer, which counts from 1 and leaves none out.
        :raises NotFound: no such queue.
        :raises SampleError: a sample is too large; nothing was taken.
        :raises QueueFull, QueuePaused: none of these samples, or not the last of them, were taken; see the message.
        :raises Conflict: the producer's samples before these are missing.
        """
        if producer and first < 1:
            raise SettingsError(f"the samples of producer {producer!r} should be counted from 1, found {first}.")
        if large := [len(sample) for sample in samples if len(sample) > SAMPLE_LIMIT]:
            raise SampleError(f"a sample should have at most {SAMPLE_LIMIT >> 20} MiB, found one of {large[0]} bytes.")
        depth = 0
        for start, part in pieces(samples):
            answer = self._call("push", task, producer, first + start if producer else 0, *part)
            status, depth = answer[0].decode(), int(answer[1])
            if status in ("OK", "DUPLICATE"):
                continue
            taken = f" {start} of these {len(samples)} samples were taken before." if start else ""
            if status == "BUSY":
                hint = f"Push the others again later, or fewer at once.{taken}"
                raise QueueFull(f"queue {task!r} should have room for {len(part)} more samples, found {depth} in it.", hint=hint)
            if status == "PAUSED":
                raise QueuePaused(f"queue {task!r} should be open, found that it takes no samples; {depth} wait.{taken}")
            if status == "RESTARTED":
                raise Unreachable(
                    f"the server of the queues should know what the stream {self.name!r} applied before samples are pushed, found "
                    f"that it was started again.{taken}",
                    hint="Push them again in a moment: the server of the stream tells it. Does that run?",
                )
            if status == "GAP":
                raise Conflict(
                    f"producer {producer!r} should go on with sample {depth + 1}, found {first + start}.",
                    hint="Push those between first: they never arrived, or the server was set back. Without them, take a new name.",
                )
            self._said(answer[0], task)
        return depth

    def waiting(self, task: str) -> tuple[bytes, ...]:
        return self.peek(task, None)

    def peek(self, task: str, most: int | None = 10) -> tuple[bytes, ...]:
        """The samples that wait, oldest first.

        :param most: how many of them; None: all.
        :raises NotFound: no such queue.
        """
        if most is not None and most < 1:
            return ()
        return bare(self._said(self._call("peek", task, -1 if most is None else most - 1), task))

    # -- batches -------------------------------------------------------------------------------------------------------

    def claim(self) -> Claim[bytes] | None:
        found = self._call("claim", self.worker, self._new_id())
        if found is None:
            return None
        if len(found) == 1:
            self._said(found[0])
        batch, queue, attempt, *samples = found
        return Claim(batch.decode(), int(attempt), queue.decode(), bare(samples))

    def renew(self, claim: Claim[bytes]) -> Outcome:
        return self._outcome(self._call("renew", claim.id, claim.attempt))

    def submit(self, claim: Claim[bytes]) -> Outcome:
        """Say that the store has the batch's gradient, whole: no lease runs any more, until `commit` or `nack`."""
        return self._outcome(self._call("submit", claim.id, claim.attempt))

    def commit(self, claim: Claim[bytes], step: int = 0) -> Outcome:
        """Say that the batch changed the parameters.

        :param step: of the store; its samples are kept until `release` is told of that step.
        """
        return self._outcome(self._call("commit", claim.id, claim.attempt, step))

    def release(self, step: int) -> int:
        """Let the samples go that changed the parameters up to a step, for a checkpoint covers it; return how many batches."""
        total = 0
        while done := int(self._said(self._call("release", step))):
            total += done
        return total

    def nack(self, claim: Claim[bytes], reason: str, *, counts: bool = True) -> Outcome:
        """Give a batch back.

        :param reason: is kept with the batch; its first 2,000 characters are.
        :param counts: whether it is the batch's own fault; after too many of those it is put aside.
        """
        return self._outcome(self._call("nack", claim.id, claim.attempt, reason[:2000], "fail" if counts else "redo"))

    # -- what happened -------------------------------------------------------------------------------------------------

    def counts(self, task: str) -> Counts:
        return self.stats(task).counts

    def stats(self, task: str) -> Stats:
        """One queue, all of it at one moment.

        :raises NotFound: no such queue.
        """
        found = self._said(self._call("counts", task), task)
        depth, age, flat = int(found[0]), int(found[1]), [value.decode() for value in found[2]]
        table = dict(zip(flat[::2], flat[1::2], strict=True))
        numbers = {name: int(table[name]) for name in ("pushed", "applied", "leased", "submitted", "dead", "purged")}
        state: State = table["state"]  # type: ignore[assignment]
        return Stats(task, Counts(queued=depth, **numbers), queue_settings(table), state, age / 1000)

    def out(self, most: int = 1000) -> tuple[Out, ...]:
        """Batches that are out: those whose lease ends first, then those whose gradient the store has, in its order.

        :param most: how many of each.
        """
        if most < 1:
            return ()
        found = self._rows(self._call("out", most))
        return tuple(
            Out(batch.decode(), queue.decode(), int(attempt), worker.decode(errors="replace"), where.decode(), int(since) / 1000)
            for batch, queue, attempt, worker, where, since in found
        )

    def workers(self, most: int = 1000) -> dict[str, float]:
        """Workers that asked for a batch within a day, and how many seconds ago each last did; who did last comes first.

        :param most: how many of them.
        """
        found = self._rows(self._call("workers", most)) if most > 0 else ()
        return {worker.decode(errors="replace"): int(since) / 1000 for worker, since in found}

    def dead(self, task: str, most: int = 1000) -> tuple[tuple[Claim[bytes], str], ...]:
        """Batches that were put aside, oldest first, each with its last reason.

        :param most: how many of them.
        :raises NotFound: no such queue.
        """
        if most < 1:
            return ()
        return tuple(
            (Claim(batch.decode(), int(attempt), task, bare(samples)), reason.decode(errors="replace"))
            for batch, attempt, reason, *samples in self._said(self._call("dead", task, most), task)
        )

    def retry(self, task: str, batches: Sequence[str] | None = None) -> int:
        """Give dead batches all their attempts again; return how many.

        :param batches: their ids; None: all of the queue's.
        """
        return 0 if batches is not None and not batches else int(self._said(self._call("retry", task, *(batches or ())), task))

    def purge_dead(self, task: str, batches: Sequence[str] | None = None) -> int:
        """Give up the samples of dead batches; return how many samples.

        :param batches: their ids; None: all of the queue's.
        """
        return (
            0 if batches is not None and not batches else int(self._said(self._call("purge", task, "dead", *(batches or ())), task))
        )

    def purge_waiting(self, task: str) -> int:
        """Give up all samples that wait; return how many."""
        return int(self._said(self._call("purge", task, "waiting"), task))

    def _outcome(self, answer: bytes) -> Outcome:
        return Outcome(self._said(answer).decode().lower())

    def _rows(self, answer: Any) -> Any:
        """A script's answer of rows, if it did what it should."""
        if answer and isinstance(answer[0], bytes):
            self._said(answer[0])
        return answer

    def _said(self, answer: Any, task: str = "") -> Any:
        """What a script answered, if it did what it should.

        :raises NotFound, Fenced: there is no such stream or queue, or it is another store's.
        """
        if answer == b"NO_STREAM":
            raise NotFound(
                f"the stream {self.name!r} should have been begun, found none of this name on the server.",
                hint="Start the master first.",
            )
        if answer == b"EPOCH":
            raise Fenced(
                f"the stream {self.name!r} should be of the store's own epoch, found another: it was restored, or has a new owner."
            )
        if answer == b"HELD":
            raise Fenced(f"the stream {self.name!r} should be held by this server, found another that holds it.")
        if answer == b"UNKNOWN":
            raise NotFound(f"task {task!r} should have a queue, found {', '.join(self.queues()) or 'none'}.")
        return answer

    # -- the scripts ---------------------------------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _call(self, name: str, *arguments: Any, epoch: str | None = None) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self._client.register_script(script(name))
        now = "" if self._clock is None else str(round(1000 * self._clock.now()))
        with told("the server of the queues"):
            return self._scripts[name](keys=[self._key("meta")], args=[epoch or self._epoch or "*", now, *arguments])
