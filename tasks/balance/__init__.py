"""How the gradients of several tasks become one step of the shared parameters: rules, found by name.

Where a stream's batches are applied together (`together.rule` of its declaration), the server waits for one batch of each task and
asks a rule: `find("cagrad:c=0.4").combine(gradients, losses, samples, state, rng_seed)`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tasks.balance.averse import IMTLG, MGDA, AlignedMTL, CAGrad, DualProj, GradVac, PCGrad, UPGrad
from tasks.balance.even import Equal, Random, Samples, Sum
from tasks.balance.fair import FairGrad, Nash
from tasks.balance.gradnorm import GradNorm
from tasks.balance.losses import DWA, FAMO, IMTLL, STCH, Geometric, Uncertainty
from tasks.balance.rule import Combined, Gradients, Rule, State
from trunkline import choices

_KINDS: tuple[type[Rule], ...] = (
    Equal,
    Sum,
    Samples,
    Random,
    Uncertainty,
    DWA,
    IMTLL,
    FAMO,
    Geometric,
    STCH,
    GradNorm,
    PCGrad,
    GradVac,
    CAGrad,
    UPGrad,
    DualProj,
    MGDA,
    IMTLG,
    AlignedMTL,
    FairGrad,
    Nash,
)

RULES: Mapping[str, type[Rule]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every rule, by name."""


def find(word: str) -> Rule:
    """The rule of a word such as `cagrad:c=0.4`. It is frozen and remembers nothing.

    :raises SpecError: it is none, or has no such option.
    """
    return choices.parse(word, RULES, "rule")


def describe(kind: type[Rule], chosen: Rule | None = None) -> dict[str, Any]:
    """What `trunkline.choices.describe` says, and whether its weight is one of the loss, which the head's gradient has too."""
    return choices.describe(kind, chosen) | {"heads": kind.moves_heads}


def catalogue() -> list[dict[str, Any]]:
    """What there is to say about every rule, as JSON data for people. Imports neither torch nor torchjd."""
    return [describe(kind) for kind in RULES.values()]


__all__ = ["RULES", "Combined", "Gradients", "Rule", "State", "catalogue", "describe", "find"]
