"""Laws of the continue rule."""

from master.jobs import Stop
from master.stopping import RoundScores, reason_to_stop, score_round
from trunkline.messages import Report, Score


def report(child: str, *scores: tuple[str, str, bool, float, int]) -> Report:
    told = [
        Score(task=task, split="validation", metric=metric, higher_is_better=better, value=value, samples=samples)
        for task, metric, better, value, samples in scores
    ]
    return Report(job="j", round=1, child=child, target="0" * 64, scores=tuple(told), seconds=0.0)


def history(*means: float) -> list[RoundScores]:
    return [RoundScores({"a": mean}, {"a": True}) for mean in means]


def test_a_task_is_weighted_by_samples_and_turned_so_that_more_is_better() -> None:
    found = score_round(
        [
            report("amy", ("mood", "accuracy", True, 0.5, 30), ("price", "mae", False, 2.0, 10)),
            report("bob", ("mood", "accuracy", True, 0.9, 10)),
        ]
    )
    assert found.by_task == {"mood": 0.6, "price": 2.0}
    assert found.mean == (0.6 - 2.0) / 2


def test_a_task_that_is_measured_in_several_ways_has_no_mean() -> None:
    found = score_round(
        [
            report("amy", ("mood", "accuracy", True, 0.5, 30), ("spam", "f1", True, 0.7, 5)),
            report("bob", ("mood", "mae", False, 4.0, 30)),
        ]
    )
    assert found.by_task == {"spam": 0.7} and found.mean == 0.7
    assert reason_to_stop(Stop(target={"mood": 0.1}), 9, [found], 0.0) is None


def test_patience_looks_for_a_better_mean_and_nothing_else() -> None:
    stop = Stop(patience=2)
    assert reason_to_stop(stop, 9, history(0.5, 0.4), 0.0) is None
    assert reason_to_stop(stop, 9, history(0.5, 0.4, 0.6), 0.0) is None
    assert reason_to_stop(stop, 9, history(0.5, 0.5, 0.5), 0.0) == "no better mean score in 2 rounds"
    assert reason_to_stop(stop, 3, history(0.1, 0.2, 0.3), 0.0) == "all 3 rounds done"
    assert reason_to_stop(Stop(), 1, history(0.1), 0.0) == "the one round done"


def test_wall_time_and_targets() -> None:
    assert reason_to_stop(Stop(seconds=10.0), 9, history(0.5), 9.9) is None
    assert reason_to_stop(Stop(seconds=10.0), 9, history(0.5), 10.0) == "wall time of 10 s is used up"
    assert reason_to_stop(Stop(target={"a": 0.5}), 9, history(0.4, 0.5), 0.0) == "target reached in round 2"
    assert reason_to_stop(Stop(target={"mean": 0.5}), 9, history(0.4), 0.0) is None
