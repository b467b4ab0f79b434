"""A look for messages that is not answered while there is none: who asks says for how long it may be held.

The SuperLink's process holds it (`master.flower.lookout`); a stock SuperLink answers at once, and does not say that it held.
"""

from collections.abc import Callable
from typing import Any

HEADER = "x-trunkline-hold"
"""In a look: seconds that it may be held. In its answer: that it was held for as long as nothing was there."""


class Hold:
    """Asks for it, as Flower's clients let what goes with a call be added.

    :param path: how the path of a look ends.
    """

    def __init__(self, path: str = "/pull-messages") -> None:
        self._path = path
        self.seconds = 0.0  # for the looks from now on; 0: they are answered at once
        self.held = False  # whether the other side knows of it

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Flower's hook around a call."""
        if not context.request.url.path.endswith(self._path):
            return call_next(context)
        if self.seconds > 0:
            context.request.headers[HEADER] = f"{self.seconds:.3f}"
        answer = call_next(context)
        self.held = HEADER in answer.headers
        return answer
