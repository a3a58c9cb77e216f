"""Real jobs cut three ways: killed they go on bit for bit, and their checkpoints climb 8 -> 64 -> 1000 and back."""

import dataclasses
from pathlib import Path

import pytest
import torch
from trained import order, records, run, span, steps, tensors

from training import manifest, train
from training.config import Checkpointing, Layout, ModelShape, Span, Start

SHAPE = ModelShape(layers=2, hidden=32, heads=8, ffn=64, vocabulary=256)
THREE = Layout(tensor=2, pipeline=2, shard=2, micro_batch_sequences=2)
GROUP = "tensor 2 x pipeline 2 x shard 2"
FIRST = {"processes": 8, "layout": THREE, "hand_over_step": 5, "checkpointing": Checkpointing(every_steps=3, keep=9)}


def again(own: Span, first: int, steps: int) -> Span:
    """Steps of another stage's span once more: same batch, same learning rates."""
    return dataclasses.replace(own, phase="replay", first_step=first, steps=steps)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / manifest.folder_name(step)


def goes_on(folder: Path, before: Path, step: int, *spans, **changes) -> Path:
    """A stage that continues another's checkpoint of ``step``."""
    start = Start("continue", str(checkpoint(before, step)), step)
    return order(folder, *spans, model=SHAPE, start=start, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ladder")
    eight, sixty_four = span(1, 8, 8), span(9, 2, 16)
    first, killed = (order(root / name, eight, model=SHAPE, **FIRST) for name in ("gpus_8", "killed"))
    cut = {"processes": 8, "layout": Layout(tensor=4, pipeline=2, micro_batch_sequences=8), "hand_over_step": 9}
    second = goes_on(root / "gpus_64", first, 5, again(eight, 6, 3), sixty_four, gpus=64, **cut)
    third = goes_on(root / "gpus_1000", second, 9, again(sixty_four, 10, 1), span(11, 1, 1000), gpus=1000)
    back = goes_on(root / "back", third, 11, span(12, 1, 8), processes=8, layout=Layout(tensor=8))
    single = order(root / "single", eight, model=SHAPE, processes=1, layout=Layout(cpu_offload=True))
    ends = run(first, (killed, "worker:5"), killed, second, third, back, single, timeout=280)
    assert [end["code"] for end in ends] == [0, -9, 0, 0, 0, 0, 0], ends[0]["said"]
    return root


def test_a_killed_job_goes_on_bit_for_bit_in_three_dimensions(root):
    (header,) = records(root / "killed", "header")[1:]
    assert header["resumed_from"]["step"] == 3
    whole, resumed = steps(root / "gpus_8"), steps(root / "killed")
    assert [(r["step"], r["loss"], r["grad_norm"]) for r in whole.values()] == [
        (r["step"], r["loss"], r["grad_norm"]) for r in resumed.values()
    ]
    ends = [tensors(checkpoint(root / name, 8)) for name in ("gpus_8", "killed")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize(
    ("stage", "before", "step", "replayed"),
    [
        ("gpus_64", "gpus_8", 5, range(6, 9)),
        ("gpus_1000", "gpus_64", 9, range(10, 11)),
        ("back", "gpus_1000", 11, ()),
    ],
)
def test_a_hand_over_opens_on_another_world_and_layout_with_the_same_loss(root, stage, before, step, replayed):
    start = records(root / stage, "held_out")[0]
    handed = next(record for record in records(root / before, "held_out") if record["step"] == step)
    assert (start["at"], start["step"]) == ("start", step)
    assert start["loss"] == pytest.approx(handed["loss"], abs=1e-6)
    old, new = steps(root / before), steps(root / stage)
    for number in replayed:
        assert new[number]["loss"] == pytest.approx(old[number]["loss"], rel=1e-5)
        assert new[number]["tokens"] == old[number]["tokens"]


def test_one_process_that_offloads_learns_as_eight_do(root):
    eight, one = steps(root / "gpus_8"), steps(root / "single")
    assert [r["loss"] for r in one.values()] == pytest.approx([r["loss"] for r in eight.values()], rel=1e-5)


def test_checkpoints_of_every_layout_hold_the_same_names(root):
    places = {"gpus_8": 8, "gpus_64": 10, "gpus_1000": 11, "back": 12, "single": 8}
    states = [tensors(checkpoint(root / stage, at)) for stage, at in places.items()]
    held = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    assert all(each == held[0] for each in held)
    assert held[0]["model.blocks.1.attention.query.weight"] == (32, 32)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layout": Layout(tensor=3)}, "layout: 8 heads do not divide by tensor 3"),
        ({"layout": Layout(pipeline=4)}, "layout: 2 layers do not divide by pipeline 4"),
        ({"layout": THREE, "processes": 4}, f"layout: 4 processes do not divide by {GROUP}; 8 would"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_processes_start(tmp_path, capsys, changes, sentence):
    folder = order(tmp_path / "stage", span(1, 2, 8), model=SHAPE, **({"processes": 8} | changes))
    assert train.main([str(folder)]) == train.REFUSED
    assert capsys.readouterr().err == f"training: {sentence}\n"


def test_a_rehearsed_layout_runs_on_as_many_processes_as_one_copy_needs(tmp_path):
    folder = order(tmp_path / "stage", span(1, 2, 8), model=SHAPE, processes=None, layout=THREE, gpus=1000)
    assert train.prepare(folder).processes == 8
