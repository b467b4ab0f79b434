"""Flower's strategies as functions: sets in, a set out. Only those that keep nothing from one call to the next."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AppExitException
from numpy.typing import NDArray

from trunkline.errors import FailedError, SpecError, TooFewChildren

Options = Mapping[str, float | int]
Arrays = Mapping[str, NDArray[Any]]

STATELESS = ("FedAvg", "FedProx", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")
"""Strategies whose `aggregate_train` depends on the replies alone."""

INSTEAD = {
    "FedAvgM": "it keeps a momentum in memory only. Use `momentum`, whose state is a file.",
    "FedAdam": "it keeps moments in memory only. Use `adam`, whose state is a file.",
    "FedYogi": "it keeps moments in memory only. Use `yogi`, whose state is a file.",
    "FedAdagrad": "it keeps moments in memory only. Use `adagrad`, whose state is a file.",
    "QFedAvg": "it weighs by training losses, which updates do not state in a form it reads.",
    "FedXgbBagging": "it joins trees, not parameters.",
    "FedXgbCyclic": "it joins trees, not parameters.",
}
"""Why others are not here."""

WEIGHT = "num-examples"


def read_options(strategy: str, given: Mapping[str, str]) -> dict[str, float | int]:
    """A strategy's own options from text, those at their default left out, in the order of its constructor.

    :raises SpecError: no such strategy, one that keeps state, no such option, or a value that it does not take.
    """
    known = _parameters(strategy)
    for key in given:
        if key not in known:
            raise SpecError(f"the options of flower:{strategy} should be among {', '.join(known) or 'none'}, found {key[:80]!r}.")
    found: dict[str, float | int] = {}
    for key, (kind, default) in known.items():
        if key in given:
            try:
                value = kind(given[key])
            except ValueError:
                raise SpecError(
                    f"`{key}` of flower:{strategy} should be a number ({kind.__name__}), found {given[key][:80]!r}."
                ) from None
            if not 0 <= value < float("inf"):
                raise SpecError(f"`{key}` of flower:{strategy} should be a finite number from 0 on, found {given[key][:80]!r}.")
            found |= {} if value == default else {key: value}
    _made(strategy, found)
    return found


def least(strategy: str, options: Options) -> int:
    """Fewest updates with which a strategy keeps what it promises; Flower itself does not ask for it everywhere."""
    faulty = int(options.get("num_malicious_nodes", 0))
    if strategy == "Bulyan":
        return 4 * faulty + 3
    if strategy in ("Krum", "MultiKrum"):
        return max(2 * faulty + 3, int(options.get("num_nodes_to_select", 1)))
    return 1


def aggregate(strategy: str, options: Options, sets: Sequence[Arrays], weights: Sequence[float]) -> dict[str, NDArray[Any]]:
    """What the strategy makes of sets; they are taken apart by it.

    :param sets: float32 or float64 arrays by name, the same names and shapes in each.
    :param weights: one a set, all positive.
    :raises TooFewChildren: Flower skips the round.
    :raises FailedError: Flower refuses the sets.
    """
    replies = [reply(number, arrays, weight) for number, (arrays, weight) in enumerate(zip(sets, weights, strict=True), 1)]
    try:
        found, _ = _made(strategy, options).aggregate_train(1, replies)
    except AppExitException as error:
        raise FailedError(f"flower:{strategy} should take these updates, found {type(error).__name__}: {error}") from None
    if found is None:
        raise TooFewChildren(f"flower:{strategy} should have more updates, found {len(sets)}.")
    return {name: array.numpy() for name, array in found.items()}


def reply(number: int, arrays: Arrays, weight: float) -> Message:
    """A reply as it would come from a node.

    :param number: of the node, from 1.
    """
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: FlowerArray(values) for name, values in arrays.items()}),
            "metrics": MetricRecord({WEIGHT: weight}),
        }
    )
    metadata = Metadata(1, str(number), number, 1, str(number), "", 0.0, 3600.0, MessageType.TRAIN)
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload]


def _made(strategy: str, options: Options) -> flower.FedAvg:
    try:
        return getattr(flower, strategy)(**options)
    except (TypeError, ValueError) as error:
        raise SpecError(f"flower:{strategy} does not take these options: {error}") from None


def _parameters(strategy: str) -> dict[str, tuple[type[int] | type[float], float | int]]:
    """Type and default of the options that a strategy has beyond FedAvg's, which are about whom to ask.

    :raises SpecError: no such strategy, or one that keeps state.
    """
    if strategy not in STATELESS:
        why = INSTEAD.get(strategy) or ("it goes around another strategy." if strategy.startswith("Differential") else None)
        raise SpecError(f"`flower` should name one of {', '.join(STATELESS)}, found {strategy[:80]!r}{': ' + why if why else '.'}")
    usual = inspect.signature(flower.FedAvg).parameters
    own = inspect.signature(getattr(flower, strategy)).parameters
    return {
        key: (parameter.annotation, parameter.default)
        for key, parameter in own.items()
        if key not in usual and parameter.annotation in (int, float)
    }
