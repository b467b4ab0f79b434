"""One process of a small model over FSDP2 and tensor parallelism, with gloo between them.

`python -m tests.support.seeded_rank RANK DP TP STORE` prints JSON: how much was sent during the start, the digest of the whole
model as it was gathered afterwards, and some of this process's shard as torch itself fills it.
"""

import hashlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tasks.seeded.recipe import TORCH, Recipe, recipe_for


class Model(nn.Module):
    """Widths that the meshes do not divide evenly, and some that they do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(37, 12, padding_idx=3)
        self.up, self.down = nn.Linear(12, 9), nn.Linear(9, 12)
        self.norm = nn.LayerNorm(12)


def recipe() -> Recipe:
    """Of every process alike."""
    return recipe_for(Model(), TORCH, 5)


def parted(mesh: Any) -> nn.Module:
    """The model over data (the mesh's first axis) and tensor parallelism (its second), with nothing in it yet."""
    with torch.device("meta"):
        model = Model()
    dp, tp = mesh.mesh_dim_names
    plan: dict[str, Any] = {"words": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh[tp], plan)
    fully_shard(model, mesh=mesh[dp])
    return model.to_empty(device="cpu")


def digest(tensors: dict[str, Tensor]) -> str:
    """Of a model's parameters."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def main(rank: int, dp: int, tp: int, store: str) -> None:
    """Play one rank."""
    dist.init_process_group("gloo", rank=rank, world_size=dp * tp, store=dist.FileStore(store, dp * tp))
    model = parted(init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp")))
    with CommDebugMode() as communication:
        recipe().fill_(model)
    whole = {name: gathered(parameter) for name, parameter in model.named_parameters()}
    own = model.get_parameter("norm.weight") if dp > 1 else model.get_parameter("up.bias")
    torch.manual_seed(0)
    nn.init.normal_(own)
    told = {"sent": communication.get_total_counts(), "digest": digest(whole), "torch": own._local_tensor[:4].tolist()}  # type: ignore[attr-defined]
    print(json.dumps(told))
    dist.destroy_process_group()


def gathered(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
