"""W ranks on P processes are W real ranks: bit for bit where sums are exact, to 1e-6 where they are fast."""

from pathlib import Path

import pytest
import torch
from trained import SHAPE, order, records, run, span, steps, tensors

from training import data
from training.emulate import VirtualRanks, held_out_loss
from training.model import GPT
from training.processes import World


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight ranks: as eight real gloo processes, and emulated on fewer; batches that do not divide by eight."""
    root = tmp_path_factory.mktemp("emulated")
    spans = (span(1, 10, 20), span(11, 10, 29))
    order(root / "real", *spans, processes=None, emulation=None, reduction="exact")
    order(root / "one", *spans, processes=1, reduction="exact")
    order(root / "three", *spans, processes=3, reduction="exact")
    order(root / "batched", *spans, processes=2, reduction="batched")
    ends = run(*(root / name for name in ("real", "one", "three", "batched")))
    assert [end["code"] for end in ends] == [0] * 4, ends[0]["said"]
    return root


@pytest.mark.parametrize("emulated", ["one", "three"])
def test_exact_emulation_equals_eight_real_processes_bit_for_bit(runs, emulated):
    real, other = steps(runs / "real"), steps(runs / emulated)
    assert list(real) == list(other) == list(range(1, 21))
    for step, record in real.items():
        for field in ("loss", "grad_norm", "tokens", "learning_rate"):
            assert record[field] == other[step][field], f"step {step} {field}"
    ends = tensors(runs / "real/checkpoints/step_00000020"), tensors(runs / emulated / "checkpoints/step_00000020")
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0] if name != "gradient_noise")
    assert real[20]["loss"] < real[1]["loss"] - 0.2, "and it does learn"


def test_batched_emulation_equals_real_processes_to_a_millionth(runs):
    real, batched = steps(runs / "real"), steps(runs / "batched")
    assert all(batched[step]["loss"] == pytest.approx(real[step]["loss"], abs=1e-6) for step in real)


def test_real_processes_are_measured_and_emulated_ones_modelled(runs):
    for name, emulated in (("real", False), ("batched", True)):
        (header,) = records(runs / name, "header")
        assert header["emulated"] is emulated
        assert header["processes"] == (2 if emulated else 8)
        assert header["fields"]["loss"] == "real"
        assert header["fields"]["wall_seconds"] == "measured"
        assert header["fields"]["step_seconds"] == ("modelled" if emulated else "measured")
        for record in steps(runs / name).values():
            phases = ("data", "forward", "backward", "communication", "optimizer")
            total = sum(record[f"{phase}_seconds"] for phase in phases)
            assert record["tokens_per_gpu_second"] > 0
            if emulated:
                assert total == pytest.approx(record["step_seconds"])
            else:
                assert record["step_seconds"] == record["wall_seconds"]
                assert 0 < total <= record["step_seconds"]


def test_the_gradient_of_unequal_shares_is_that_of_the_whole_batch(tmp_path):
    """Seven samples on four ranks, one with none of them on nine: the mean is over tokens, not over ranks."""
    text = torch.randint(0, 256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    stream, model = data.Stream(text, 16, seed=5), GPT(SHAPE, seed=2)
    model.zero_grad()
    loss = model.loss_sum(stream.samples(3, 7)) / (7 * 16)
    loss.backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters()}
    for ranks in (1, 4, 9):
        result = VirtualRanks(model, stream, World(), ranks, "exact", "float32").gradients(3, 7, stop=False)
        assert result.loss == pytest.approx(float(loss.detach()), abs=1e-6)
        assert not result.stop
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["batched", "exact"])
def test_processes_together_take_every_sample_of_a_step_once(reduction):
    for ranks, processes, batch in (
        (8, 2, 256),
        (64, 2, 512),
        (1000, 2, 1000),
        (992, 3, 1000),
        (64, 64, 100),
        (8, 3, 5),
    ):
        groups = [
            group
            for rank in range(processes)
            for group in VirtualRanks(None, None, World(rank, processes), ranks, reduction, "float32").groups(batch)
        ]
        assert [place for first, end in groups for place in range(first, end)] == list(range(batch))
        if reduction == "exact":
            assert {end - first for first, end in groups} <= {batch // ranks, -(-batch // ranks)}


def test_the_held_out_loss_does_not_depend_on_the_passes_it_is_computed_in(monkeypatch):
    text = torch.randint(0, 256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    samples, model = data.cut(text, torch.arange(40), 16), GPT(SHAPE, seed=2)
    together = held_out_loss(model, samples, World(), "float32")
    monkeypatch.setattr("training.emulate.TOKENS_A_PASS", 48)
    assert held_out_loss(model, samples, World(), "float32") == pytest.approx(together, abs=1e-6)


def test_bf16_is_close_to_float32():
    text = torch.randint(0, 256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    stream, model = data.Stream(text, 16, seed=5), GPT(SHAPE, seed=2)
    loss = {
        precision: VirtualRanks(model, stream, World(), 4, "batched", precision).gradients(0, 8, False).loss
        for precision in ("float32", "bf16")
    }
    assert loss["bf16"] != loss["float32"]
    assert loss["bf16"] == pytest.approx(loss["float32"], abs=0.05)
