"""The seam between the desk of a stream and the one who keeps its parameters."""

from pathlib import Path
from typing import Any, Protocol


class Keeper(Protocol):
    """What the desk asks of the one who keeps the parameters."""

    def status(self) -> dict[str, Any]:
        """The step, what is covered, what was refused: JSON values."""
        ...

    def snapshot(self, to: Path) -> dict[str, Any]:
        """Write the shared set as it is now; tell `step`, `digest`, and the samples of each task that were `applied`."""
        ...

    def added(self) -> dict[str, int]:
        """The rounds that came in, by name, and at which step each did."""
        ...

    def merge(self, name: str, target: Path, base: Path) -> dict[str, Any]:
        """Add what a round came to; done once a name."""
        ...

    def attach(self, attached: bool) -> dict[str, Any]:
        """Whether the stream learns in rounds only."""
        ...

    def begin_turn(self, name: str, initial: Path, steps: int, tasks: tuple[str, ...], *, fresh: bool = False) -> dict[str, Any]:
        """Begin a round with a set, or go on with it."""
        ...

    def turn_table(self) -> dict[str, Any] | None:
        """The newest round; None: there was none."""
        ...

    def end_turn(self, name: str, why: str) -> dict[str, Any]:
        """End a round with what it came to so far."""
        ...

    def checkpoint(self) -> int:
        """Make all steps up to now survive a power cut; tell the step."""
        ...
