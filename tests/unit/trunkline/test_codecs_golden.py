"""The wire form cannot change unseen: the bytes of a small set in every codec, as they were when children first spoke it."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.wires import reader
from trunkline.codecs import Decoder, encode
from trunkline.sets import SetFile, write_set
from trunkline.tensors import Array, TensorSpec, to_bf16

SPEC = {"m": TensorSpec((2, 20)), "n": TensorSpec((), "I64"), "v": TensorSpec((19,))}

GOLDEN = {
    "bf16": (
        "m BF16 2,20; n I64 ; v BF16 19",
        (
            "000000bf80bf9a4000c020c0544060c080c0e83fa83f503fa03e40be30bf98bfd8bf84402cc04cc0284086c0d03f903f203f003ec0be60bfb0bff0bf"
            "18c05c4058c01c40f83f9cc0703fe03e80bd10bf1d00000000000000000000bf80bfe83f00c0503fa03e40be30bf0840d8bf0cc0203f003ec0be60bf"
            "f83ff0bf703f"
        ),
    ),
    "int8": (
        "m I8 2,20; m@scale F32 2,1; n I64 ; v I8 19; v@scale F32 1",
        (
            "00f3e67fcbbe57a49630231508fbeee1d36db9ac44932a1d1003f6e9dccfc25aa8403281180bfef16d361b3d753a1d3d1d0000000000000000e3c669"
            "8c2f12f5d87b9e812407eacd709336341a8d3c"
        ),
    ),
    "int4:group=16": (
        "m U8 2,10; m@scale F32 2,2; n I64 ; v U8 10; v@scale F32 2",
        (
            "78f7453db29a8867f5332caa897756d5b31bbf480000303f6edb163f2549323f9224093e1d0000000000000068e5b279f6138a571f8b0000a03edbb6"
            "8d3e"
        ),
    ),
    "topk:share=0.1": (
        "m@index I32 4; m@value BF16 4; n I64 ; v@index I32 2; v@value BF16 2",
        "030000001100000015000000230000009a40844086c09cc01d00000000000000090000000b00000008400cc0",
    ),
}


def tensors(by: int) -> dict[str, Array]:
    def values(count: int, modulus: int) -> Array:
        return (np.arange(count) * by % modulus - modulus // 2).astype(np.float32) / 16

    return {"m": values(40, 101).reshape(2, 20), "n": np.asarray(by), "v": values(19, 53)}


@pytest.fixture
def base(tmp_path: Path) -> SetFile:
    write_set(tmp_path / "base", tensors(37), SPEC)
    return SetFile(tmp_path / "base")


@pytest.mark.parametrize("codec", GOLDEN)
def test_the_bytes_are_as_they_were(tmp_path: Path, base: SetFile, codec: str) -> None:
    encode(tmp_path / "wire", codec, base, reader(tensors(29)))
    data = (tmp_path / "wire").read_bytes()
    with SetFile(tmp_path / "wire") as wire:
        form = "; ".join(f"{name} {part.dtype} {','.join(map(str, part.shape))}" for name, part in sorted(wire.spec.items()))
    assert (form, data[8 + int.from_bytes(data[:8], "little") :].hex()) == GOLDEN[codec]


def test_two_thin_matrices_are_read_as_they_were(tmp_path: Path, base: SetFile) -> None:
    """Which matrices are chosen may differ between processors; what they mean may not."""
    a, b = np.arange(-20, 20, dtype=np.float32).reshape(2, 20) / np.float32(8), np.array([[1, -2], [0.5, 3]], dtype=np.float32)
    parts = {"m@A": to_bf16(a), "m@B": to_bf16(b), "n": np.asarray(3), "v": to_bf16(np.arange(19, dtype=np.float32))}
    write_set(tmp_path / "wire", parts)
    decoder = Decoder(SetFile(tmp_path / "wire"), "lowrank:rank=2", base)
    found = decoder.read("m", slice(0, 2)) - base.read("m")
    assert found[0].tolist() == [-2.5 - number / 8 for number in range(20)]
    assert found[1].tolist() == [-1.25 + 7 * number / 16 for number in range(20)]
    assert (decoder.read("v", slice(0, 19)) - base.read("v")).tolist() == list(range(19))
