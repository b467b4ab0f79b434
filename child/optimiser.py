"""The store of a local training: shared layers and private heads in this process, each moved only by gradients that touch it.

Every head has an optimiser of its own, so a head whose task had no batch keeps its values and its moments bit for bit: nothing is
filled with zeros on its behalf. Moments of the shared layers go on from the round before where the plan says so (`Plan.moments`);
else they begin anew, since fused parameters are not the ones they were gathered on. The warm-up counts over the whole job.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tasks import optimisers
from tasks.step import Gradient
from trunkline.messages import Plan

Moments = Mapping[str, Tensor]
"""An optimiser's state, flat: `PARAMETER/MOMENT`; scalars, and tensors in the shape of their parameter."""


def rate(plan: Plan, step: int) -> float:
    """The learning rate of a step (counted from 0 within the round), as a share of the plan's; the warm-up is of the whole job."""
    return optimisers.rate(plan.done_steps + step, warmup_steps=plan.warmup_steps, decay=plan.decay, total_steps=plan.total_steps)


class LocalStore:
    """Applies gradients, in order, to an encoder's shared parameters and to heads.

    :param shared: trainable parameters by name; changed in place.
    :param heads: by task.
    :param correction: what is added to the gradients of the shared parameters, by name.
    """

    def __init__(
        self,
        plan: Plan,
        shared: Mapping[str, nn.Parameter],
        heads: Mapping[str, nn.Module],
        correction: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._correction = correction or {}
        self.plan, self.step = plan, 0
        self.shared = dict(shared)
        for parameter in self.shared.values():
            parameter.grad = None  # a step that failed half-way, for want of memory say, left what must not count in this round
        self.heads = {task: dict(head.named_parameters()) for task, head in heads.items()}
        self._shared_optimiser = _optimiser(plan, self.shared, plan.learning_rate)
        self._head_optimisers = {task: _optimiser(plan, head, plan.head_learning_rate) for task, head in self.heads.items() if head}
        self._anchor = {name: p.detach().clone() for name, p in self.shared.items()} if plan.prox else {}

    @torch.no_grad()
    def apply(self, gradient: Gradient) -> None:
        """Move the shared layers and the head of the gradient's task by one step; in the plan's first ones the head alone."""
        head = self.heads[gradient.task]
        correction = {} if self.step < self.plan.head_steps else self._correction
        for name, grad in gradient.shared.items():
            pull = self.plan.prox * (self.shared[name] - self._anchor[name]) if self._anchor else 0.0
            self.shared[name].grad = grad + pull if self._anchor else grad
        for name, more in correction.items():  # also where this batch has no gradient
            grad_now = self.shared[name].grad
            self.shared[name].grad = more.clone() if grad_now is None else grad_now + more
        for name, grad in gradient.head.items():
            head[name].grad = grad
        touched = [p for p in (*self.shared.values(), *head.values()) if p.grad is not None]
        if self.plan.clip_norm:
            nn.utils.clip_grad_norm_(touched, self.plan.clip_norm)
        share = rate(self.plan, self.step)
        self._move(self._shared_optimiser, self.plan.learning_rate * share)
        if gradient.task in self._head_optimisers:
            self._move(self._head_optimisers[gradient.task], self.plan.head_learning_rate * share)
        self.step += 1

    def _move(self, optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def moments(self) -> Moments:
        """The optimiser state of the shared layers."""
        return _moments(self._shared_optimiser, self.shared)

    def load_moments(self, moments: Moments) -> None:
        """Go on with the state that `moments` gave; what does not fit is left aside."""
        _load_moments(self._shared_optimiser, self.shared, moments)

    def head_moments(self, task: str) -> Moments:
        """A head's optimiser state."""
        return _moments(self._head_optimisers[task], self.heads[task]) if task in self._head_optimisers else {}

    def load_head_moments(self, task: str, moments: Moments) -> None:
        """Go on with the state that `head_moments` gave; one that does not fit this head is left aside."""
        if task in self._head_optimisers:
            _load_moments(self._head_optimisers[task], self.heads[task], moments)


def _moments(optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> Moments:
    return {
        f"{name}/{moment}": torch.as_tensor(value).detach()
        for name, parameter in parameters.items()
        for moment, value in sorted(optimiser.state.get(parameter, {}).items())
    }


def _load_moments(optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], moments: Moments) -> None:
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in moments.items():
        name, moment = key.rsplit("/", 1)
        found[name][moment] = value
    for name, parameter in parameters.items():
        if found[name] and all(value.shape in ((), parameter.shape) for value in found[name].values()):
            optimiser.state[parameter] = {moment: value.to(parameter.device, copy=True) for moment, value in found[name].items()}


def _optimiser(plan: Plan, parameters: Mapping[str, nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    return optimisers.make_optimiser(list(parameters.values()), plan.optimizer, learning_rate, weight_decay=plan.weight_decay)
