"""The shared encoder: made once by the master, loaded by whoever trains or uses it, read and written as named tensors.

Shapes: B samples, T tokens, H hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks import declared, lora, sources, starts
from tasks.batches import Encoded, Inputs
from tasks.declared import read_spec
from tasks.division import divide
from tasks.folder import DECLARATION, FROZEN, SHARED
from tasks.processors import Processor, TextProcessor, VectorProcessor
from tasks.specs import EncoderSpec, Lora, Module
from trunkline.codecs import multiplied
from trunkline.errors import DamagedFile, Reason, RefusedValue, SpecError
from trunkline.files import write_atomically
from trunkline.folders import check_new, new_folder
from trunkline.sets import SetFile, write_set
from trunkline.tensors import FLOATS, Array, TensorSpec, narrow, real, widen


class Encoder(nn.Module):
    """A network and its processor; some of its tensors are shared, the others are frozen.

    :param body: the network itself; names of tensors are those of its `state_dict`.
    :raises SpecError: a pattern of `spec` matches nothing, or nothing is left to train.
    """

    def __init__(self, spec: EncoderSpec, body: nn.Module, processor: Processor) -> None:
        super().__init__()
        self.spec, self.body, self.processor = spec, body, processor
        self.hidden: int = sources.width(spec, body) if spec.features == "vector" else int(body.config.hidden_size)  # type: ignore[union-attr]
        parameters, buffers = sources.tensors(body)
        division = divide(spec, body)
        self.products: Mapping[str, lora.Product] = {}
        if isinstance(spec.tuning, Lora):
            self.products = lora.inject(spec.tuning, body, [name.removesuffix(".weight") for name in division.shared])
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in division.private or (name in division.shared and not self.products))
        self._matrices = {name: parameters[name] for name in division.shared}
        self._frozen = {name: parameters[name] for name in division.frozen}
        self._buffers_shared = division.buffers
        self._private: dict[str, Tensor] = {name: {**parameters, **buffers}[name] for name in division.private}
        self._private_start: dict[str, Tensor] = {}
        self._shared_trainable = dict(self._matrices)
        if self.products:
            self._shared_trainable = {
                f"{name}@{part}": getattr(p, part.lower()) for name, p in self.products.items() for part in "AB"
            }
            self._reset_products()

    @property
    def device(self) -> torch.device:
        """Where its parameters lie."""
        return next(iter(self._shared_trainable.values())).device

    def forward(self, inputs: Inputs) -> Encoded:
        """One side of a batch, encoded."""
        if self.spec.features == "vector":
            return Encoded(self.body(inputs["features"]))
        mask = inputs["attention_mask"]
        tokens = self.body(input_ids=inputs["input_ids"], attention_mask=mask).last_hidden_state  # (B, T, H)
        return Encoded(_pool(tokens, mask, self.spec.pooling), tokens, mask)

    # -- as named tensors ----------------------------------------------------------------------------------------------

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """What is shared and an optimiser moves; a matrix that is trained as a product stands as `NAME@A` and `NAME@B`."""
        return self._shared_trainable

    def trainable(self) -> dict[str, nn.Parameter]:
        """All that an optimiser moves: what is shared, and what is private to the site."""
        private = {name: tensor for name, tensor in self._private.items() if isinstance(tensor, nn.Parameter)}
        return self._shared_trainable | private

    def shared_spec(self) -> dict[str, TensorSpec]:
        """Every shared tensor, under its plain name, whole also where it is trained as a product."""
        return {name: sources.tensor_spec(tensor) for name, tensor in sorted(self._shared().items())}

    def _shared(self) -> dict[str, Tensor]:
        return {**self._matrices, **{name: self.body.get_buffer(name) for name in self._buffers_shared}}

    @torch.no_grad()
    def load_shared(self, read: Callable[[str], Array]) -> None:
        """Take over a parameter set, in place; products start from zero again.

        :param read: a whole tensor by name, for example `SetFile.read`.
        :raises RefusedValue: `shape`: a tensor is not what this encoder has.
        """
        for name, tensor in self._shared().items():
            array = read(name)
            if tuple(array.shape) != tuple(tensor.shape):
                raise RefusedValue(Reason.SHAPE, f"{name!r} should be {tuple(tensor.shape)}, found {tuple(array.shape)}.")
            plain = array if array.flags.c_contiguous and array.flags.writeable else array.copy()
            tensor.copy_(torch.from_numpy(plain))
        self._reset_products()

    def _reset_products(self) -> None:
        for name, product in self.products.items():
            product.reset(self.spec.tuning.seed, name)  # type: ignore[union-attr]

    def read_shared(self, name: str, rows: slice) -> Array:
        """A copy of rows of a shared tensor as it stands now; a product is multiplied out, as a codec would."""
        tensor = self._shared()[name].detach()
        array = (tensor[rows] if tensor.ndim else tensor).cpu().numpy().copy()
        if name not in self.products:
            return array
        a, b = self.products[name].factors()
        return narrow(widen(array, "F32") + multiplied(a.astype(np.float64), b[rows].astype(np.float64)), "F32")

    def factors(self) -> dict[str, tuple[Array, Array]]:
        """A `(r, in)` and B `(out, r)` of each matrix that is trained as a product, the scale in B."""
        return {name: product.factors() for name, product in self.products.items()}

    def frozen_tensors(self) -> dict[str, Array]:
        """Everything that is not shared, by name; of what is private the values that every site begins with."""
        private = self._private_start or self._private
        return {name: tensor.detach().cpu().numpy() for name, tensor in {**self._frozen, **private}.items()}

    def private_tensors(self) -> dict[str, Array]:
        """What is private to the site as it stands now, copies by name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._private.items()}

    @torch.no_grad()
    def load_private(self, saved: Mapping[str, Array]) -> None:
        """Take over what is private to the site; a tensor that is not there, or of another shape, begins anew."""
        for name, tensor in self._private.items():
            mine = saved.get(name)
            fits = mine is not None and tuple(mine.shape) == tuple(tensor.shape)
            tensor.copy_(torch.from_numpy(np.array(mine)) if fits else self._private_start[name])

    @torch.no_grad()
    def load_frozen(self, file: SetFile) -> None:
        """:raises DamagedFile: it is not the frozen part of this encoder."""
        for name, tensor in {**self._frozen, **self._private}.items():
            if (wanted := sources.tensor_spec(tensor)) != file.spec.get(name):
                raise DamagedFile(f"`{file.path}` should hold {name!r} as {wanted}, found {file.spec.get(name)}.")
            tensor.copy_(torch.from_numpy(file.read(name)))
        self._private_start = {name: tensor.detach().clone() for name, tensor in self._private.items()}


def _pool(tokens: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return tokens[:, 0]
    kept = mask.unsqueeze(-1).to(tokens.dtype)  # (B, T, 1)
    if pooling == "mean":
        return (tokens * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
    return tokens.masked_fill(kept == 0, torch.finfo(tokens.dtype).min).amax(1)


# -- on disk -----------------------------------------------------------------------------------------------------------


def create(spec: EncoderSpec, folder: Path, modules: Sequence[Path] = ()) -> None:
    """Make an encoder from its declaration; the folder appears whole or not at all.

    :param modules: folders with a user's own module.
    :raises SpecError: it cannot be made as it is declared.
    :raises Conflict: the folder is there and not empty.
    :raises StorageFailed: the disk refused.
    """
    check_new(folder)
    spec, modules = declared.by_file_name(spec, modules)
    body, config, tokenizer = sources.network(spec, modules)
    recipe = starts.fill_(spec, body, config)
    spec = declared.without_folders(spec)
    with new_folder(folder) as beside:
        _fill(spec, beside, body, config, tokenizer)
        if recipe is not None:
            starts.write(beside, recipe)


def _fill(spec: EncoderSpec, folder: Path, body: nn.Module, config: Any, tokenizer: Path | None) -> None:
    write_atomically(folder / DECLARATION, spec.model_dump_json(indent=1).encode())
    processor = VectorProcessor(spec.shape or ()) if config is None else _text_files(spec, folder, config, tokenizer)
    encoder = Encoder(spec, body, processor)
    write_set(folder / FROZEN, encoder.frozen_tensors())
    spec_of_set = encoder.shared_spec()
    shared = {name: encoder.read_shared(name, slice(0, tensor.rows)) for name, tensor in spec_of_set.items()}
    for name, tensor in spec_of_set.items():
        if tensor.dtype in FLOATS and not np.isfinite(real(shared[name], tensor.dtype)).all():
            raise SpecError(f"the initial parameters {name!r} should be finite, found NaN or infinity.")
    write_set(folder / SHARED, shared)


def _text_files(spec: EncoderSpec, folder: Path, config: Any, tokenizer: Path | None) -> TextProcessor:
    if tokenizer is None:
        raise SpecError("`source.tokenizer` should be a folder with a tokenizer, found none.")
    processor = TextProcessor(tokenizer, spec.max_length)
    if len(processor.tokenizer) > config.vocab_size:
        count = len(processor.tokenizer)
        raise SpecError(f"`vocab_size` should be at least {count}, which the tokenizer has, found {config.vocab_size}.")
    processor.tokenizer.save_pretrained(str(folder))
    config.save_pretrained(str(folder))
    return TextProcessor(folder, spec.max_length)


def load(folder: Path, modules: Sequence[Path] = ()) -> Encoder:
    """An encoder as `create` wrote it, with its initial parameter set where `shared.safetensors` is there.

    :param modules: folders with a user's own module; code is taken from nowhere else.
    :raises SpecError: not such a folder, or the module is not here.
    :raises DamagedFile: its files do not fit each other.
    """
    spec = read_spec(folder)
    if isinstance(spec.source, Module):
        encoder = Encoder(spec, sources.user_module(spec, spec.source, modules), VectorProcessor(spec.shape or ()))
    else:
        body = sources.from_config(sources.read_config(folder))
        encoder = Encoder(spec, body, TextProcessor(folder, spec.max_length))
    with SetFile(folder / FROZEN) as file:
        encoder.load_frozen(file)
    if (folder / SHARED).is_file():
        with SetFile(folder / SHARED) as file:
            encoder.load_shared(file.read)
    return encoder


__all__ = ["Encoder", "create", "load"]
