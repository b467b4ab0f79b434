"""Low-rank training by `peft`, an optional extra. The only module that knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tasks.seeded.laws import Normal
from tasks.seeded.tensor import SeededTensor
from tasks.specs import EncoderSpec, Lora
from trunkline.errors import SpecError


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix of a linear layer moves by `scale * B A`."""

    a: nn.Parameter  # (r, in)
    b: nn.Parameter  # (out, r)
    scale: float

    def reset(self, seed: int, name: str) -> None:
        """A normal from the seed and the name, B zero: the product is zero, and a round starts the same on every machine."""
        a = SeededTensor(seed, f"{name}@A", tuple(self.a.shape), Normal(std=self.a.shape[1] ** -0.5))
        with torch.no_grad():
            self.a.copy_(torch.from_numpy(a.read()))
            self.b.zero_()

    def factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A and B with the scale in B, float32 copies."""
        a, b = self.a.detach().cpu().numpy().copy(), self.b.detach().cpu().numpy()
        return a, b * np.float32(self.scale)


def target_layers(spec: EncoderSpec, tuning: Lora, body: nn.Module) -> list[str]:
    """Names of the linear layers that get a product.

    :raises SpecError: a pattern matches none.
    """
    linear = [name for name, part in body.named_modules() if isinstance(part, nn.Linear) and not spec.is_frozen(f"{name}.weight")]
    for pattern in tuning.targets:
        if not any(fnmatchcase(name, pattern) for name in linear):
            ends = sorted({name.rpartition(".")[2] for name in linear})
            known = ", ".join(ends)
            raise SpecError(f"`tuning.targets` should match linear layers, found none for {pattern!r}; their names end in {known}.")
    found = [name for name in linear if any(fnmatchcase(name, pattern) for pattern in tuning.targets)]
    for name in found:
        if tuning.rank > min(body.get_submodule(name).weight.shape):  # type: ignore[arg-type]
            raise SpecError(f"`tuning.rank` should be at most the smaller side of {name!r}, found {tuning.rank}.")
    return found


def inject(tuning: Lora, body: nn.Module, layers: list[str]) -> Mapping[str, Product]:
    """Put a product beside each of these layers; by the plain name of its matrix.

    :raises SpecError: `peft` is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise SpecError(
            "the package `peft` should be installed for LoRA, found none.", hint="pip install 'trunkline[lora]'"
        ) from None
    alpha: Any = tuning.alpha  # declared an int there, used as a number
    config = LoraConfig(r=tuning.rank, lora_alpha=alpha, lora_dropout=tuning.dropout, target_modules=layers, bias="none")
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, body)
    products = {}
    for name in layers:
        layer = body.get_submodule(name)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight  # type: ignore[index,union-attr]
        products[f"{name}.weight"] = Product(a, b, float(layer.scaling["default"]))  # type: ignore[index,arg-type]
    return products
