"""What there is to say about each part of a rule: made from its class, so it cannot be out of date."""

from typing import Any

from master.rules.rule import Combine, Filter, Part, Step
from trunkline import choices

KINDS: dict[type[Part], str] = {Filter: "filter", Combine: "combine", Step: "step"}


def describe(part: type[Part], chosen: Part | None = None) -> dict[str, Any]:
    """What `trunkline.choices.describe` says, and of which kind the part is."""
    return choices.describe(part, chosen) | {"kind": next(word for base, word in KINDS.items() if issubclass(part, base))}
