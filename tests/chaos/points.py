"""Where processes of a stream end themselves, or the server of their queues, in the middle of what they say to each other."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = {
    "server": {
        "record": ("append", "sync"),
        "store": ("apply", "done", "checkpoint"),
        "queues": ("hold", "work", "commit", "nack", "release", "adopt", "reopen", "begin"),
    },
    "worker": {
        "queues": ("claim", "submit", "nack", "renew"),
        "reader": ("read", "send", "verdict", "withdraw"),
        "model": ("gradient",),
    },
    "producer": {"queues": ("push",)},
}

INSIDE = (
    "begun",
    "changed",
    "finished",
    "written down",
    "flipped",
    "told",
    "checkpoint: tensors",
    "checkpoint: state",
    "list in place",
)
"""Points of the store itself."""

VICTIMS = ("self", "redis", "both", "stop")
"""Who is killed; or the process only stops, until somebody lets it go on."""

POINTS = {
    role: tuple(f"{when} {part}.{name}" for part, names in calls.items() for name in names for when in ("before", "after"))
    + (INSIDE if role == "server" else ())
    for role, calls in CALLS.items()
}


@dataclass(frozen=True)
class Point:
    """What happens to a process when it comes to a place for the so-manieth time."""

    name: str
    count: int
    victim: str  # of VICTIMS
    redis: str  # the file with the process id of the server of the queues


class Killer:
    """Does it, once."""

    def __init__(self, point: Point) -> None:
        self.point, self.left = point, point.count

    def reach(self, name: str) -> None:
        """The process comes to a place."""
        if name != self.point.name or self.left <= 0:
            return
        self.left -= 1
        if self.left:
            return
        if self.point.victim in ("redis", "both"):
            with suppress(OSError, ValueError):
                os.kill(int(Path(self.point.redis).read_text()), signal.SIGKILL)
        if self.point.victim in ("self", "both"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.point.victim == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)

    def watch(self, role: str) -> None:
        """From now on, in this process."""
        from queues.redis import RedisQueues
        from queues.store.reader import FileReader
        from queues.store.writer import FileWriter
        from queues.stream.model import Learner
        from queues.stream.recording import RecordWriter
        from queues.writer import QueueWriter

        owners: dict[str, type] = {"record": RecordWriter, "store": FileWriter, "reader": FileReader, "model": Learner}
        for part, names in CALLS[role].items():
            for name in names:
                owner = owners.get(part) or (QueueWriter if role == "server" else RedisQueues)
                setattr(owner, name, self._wrapped(f"{part}.{name}", getattr(owner, name)))
        setattr(FileWriter, "_reach", lambda _, name: self.reach(name))  # noqa: B010 - replaced on purpose

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any, **named: Any) -> Any:
            self.reach(f"before {name}")
            found = call(*arguments, **named)
            self.reach(f"after {name}")
            return found

        return calling
