"""Torch tensors and DTensors are filled where they lie; torch's own splitting says what a shard should hold.

The processes of a mesh are played one after another, with a process group that sends nothing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tasks.seeded.laws import Normal
from tasks.seeded.layout import NAMES, fill_, places_of
from tasks.seeded.tensor import SeededTensor
from tests.support import seeded_rank
from trunkline.errors import UsageError

MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]


@contextmanager
def process(rank: int, mesh: Sequence[int]) -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=rank, world_size=int(np.prod(mesh)), store=FakeStore())
    try:
        # Names of its own: torch keeps what it derives of a mesh by its names, with the place of the process that came first.
        yield init_device_mesh("cpu", tuple(mesh), mesh_dim_names=(f"dp {rank} of {mesh}", f"tp {rank} of {mesh}"))
    finally:
        dist.destroy_process_group()


def shard(full: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> tuple[DTensor, Tensor]:
    """An empty shard of this process, and what torch itself would put there."""
    wanted = distribute_tensor(full, mesh, placements, src_data_rank=None).to_local()
    empty = torch.full_like(wanted, torch.nan)
    return DTensor.from_local(empty, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()), wanted


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_tensor_is_filled_in_place_and_rounded_as_torch_rounds(dtype: torch.dtype) -> None:
    shape = (70, 300)
    plain = torch.from_numpy(SeededTensor(3, "w", shape, Normal(std=0.02)).read())
    tensor = nn.Parameter(torch.empty(shape, dtype=dtype))
    place = tensor.data_ptr()
    assert fill_(tensor, SeededTensor(3, "w", shape, Normal(std=0.02), NAMES[dtype])) is tensor
    assert tensor.data_ptr() == place and torch.equal(tensor, plain.to(dtype))
    turned = torch.empty(shape[::-1], dtype=dtype).T
    fill_(turned, SeededTensor(3, "w", shape, Normal(std=0.02), NAMES[dtype]), threads=2)
    assert torch.equal(turned, plain.to(dtype))


def test_a_tensor_of_another_shape_or_dtype_is_refused() -> None:
    seeded = SeededTensor(3, "w", (4, 5), Normal())
    for wrong in (torch.empty(5, 4), torch.empty(4, 5, dtype=torch.bfloat16), torch.empty(4, 5, dtype=torch.int32)):
        with pytest.raises(UsageError, match=r"`tensor` should be F32 \(4, 5\) for 'w'"):
            fill_(wrong, seeded)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("shape", "dtype"), [((130, 260), torch.float32), ((7, 300), torch.bfloat16)], ids=str)
def test_shards_hold_what_torch_would_send_them(mesh: tuple[int, int], shape: tuple[int, int], dtype: torch.dtype) -> None:
    seeded = SeededTensor(3, "w", shape, Normal(), NAMES[dtype], "fast", zero_rows=(5,))
    full = fill_(torch.empty(shape, dtype=dtype), seeded)
    for rank in range(int(np.prod(mesh))):
        with process(rank, mesh) as made:
            for placements in (
                [Shard(0), Shard(1)],
                [Shard(0), Shard(0)],
                [Shard(1), Shard(0)],
                [Replicate(), Shard(1)],
                [Shard(1), Replicate()],
                [_StridedShard(0, split_factor=mesh[1]), Shard(0)],
                [_StridedShard(1, split_factor=mesh[1]), Shard(1)],
            ):
                part, wanted = shard(full, made, placements)
                with CommDebugMode() as communication:
                    fill_(part, seeded)
                assert communication.get_total_counts() == 0
                assert torch.equal(part.to_local(), wanted), (rank, placements)


def test_what_has_no_values_of_its_own_is_refused() -> None:
    with process(0, (2, 1)) as mesh:
        partial = DTensor.from_local(torch.empty(4, 5), mesh, [Partial(), Replicate()], run_check=False)
        with pytest.raises(UsageError, match="`placements` should be Shard or Replicate, found P"):
            fill_(partial, SeededTensor(3, "w", (4, 5), Normal()))
    with pytest.raises(UsageError, match=r"found \(3,\) at \(0,\), for which there are none"):
        places_of((8,), (2,), [Shard(0)], (0,), (3,))


# -- a model -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [*MESHES, (4, 2)], ids=str)
def test_a_model_over_fsdp_and_tensor_parallelism_starts_as_in_one_process(mesh: tuple[int, int]) -> None:
    """FSDP2 cuts what tensor parallelism has cut; where the lengths are uneven, not as DTensor's placements say of themselves."""
    alone = seeded_rank.Model()
    seeded_rank.recipe().fill_(alone)
    cut = {"words.weight": 0, "up.weight": 0, "up.bias": 0, "down.weight": 1}  # by tensor parallelism, along this axis
    for dp, tp in product(range(mesh[0]), range(mesh[1])):
        with process(dp * mesh[1] + tp, mesh) as made:
            model = seeded_rank.parted(made)
            with CommDebugMode() as communication:
                seeded_rank.recipe().fill_(model)
            assert communication.get_total_counts() == 0
            for name, parameter in model.named_parameters():
                wanted = alone.get_parameter(name).detach()
                if name in cut:
                    wanted = piece(wanted, mesh[1], tp, cut[name])
                assert torch.equal(parameter._local_tensor, piece(wanted, mesh[0], dp, 0)), (name, dp, tp)  # type: ignore[attr-defined]


def piece(tensor: Tensor, count: int, at: int, axis: int) -> Tensor:
    """As `torch.chunk`, with empty ones where there is nothing left."""
    pieces = tensor.chunk(count, axis)
    return pieces[at] if at < len(pieces) else pieces[0].narrow(axis, 0, 0)


@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support on cpu device mesh")
def test_shards_that_torch_fills_are_all_alike() -> None:
    """Why this package is there: on processors, DTensor's own start repeats one shard. Should this fail, torch has mended it."""
    own, ours = [], []
    for rank in range(2):
        with process(rank, (2, 1)) as mesh:
            part, _ = shard(torch.empty(8, 4), mesh, [Shard(0), Replicate()])
            torch.manual_seed(0)
            nn.init.normal_(part)
            own.append(part.to_local().clone())
            ours.append(fill_(part, SeededTensor(0, "w", (8, 4), Normal())).to_local().clone())  # type: ignore[attr-defined]
    assert torch.equal(*own)
    assert not torch.equal(*ours) and torch.equal(torch.cat(ours), torch.from_numpy(SeededTensor(0, "w", (8, 4), Normal()).read()))


# -- in processes of their own ---------------------------------------------------------------------------------------------


def started(code: list[str], **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", *code]
    here = Path(__file__).parents[3]
    return subprocess.Popen(
        command, cwd=here, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=250)
    assert process.returncode == 0, error
    return out.strip()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dp", "tp"), [(2, 1), (1, 2)])
def test_two_processes_hold_together_what_one_holds(dp: int, tp: int, tmp_path: Path) -> None:
    code = ["-m", "tests.support.seeded_rank"]
    both = [started([*code, str(rank), str(dp), str(tp), str(tmp_path / "store")]) for rank in range(2)]
    one, other = (json.loads(answer(process)) for process in both)
    alone = seeded_rank.Model()
    seeded_rank.recipe().fill_(alone)
    assert one["sent"] == other["sent"] == 0
    assert one["digest"] == other["digest"] == seeded_rank.digest(dict(alone.named_parameters()))
    assert one["torch"] == other["torch"]  # shards of other places, filled alike by torch itself


CODE = """
from tests.support.seeded_rank import *
made = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    model = Model().to(dtype)
    recipe().fill_(model, threads=2)
    made |= {f"{dtype} {name}": tensor.detach().view(torch.uint8) for name, tensor in model.named_parameters()}
print(torch.backends.cpu.get_cpu_capability(), digest(made))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_values_are_the_same_whatever_torch_is_told_the_processor_can() -> None:
    processes = [started(["-c", CODE], ATEN_CPU_CAPABILITY=level) for level in ("default", "avx2", "avx512")]
    told = [answer(process).split() for process in processes]
    assert len({found for _, found in told}) == 1 and told[0][0] == "DEFAULT"
