"""For how long a checkpoint keeps training waiting, beside a synchronous save of the same state in the same run.

A model of 33 M parameters with Adam's moments (400 MB), one process. Between the begin of a save and the update that
may change the state lie a real forward and backward pass, as in the loop.
"""

import statistics
import time
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from tests.trained import order, span
from training.checkpoint import Progress
from training.config import Checkpointing, ModelShape, read_config
from training.model import GPT
from training.processes import World
from training.saving import Saver, Written

SHAPE = ModelShape(layers=10, hidden=512, heads=8, ffn=1408, vocabulary=2048)
ROUNDS = 4


def test_the_stall_is_a_small_part_of_a_synchronous_save(tmp_path):
    model = GPT(SHAPE, seed=0)
    state = {name: p.detach() for name, p in model.named_parameters()}
    state |= {f"{moment}.{name}": torch.rand_like(p) for moment in ("first", "second") for name, p in state.items()}
    stage = order(tmp_path / "gpus_8", span(1, 9, 8), checkpointing=Checkpointing(keep=1))
    records = []
    saver = Saver(
        Written(stage, read_config(stage), "0" * 64, lambda cursor: {}),
        World(),
        lambda kind, **said: records.append(said),
    )
    tokens = torch.randint(0, SHAPE.vocabulary, (4, 129))
    synchronous, stalls, alone, beside = [], [], [], []
    for step in range(1, ROUNDS + 1):
        synchronous.append(_seconds(lambda folder=tmp_path / f"synchronous_{step}": _save(state, folder)))
        alone.append(_seconds(lambda: model.loss_sum(tokens).backward()))
        saver.begin(state, Progress(step, 8), "periodic", must=True)
        beside.append(_seconds(lambda: model.loss_sum(tokens).backward()))
        saver.staged()
        saver.finish()
        stalls.append(records[-1]["stall_seconds"])
    ratio = statistics.median(stalls) / statistics.median(synchronous)
    print(f"\n{sum(t.nbytes for t in state.values()) / 1e6:.0f} MB, {ROUNDS} saves each, interleaved; medians")
    print(f"  synchronous save          {statistics.median(synchronous):8.3f} s")
    print(f"  stall of one beside       {statistics.median(stalls):8.3f} s   {ratio:.1%} of it")
    slower = statistics.median(beside) / statistics.median(alone)
    print(f"  the step while one copies {statistics.median(beside):8.3f} s   {slower:.2f} x the step without")
    assert ratio <= 0.05


def _save(state: dict[str, torch.Tensor], folder: Path) -> None:
    save(state, checkpoint_id=folder, no_dist=True)


def _seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
