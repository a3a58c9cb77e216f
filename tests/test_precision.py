"""The loss scale moves as torch's does, and an fp16 job survives overflows, deaths and storms as it should."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trained import order, records, run, span, steps, tensors

from training import train
from training.config import Checkpointing, LossScale
from training.precision import LossScaler

# --- against torch's own ---------------------------------------------------------------------------------------------


def torch_scales(rule: LossScale, overflows: list[bool]) -> list[tuple[float, bool]]:
    """Scale after, and whether the weights moved, of torch's GradScaler on the same steps."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", rule.initial, rule.growth, rule.backoff, rule.growth_steps)
    found = []
    for overflow in overflows:
        before = float(weight.detach())
        scaler.scale(weight.sum())  # makes it allocate its scale
        weight.grad = torch.tensor([math.inf if overflow else 1.0])
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), float(weight.detach()) != before))
    return found


@settings(deadline=None, max_examples=60)
@given(
    overflows=st.lists(st.booleans(), max_size=40), growth_steps=st.integers(1, 6),
    initial=st.sampled_from([8192.0, 1.0, 2.0**120, 3.7]), growth=st.sampled_from([2.0, 1.5]),
)  # fmt: skip
def test_scale_and_skips_are_those_of_torch(overflows, growth_steps, initial, growth):
    rule = LossScale(initial=initial, growth=growth, growth_steps=growth_steps, floor=1e-30)
    scaler, found = LossScaler(rule, "fp16"), []
    for overflow in overflows:
        scaler.advance(not overflow)
        found.append((scaler.scale, not overflow))
    wanted = torch_scales(rule, overflows)
    assert [done for _, done in found] == [done for _, done in wanted]
    assert [scale for scale, _ in found] == pytest.approx([scale for scale, _ in wanted], rel=1e-6)


def test_the_scale_stops_at_its_floor():
    scaler = LossScaler(LossScale(initial=8.0, floor=2.0), "fp16")
    for _ in range(5):
        scaler.advance(False)
    assert (scaler.scale, scaler.skipped_in_a_row) == (2.0, 5)
    scaler.advance(True)
    assert scaler.skipped_in_a_row == 0


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_other_precisions_have_no_scale_but_keep_one_for_the_stage_that_needs_it(precision):
    scaler = LossScaler(LossScale(), precision)
    scaler.advance(False)
    assert scaler.scale == 1.0
    assert scaler.state()["loss_scale"].tolist() == [8192.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"initial": 0.5}, "initial: 0.5 is below the floor, 1"),
        ({"growth": 1.0}, "growth: 1 is not above 1"),
        ({"growth_steps": 0}, "growth_steps: 0 is less than 1"),
        ({"backoff": 1.0}, "backoff: 1 is not between 0 and 1"),
        ({"storm_steps": 0}, "storm_steps: 0 is less than 1"),
    ],
)
def test_an_impossible_scale_is_refused_in_one_sentence(tmp_path, capsys, changes, said):
    folder = order(tmp_path / "stage", span(1, 3, 8), precision="fp16", loss_scale=LossScale(**changes))
    assert train.main([str(folder)]) == train.REFUSED
    assert capsys.readouterr().err == f"training: loss_scale.{said}\n"


# --- jobs ------------------------------------------------------------------------------------------------------------

# Of this model an fp16 gradient overflows above about 2**22 of scale: it grows there every 3 steps, and is thrown back.
LIVELY = LossScale(initial=2.0**26, growth=4.0, growth_steps=3, storm_steps=12)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """fp16 left alone; killed at step 7 and started again; a scale that cannot come down in time."""
    root = tmp_path_factory.mktemp("half")
    half = {"precision": "fp16", "checkpointing": Checkpointing(every_steps=4, keep=4), "loss_scale": LIVELY}
    for name in ("alone", "killed"):
        order(root / name, span(1, 14, 20), **half)
    order(root / "storm", span(1, 14, 20), **{**half, "loss_scale": LossScale(initial=2.0**60, storm_steps=3)})
    order(root / "float32", span(1, 14, 20), checkpointing=half["checkpointing"])
    scenarios = [("alone", ""), ("killed", "step:7"), ("killed", ""), ("storm", ""), ("float32", "")]
    ends = run(*((root / name, death) for name, death in scenarios))
    return root, {f"{name} {death}".strip(): end for (name, death), end in zip(scenarios, ends, strict=True)}


def test_overflows_skip_steps_and_the_rest_learns(jobs):
    root, ends = jobs
    assert ends["alone"]["code"] == 0, ends["alone"]["said"]
    found = steps(root / "alone")
    skipped = [step for step, record in found.items() if record["skipped_steps"]]
    assert skipped[0] == 1, "the first scale is too large"
    assert len(found) - len(skipped) >= 4
    scale = LossScaler(LIVELY, "fp16")
    for step, record in found.items():
        assert record["loss_scale"] == scale.scale, f"step {step}"
        assert (record["grad_norm"] is None) == bool(record["skipped_steps"])
        scale.advance(not record["skipped_steps"])
    other = steps(root / "float32")
    assert found[1]["loss"] == pytest.approx(other[1]["loss"], rel=2e-3), "the same weights and samples, rounded"
    assert found[14]["loss"] < found[1]["loss"] - 0.02
    assert [record["learning_rate"] for record in found.values()] == [r["learning_rate"] for r in other.values()]
    assert [record["tokens"] for record in found.values()] == [r["tokens"] for r in other.values()]


def test_weights_and_moments_stay_float32_and_the_count_is_that_of_updates(jobs):
    root, _ = jobs
    state = tensors(root / "alone/checkpoints/step_00000014")
    assert {str(t.dtype) for name, t in state.items() if name.startswith(("model.", "optimizer.f", "optimizer.s"))} == {
        "torch.float32"
    }
    done = sum(1 - record["skipped_steps"] for record in steps(root / "alone").values())
    assert state["optimizer.counts"].tolist() == [done, done]
    first = tensors(root / "alone/checkpoints/step_00000004")
    assert first["loss_scale"][0] < LIVELY.initial


def test_a_killed_job_goes_on_bit_for_bit_with_its_scale(jobs):
    root, ends = jobs
    assert (ends["killed step:7"]["code"], ends["killed"]["code"]) == (-9, 0), ends["killed"]["said"]
    assert records(root / "killed", "header")[1]["resumed_from"]["step"] == 4
    found, wanted = steps(root / "killed"), steps(root / "alone")
    for step, record in wanted.items():
        for field in ("loss", "grad_norm", "loss_scale", "skipped_steps", "learning_rate", "tokens"):
            assert found[step][field] == record[field], f"step {step} {field}"
        assert found[step].get("gradient_noise_sequences") == record.get("gradient_noise_sequences")
    ends_at = [tensors(root / name / "checkpoints/step_00000014") for name in ("alone", "killed")]
    assert all(torch.equal(ends_at[0][name], ends_at[1][name]) for name in ends_at[0])


def test_a_storm_ends_the_job_with_the_step_the_scale_and_a_remedy(jobs):
    root, ends = jobs
    said = ends["storm"]["said"]
    assert ends["storm"]["code"] == 1
    assert (
        f"training: step 3: gradients overflowed 3 times in a row, last at a loss scale of {2.0**58:g}; weights are "
        "those of step 0. Train in bf16, or go on from a checkpoint before step 1 with a lower learning rate\n" in said
    )
    assert [record["skipped_steps"] for record in steps(root / "storm").values()] == [1, 1, 1]


def test_only_fp16_records_a_scale(jobs):
    root, _ = jobs
    assert all(
        "loss_scale" not in record and "skipped_steps" not in record for record in steps(root / "float32").values()
    )
