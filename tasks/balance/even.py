"""Rules that look at neither gradients nor losses."""

from typing import ClassVar

import numpy as np

from tasks.balance.rule import Rule, Seen, State, Weighed


class Equal(Rule):
    """The mean of the gradients: every task alike."""

    name: ClassVar[str] = "equal"

    def weigh(self, seen: Seen, state: State) -> Weighed:
        return Weighed(np.full(len(seen.tasks), 1 / len(seen.tasks)))
