"""An encoder whose first parameters follow from a seed: what says how, and both of its sets made from that, wherever the folder is.

`seeded.json` holds the recipe and the digests of what it should make. So a site makes the initial set and the frozen tensors
itself, checks them, and has nothing to fetch; a site whose versions of the libraries build another network finds other digests, and
fetches after all.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from tasks import sources
from tasks.declared import read_spec
from tasks.division import divide
from tasks.folder import FROZEN, SEEDED, SHARED
from tasks.seeded.laws import Constant
from tasks.seeded.recipe import TORCH, Recipe, hugging_face, recipe_for
from tasks.seeded.tensor import SeededTensor
from tasks.specs import EncoderSpec, Module, Pretrained
from trunkline.errors import SpecError
from trunkline.files import sha256_file, write_atomically
from trunkline.sets import SetWriter
from trunkline.tensors import DTYPES, Array, TensorSpec, row_slices
from trunkline.values import Digest, Value

Part = Literal["frozen.safetensors", "shared.safetensors"]

_SPREAD = 0.02  # where a config does not tell; as BERT has it
_WIDEST = 1e6  # nothing learns from anywhere near; far beyond, float32 has no room for what is drawn


class Start(Value):
    """What `seeded.json` says."""

    recipe: Recipe
    frozen: Digest
    shared: Digest

    def digest(self, part: Part) -> str:
        """Of a set as it should come out."""
        return self.frozen if part == FROZEN else self.shared


# -- where the encoder is made -----------------------------------------------------------------------------------------


def fill_(spec: EncoderSpec, body: nn.Module, config: Any) -> Recipe | None:
    """Make a network's parameters what they should be, in place; None: they stay as the library drew them.

    :param config: of Hugging Face; None for a user's module.
    :raises SpecError: a parameter is of a kind that has no rule; the message names it.
    """
    source = spec.source
    if isinstance(source, Pretrained) or source.init != "seeded":
        return None
    spread = float(getattr(config, "initializer_range", None) or _SPREAD)
    if not 0 <= spread <= _WIDEST:
        raise SpecError(f"`initializer_range` should be from 0 to {_WIDEST:g}, found {spread:g}.")
    recipe = recipe_for(body, TORCH if config is None else hugging_face(spread), source.seed)
    recipe.fill_(body)
    return recipe


def write(folder: Path, recipe: Recipe) -> None:
    """Write `seeded.json` beside the sets that are there."""
    found = Start(recipe=recipe, frozen=sha256_file(folder / FROZEN), shared=sha256_file(folder / SHARED))
    write_atomically(folder / SEEDED, found.model_dump_json().encode())


# -- where it is needed ------------------------------------------------------------------------------------------------


def read(folder: Path) -> Start | None:
    """How the encoder in a folder starts; None: not from a seed.

    :raises SpecError: the file says nothing that is known here.
    """
    path = folder / SEEDED
    try:
        return Start.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        said = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise SpecError(f"`{path}` should say how an encoder starts, found: {said}.") from None


def make(folder: Path, part: Part, to: Path, modules: Sequence[Path] = ()) -> None:
    """Write one of an encoder's sets from its recipe; whether it is what it should be is for the caller to see.

    Needs the folder's declaration, its config and `seeded.json`, and memory for one slice at a time.

    :raises SpecError: not the folder of an encoder that starts from a seed, or the module's code is not here.
    """
    found = read(folder)
    if found is None:
        raise SpecError(f"`{folder}` should be the folder of an encoder that starts from a seed, found no {SEEDED}.")
    spec = read_spec(folder)
    body = _network(spec, folder, modules)
    division = divide(spec, body)
    shared = {*division.shared, *division.buffers}
    plans = {seeded.name: (seeded, sources.tensor_spec(tensor)) for seeded, tensor in found.recipe.tensors(body)}
    _write(to, {name: plan for name, plan in plans.items() if (name in shared) == (part == SHARED)})


def _network(spec: EncoderSpec, folder: Path, modules: Sequence[Path]) -> nn.Module:
    """The network, of which only names, kinds, shapes and dtypes are wanted."""
    if isinstance(spec.source, Module):
        return sources.user_module(spec, spec.source, modules)
    with torch.device("meta"):
        return sources.from_config(sources.read_config(folder))


def _write(to: Path, plans: Mapping[str, tuple[SeededTensor, TensorSpec]]) -> None:
    with SetWriter(to, {name: tensor for name, (_, tensor) in plans.items()}) as writer:
        for name, (seeded, tensor) in plans.items():
            for rows, values in _slices(seeded, tensor):
                writer.write(name, rows, values)


def _slices(seeded: SeededTensor, tensor: TensorSpec) -> Iterator[tuple[slice, Array]]:
    for rows in row_slices(tensor):
        if tensor.dtype == "F32":
            yield rows, seeded.read(rows) if tensor.shape else seeded.read()
        elif isinstance(seeded.law, Constant):
            yield rows, np.full((rows.stop - rows.start) * tensor.row, seeded.law.value, DTYPES[tensor.dtype])
        else:
            raise SpecError(f"`{seeded.name}` should be of floating point for a {seeded.law.kind} start, found {tensor.dtype}.")
