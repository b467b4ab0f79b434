"""The continue rule: whether another round follows, told from the validation scores of the rounds so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from master.jobs import Stop
from trunkline.messages import Report, Score


@dataclass(frozen=True, slots=True)
class RoundScores:
    """Validation scores of one round's target set, as means over children."""

    by_task: Mapping[str, float]
    higher_is_better: Mapping[str, bool]

    @property
    def mean(self) -> float | None:
        """Mean over tasks, each turned so that more is better; None where nobody reported."""
        if not self.by_task:
            return None
        signed = [value if self.higher_is_better[task] else -value for task, value in sorted(self.by_task.items())]
        return sum(signed) / len(signed)


def score_round(reports: Sequence[Report], split: str = "validation") -> RoundScores:
    """Per task, the mean over its children weighted by their samples of that split; a task with several metrics has no mean."""
    scores: dict[str, list[Score]] = {}
    for report in sorted(reports, key=lambda report: report.child):
        for score in report.scores:
            if score.split == split and score.samples:
                scores.setdefault(score.task, []).append(score)
    by_task = {
        task: sum(score.value * score.samples for score in of_task) / sum(score.samples for score in of_task)
        for task, of_task in scores.items()
        if len({score.metric for score in of_task}) == 1
    }
    return RoundScores(by_task, {task: scores[task][0].higher_is_better for task in by_task})


def reason_to_stop(stop: Stop, rounds: int, history: Sequence[RoundScores], elapsed: float) -> str | None:
    """Why the job ends now, or None where another round follows.

    :param rounds: rounds that the job asks for.
    :param history: one entry a finished round, oldest first.
    :param elapsed: seconds since the job's first round opened.
    """
    if stop.target and history and _reached(stop.target, history[-1]):
        return f"target reached in round {len(history)}"
    if stop.patience is not None and _impatient(stop.patience, history):
        return f"no better mean score in {stop.patience} rounds"
    if stop.seconds is not None and elapsed >= stop.seconds:
        return f"wall time of {stop.seconds:g} s is used up"
    if len(history) >= rounds:
        return f"all {rounds} rounds done" if rounds > 1 else "the one round done"
    return None


def _reached(target: Mapping[str, float], scores: RoundScores) -> bool:
    for task, wanted in target.items():
        found = scores.mean if task == "mean" else scores.by_task.get(task)
        if found is None:
            return False
        better = found >= wanted if task == "mean" or scores.higher_is_better[task] else found <= wanted
        if not better:
            return False
    return True


def _impatient(patience: int, history: Sequence[RoundScores]) -> bool:
    means = [scores.mean for scores in history if scores.mean is not None]
    if len(means) <= patience:
        return False
    return max(means[-patience:]) <= max(means[:-patience])
