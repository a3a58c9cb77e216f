"""A step moves all processes or none; clipping is torch's, a loss scale changes no bit, noise is told from signal."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import overflows
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trained import SHAPE

from training.config import LossScale, Optimizer, Schedule, Span, TrainConfig
from training.gradients import Placed, SmallBatch
from training.model import GPT
from training.noise import GradientNoise
from training.optimizer import decays
from training.precision import LossScaler
from training.processes import TrainingError, World
from training.update import Update, Updater

BATCH = 32


def updater(model: torch.nn.Module, precision: str = "fp16", **scale: float) -> Updater:
    parameters = dict(model.named_parameters())
    spans = (Span("train", 1, 9, BATCH, 1e-3, Schedule()),)
    settings = {"optimizer": Optimizer(clip=0.5), "precision": precision, "loss_scale": LossScale(**scale)}
    config = TrainConfig("x", "r", "s", 1, 1, 0, SHAPE, 16, spans, **settings)
    return Updater(Placed(parameters, dict.fromkeys(parameters, 1)), World(), config)


def gradients(model: torch.nn.Module, seed: int, size: float = 1.0, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * size * scale


@pytest.mark.parametrize("size", [1e-3, 1e3], ids=["below the clip", "far above it"])
def test_clipping_equals_that_of_torch_and_the_norm_is_that_before(size):
    ours, theirs = GPT(SHAPE, 1), GPT(SHAPE, 1)
    moved = updater(ours, "float32")
    decayed, spared = ([p for n, p in theirs.named_parameters() if decays(n, p) is decay] for decay in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)
    for step in range(5):
        gradients(ours, step, size)
        gradients(theirs, step, size)
        before = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
        assert moved.update(1e-3, BATCH).grad_norm == pytest.approx(float(before), rel=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_a_loss_scale_changes_neither_norm_nor_weights_by_a_bit():
    plain, scaled = GPT(SHAPE, 1), GPT(SHAPE, 1)
    one, other = updater(plain, "float32"), updater(scaled, initial=2.0**15, growth_steps=2)
    for step in range(6):
        gradients(plain, step, 0.1)
        gradients(scaled, step, 0.1, other.loss_scale)
        said = one.update(1e-3, BATCH), other.update(1e-3, BATCH)
        assert said[0].grad_norm == said[1].grad_norm
    assert other.loss_scale == 2.0**18
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), scaled.parameters(), strict=True))


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """What four gloo processes made of every step in every layout, one of them overflowing alone now and then."""
    file = tmp_path_factory.mktemp("overflows") / "found.json"
    command = [sys.executable, overflows.__file__, str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(overflows.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(file.read_text())


@pytest.mark.parametrize("layout", overflows.LAYOUTS)
def test_an_overflow_in_one_process_skips_the_step_in_all(worlds, layout):
    scaler, ranks = LossScaler(overflows.RULE, "fp16"), worlds[layout]
    assert len(ranks) == overflows.PROCESSES
    done = 0
    for step in range(overflows.STEPS):
        fine = step not in overflows.PLANTED
        done += fine
        seen = [(rank[step]["done"], rank[step]["moved"], rank[step]["scale"], rank[step]["counts"]) for rank in ranks]
        assert seen == [(fine, fine, scaler.scale, [done, done])] * overflows.PROCESSES, f"step {step}"
        scaler.advance(fine)


@pytest.mark.parametrize("layout", overflows.LAYOUTS)
def test_the_norm_over_all_axes_is_that_of_one_process_in_half_precision_too(worlds, layout):
    (alone,), ranks = worlds["alone"], worlds[layout]
    assert len({rank[0]["norm"] for rank in ranks}) == 1
    assert ranks[0][0]["norm"] == pytest.approx(alone[0]["norm"], rel=1e-3)
    assert ranks[0][0]["loss"] == pytest.approx(alone[0]["loss"], rel=1e-4)


def test_noise_is_told_where_processes_have_gradients_of_their_own(worlds):
    assert all(rank[-1]["noise"] > 0 for rank in worlds["virtual ranks"])
    assert len({rank[-1]["noise"] for rank in worlds["virtual ranks"]}) == 1
    assert worlds["alone"][0][-1]["noise"] is None


# --- when training cannot go on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "loss", "scale", "said"),
    [
        ("float32", 2.0, {}, r"step 9: loss 2.0, gradient norm inf; weights were not updated"),
        ("fp16", math.nan, {}, r"step 9: loss nan, gradient norm inf; weights were not updated"),
        ("fp16", 2.0, {"initial": 4.0, "floor": 4.0}, r"step 9: gradients overflowed at a loss scale of 4, its floor; "
         r"weights are those of step 8. Train in bf16, or go on from a checkpoint before step 9 with a lower learning"),
    ],
)  # fmt: skip
def test_what_no_smaller_scale_would_mend_ends_training(precision, loss, scale, said):
    model = GPT(SHAPE, 1)
    gradients(model, 0, math.inf)
    one = updater(model, precision, **scale)
    with pytest.raises(TrainingError, match=said):
        one.refuse_to_go_on(9, loss, one.update(1e-3, BATCH))


def test_an_overflow_is_daily_bread_in_half_precision():
    model = GPT(SHAPE, 1)
    one = updater(model)
    gradients(model, 0, math.inf)
    update = one.update(1e-3, BATCH)
    one.refuse_to_go_on(1, 2.0, update)
    assert update.to_json() == {
        "grad_norm": math.inf, "learning_rate": 1e-3, "loss_scale": 8192.0, "skipped_steps": 1,
    }  # fmt: skip
    assert Update(1.0, 1e-3, True).to_json() == {"grad_norm": 1.0, "learning_rate": 1e-3}


# --- the noise scale -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=6)
@given(
    scale=st.floats(2.0, 300.0), parts=st.integers(2, 8), batches=st.lists(st.sampled_from([64, 128, 512]), min_size=1),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_noise_scale_of_planted_gradients_is_found_whatever_the_batches(scale, parts, batches, seed):
    """Gradients of 2,000 elements around a known one, of unit length, with a covariance of trace ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    signal = torch.nn.functional.normalize(torch.randn(2000, generator=generator), dim=0)
    noise = GradientNoise()
    for step in range(300):
        batch = batches[step % len(batches)]
        sd = math.sqrt(scale / 2000 * parts / batch)
        own = signal + sd * torch.randn(parts, 2000, generator=generator)
        small = SmallBatch(own.square().sum(1).mean(), batch / parts)
        noise.see(small, batch, float(small.square), float(own.mean(0).square().sum()))
    assert noise.sequences == pytest.approx(scale, rel=0.25)


def test_what_shows_no_noise_scale_has_none():
    noise = GradientNoise()
    assert noise.sequences is None
    small = SmallBatch(torch.tensor(1.0), 8)
    noise.see(small, 8, 2.0, 1.0)  # no smaller than the batch
    noise.see(small, 16, math.inf, 1.0)
    assert noise.sequences is None
    noise.see(small, 16, 1.0, 2.0)  # less noise in the smaller batch: chance, and no scale
    assert noise.sequences is None
    noise.see(small, 16, 40.0, 21.0)
    assert noise.sequences > 0
