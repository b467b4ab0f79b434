"""Fuse rules: one idea a file, found by name."""

from collections.abc import Mapping
from types import MappingProxyType

from master.rules.mean import limited, mean, mean_by_task
from master.rules.rule import Contribution, Fused, Parameters, Rule
from trunkline.values import RuleName

RULES: Mapping[RuleName, Rule] = MappingProxyType({"mean": mean, "mean_by_task": mean_by_task})


def find_rule(name: RuleName) -> Rule:
    """The rule of a job; another name was refused when the job was read."""
    return RULES[name]


__all__ = ["RULES", "Contribution", "Fused", "Parameters", "Rule", "find_rule", "limited"]
