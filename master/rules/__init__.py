"""Fuse rules: one idea a file, found by name."""

from collections.abc import Mapping
from types import MappingProxyType

from master.rules.mean import limited, mean, mean_by_task
from master.rules.rule import Contribution, Fused, Parameters, Rule
from trunkline.errors import SpecError

RULES: Mapping[str, Rule] = MappingProxyType({"mean": mean, "mean_by_task": mean_by_task})


def find_rule(name: str) -> Rule:
    """:raises SpecError: no such rule."""
    if name not in RULES:
        raise SpecError(f"`rule` should be one of {', '.join(RULES)}, found {name!r}.")
    return RULES[name]


__all__ = ["RULES", "Contribution", "Fused", "Parameters", "Rule", "find_rule", "limited"]
