"""Work that is done behind the caller's back: by one thread, in order, a few pieces late."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self


class Behind:
    """Leave its `with` block, and everything is done. What a piece of work raises comes up at a later call, or at the end.

    :param most: pieces of work that wait at most, so that what they hold stays little.
    """

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._waiting: deque[Future[Any]] = deque()

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, "behind")
        return self

    def do(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Have this done after what was asked for before."""
        while len(self._waiting) >= self._most or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(work, *arguments))

    def finish(self) -> None:
        """Wait until everything is done."""
        while self._waiting:
            self._waiting.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._thread.shutdown(cancel_futures=True)
