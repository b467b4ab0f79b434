"""What there is to say about each part of a rule: made from its class, so it cannot be out of date."""

import inspect
from typing import Any

from master.rules.rule import Combine, Filter, Part, Step
from trunkline.choices import options_of

KINDS: dict[type[Part], str] = {Filter: "filter", Combine: "combine", Step: "step"}


def describe(part: type[Part]) -> dict[str, Any]:
    """Name, kind, one line, the whole text, and the options of a part, as JSON data."""
    text = " ".join(inspect.getdoc(part).split()) if inspect.getdoc(part) else ""  # type: ignore[union-attr]
    options = [
        {"name": name, "type": kind, "default": default, "meaning": meaning} for name, kind, default, meaning in options_of(part)
    ]
    kind = next(word for base, word in KINDS.items() if issubclass(part, base))
    return {"name": part.name, "kind": kind, "about": _first_sentence(text), "text": text, "options": options}


def _first_sentence(text: str) -> str:
    """Up to the first full stop or colon that ends a thought; sources in brackets are left out."""
    plain, depth = [], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign != ")":
            plain.append(sign)
    sentence = "".join(plain).replace("  ", " ").replace(" :", ":").replace(" ,", ",")
    end = min((place for mark in (". ", "; ") if (place := sentence.find(mark)) > 0), default=len(sentence))
    return sentence[:end].rstrip(".")
