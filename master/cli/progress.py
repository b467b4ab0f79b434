"""How far a job is, told from its events alone. No screen here: `watch.py` draws it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from master.states import ENDED_JOBS

Event = Mapping[str, Any]


@dataclass
class Progress:
    """What is known of a job after some of its events.

    :param rounds: at most, as the job asks for.
    """

    rounds: int
    state: str = "waiting"
    reason: str = ""
    number: int = 0  # of the round that is open, or was last
    phase: str = "waiting"
    started: float | None = None  # when the first round was opened
    opened: float | None = None  # when this one was
    last: float | None = None  # of the newest event
    fused: int = 0  # rounds that gave a version
    confirmed: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)  # child -> reason, in this round
    members: tuple[str, ...] = ()
    updates: set[str] = field(default_factory=set)
    reports: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # child -> scores, of the newest round with any
    scored: int = 0  # that round
    hurt: dict[str, float] = field(default_factory=dict)  # task -> what it gains by sharing, below 0: it is hurt
    judged: int = 0  # in that round
    down: int = 0  # bytes of parameter sets
    up: int = 0
    spent: float = 0.0  # seconds in rounds that were fused

    @property
    def ended(self) -> bool:
        return self.state in ENDED_JOBS

    @property
    def moved(self) -> int:
        """Bytes of parameter sets, both ways."""
        return self.down + self.up

    def left(self) -> float | None:
        """Seconds until all rounds are done if the others take as long; None before the first is."""
        if self.ended or not self.fused:
            return None if not self.ended else 0.0
        return max(0.0, self.spent / self.fused * (self.rounds - self.fused) - self._in_this())

    def _in_this(self) -> float:
        if self.phase in ("closed", "skipped") or self.opened is None or self.last is None:
            return 0.0
        return self.last - self.opened

    def scores(self, split: str = "validation") -> dict[str, float]:
        """Per task the mean over children, weighted by their samples of the split."""
        return weighted_scores((score for scores in self.reports.values() for score in scores), split)

    def take(self, event: Event) -> None:
        """Learn from the next event of the job."""
        self.last = event["at"]
        kind, child, data = event["kind"], event["child"] or "", event["data"]
        if kind.startswith("job."):
            self._job(kind.removeprefix("job."), data)
        elif kind.startswith("round."):
            self._round(kind.removeprefix("round."), event["round"] or 0, data)
        elif kind == "blob.moved":
            if data["direction"] == "down":
                self.down += data["bytes"]
            else:
                self.up += data["bytes"]
        elif kind == "confirmation":
            self._confirmed(child, data)
        elif kind == "update.accepted":
            self.updates.add(child)
        elif kind in ("update.refused", "report.refused"):
            self.refused[child] = data["reason"]
        elif kind == "task.hurt":
            self._hurt(event["round"] or 0, data)
        elif kind == "report":
            self._report(event["round"] or 0, child, data["report"])

    def _job(self, what: str, data: Mapping[str, Any]) -> None:
        if what in ("waiting", "running", "paused", *ENDED_JOBS):
            self.state, self.reason = what, data.get("reason", "")
        elif what == "owned":
            self.state = "running"

    def _round(self, what: str, number: int, data: Mapping[str, Any]) -> None:
        if what == "opened":
            self.number, self.phase, self.opened = number, "instructing", self.last
            self.started = self.started or self.last
            self.confirmed, self.refused, self.members, self.updates = set(), {}, (), set()
        elif what == "members":
            self.phase, self.members = "training", tuple(data["children"])
        elif what == "fusing":
            self.phase = "fusing"
        elif what == "published":
            self.phase = "reporting"
        elif what in ("closed", "skipped"):
            if what == "closed" and self.phase != "closed":
                self.fused += 1
                self.spent += self._in_this()
                self.hurt = self.hurt if self.judged == number else {}
            self.phase = what

    def _confirmed(self, child: str, data: Mapping[str, Any]) -> None:
        if data["accepted"]:
            self.confirmed.add(child)
            self.refused.pop(child, None)
        else:
            self.confirmed.discard(child)
            self.refused[child] = data["reason"]

    def _hurt(self, number: int, data: Mapping[str, Any]) -> None:
        if number != self.judged:
            self.judged, self.hurt = number, {}
        self.hurt[data["task"]] = data["gain"]

    def _report(self, number: int, child: str, report: Mapping[str, Any]) -> None:
        if number != self.scored:
            self.scored, self.reports = number, {}
        self.reports[child] = list(report["scores"])

    def table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "state": self.state,
            "reason": self.reason,
            "round": self.number,
            "rounds": self.rounds,
            "phase": self.phase,
            "members": list(self.members),
            "updates": sorted(self.updates),
            "refused": self.refused,
            "scores": {split: found for split in ("train", "validation", "test") if (found := self.scores(split))},
            "scored_round": self.scored or None,
            "hurt": self.hurt,
            "bytes_down": self.down,
            "bytes_up": self.up,
            "seconds_left": self.left(),
        }


def weighted_scores(scores: Iterable[Mapping[str, Any]], split: str) -> dict[str, float]:
    """Per task the mean of its scores on a split, weighted by samples; a task whose children use several metrics is left out."""
    sums: dict[str, tuple[float, int]] = {}
    metrics: dict[str, set[str]] = {}
    for score in scores:
        if score["split"] == split and score["samples"]:
            value, samples = sums.get(score["task"], (0.0, 0))
            sums[score["task"]] = (value + score["value"] * score["samples"], samples + score["samples"])
            metrics.setdefault(score["task"], set()).add(score["metric"])
    return {task: value / samples for task, (value, samples) in sorted(sums.items()) if len(metrics[task]) == 1}
