"""SCAFFOLD as a plain script, straight from the paper (arXiv:1910.06378, algorithm 1, option II), with plain SGD and no dropout."""

import copy

import numpy as np
import torch
from torch import Tensor

from tasks.encoders import Encoder
from tests.support.plain import Child


def rounds(
    encoder: Encoder,
    children: list[Child],
    *,
    count: int,
    steps: int,
    rate: float,
    head_rate: float,
    seed: int,
    sit_out: dict[int, int],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train, and return the shared parameters and the server's variate.

    :param sit_out: round (from 0) -> the child (by index) that is not there.
    """
    x = {name: p.detach().double() for name, p in encoder.shared_parameters().items()}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    own: list[dict[str, Tensor]] = [{name: torch.zeros_like(value) for name, value in x.items()} for _ in children]
    known: set[int] = set()
    for number in range(count):
        present = [k for k in range(len(children)) if sit_out.get(number) != k]
        known.update(present)
        results, changes = [], []
        for k in present:
            child, model = children[k], copy.deepcopy(encoder)
            y = model.shared_parameters()
            with torch.no_grad():
                for name, parameter in y.items():
                    parameter.copy_(x[name].float())
            model.train()
            for _ in range(steps):
                batch = child.table.batch(np.array(child.next_batch(seed)))
                child.head.loss([model(side) for side in batch.inputs], batch).backward()
                with torch.no_grad():
                    for name, parameter in y.items():
                        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                        parameter -= rate * (gradient - own[k][name] + c[name]).float()
                        parameter.grad = None
                    for parameter in child.head.parameters():
                        if parameter.grad is not None:
                            parameter -= head_rate * parameter.grad
                            parameter.grad = None
            after = {name: own[k][name] - c[name] + (x[name] - y[name].detach().double()) / (steps * rate) for name in x}
            changes.append({name: after[name] - own[k][name] for name in x})
            results.append({name: value.detach().double() for name, value in y.items()})
            own[k] = after
        x = {name: torch.stack([result[name] for result in results]).mean(0) for name in x}
        c = {name: c[name] + torch.stack([change[name] for change in changes]).sum(0) / len(known) for name in x}
    return {name: value.numpy() for name, value in x.items()}, {name: value.numpy() for name, value in c.items()}
