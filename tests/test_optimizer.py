"""The update is torch's own AdamW, decay spares norms and embedding, and the norm is that of all gradients."""

import pytest
import torch
from trained import SHAPE

from training.config import Optimizer
from training.gradients import Placed
from training.model import GPT
from training.optimizer import AdamW, clip, decays
from training.processes import World


def gradients(model: GPT, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_thirty_steps_equal_those_of_torch():
    settings = Optimizer(betas=(0.9, 0.95), eps=1e-9, weight_decay=0.2)
    ours, theirs = GPT(SHAPE, 1), GPT(SHAPE, 1)
    optimizer = AdamW(dict(ours.named_parameters()), settings)
    decayed = [p for n, p in theirs.named_parameters() if decays(n, p)]
    spared = [p for n, p in theirs.named_parameters() if not decays(n, p)]
    groups = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.2, fused=True)
    for step in range(30):
        for group in reference.param_groups:
            group["lr"] = 1e-3 * (step + 1)
        gradients(ours, step)
        gradients(theirs, step)
        optimizer.step(1e-3 * (step + 1))
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_only_matrices_of_the_blocks_decay():
    names = {name for name, p in GPT(SHAPE, 0).named_parameters() if decays(name, p)}
    kinds = {name.split(".", 2)[2] for name in names}
    assert kinds == {"attention.query.weight", "attention.key.weight", "attention.value.weight", "attention.out.weight",
                     "ffn.gate.weight", "ffn.up.weight", "ffn.down.weight"}  # fmt: skip


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_clipping_equals_that_of_torch_and_returns_the_norm_before(limit):
    ours, theirs = GPT(SHAPE, 1), GPT(SHAPE, 1)
    gradients(ours, 5)
    gradients(theirs, 5)
    before = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert clip(whole(ours), World(), limit) == pytest.approx(float(before), rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=0)


def test_a_norm_that_is_not_finite_scales_nothing():
    model = GPT(SHAPE, 1)
    gradients(model, 5)
    model.norm.weight.grad[0] = float("inf")
    kept = model.embedding.weight.grad.clone()
    assert clip(whole(model), World(), 1.0) == float("inf")
    assert torch.equal(model.embedding.weight.grad, kept)


def test_a_parameter_without_gradient_is_named():
    model = GPT(SHAPE, 1)
    with pytest.raises(RuntimeError, match="no gradient"):
        AdamW(dict(model.named_parameters()), Optimizer()).step(0.1)


def whole(model: torch.nn.Module) -> Placed:
    """The model as one process holds it."""
    parameters = dict(model.named_parameters())
    return Placed(parameters, dict.fromkeys(parameters, 1))
