"""How all tensors of a network follow from one seed: a rule for each kind of parameter, such as `Linear.weight`.

A recipe is what is written down and sent, some hundred bytes whatever the size of the network. Its rules hold all numbers, so two
versions of this code make the same of it. It knows parameters by the class that owns them (or one that it is derived from) and
their name in it; what it does not know is an error, never a guess.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from tasks.seeded.bits import Mode
from tasks.seeded.laws import Constant, Form, Law, Normal, Truncated, Uniform, kaiming, xavier
from tasks.seeded.layout import NAMES, fill_
from tasks.seeded.tensor import SeededTensor
from trunkline.errors import SpecError
from trunkline.values import Finite, Value

LIBRARY_HINT = "Leave `--seeded` out: then the library's own initialisation is used, and the parameters travel."


class Fan(Value):
    """A spread that follows from the shape of a matrix: Kaiming's by the fan in or out, Xavier's by both."""

    kind: Literal["fan"] = "fan"
    form: Form = "uniform"
    by: Literal["in", "out", "both"] = "in"
    gain: Annotated[Finite, Field(gt=0)] = 1.0
    of: str | None = None  # the parameter beside it whose shape counts; None: its own


Rule = Annotated[Constant | Uniform | Normal | Truncated | Fan, Field(discriminator="kind")]


class Recipe(Value):
    """A seed, and a rule for each kind of parameter."""

    version: Literal[1] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    mode: Mode = "portable"
    rules: dict[str, Rule]

    def tensors(self, network: nn.Module) -> Iterator[tuple[SeededTensor, torch.Tensor]]:
        """What each parameter and each buffer of a checkpoint should be, beside what is there now. Tied ones come once.

        The network may lie on the meta device: only names, kinds, shapes and dtypes are read.

        :raises SpecError: a kind is not known; the message names it.
        """
        for one in _owned(network):
            yield self._tensor(one), one.tensor

    def fill_(self, network: nn.Module, threads: int = 1) -> None:
        """Make every parameter, and every buffer of a checkpoint, what it should be, in place; of DTensors the part that is here.

        :raises SpecError: a kind is not known.
        """
        for seeded, tensor in self.tensors(network):
            if tensor.dtype in NAMES:
                fill_(tensor, seeded, threads)
            else:
                with torch.no_grad():
                    tensor.fill_(_whole(seeded))

    def _tensor(self, one: "_Owned") -> SeededTensor:
        rule = self.rules.get(_key(one, self.rules) or "")
        if rule is None:
            raise SpecError(
                f"`{one.full}` should be of a kind that has a rule, found {type(one.owner).__name__}.{one.name}, which has none.",
                hint=LIBRARY_HINT,
            )
        padding = getattr(one.owner, "padding_idx", None) if isinstance(one.owner, nn.Embedding | nn.EmbeddingBag) else None
        zero = () if padding is None else (int(padding),)
        shape = tuple(one.tensor.shape)
        law = _law(rule, one.owner, shape) if isinstance(rule, Fan) else rule
        return SeededTensor(self.seed, one.full, shape, law, NAMES.get(one.tensor.dtype, "F32"), self.mode, zero)


@dataclass(frozen=True, slots=True)
class _Owned:
    """A parameter or buffer, and whose it is."""

    full: str
    owner: nn.Module
    name: str  # in its owner
    tensor: torch.Tensor


def _owned(network: nn.Module) -> Iterator[_Owned]:
    """Everything of a network's checkpoint, tied tensors once, in the order of `named_parameters`."""
    stored = network.state_dict(keep_vars=True)
    seen: set[int] = set()
    for path, owner in network.named_modules():
        for name, tensor in [*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)]:
            full = f"{path}.{name}" if path else name
            if full in stored and id(tensor) not in seen:
                seen.add(id(tensor))
                yield _Owned(full, owner, name, tensor)


def _key(one: _Owned, rules: Mapping[str, Rule]) -> str | None:
    """Which rule it has: that of its owner's class, else of the nearest class that one is derived from."""
    keys = (f"{kind.__name__}.{one.name}" for kind in type(one.owner).__mro__)
    return next((key for key in keys if key in rules), None)


def _whole(seeded: SeededTensor) -> int:
    """The value of a buffer that holds whole numbers or truth values."""
    if not isinstance(seeded.law, Constant) or not seeded.law.value.is_integer():
        raise SpecError(f"`{seeded.name}` should be one whole number, found {seeded.law.kind}.", hint=LIBRARY_HINT)
    return int(seeded.law.value)


def _law(rule: Fan, owner: nn.Module, shape: tuple[int, ...]) -> Law:
    of = shape if rule.of is None else tuple(getattr(owner, rule.of).shape)
    if rule.by == "both":
        return xavier(of, rule.form, rule.gain)
    return kaiming(of, rule.form, rule.by, rule.gain)


# -- the rules of libraries --------------------------------------------------------------------------------------------

_ZERO = Constant()
_BY_INPUTS, _BESIDE = Fan(gain=3**-0.5), Fan(gain=3**-0.5, of="weight")  # within 1 / sqrt(fan in), as torch has it

TORCH: Mapping[str, Rule] = {
    "Linear.weight": _BY_INPUTS,
    "Linear.bias": _BESIDE,
    "_ConvNd.weight": _BY_INPUTS,
    "_ConvNd.bias": _BESIDE,
    "Embedding.weight": Normal(),
    "EmbeddingBag.weight": Normal(),
    "MultiheadAttention.in_proj_weight": Fan(by="both"),
    "MultiheadAttention.in_proj_bias": _ZERO,
    "MultiheadAttention.bias_k": Fan(form="normal", by="both"),
    "MultiheadAttention.bias_v": Fan(form="normal", by="both"),
    "NonDynamicallyQuantizableLinear.bias": _ZERO,  # of MultiheadAttention's output
}
"""What `reset_parameters` of torch's modules draws."""


def hugging_face(spread: float) -> Mapping[str, Rule]:
    """What encoders of `transformers` draw, with their config's `initializer_range`."""
    normal = Normal(std=spread)
    return {
        "Linear.weight": normal,
        "Linear.bias": _ZERO,
        "_ConvNd.weight": normal,
        "_ConvNd.bias": _ZERO,
        "Embedding.weight": normal,
    }


def recipe_for(network: nn.Module, rules: Mapping[str, Rule], seed: int, mode: Mode = "portable") -> Recipe:
    """The recipe of a network as its library made it: of these rules those that it needs.

    What has no rule is taken as it is where it is constant (the ones of a normalisation layer, a counter's zero).

    :raises SpecError: a parameter, or a buffer of a checkpoint, has no rule and is not constant; the message names it.
    """
    known = {**_constants_of(network, rules), **rules}
    list(Recipe(seed=seed, mode=mode, rules=known).tensors(network))  # raises where one is missing
    used = {_key(one, known) for one in _owned(network)}
    return Recipe(seed=seed, mode=mode, rules={key: rule for key, rule in known.items() if key in used})


def _constants_of(network: nn.Module, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    values: dict[str, set[float | None]] = {}
    for one in _owned(network):
        if _key(one, rules) is None:
            values.setdefault(f"{type(one.owner).__name__}.{one.name}", set()).add(_constant(one.tensor))
    return {key: Constant(value=value) for key, (value, *more) in values.items() if value is not None and not more}


def _constant(tensor: torch.Tensor) -> float | None:
    """The one value that it has everywhere; of a single element only a value that nobody draws."""
    if tensor.is_meta or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)
    value = float(flat[0])
    drawn = flat.numel() == 1 and value not in (0.0, 0.25, 1.0)
    return None if drawn or not bool((flat == flat[0]).all()) else value
