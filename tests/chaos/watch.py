"""How long it takes from a kill until parameters move again."""

import threading
import time
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from statistics import median

from queues.store.reader import FileReader
from trunkline.errors import TrunklineError

LOOK = 0.01
"""Seconds between two looks at the store."""


class Watch:
    """Looks at the step of a store, and notes when it rose.

    :param store: its folder.
    """

    def __init__(self, store: Path) -> None:
        self.rises: list[float] = []
        self.kills: list[tuple[float, str]] = []
        self._store, self._ended = store, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def killed(self, whom: str) -> None:
        """Somebody was, just now."""
        self.kills.append((time.monotonic(), whom))

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join(40.0)

    def _run(self) -> None:
        last, reader = -1, FileReader(self._store, seconds=1.0)
        while not self._ended.wait(LOOK):
            with suppress(TrunklineError):
                step = reader.step()
                if step > last >= 0:
                    self.rises.append(time.monotonic())
                last = step

    def seconds(self) -> dict[str, list[float]]:
        """By role, and of all: from each kill to the next step, in order of length; what came after the last step is left out."""
        found: dict[str, list[float]] = {}
        for at, whom in self.kills:
            place = bisect_right(self.rises, at)
            if place < len(self.rises):
                for name in (whom.partition("-")[0], "all"):
                    found.setdefault(name, []).append(self.rises[place] - at)
        return {name: sorted(lengths) for name, lengths in found.items()}

    def told(self) -> list[str]:
        """Lines for people."""
        return [
            f"  {name:10} {len(lengths):4} kills   p50 {median(lengths):6.2f} s   max {lengths[-1]:6.2f} s"
            for name, lengths in sorted(self.seconds().items())
        ]
