"""The update is torch's own AdamW, decay spares norms and embedding, moments keep their half-life as a batch grows."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trained import SHAPE

from training.config import Optimizer, Schedule
from training.gradients import Placed
from training.model import GPT
from training.optimizer import AdamW, decays, gradient_norm
from training.processes import World

BATCH = 32
ONE, NO = torch.ones(()), torch.zeros(())


def gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def placed(model: torch.nn.Module) -> Placed:
    """The model as one process holds it."""
    parameters = dict(model.named_parameters())
    return Placed(parameters, dict.fromkeys(parameters, 1))


def step(optimizer: AdamW, rate: float, batch: int = BATCH, divisor: torch.Tensor = ONE) -> None:
    optimizer.step(rate, batch, divisor, NO)
    optimizer.count(batch)


def test_thirty_steps_equal_those_of_torch():
    settings = Optimizer(betas=(0.9, 0.95), eps=1e-9, weight_decay=0.2, reference_batch_sequences=BATCH)
    ours, theirs = GPT(SHAPE, 1), GPT(SHAPE, 1)
    optimizer = AdamW(dict(ours.named_parameters()), settings)
    decayed = [p for n, p in theirs.named_parameters() if decays(n, p)]
    spared = [p for n, p in theirs.named_parameters() if not decays(n, p)]
    groups = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.2, fused=True)
    for number in range(30):
        for group in reference.param_groups:
            group["lr"] = 1e-3 * (number + 1)
        gradients(ours, number)
        gradients(theirs, number)
        step(optimizer, 1e-3 * (number + 1))
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_only_matrices_of_the_blocks_decay():
    names = {name for name, p in GPT(SHAPE, 0).named_parameters() if decays(name, p)}
    assert names
    assert all(name.startswith("blocks.") and name.endswith(".weight") for name in names)
    assert not any("norm" in name for name in names)
    assert not decays("blocks.0.ffn.up.bias", torch.zeros(4))
    assert not decays("position_embedding.weight", torch.zeros(4, 4))


def test_a_skipped_step_leaves_weights_moments_and_counts():
    model = GPT(SHAPE, 1)
    optimizer = AdamW(dict(model.named_parameters()), Optimizer())
    gradients(model, 0)
    step(optimizer, 0.1)
    before = [tensor.clone() for tensor in (*model.parameters(), *optimizer.state().values())]
    gradients(model, 1)
    model.norm.weight.grad[0] = math.inf
    optimizer.step(0.1, BATCH, torch.tensor(math.inf), torch.ones(()))
    after = (*model.parameters(), *optimizer.state().values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("batches", [[32] * 20, [32] * 6 + [64] * 6 + [128] * 8, [64] * 5 + [32] * 9, [96, 32, 48] * 4])
def test_both_moments_are_corrected_exactly_whatever_the_batch_does(batches):
    """Against moments in float64 whose bias is divided out as the product of the betas that each step really had."""
    settings = Optimizer(betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, reference_batch_sequences=32)
    weight = torch.nn.Parameter(torch.zeros(50))
    optimizer = AdamW({"norm": weight}, settings)
    wanted, first, second, left = torch.zeros(50).double(), 0.0, 0.0, [1.0, 1.0]
    for number, batch in enumerate(batches):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(number))
        weight.grad = gradient.clone()
        step(optimizer, 1e-3, batch)
        beta = settings.second_beta(batch)
        first, second = 0.9 * first + 0.1 * gradient.double(), beta * second + (1 - beta) * gradient.double() ** 2
        left = [left[0] * 0.9, left[1] * beta]
        wanted -= 1e-3 * (first / (1 - left[0])) / ((second / (1 - left[1])).sqrt() + 1e-10)
    torch.testing.assert_close(weight.detach().double(), wanted, rtol=1e-5, atol=1e-9)


def test_decay_is_by_the_learning_rate_whatever_the_batch_does():
    weight = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = AdamW({"matrix": weight}, Optimizer(weight_decay=0.5, reference_batch_sequences=32))
    for batch in (32, 64, 64, 256):
        weight.grad = torch.zeros(3, 3)
        step(optimizer, 0.1, batch)
    torch.testing.assert_close(weight.detach(), torch.full((3, 3), 0.95**4))


@given(growth=st.integers(1, 6), beta=st.floats(0.98, 0.9999), steps=st.integers(1, 50))
def test_the_second_moment_forgets_as_much_a_token_with_any_batch(growth, beta, steps):
    settings = Optimizer(betas=(0.8, beta), reference_batch_sequences=BATCH)
    assert settings.second_beta(growth * BATCH) ** steps == pytest.approx(beta ** (growth * steps))
    assert settings.reference_steps(growth * BATCH) == pytest.approx(growth)
    assert Optimizer(betas=(0.8, beta)).second_beta(growth * BATCH) == beta, "unsaid, it forgets as much a step"


def test_the_second_moment_never_forgets_faster_than_the_first():
    settings = Optimizer(betas=(0.9, 0.95), reference_batch_sequences=32)
    assert [settings.second_beta(batch) for batch in (32, 64, 4000)] == [0.95, 0.95**2, 0.9]
    assert Optimizer(betas=(0.9, 0.5), reference_batch_sequences=32).second_beta(4000) == 0.5


def test_the_norm_is_that_of_torch_over_all_parameters():
    model = GPT(SHAPE, 1)
    gradients(model, 5)
    wanted = torch.nn.utils.get_total_norm([p.grad.double() for p in model.parameters()])
    assert float(gradient_norm(placed(model), World())) == pytest.approx(float(wanted), rel=1e-12)
    model.norm.weight.grad[0] = math.nan
    assert not math.isfinite(float(gradient_norm(placed(model), World())))


def test_a_parameter_without_gradient_is_named():
    model = GPT(SHAPE, 1)
    with pytest.raises(RuntimeError, match="no gradient"):
        AdamW(dict(model.named_parameters()), Optimizer()).step(0.1, BATCH, ONE, NO)


# --- the schedule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "factors"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.9657, 0.8682, 0.7222, 0.55, 0.3778, 0.2318, 0.1343, 0.1]),
        (
            "wsd",
            [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 0.55, 0.3636, 0.2206, 0.1],
        ),  # 1 - sqrt(1/4, 2/4, 3/4, 1), from 1 to .1
    ],
)
def test_schedules_by_their_numbers(kind, factors):
    schedule = Schedule(kind, 100, 4, 112 - 100, 0.1, decay_steps=4)
    assert [round(schedule.factor(step), 4) for step in range(101, 113)] == factors
    assert schedule.factor(500) == factors[-1], "beyond the end it stays"


@given(
    kind=st.sampled_from(["cosine", "wsd"]), warmup=st.integers(0, 30), stable=st.integers(0, 50),
    decay=st.integers(1, 50), floor=st.floats(0, 1),
)  # fmt: skip
def test_any_schedule_climbs_once_and_comes_down_to_its_floor(kind, warmup, stable, decay, floor):
    schedule = Schedule(kind, 0, warmup, warmup + stable + decay, floor, decay)
    factors = [schedule.factor(step) for step in range(1, warmup + stable + decay + 1)]
    assert factors[:warmup] == [step / warmup for step in range(1, warmup)] + [1.0] * (warmup > 0)
    assert all(after <= before for before, after in zip(factors[warmup:], factors[warmup + 1 :], strict=False))
    assert factors[-1] == pytest.approx(floor, abs=1e-12)
    assert kind == "cosine" or factors[warmup : warmup + stable] == [1.0] * stable


# --- what an order may not ask, and what a start may not cost ---------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"betas": (0.9, 1.0)}, "betas: [0.9, 1.0] are not both at least 0 and below 1"),
        ({"eps": 0.0}, "eps: 0 is not above 0"),
        ({"weight_decay": -1.0}, "weight_decay: -1 is below 0"),
        ({"clip": 0.0}, "clip: 0 is not above 0"),
        ({"reference_batch_sequences": 0}, "reference_batch_sequences: 0 is less than 1"),
    ],
)
def test_impossible_settings_are_named(settings, said):
    assert Optimizer(**settings).problems() == [said]
    assert Optimizer().problems() == []


def test_a_start_and_a_step_import_no_compiler():
    program = (
        "import sys, torch, training.train\n"
        "from training.optimizer import AdamW\nfrom training.config import Optimizer\n"
        "from training.precision import autocast\n"
        "weight = torch.nn.Parameter(torch.ones(2, 2))\n"
        "with autocast('fp16', torch.device('cpu')):\n    loss = (weight @ weight).sum()\n"
        "loss.backward()\n"
        "AdamW({'w': weight}, Optimizer()).step(0.1, 1, torch.ones(()), torch.zeros(()))\n"
        "print([name for name in sys.modules if name.startswith(('torch._dynamo', 'torch._inductor'))])\n"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
