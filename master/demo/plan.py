"""How much the demo trains: one place for its numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Rounds x steps is what each child trains, in every variant; pooled trains as much as all children together."""

    rounds: int = 8
    steps: int = 4  # a round and child
    batch_size: int = 16
    layers: int = 2  # of MiniLM's six
    max_length: int = 24  # tokens
    rows: float = 0.1  # share of its training rows that each child holds
    held_out: float = 1.0  # share of the validation and test rows that are scored
    learning_rate: float = 1e-3  # of the rounds; each variant has the rate that did best on the validation rows, see docs/log.md
    alone_learning_rate: float = 5e-4
    pooled_learning_rate: float = 1e-4
    head_learning_rate: float = 3e-3
    seed: int = 0
    quick: bool = False

    @property
    def total_steps(self) -> int:
        return self.rounds * self.steps


QUICK = DemoPlan(rounds=2, steps=5, layers=1, max_length=16, held_out=0.2, quick=True)
"""A smoke test: too few steps, and too few rows scored, to tell anything about the method."""
