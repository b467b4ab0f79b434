"""A recipe says what every tensor of a network should be, in a few hundred bytes, and never guesses."""

from math import sqrt

import pytest
import torch
from torch import nn

from tasks.seeded.laws import Constant, Normal
from tasks.seeded.recipe import TORCH, Fan, Recipe, hugging_face, recipe_for
from trunkline.errors import SpecError


class Net(nn.Module):
    """One of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24, padding_idx=2)
        self.kernel = nn.Conv2d(8, 40, 3)
        self.norm = nn.BatchNorm2d(40)
        self.attention = nn.MultiheadAttention(40, 4)
        self.out = nn.Linear(40, 24)
        self.tied = nn.Linear(24, 50, bias=False)
        self.tied.weight = self.words.weight
        self.gate = nn.PReLU()
        self.register_buffer("scratch", torch.ones(3), persistent=False)


def test_a_network_starts_as_its_library_would_start_it() -> None:
    """The same spread, zeros and ones as torch's own start, tensor by tensor."""
    theirs, ours = Net(), Net()
    recipe_for(theirs, TORCH, 3).fill_(ours)
    for name, tensor in theirs.state_dict().items():
        found = ours.state_dict()[name]
        if float(tensor.float().std(correction=0)) == 0:
            assert torch.equal(found, tensor), name
        else:
            assert abs(float(found.std() / tensor.std()) - 1) < 6 / sqrt(2 * tensor.numel()) + 0.01, name
            assert not torch.equal(found, tensor), name
    assert not ours.words.weight[2].any() and ours.tied.weight is ours.words.weight
    bound = 1 / sqrt(8 * 9)
    assert 0.95 * bound < float(ours.kernel.weight.detach().abs().max()) < bound
    assert float(ours.kernel.bias.detach().abs().max()) < bound  # type: ignore[union-attr]


def test_the_network_may_be_nowhere_and_names_are_those_of_parameters() -> None:
    recipe = recipe_for(Net(), TORCH, 3)
    filled = Net()
    recipe.fill_(filled)
    with torch.device("meta"):
        nowhere = Net()
    told = {seeded.name: seeded for seeded, _ in recipe.tensors(nowhere)}
    stored = {name for name in filled.state_dict() if name != "tied.weight"}
    assert set(told) == stored and {name for name, _ in filled.named_parameters()} <= stored
    for name, seeded in told.items():
        tensor = filled.state_dict()[name]
        if tensor.is_floating_point():
            assert torch.equal(torch.from_numpy(seeded.read()), tensor), name
    assert told["norm.num_batches_tracked"].law == Constant()


def test_a_recipe_is_short_and_reads_back() -> None:
    recipe = recipe_for(Net(), TORCH, 3, "fast")
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert len(recipe_for(nn.Linear(4, 4), TORCH, 3).model_dump_json()) < 300
    assert set(recipe_for(nn.Linear(4, 4, bias=False), TORCH, 3).rules) == {"Linear.weight"}


class Odd(nn.Module):
    """Owns a parameter that nobody knows a rule for."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.scale = nn.Parameter(start)


def test_what_nobody_knows_is_named_and_what_is_constant_is_kept() -> None:
    for start in (torch.randn(5), torch.tensor([0.7])):
        with pytest.raises(
            SpecError, match=r"`scale` should be of a kind that has a rule, found Odd.scale, which has none.*--seeded"
        ):
            recipe_for(Odd(start), TORCH, 3)
    for start in (torch.full((5,), 0.7), torch.tensor([1.0])):
        assert recipe_for(Odd(start), TORCH, 3).rules["Odd.scale"] == Constant(value=float(start[0]))
    both = nn.ModuleList([Odd(torch.zeros(4)), Odd(torch.ones(4))])
    with pytest.raises(SpecError, match=r"`0.scale`"):
        recipe_for(both, TORCH, 3)


def test_the_class_that_is_nearest_counts() -> None:
    class Wide(nn.Linear):
        """A kind of its own."""

    rules = {**TORCH, "Wide.weight": Normal(std=2.0)}
    recipe = recipe_for(nn.Sequential(Wide(30, 30), nn.Linear(30, 30)), rules, 3)
    found = {seeded.name: seeded.law for seeded, _ in recipe.tensors(nn.Sequential(Wide(30, 30), nn.Linear(30, 30)))}
    assert found["0.weight"] == Normal(std=2.0) and found["1.weight"] != Normal(std=2.0) and found["0.bias"] == found["1.bias"]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "electra", "mpnet", "albert", "deberta-v2"])
def test_encoders_of_transformers_have_a_rule_for_everything(kind: str) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, vocab_size=600, num_hidden_layers=1)
    small = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "dim": 32, "n_heads": 2, "hidden_dim": 48}
    for key, value in small.items():
        if hasattr(config, key):
            setattr(config, key, value)
    body = AutoModel.from_config(config)
    recipe = recipe_for(body, hugging_face(0.03), 3)
    recipe.fill_(body)
    assert len(recipe.model_dump_json()) < 500
    for name, tensor in body.state_dict().items():
        spread = float(tensor.std()) if tensor.numel() > 300 else 0.03
        assert spread == 0 or abs(spread / 0.03 - 1) < 0.2, name


def test_fans_by_inputs_outputs_and_both() -> None:
    layer = nn.Linear(200, 50)
    for fan, std in (
        (Fan(by="in"), sqrt(1 / 200)),
        (Fan(by="out", form="normal"), sqrt(1 / 50)),
        (Fan(by="both", gain=2.0), 2 * sqrt(2 / 250)),
    ):
        Recipe(seed=1, rules={"Linear.weight": fan, "Linear.bias": Constant()}).fill_(layer)
        assert abs(float(layer.weight.detach().std()) / std - 1) < 0.03 and not layer.bias.any()
