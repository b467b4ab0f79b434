"""What `trunkline round show` says of a round."""

from typing import Any

from master.cli.round import lines


def update(child: str, arrival: int, origin: int) -> dict[str, Any]:
    told = {"samples": {"t": 3}, "losses": {"t": 0.5}, "seconds": 1.0}
    return {"child": child, "arrival": arrival, "origin": origin, "size": 10, "digest": "c" * 64, "update": told}


ROUND: dict[str, Any] = {
    "job": "j",
    "number": 3,
    "state": "closed",
    "reason": "",
    "opened": 1.0,
    "closed": 2.0,
    "base": "a" * 64,
    "target": "b" * 64,
    "version": 4,
    "members": [],
    "weights": {"a": 0.75, "slow": 0.25},
    "updates": [update("a", 1, 3)],
    "refusals": [],
    "reports": [],
    "notes": None,
    "gains": [],
}


def test_a_late_update_is_told_with_its_round_its_place_and_its_weight() -> None:
    late = "\n".join(lines(ROUND | {"updates": [update("a", 1, 3), update("slow", 2, 1)]}))
    assert "slow   2        1       0.25" in late
    assert "ARRIVAL" not in "\n".join(lines(ROUND))


def test_what_the_rule_saw_is_told() -> None:
    shown = lines(ROUND | {"notes": {"rule": {"krum": {"t": {"chosen": ["a"]}}}}})
    assert 'krum: {"t": {"chosen": ["a"]}}' in shown
    shown = lines(ROUND | {"notes": {"rule": {"clip": {"clipped": [], "norms": {"a": 0.08153785427946861, "b": 3}}}}})
    assert 'clip: {"clipped": [], "norms": {"a": 0.08154, "b": 3}}' in shown
    assert "what the rule saw" not in lines(ROUND | {"notes": {"rule": {}}})
