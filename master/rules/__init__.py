"""Fuse rules: one idea a file, found by name."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from master.rules.adagrad import Adagrad
from master.rules.adam import Adam
from master.rules.buffers import Buffers
from master.rules.bulyan import Bulyan
from master.rules.cagrad import CAGrad
from master.rules.chain import Rule, read_rule
from master.rules.clip import Clip
from master.rules.fedbuff import FedBuff
from master.rules.flower import Flower
from master.rules.geometric_median import GeometricMedian
from master.rules.imtl_g import IMTLG
from master.rules.krum import Krum
from master.rules.mean import Mean, MeanByTask
from master.rules.median import Median
from master.rules.momentum import Momentum
from master.rules.multi_krum import MultiKrum
from master.rules.pcgrad import PCGrad
from master.rules.rule import Contribution, Fused, Parameters, Part, State
from master.rules.scaffold import Scaffold
from master.rules.trimmed_mean import TrimmedMean
from master.rules.upgrad import UPGrad
from master.rules.yogi import Yogi
from master.rules.zero_outliers import ZeroOutliers

_KINDS: tuple[type[Part], ...] = (
    Mean,
    MeanByTask,
    Median,
    TrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    Bulyan,
    Flower,
    FedBuff,
    UPGrad,
    PCGrad,
    CAGrad,
    IMTLG,
    Clip,
    ZeroOutliers,
    Momentum,
    Adam,
    Yogi,
    Adagrad,
    Scaffold,
)

PARTS: Mapping[str, type[Part]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every part of a rule, by name: those that combine first, then filters, then steps."""


@lru_cache(maxsize=64)
def find_rule(text: str) -> Rule:
    """The rule of a word such as `clip:norm=1+median`. It is frozen, so a word that is asked for again has the same.

    :raises SpecError: it is none.
    """
    return read_rule(text, PARTS)


__all__ = ["PARTS", "Buffers", "Contribution", "Fused", "Parameters", "Part", "Rule", "State", "find_rule"]
