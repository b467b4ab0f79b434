"""Training over rounds as a plain script: no queue, no message, no store. Ours must equal it bit for bit, with all features off.

Only the model and its batches are Trunkline's. Everything that decides numbers is written out again: the order of samples, the
optimiser, the mean.
"""

import copy
import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tasks.encoders import Encoder
from tasks.heads import Head
from tasks.table import SampleTable


@dataclass
class Child:
    """One site: its samples, its head, and how far it is in its order of samples."""

    task: str
    table: SampleTable
    head: Head
    batch: int
    epoch: int = 0
    line: list[int] = field(default_factory=list)
    moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def next_batch(self, seed: int) -> list[int]:
        """Epoch after epoch, each a permutation from (seed, task, epoch)."""
        while len(self.line) < self.batch:
            key = hashlib.sha256(f"{seed}/{self.task}/{self.epoch}".encode()).digest()[:16]
            generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
            self.line += generator.permutation(self.table.indices("train")).tolist()
            self.epoch += 1
        taken, self.line = self.line[: self.batch], self.line[self.batch :]
        return taken


def adamw(parameters: list[nn.Parameter], rate: float, decay: float) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def rounds(
    encoder: Encoder,
    children: list[Child],
    *,
    count: int,
    steps: int,
    rate: float,
    head_rate: float,
    decay: float,
    clip: float,
    warmup: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Train, and return the shared parameters."""
    shared = {name: p.detach().clone() for name, p in encoder.shared_parameters().items()}
    for number in range(count):
        results, sizes = [], []
        for child in children:
            model = copy.deepcopy(encoder)
            mine = model.shared_parameters()
            with torch.no_grad():
                for name, parameter in mine.items():
                    parameter.copy_(shared[name])
            optimiser = adamw(list(mine.values()), rate, decay)
            head_parameters = dict(child.head.named_parameters())
            head_optimiser = adamw(list(head_parameters.values()), head_rate, decay)
            for name, parameter in head_parameters.items():
                if name in child.moments:
                    head_optimiser.state[parameter] = {key: value.clone() for key, value in child.moments[name].items()}
            seen: set[int] = set()
            model.train()
            for step in range(steps):
                taken = child.next_batch(seed)
                seen.update(taken)
                batch = child.table.batch(np.array(taken))
                child.head.loss([model(side) for side in batch.inputs], batch).backward()
                nn.utils.clip_grad_norm_([*mine.values(), *head_parameters.values()], clip)
                done = number * steps + step
                share = (done + 1) / warmup if done < warmup else 1.0
                for one, base in ((optimiser, rate), (head_optimiser, head_rate)):
                    for group in one.param_groups:
                        group["lr"] = base * share
                    one.step()
                    one.zero_grad(set_to_none=True)
            child.moments = {name: dict(head_optimiser.state[p]) for name, p in head_parameters.items()}
            results.append({name: p.detach().double() for name, p in mine.items()})
            sizes.append(len(seen))
        shared = {
            name: sum(result[name] * (size / sum(sizes)) for result, size in zip(results, sizes, strict=True)).float()  # type: ignore[union-attr]
            for name in shared
        }
    return {name: tensor.numpy() for name, tensor in shared.items()}
