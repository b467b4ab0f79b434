import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks import encoders
from tasks.batches import IGNORED, Batch
from tasks.encoders import Encoder
from tasks.heads import Head, make_head
from tasks.specs import EncoderSpec, TaskSpec
from tasks.step import choose_precision, gradient, memory_ran_out
from trunkline.errors import Reason, SpecError, TrainingFailed

B, T = 7, 9
HEADS = ("single", "multi", "regression", "tokens", "pairs")


def case(kind: str, encoder: Encoder, seed: int = 0, **change: Any) -> tuple[Head, Batch]:
    """A head and a batch of random tokens."""
    rng = np.random.default_rng(seed)
    fields = ("a", "b") if kind == "pairs" else ("a",)
    about = {"name": "t", "head": kind, "data": "x.csv", "fields": fields, "label": None if kind == "pairs" else "y"}
    head = make_head(
        TaskSpec.model_validate(about | change), ("x", "y", "z") if kind in ("single", "multi", "tokens") else (), encoder.hidden, 0
    )
    inputs = []
    for _ in fields:
        lengths = torch.tensor(rng.integers(2, T + 1, B))
        mask = (torch.arange(T) < lengths[:, None]).long()
        inputs.append({"input_ids": torch.tensor(rng.integers(5, 60, (B, T))) * mask, "attention_mask": mask})
    labels = {
        "single": torch.tensor(rng.integers(0, 3, B)),
        "multi": torch.tensor(rng.integers(0, 2, (B, 3))).float(),
        "regression": torch.tensor(rng.normal(size=B)).float(),
        "tokens": torch.where(inputs[0]["attention_mask"] > 0, torch.tensor(rng.integers(0, 3, (B, T))), IGNORED),
        "pairs": torch.arange(B),
    }[kind]
    return head, Batch("t", tuple(inputs), labels, B)


@pytest.mark.parametrize("kind", HEADS)
def test_it_is_what_backward_gives(kind: str, encoder: Encoder) -> None:
    head, batch = case(kind, encoder)
    result = gradient(encoder, head, batch)
    loss = head.loss([encoder(side) for side in batch.inputs], batch)
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), abs=1e-7) and result.samples == B and result.task == "t"
    for found, module in ((result.shared, encoder.shared_parameters()), (result.head, dict(head.named_parameters()))):
        wanted = {name: parameter.grad for name, parameter in module.items() if parameter.grad is not None}
        assert set(found) == set(wanted) and found
        for name, grad in wanted.items():
            assert torch.allclose(found[name], grad, atol=1e-7), name


@pytest.mark.parametrize("kind", HEADS[:-1])
@pytest.mark.parametrize("micro", [1, 3, 100])
def test_parts_of_a_batch_sum_to_the_batch(kind: str, micro: int, encoder: Encoder) -> None:
    head, batch = case(kind, encoder)
    whole, parts = gradient(encoder, head, batch), gradient(encoder, head, batch, micro_batch=micro)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    for name, grad in whole.shared.items():
        assert torch.allclose(parts.shared[name], grad, atol=1e-6), name
    assert all(torch.allclose(parts.head[name], grad, atol=1e-6) for name, grad in whole.head.items())


def test_pairs_cannot_be_taken_in_parts(encoder: Encoder) -> None:
    head, batch = case("pairs", encoder)
    with pytest.raises(SpecError, match="`micro_batch` should be at least the batch size 7 for task 't', found 2"):
        gradient(encoder, head, batch, micro_batch=2)
    assert gradient(encoder, head, batch, micro_batch=7).loss > 0


def test_it_changes_nothing(encoder: Encoder) -> None:
    head, batch = case("single", encoder)
    before = {name: tensor.clone() for name, tensor in (encoder.state_dict() | head.state_dict()).items()}
    state = torch.get_rng_state()
    first, second = gradient(encoder, head, batch, seed=3), gradient(encoder, head, batch, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in (encoder.state_dict() | head.state_dict()).items())
    assert all(parameter.grad is None for parameter in [*encoder.parameters(), *head.parameters()])
    assert all(torch.equal(first.shared[name], second.shared[name]) for name in first.shared)


def test_dropout_follows_from_the_seed_alone(tiny_spec: EncoderSpec, tmp_path: Path) -> None:
    encoders.create(tiny_spec.model_copy(update={"dropout": 0.3}), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e").eval()  # a step trains whatever mode it finds
    head, batch = case("single", encoder)
    losses = []
    for seed, spoil in ((1, 0), (1, 5), (2, 0)):
        torch.rand(spoil)
        losses.append(gradient(encoder, head, batch, seed=seed).loss)
    assert losses[0] == losses[1] != losses[2]
    halves = [gradient(encoder, head, batch, seed=1, micro_batch=3).loss for _ in range(2)]
    assert halves[0] == halves[1]


def test_a_tensor_that_is_not_touched_has_no_entry(encoder: Encoder) -> None:
    head, batch = case("single", encoder)
    head.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
    head.register_parameter("fixed", torch.nn.Parameter(torch.ones(3), requires_grad=False))
    result = gradient(encoder, head, batch, micro_batch=4)
    assert set(result.head) == {"linear.weight", "linear.bias"}
    assert set(result.shared) == set(encoder.shared_spec()) and not any("embeddings" in name for name in result.shared)


def test_a_tasks_weight_is_a_factor_on_its_gradients_not_on_its_loss(encoder: Encoder) -> None:
    head, batch = case("single", encoder)
    heavy, _ = case("single", encoder, weight=3.0)
    one, three = gradient(encoder, head, batch), gradient(encoder, heavy, batch, micro_batch=4)
    assert three.loss == pytest.approx(one.loss, abs=1e-6)
    assert all(torch.allclose(three.shared[name], 3 * grad, atol=1e-6) for name, grad in one.shared.items())


def test_bf16_is_near_and_its_gradients_are_float32(encoder: Encoder) -> None:
    head, batch = case("single", encoder)
    exact, rough = gradient(encoder, head, batch), gradient(encoder, head, batch, precision="bf16")
    assert {grad.dtype for grad in rough.shared.values()} == {torch.float32}
    assert rough.loss == pytest.approx(exact.loss, rel=0.02) and rough.loss != exact.loss
    flat = [torch.cat([grad.flatten() for _, grad in sorted(result.shared.items())]) for result in (exact, rough)]
    assert torch.cosine_similarity(flat[0], flat[1], dim=0) > 0.99
    with pytest.raises(SpecError, match="`precision` should be one of float32, bf16, found 'fp8'"):
        gradient(encoder, head, batch, precision="fp8")
    assert choose_precision("auto", torch.device("cpu")) == "float32" and choose_precision("bf16", torch.device("cpu")) == "bf16"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_fails(value: float, encoder: Encoder) -> None:
    head, batch = case("regression", encoder)
    batch.labels[3] = value
    with pytest.raises(TrainingFailed, match="should be finite") as caught:
        gradient(encoder, head, batch)
    assert caught.value.reason is Reason.NOT_FINITE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Reason.MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), Reason.MEMORY),
        (MemoryError(), Reason.MEMORY),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Reason.TRAINING),
    ],
)
def test_what_torch_says_becomes_our_error(
    error: Exception, reason: Reason, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, batch = case("single", encoder)

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(head, "loss", failing)
    with pytest.raises(TrainingFailed) as caught:
        gradient(encoder, head, batch)
    assert caught.value.reason is reason and caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("a bug"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error: Exception, ran_out: bool) -> None:
    assert memory_ran_out(error) is ran_out


def test_what_torch_says_here_and_now_of_an_allocation_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory_ran_out(caught.value), str(caught.value)


def test_one_step_on_the_union_is_the_mean_of_steps_on_its_parts_by_samples(encoder: Encoder) -> None:
    head, batch = case("single", encoder)
    whole = gradient(encoder, head, batch)
    parts = [gradient(encoder, head, piece) for piece in batch.pieces(3)]
    for name, grad in whole.shared.items():
        mean = sum(part.shared[name].double() * part.samples for part in parts) / B
        assert torch.allclose(torch.as_tensor(mean), grad.double(), atol=1e-6), name
