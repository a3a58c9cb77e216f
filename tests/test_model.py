"""The model is what its shape says: as many parameters, causal, positions by rotation, one seed one model."""

import math
from dataclasses import replace

import pytest
import torch
from trained import SHAPE

from training.checkpoint import _mismatches, identity
from training.config import ConfigError, ModelShape, TrainConfig
from training.manifest import Manifest
from training.model import GPT, NO_TARGET, loss_sum, rope, rotate
from training.moe import experts_of

FAMILY = {
    "grouped queries": ModelShape(2, 16, 4, 24, 256, kv_heads=2),
    "untied": ModelShape(2, 16, 2, 24, 256, tied=False),
    "gelu": ModelShape(2, 16, 2, 24, 256, mlp="gelu"),
    "experts": ModelShape(2, 16, 2, 24, 256, experts=4),
    "all of it": ModelShape(2, 32, 4, 24, 256, kv_heads=1, mlp="gelu", tied=False, experts=3, base_hidden=16),
}


@pytest.mark.parametrize("shape", FAMILY.values(), ids=FAMILY)
def test_every_member_of_the_family_has_its_parameters_and_learns_from_each(shape):
    model = GPT(shape, 0)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    samples = torch.randint(0, 256, (4, 17), generator=torch.Generator().manual_seed(0))
    first = model.loss_sum(samples)
    first.backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.parameters())
    with torch.no_grad():
        for name, p in model.named().items():
            p -= 1e-3 * shape.rate_factor(name) * p.grad
        assert float(model.loss_sum(samples)) < float(first)


def test_where_experts_have_places_enough_a_mixture_is_the_weighted_sum_of_its_experts():
    shape = ModelShape(1, 16, 2, 24, 256, experts=4, expert_capacity=4.0)
    mixture = next(iter(experts_of([GPT(shape, 3)])))
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        weights, chosen = mixture.router(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        each = torch.stack([
            (torch.nn.functional.silu(x @ mixture.gate[e]) * (x @ mixture.up[e])) @ mixture.down[e] for e in range(4)
        ], dim=2)  # fmt: skip
        wanted = (each.gather(2, chosen[..., None].expand(-1, -1, -1, 16)) * weights[..., None]).sum(2)
        assert torch.allclose(mixture(x), wanted, atol=1e-6)


def test_an_expert_takes_no_more_tokens_than_it_has_places_and_what_is_dropped_passes_by():
    shape = ModelShape(1, 16, 2, 24, 256, experts=4, experts_per_token=1, expert_capacity=0.5)
    mixture = next(iter(experts_of([GPT(shape, 3)])))
    x = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(1))
    _, slots, _, dropped = mixture.route(x, shape.expert_places(16))
    kept = slots[slots < 4 * shape.expert_places(16)]
    assert len(kept) == len(kept.unique()) == 16 - int(dropped)
    assert int(dropped) >= 8
    assert bool((mixture(x)[0][slots[0] == 4 * shape.expert_places(16)] == 0).all())


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (ModelShape(1, 16, 4, 8, 256, kv_heads=3), "kv_heads 3 do not share 4 heads evenly; 1, 2, 4 would"),
        (ModelShape(1, 16, 2, 8, 256, experts=2, experts_per_token=3), "experts_per_token 3 must be between 1 and"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_in_words(shape, says):
    with pytest.raises(ConfigError, match=says):
        GPT(shape, 0)


def test_a_checkpoint_of_before_a_key_existed_has_its_default():
    config = TrainConfig("small", "run", "gpus_8", 1, 8, 0, SHAPE, 16, ())
    extra = identity(config, "0" * 64)
    extra["model"] = {name: extra["model"][name] for name in ("layers", "hidden", "heads", "ffn", "vocabulary")}
    found = Manifest(1, 8, "periodic", 8, "", {}, 0.0, extra)
    assert _mismatches(found, config, "0" * 64) == []
    other = TrainConfig("small", "run", "gpus_8", 1, 8, 0, replace(SHAPE, kv_heads=1), 16, ())
    assert "written with model" in _mismatches(found, other, "0" * 64)[0]


@pytest.mark.parametrize("shape", [SHAPE, ModelShape(1, 8, 1, 12, 300), ModelShape(3, 48, 3, 128, 256)])
def test_it_has_as_many_parameters_as_its_shape_counts(shape):
    assert sum(p.numel() for p in GPT(shape, 0).parameters()) == shape.parameters


def test_a_token_changes_no_prediction_before_it():
    model = GPT(SHAPE, 0)
    tokens = torch.arange(24).view(1, 24)
    changed = tokens.clone()
    changed[0, 15] = 200
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:15].max() == 0
    assert difference[15:].min() > 0


def test_an_untrained_model_knows_nothing():
    samples = torch.randint(0, 256, (8, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = GPT(SHAPE, 0).loss_sum(samples) / (8 * 16)
    assert float(loss) == pytest.approx(math.log(256), abs=0.05)


def test_one_seed_is_one_model_whatever_torch_drew_before():
    first = GPT(SHAPE, 7)
    torch.randn(10)
    second, other = GPT(SHAPE, 7), GPT(SHAPE, 8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_stages_hold_the_very_parameters_of_the_whole_model_and_compute_it_together():
    shape = ModelShape(layers=3, hidden=16, heads=2, ffn=24, vocabulary=256)
    whole, parts = GPT(shape, 7), [GPT(shape, 7, range(0, 1)), GPT(shape, 7, range(1, 3))]
    held = [part.named() for part in parts]
    assert held[0].keys() | held[1].keys() == whole.named().keys()
    assert held[0].keys() & held[1].keys() == {"embedding.weight"}
    for part in held:
        assert all(torch.equal(parameter, whole.named()[name]) for name, parameter in part.items())
    tokens = torch.arange(24).view(1, 24)
    assert torch.equal(parts[1](parts[0](tokens)), whole(tokens))


def test_a_sequence_without_targets_weighs_nothing():
    model, samples = GPT(SHAPE, 0), torch.arange(34).view(2, 17)
    targets = samples[:, 1:].clone()
    targets[1] = NO_TARGET
    loss = loss_sum(model(samples[:, :-1]), targets)
    assert float(loss.detach()) == pytest.approx(float(model.loss_sum(samples[:1]).detach()), rel=1e-6)


def test_rotated_products_depend_on_the_distance_alone():
    cosine, sine = rope(32, 8, 10_000.0, torch.device("cpu"))
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(3)).unbind()
    at = rotate(query.expand(32, 8), cosine, sine), rotate(key.expand(32, 8), cosine, sine)
    products = at[0] @ at[1].T
    for distance in (0, 3, 11):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-5)
    assert abs(float(products[0, 3] - products[0, 11])) > 1e-3


def test_its_gradient_is_the_slope_of_its_loss():
    model = GPT(SHAPE, 1).double()
    samples = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    weight = model.blocks["0"].ffn.gate.weight
    (slope,) = torch.autograd.grad(_loss(model, samples), weight)
    with torch.no_grad():
        weight[3, 5] += 1e-5
        above = _loss(model, samples)
        weight[3, 5] -= 2e-5
        below = _loss(model, samples)
    assert float((above - below) / 2e-5) == pytest.approx(float(slope[3, 5]), rel=1e-4)


def _loss(model: GPT, samples: torch.Tensor) -> torch.Tensor:
    logits = model(samples[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten(), reduction="sum")


def test_heads_of_odd_width_are_refused():
    with pytest.raises(ConfigError, match="hidden 18 does not divide into 6 heads of even width"):
        GPT(ModelShape(1, 18, 6, 8, 256), 0)
