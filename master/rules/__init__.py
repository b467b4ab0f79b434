"""Fuse rules: one idea a file, found by name."""

from collections.abc import Mapping
from types import MappingProxyType

from master.rules.adam import Adam
from master.rules.buffers import Buffers
from master.rules.chain import Rule, read_rule
from master.rules.mean import Mean, MeanByTask
from master.rules.median import Median
from master.rules.momentum import Momentum
from master.rules.rule import Contribution, Fused, Parameters, Part, State

PARTS: Mapping[str, type[Part]] = MappingProxyType({kind.name: kind for kind in (Mean, MeanByTask, Median, Momentum, Adam)})
"""Every part of a rule, by name: those that combine first, then filters, then steps."""


def find_rule(text: str) -> Rule:
    """The rule of a word such as `clip:norm=1+median`.

    :raises SpecError: it is none.
    """
    return read_rule(text, PARTS)


__all__ = ["PARTS", "Buffers", "Contribution", "Fused", "Parameters", "Part", "Rule", "State", "find_rule"]
