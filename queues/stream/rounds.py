"""Where rounds meet a stream, at its server: what a round came to is added; a round begins with a set, and ends with a snapshot.

At a master a stream goes on all day. What a round came to, target less base, is added as one step between two batches, whatever
was applied meanwhile; a gradient that was computed before it is that much staler, and goes by the staleness bound.

At a child a stream that feeds rounds learns in rounds only. A *turn* is one of them: the initial set becomes the shared layers, in
one step; batches are given; after as many steps as were asked for, at the boundary of a batch, the shared layers and the heads are
written to files in `rounds/`, and no further batch is given until the next turn. A gradient that was computed before the initial
set, or that comes after the snapshot, is never applied: its batch comes back, and is the first of the next turn.

A turn stands in `rounds/turn.json`, written before the step that begins it, so a server that was killed goes on with it, and a
child that asks for the same one again is told what came of it the first time.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from queues.redis import Stats
from queues.settings import State
from queues.stream.home import StreamHome
from queues.stream.record import Record
from queues.stream.spec import StreamSpec
from queues.stream.together import Store
from queues.writer import QueueWriter
from trunkline.errors import Conflict, DamagedFile, NotFound
from trunkline.files import storage, write_atomically
from trunkline.sets import write_set

log = logging.getLogger(__name__)

BEGINS = "/in"
"""What names of initial sets end with, among the rounds that a store was given."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a turn came to."""

    step: int  # of the store, at the snapshot
    digest: str  # of the shared layers, a file in `rounds/`
    heads: str  # of the heads of its tasks, another
    applied: Mapping[str, int]  # samples since the initial set, by task
    losses: Mapping[str, float]  # mean of its batches, by task
    why: str  # `steps`, or what ended it before


@dataclass(frozen=True, slots=True)
class Turn:
    """One round at this site."""

    name: str
    steps: int  # that it should make
    tasks: tuple[str, ...]  # whose queues give batches
    before: Mapping[str, int]  # samples that each queue had applied when it began
    done: Done | None = None


class Rounds:
    """What rounds do to one stream. The caller holds the server's mutex."""

    def __init__(self, home: StreamHome, spec: StreamSpec, queues: QueueWriter, store: Store) -> None:
        self.home, self.spec, self.queues, self.store = home, spec, queues, store
        self._turn_file, self._attached_file = home.rounds / "turn.json", home.rounds / "attached"
        self.attached, self.turn = self._attached_file.exists(), self._read()
        self.floor, self._gated = self._newest(), False

    # -- what may be applied -------------------------------------------------------------------------------------------

    def closed(self, task: str, base: int) -> str | None:
        """Why a gradient of a task, computed on the parameters of a step, comes to nothing; None: it may be applied."""
        if base < self.floor:
            return f"its gradient is of step {base}, and the round began at step {self.floor}"
        if not self.attached:
            return None
        if self.turn is None or self.turn.done is not None:
            return "no round is played now"
        return None if task in self.turn.tasks else "its task is not in the round"

    # -- a turn --------------------------------------------------------------------------------------------------------

    def attach(self, attached: bool) -> None:
        """Whether the stream feeds rounds, and learns in them only."""
        if attached:
            with storage(self.home.rounds):
                self.home.rounds.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._attached_file, b"")
        else:
            self._attached_file.unlink(missing_ok=True)
        self.attached, before = attached, self.attached
        if attached or before:
            self._gate()

    def opening(self, name: str, steps: int, tasks: Sequence[str]) -> None:
        """Note a turn that is about to begin.

        :raises NotFound: the stream has no task of such a name.
        """
        if unknown := sorted(set(tasks) - {task.name for task in self.spec.tasks}):
            raise NotFound(f"`tasks` should be some of the stream's, found {', '.join(unknown)}.")
        self.attach(True)
        self._write(Turn(name, steps, tuple(sorted(tasks)), self._applied()))

    def opened(self) -> None:
        """The initial set was put: give batches."""
        self.floor = self._newest()
        self._gate()
        self.look()

    def known(self, name: str) -> bool:
        """Whether a turn of this name was begun before, and is the newest.

        :raises Conflict: it was begun, and another since.
        """
        if name not in self.store.added():
            return False
        if self.turn is None or self.turn.name != name:
            raise Conflict(f"`name` should be of the newest round that began here, found {name!r}, which is over.")
        return True

    def ahead(self) -> None:
        """A step is about to be made: before the last of a turn no further batch is given, for it would be computed in vain."""
        if self._left_over() == 1:
            self._gated = False  # where the step is refused, they are given again
            for task in self.spec.tasks:
                self._turn_to(task.name, "filling")

    def look(self) -> None:
        """End the turn if it has made its steps."""
        left = self._left_over()
        if left is not None and left <= 0:
            self.end("steps")

    def _left_over(self) -> int | None:
        """Steps that the turn has not made; None: there is none under way."""
        turn = self.turn
        if turn is None or turn.done is not None:
            return None
        begun = self.store.added().get(turn.name)
        return None if begun is None else turn.steps - (self.store.step - begun)

    def end(self, why: str) -> None:
        """Take the snapshot, and give no further batch."""
        turn = self.turn
        assert turn is not None, "a turn was begun"
        if turn.done is None:
            digest, heads = self._snapshot(turn)
            now, since = self._applied(), self.store.added()[turn.name]
            applied = {task: now[task] - turn.before.get(task, 0) for task in turn.tasks}
            samples = {task: count for task, count in applied.items() if count}
            done = Done(self.store.step, digest, heads, samples, self._losses(since), why)
            self._write(replace(turn, done=done))
            log.info("round %s is over at step %d (%s)", turn.name, done.step, why)
        self._gate()

    def _snapshot(self, turn: Turn) -> tuple[str, str]:
        """Write the shared layers, and the heads as `TASK/NAME`; tell the digests of both files."""
        beside = self.home.rounds / ".set"
        prefixes = tuple(f"head/{task}/" for task in turn.tasks)
        shared = self.store.write_shared(beside)
        with storage(beside):
            beside.replace(self.home.rounds / shared)
        mine = {name.removeprefix("head/"): t.numpy() for name, t in self.store.values().items() if name.startswith(prefixes)}
        heads = write_set(beside, mine, mode=0o600)
        with storage(beside):
            beside.replace(self.home.rounds / heads)
        return shared, heads

    def came_early(self) -> None:
        """A gradient came to nothing: its queue may give batches though it should not, for a person opened it."""
        self._gated = False

    def tend(self, anew: bool = False) -> None:
        """See to it that the turn ends when it should, and that queues give batches in a turn only.

        :param anew: the server of the queues was set back, or this server started.
        """
        self.look()
        if self.attached and (anew or not self._gated):
            self._gate()

    def _gate(self) -> None:
        """Have each queue give batches, or only take samples, as it should; what a person paused stays so."""
        self._gated = False
        for task in self.spec.tasks:
            self._turn_to(task.name, "open" if self.closed(task.name, self.floor) is None else "filling")
        self._gated = True

    def _turn_to(self, task: str, wanted: State) -> None:
        found = self.queues.stats(task).state
        if found != wanted and found in ("open", "filling"):
            self.queues.set_state(task, wanted)

    def table(self) -> dict[str, Any] | None:
        """The turn as JSON values; `left`: whether its queues can give a batch, or have one out. None: there was none."""
        turn = self.turn
        if turn is None:
            return None
        done = None if turn.done is None else asdict(turn.done)
        begun = self.store.added().get(turn.name, self.store.step)
        made = (self.store.step if turn.done is None else turn.done.step) - begun
        about = {"name": turn.name, "steps": turn.steps, "tasks": list(turn.tasks), "made": made}
        return about | {"left": turn.done is None and self._left(turn.tasks), "done": done}

    def _left(self, tasks: Sequence[str]) -> bool:
        return any(_gives(self.queues.stats(task)) for task in tasks)

    def _applied(self) -> dict[str, int]:
        return {task.name: self.queues.counts(task.name).applied for task in self.spec.tasks}

    def _losses(self, since: int) -> dict[str, float]:
        seen: dict[str, list[float]] = {}
        for entry in Record(self.home.applied).since(since):
            if entry.task and entry.step <= self.store.step:
                seen.setdefault(entry.task, []).append(entry.loss)
        return {task: sum(losses) / len(losses) for task, losses in seen.items()}

    # -- where it stands -----------------------------------------------------------------------------------------------

    def _newest(self) -> int:
        """The step at which the newest initial set came in."""
        return max((step for name, step in self.store.added().items() if name.endswith(BEGINS)), default=0)

    def _write(self, turn: Turn) -> None:
        write_atomically(self._turn_file, json.dumps(asdict(turn)).encode(), mode=0o600)
        self.turn = turn
        kept = {turn.done.digest, turn.done.heads} if turn.done is not None else set()
        for path in self.home.rounds.iterdir():
            if len(path.name) == 64 and path.name not in kept:
                path.unlink(missing_ok=True)

    def _read(self) -> Turn | None:
        """The turn of before. One that the store does not know, for its step never happened or was lost, is none."""
        try:
            table = json.loads(self._turn_file.read_bytes())
            done = None if table["done"] is None else Done(**table["done"])
            found = Turn(table["name"], table["steps"], tuple(table["tasks"]), table["before"], done)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise DamagedFile(f"`{self._turn_file}` should be a round as it was written, found something else.") from None
        known = self.store.added().get(found.name)
        if known is None:
            return None
        gone = found.done is not None and found.done.step > self.store.step  # its batches came back, and are its again
        return replace(found, done=None) if gone else found


def _gives(found: Stats) -> bool:
    """Whether a queue has a batch out, or can give one; what a person paused does not."""
    if found.state not in ("open", "draining"):
        return False
    settings, counts = found.settings, found.counts
    least = 1 if found.state == "draining" else settings.flush_least if settings.flush_seconds else settings.batch_size
    return bool(counts.leased or counts.submitted) or counts.queued >= least
