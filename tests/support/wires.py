"""Small sets of every form, and the way of one through a codec and back."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from trunkline.codecs import CODECS, Decoder, encode
from trunkline.sets import SetFile
from trunkline.tensors import FLOATS, Array, SetSpec, TensorSpec, narrow

SPEC: dict[str, TensorSpec] = {
    "bias": TensorSpec((7,)),
    "conv": TensorSpec((6, 3, 2, 2)),
    "empty": TensorSpec((0, 3)),
    "flags": TensorSpec((4,), "BOOL"),
    "half": TensorSpec((20, 30), "F16"),
    "long": TensorSpec((6,), "F64"),
    "odd": TensorSpec((5, 67)),
    "scale": TensorSpec(()),
    "scale64": TensorSpec((), "F64"),
    "short": TensorSpec((50, 20), "BF16"),
    "steps": TensorSpec((), "I64"),
    "vector": TensorSpec((4100,)),
    "weight": TensorSpec((90, 40)),
    "wide": TensorSpec((2, 4099)),
}

WORDS = (*CODECS, "int4:group=16", "topk:share=0.2", "topk:share=1.0", "lowrank:rank=2")
"""Every codec, and some with other options."""

LOSSY = tuple(word for word in WORDS if word != "float32")


def random_set(seed: int, spec: SetSpec = SPEC, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, tensor in spec.items():
        if tensor.dtype in FLOATS:
            tensors[name] = narrow(np.asarray(rng.normal(size=tensor.shape) * scale), tensor.dtype)
        else:
            whole = np.asarray(rng.integers(0, 2, tensor.shape))
            tensors[name] = whole.astype(bool) if tensor.dtype == "BOOL" else whole
    return tensors


def reader(tensors: Mapping[str, Array]) -> Callable[[str, slice], Array]:
    return lambda name, rows: tensors[name][rows] if tensors[name].shape else tensors[name]


def travel(folder: Path, codec: str, base: SetFile, new: Mapping[str, Array]) -> Decoder:
    encode(folder / "wire", codec, base, reader(new))
    return Decoder(SetFile(folder / "wire"), codec, base)


def decoded(decoder: Decoder) -> dict[str, Array]:
    return {name: decoder.read(name, slice(0, tensor.rows)) for name, tensor in decoder.spec.items()}
