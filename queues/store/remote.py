"""The store as a worker on another machine has it: through the master's HTTPS API, or whatever passes its calls on.

    GET    …/step                               {"step": N}
    GET    …/parameters?half=0|1                a snapshot (see `queues.store.snapshots`) of the newest step, with its ETag
               If-None-Match: TAG               304: it is the one that the caller has
               Range: bytes=N- , If-Range: TAG  206: the rest of that step, where it is still there; else the newest, whole
    PUT    …/gradients                          a gradient (see `queues.store.wireform`); the same again does no harm
    DELETE …/gradients?batch=B&attempt=N        it was not submitted
    GET    …/verdict?batch=B&attempt=N&seconds=S   {"verdict": null, "applied", "stale" or "refused"}, as soon as there is one

What comes is compared with what the stream's description says: not a byte more is taken, and nothing is read from parameters that
are not all of one step, to the checksum.
"""

import json
import logging
import re
import threading
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import torch
from torch import Tensor

from queues.store.layout import Layout, missing
from queues.store.snapshots import HEAD_BYTES, read_head, views
from queues.store.store import Sent, Verdict
from queues.store.wireform import encode
from trunkline.clock import Deadline
from trunkline.errors import DamagedFile, FailedError, Reason, RefusedValue, TrunklineError, Unreachable
from trunkline.https import Answer, Https

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0
"""That one call waits for a verdict at most."""

GRACE = 30.0
"""Seconds beyond those that a call is held open on purpose."""

PAUSE = 0.2
"""Seconds before a verdict is asked for again that could not be."""


class RemoteReader:
    """A `StoreReader` over HTTPS. Any thread may use it.

    :param https: the connection, with its token; its patience says how long a call is tried.
    :param path: of the calls, e.g. `/v1/streams/reviews/worker`.
    :param shapes: of all parameters, in their order, as the stream's description has them.
    :param half_gradients: send them as bfloat16, rounded: half the bytes, and no longer what a plain loop would come to.
    :param half_parameters: fetch them as bfloat16. Gradients are then of rounded parameters.
    """

    def __init__(
        self,
        https: Https,
        path: str,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        half_gradients: bool = False,
        half_parameters: bool = False,
    ) -> None:
        self._https, self._path = https, path
        self._half_gradients, self._half = half_gradients, half_parameters
        self._lock = threading.Lock()
        self._held = _Held(Layout(shapes, ()), half_parameters)

    @property
    def fetched(self) -> int:
        """Bytes of parameters that came."""
        return self._held.fetched

    # -- parameters ----------------------------------------------------------------------------------------------------

    def step(self) -> int:
        """The step that `read` would give now.

        :raises Unreachable: nothing answers.
        :raises NotAuthorized: the token is no longer good.
        """
        return int(_table(self._https.call("GET", f"{self._path}/step")).get("step", -1))

    @torch.no_grad()
    def read(self, into: Mapping[str, Tensor]) -> int:
        """Copy parameters, all of one step, into tensors of their names; tell the step. What is here already does not come again.

        :raises Unreachable, QueueFull: nothing answers, or the server has no room for another step on its way.
        :raises NotAuthorized: the token is no longer good.
        :raises RefusedValue: what came is not what the description says.
        :raises NotFound: there is no parameter of this name and shape.
        """
        with self._lock:
            held = self._held
            for name, tensor in into.items():
                if name not in held.values or held.values[name].shape != tensor.shape:
                    raise missing(name, tuple(tensor.shape), tuple(held.values[name].shape) if name in held.values else None)
            held.furthest = 0
            self._https.tried(self._fetch, "to fetch parameters", lambda: held.furthest)
            for name, tensor in into.items():
                tensor.copy_(held.values[name])
            return held.step

    def _fetch(self) -> None:
        target = f"{self._path}/parameters?half={int(self._half)}"
        with self._https.talk("GET", target, self._held.headers()) as answer:
            self._held.take(answer)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def send(self, gradient: Sent) -> None:
        """Lay a gradient down, whole. It may be sent again.

        :raises QueueFull, Unreachable: there is no room for it now, or nobody answers.
        :raises RefusedValue: it is not one of this store.
        """
        form = encode(gradient, half=self._half_gradients)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(form.size)}

        def once() -> None:
            with self._https.talk("PUT", f"{self._path}/gradients", headers, content=form.chunks()) as answer:
                for _ in answer.chunks:
                    pass

        self._https.tried(once, "to send a gradient")

    def withdraw(self, batch: str, attempt: int) -> None:
        """Take back a gradient that was laid down and not submitted."""
        self._https.call("DELETE", f"{self._path}/gradients", query={"batch": batch, "attempt": attempt})

    def verdict(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        """Wait for what becomes of a gradient; None: nothing within this time, also where nobody could be asked."""
        clock = self._https.clock
        deadline = Deadline(clock, seconds, "a verdict")
        while True:
            try:
                found = self._ask(batch, attempt, min(POLL_SECONDS, deadline.left()))
            except TrunklineError as error:
                if not error.retryable:
                    raise
                log.debug("a verdict was not told: %s", error)
                clock.sleep(min(PAUSE, deadline.left()))
                found = None
            if found is not None or deadline.over():
                return found

    def _ask(self, batch: str, attempt: int, seconds: float) -> Verdict | None:
        query = urlencode({"batch": batch, "attempt": attempt, "seconds": f"{seconds:.3f}"})
        with self._https.talk("GET", f"{self._path}/verdict?{query}", answer_seconds=seconds + GRACE) as answer:
            told = _table(_json(answer)).get("verdict")
        try:
            return None if told is None else Verdict(told)
        except ValueError:
            raise FailedError(f"a verdict should be {', '.join(Verdict)}, found {str(told)[:80]!r}.") from None


_LIMIT = 1 << 16
"""Bytes of an answer that is no parameters."""


def _json(answer: Answer) -> Any:
    data = bytearray()
    for chunk in answer.chunks:
        data += chunk
        if len(data) > _LIMIT:
            raise RefusedValue(Reason.SIZE, f"an answer should have at most {_LIMIT} bytes, found more.")
    try:
        return json.loads(data)
    except ValueError:
        raise FailedError("an answer should be JSON, found something else.") from None


def _table(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise FailedError(f"an answer should be a table, found {type(found).__name__}.")
    return found


class _Held:
    """The parameters that are here: all of one step, or a part of one that is on its way."""

    def __init__(self, layout: Layout, half: bool) -> None:
        self._layout, self._width = layout, 2 if half else 4
        self.size = HEAD_BYTES + self._width * layout.part
        self._buffer = torch.zeros(self.size, dtype=torch.uint8)
        self._bytes = self._buffer.numpy().data
        self.values = views(layout, self._buffer[HEAD_BYTES:].view(torch.bfloat16 if half else torch.float32))
        self.step = -1
        self.fetched = self.furthest = 0  # bytes: ever, and of what is read now
        self._tag: str | None = None  # of what is in the buffer, or comes into it
        self._have = 0
        self._whole = False

    def headers(self) -> dict[str, str]:
        """What to ask for: another step than this, or the rest of this."""
        if self._tag is None:
            return {}
        if self._whole:
            return {"If-None-Match": self._tag}
        return {"Range": f"bytes={self._have}-", "If-Range": self._tag} if self._have else {}

    def take(self, answer: Answer) -> None:
        """What was answered; a part of it that came before it broke off is kept.

        :raises RefusedValue: it is not what was asked for; nothing is kept.
        :raises Unreachable: it ended too early.
        """
        if answer.status == 304 and self._whole:
            return
        begin, tag = self._begin(answer), answer.headers.get("etag")
        self._tag, self._have, self._whole = tag, begin, False
        length = answer.headers.get("content-length")
        if tag is None or (begin and tag != self._tag) or length != str(self.size - begin):
            self._drop(
                f"parameters should be {self.size} bytes with a tag, found {length or 'no number of'} bytes from {begin} on."
            )
        for chunk in answer.chunks:
            end = self._have + len(chunk)
            if end > self.size:
                self._drop(f"parameters should be {self.size} bytes, found more.")
            self._bytes[self._have : end] = chunk
            self.fetched += len(chunk)
            self._have, self.furthest = end, max(self.furthest, end)
        if self._have < self.size:
            raise Unreachable(f"parameters ended after {self._have} of {self.size} bytes.")
        self._check()

    def _begin(self, answer: Answer) -> int:
        if answer.status == 200:
            return 0
        found = re.fullmatch(r"bytes (\d{1,18})-\d+/\d+", answer.headers.get("content-range", ""))
        same = answer.headers.get("etag") == self._tag
        if answer.status != 206 or found is None or not same or int(found[1]) != self._have or self._whole:
            self._drop(
                f"the rest of the parameters should begin at byte {self._have}, found status {answer.status} and another range."
            )
        return self._have

    def _check(self) -> None:
        count = self._layout.part
        try:
            front = read_head(bytes(self._bytes[:HEAD_BYTES]), self._width, count)
            if zlib.crc32(self._bytes[HEAD_BYTES:]) != front.check:
                raise DamagedFile("the parameters should be what their checksum is of, found something else.")
        except DamagedFile as error:
            self._drop(error.message, Reason.DAMAGED)
        else:
            self.step, self._whole = front.step, True

    def _drop(self, why: str, reason: Reason = Reason.SIZE) -> None:
        """:raises RefusedValue: always."""
        self._tag, self._have, self._whole = None, 0, False
        raise RefusedValue(reason, why)
