"""A whole rule: `FILTER+…+COMBINE+STEP`, read from one word and played on the updates of a round."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from master.rules.buffers import Buffers
from master.rules.fedbuff import FedBuff
from master.rules.mean import Mean
from master.rules.rule import Combine, Combined, Contribution, Filter, Fused, Parameters, Part, State, Step
from trunkline.choices import parse
from trunkline.errors import SpecError, TooFewChildren
from trunkline.tensors import FLOATS, Array, narrow

_PLUS = re.compile(r"\+(?=\s*[A-Za-z])")
"""Between two parts; the plus of `1e+5` is none."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How updates become the target set."""

    filters: tuple[Filter, ...]
    combine: Combine
    step: Step | None

    def __str__(self) -> str:
        """The canonical word. How updates are combined is left out where a step implies it."""
        plain = self.step is not None and self.combine == _usual(self.step)
        middle = () if plain else (self.combine,)
        return "+".join(str(part) for part in (*self.filters, *middle, *((self.step,) if self.step else ())))

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.filters, self.combine, *((self.step,) if self.step else ()))

    @property
    def buffered(self) -> FedBuff | None:
        """How rounds are buffered, where they do not wait for everybody."""
        return self.combine.buffered

    @property
    def corrects(self) -> bool:
        """Whether its state goes to the children, who correct their gradients by it."""
        return self.step is not None and self.step.corrects

    def check_installed(self) -> None:
        """:raises SpecError: a library that a part of it needs is not here."""
        for part in self.parts:
            part.check_installed()

    @property
    def least(self) -> int:
        """Fewest updates it can work with."""
        return max(part.least for part in self.parts)

    def fuse(
        self,
        base: Parameters,
        updates: Sequence[Contribution],
        state: State | None = None,
        *,
        most: float = 1.0,
        buffers: Buffers | None = None,
    ) -> Fused:
        """The target set of a round, as recipes.

        :param updates: in any order; they count in that of the child ids, so the result is the same bit for bit.
        :param state: what the last round left, None in the first.
        :param most: share of the weight that one child may have.
        :raises TooFewChildren: nobody counts, or too few for this rule.
        """
        if len(updates) < self.least:
            raise TooFewChildren(f"`{self}` should have at least {self.least} updates, found {len(updates)}.")
        counted, notes = sorted(updates, key=lambda update: update.child), dict[str, Any]()
        for part in self.filters:
            counted, seen = part.filter(base, counted)
            notes[part.name] = dict(seen)
        combined = self.combine.combine(base, counted, most)
        notes |= {self.combine.name: dict(combined.notes)} if combined.notes else {}
        after = self.step.remember(base, counted, combined, state) if self.step else None
        finish = _Finish(base, counted, combined, self.step, buffers or Buffers())
        weights = {update.child: combined.weights.get(update.child, 0.0) for update in counted}
        return Fused(weights, notes, after, finish)


@dataclass(frozen=True, slots=True)
class _Finish:
    """Makes the target set once the state is written."""

    base: Parameters
    updates: Sequence[Contribution]
    combined: Combined
    step: Step | None
    buffers: Buffers

    def __call__(self, state: Parameters | None) -> Parameters:
        rows_of = self.combined.read
        if self.step is not None:
            assert state is not None, "a step has a state, which is written before"
            rows_of = self.step.move(self.base, self.combined, state)

        def read(name: str, rows: slice) -> Array:
            dtype = self.base.spec[name].dtype
            if dtype in FLOATS:
                return narrow(rows_of(name, rows), dtype)
            return self.buffers.read(self.base, self.updates, self.combined.weights, name, rows)

        return Parameters(self.base.spec, read)


def _usual(step: Step | None) -> Combine:
    """How updates are combined where the word does not say."""
    return Mean() if step is None else Mean.model_validate({"by": step.weighs})


def read_rule(text: str, kinds: Mapping[str, type[Part]]) -> Rule:
    """Read a rule from its word.

    :param kinds: every part there is, by name.
    :raises SpecError: no such part, an option that it has not, or parts in an order that makes no rule.
    """
    parts = [parse(word, kinds, "rule") for word in _PLUS.split(text)]
    filters = [part for part in parts if isinstance(part, Filter)]
    combines = [part for part in parts if isinstance(part, Combine)]
    steps = [part for part in parts if isinstance(part, Step)]
    twice = len({part.name for part in parts}) < len(parts)
    if twice or len(combines) > 1 or len(steps) > 1 or parts != [*filters, *combines, *steps]:
        raise SpecError(
            f"`rule` should be filters, each once, at most one way to combine, then at most one step, found {text[:200]!r}.",
            hint="For example clip:norm=1+median+adam; `trunkline rule list` says which is which.",
        )
    return Rule(tuple(filters), combines[0] if combines else _usual(steps[0] if steps else None), steps[0] if steps else None)
