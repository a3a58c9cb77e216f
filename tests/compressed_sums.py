"""Four real gloo processes that sum vectors in codes, for tests/test_compression.py: a file a rank says what it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from training import engine
from training.compression import BLOCK, CompressedSum, place
from training.config import Compression, Layout, ModelShape, TrainConfig
from training.gradients import local
from training.processes import World, run
from training.update import Updater

PROCESSES = 4
ELEMENTS = 3 * PROCESSES * BLOCK + 700  # the last block of the last part is neither full nor everywhere there
STEPS = 6
SHAPE = ModelShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=256)


class CollectiveBytes(TorchDispatchMode):
    """Counts what is handed to collectives of the process group, less each process's own part, which stays there."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if "alltoall_base_" in name:
            self.sent += args[1].nbytes * (PROCESSES - 1) // PROCESSES
        elif "_allgather_base_" in name:
            self.sent += args[1].nbytes * (PROCESSES - 1)
        elif name.startswith(("c10d", "_c10d")):
            raise AssertionError(f"{name} is not counted here")
        return func(*args, **(kwargs or {}))


def gradient(rank: int, step: int) -> torch.Tensor:
    """Of one process at one step: heavy tails and a different size in each block, as real gradients have."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    values = torch.randn(ELEMENTS, generator=generator) ** 3
    return values * torch.logspace(-6, 2, ELEMENTS)


def sums(summed: CompressedSum, rank: int, steps: range) -> list[torch.Tensor]:
    found = []
    for step in steps:
        values = gradient(rank, step)
        summed(values, None, "all")
        found.append(values)
    return found


def main(world: World, folder: Path) -> None:
    """Try everything that needs several processes, and write it down."""
    said: dict[str, object] = {}
    for bits in (1, 2, 4):
        summed = CompressedSum(Compression(bits), f"rank_{world.rank}_of_4")
        with CollectiveBytes() as counted:
            said[f"sums_{bits}"] = sums(summed, world.rank, range(STEPS))
        said[f"bytes_{bits}"] = {"counted": counted.sent, "said": summed.bytes_sent}
        said[f"errors_{bits}"] = {name: tensor.clone() for name, tensor in summed.state().items()}
        said[f"seconds_{bits}"] = summed.codec_seconds
    said["resumed"] = _resumed(world.rank)
    said["overflow"] = _overflow(world.rank)
    said["pairs"] = _pairs(world)
    for name, shard in (("copies", 1), ("shards", 2)):
        said[name] = _trained(world, shard)
    torch.save(said, folder / f"{world.rank}.pt")


def _resumed(rank: int) -> dict[str, object]:
    """Three steps, the state into new hands, three more: against six at a stretch."""
    first = CompressedSum(Compression(2), f"rank_{rank}_of_4")
    before = sums(first, rank, range(3))
    second = CompressedSum(Compression(2), f"rank_{rank}_of_4")
    stored = first.state()
    second.expect({name: tuple(tensor.shape) for name, tensor in stored.items()})
    for name, tensor in second.state().items():
        tensor.copy_(stored[name])
    return {"sums": before + sums(second, rank, range(3, STEPS)), "kept": second.kept}


def _overflow(rank: int) -> dict[str, object]:
    """One process has an infinity and a NaN; then all have sound gradients again."""
    summed = CompressedSum(Compression(2), "")
    values = gradient(rank, 0)
    if rank == 2:
        values[300], values[1000] = float("inf"), float("nan")
    summed(values, None, "all")
    return {
        "sum": values,
        "errors": [t.clone() for t in summed.state().values()],
        "next": sums(summed, rank, range(1, 2)),
    }


def _pairs(world: World) -> torch.Tensor:
    """The replicate axis of a 2 x 2 mesh: processes 0 and 2 sum, and 1 and 3."""
    groups = [dist.new_group(ranks) for ranks in ((0, 2), (1, 3))]
    values = torch.full((BLOCK,), float(world.rank + 1))
    CompressedSum(Compression(2), "")(values, groups[world.rank % 2], "all")
    return values


def _trained(world: World, shard: int) -> dict[str, object]:
    """Four steps of a model on all processes, whole in each or in shards of two; what this process then holds."""
    layout = Layout(shard=shard)
    config = TrainConfig("small", "run", "gpus_4", 1, 4, 7, SHAPE, 16, (), layout=layout, compression=Compression(2))
    text = (torch.arange(4000) % 50).to(torch.uint8)
    summed = CompressedSum(Compression(2), place(config, world))
    made = engine.engine(config, Plain(text), world, summed)
    updater = Updater(made.placed, world, config)
    losses = []
    for step in range(8):
        losses.append(made.gradients(7 * step, 7, stop=False).loss)
        updater.update(1e-2, 7)
    held = {name: local(parameter.detach()).clone() for name, parameter in made.placed.parameters.items()}
    return {"losses": losses, "held": held, "errors": list(summed.state()), "bytes": summed.bytes_sent}


class Plain:
    """Samples of a text, one after the other."""

    sequence_length = 16

    def __init__(self, text: torch.Tensor) -> None:
        self.windows = text.unfold(0, 17, 16).long()

    def samples(self, first: int, count: int) -> torch.Tensor:
        return self.windows[first : first + count]


if __name__ == "__main__":
    run(lambda world: main(world, Path(sys.argv[1])), PROCESSES)
