"""Adam for single numbers that a rule learns, kept in its state: Kingma and Ba, 2015, arXiv:1412.6980, as torch computes it."""

from math import sqrt

from tasks.balance.rule import State

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def moved(state: State, key: str, start: float, slope: float, rate: float, decay: float = 0.0) -> dict[str, float]:
    """Entries of the state after a step of one number.

    Each number has a count of its own: a task that was absent goes on where it was.

    :param key: `RULE/WHAT/TASK`, where the number is; its moments are beside it.
    :param start: what it is while it is not there.
    :param decay: part of the number that is added to its slope.
    """
    value = state.get(key, start)
    slope += decay * value
    first = BETA1 * state.get(f"{key}/m", 0.0) + (1 - BETA1) * slope
    second = BETA2 * state.get(f"{key}/v", 0.0) + (1 - BETA2) * slope**2
    count = state.get(f"{key}/t", 0.0) + 1
    size = sqrt(second) / sqrt(1 - BETA2**count) + EPSILON
    value -= rate / (1 - BETA1**count) * first / size
    return {key: value, f"{key}/m": first, f"{key}/v": second, f"{key}/t": count}
