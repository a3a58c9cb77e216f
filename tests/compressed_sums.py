"""Four real gloo processes that sum vectors in codes, for tests/test_compression.py: a file a rank says what it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from training.compression import BLOCK, CompressedSum
from training.config import Compression
from training.processes import World, run

PROCESSES = 4
ELEMENTS = 3 * PROCESSES * BLOCK + 700  # the last block of the last part is neither full nor everywhere there
STEPS = 6


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
    torch.save(said, folder / f"{world.rank}.pt")


def _resumed(rank: int) -> dict[str, object]:
    """Three steps, the state into new hands, three more: against six at a stretch."""
    first = CompressedSum(Compression(2), f"rank_{rank}_of_4")
    before = sums(first, rank, range(3))
    second = CompressedSum(Compression(2), f"rank_{rank}_of_4")
    stored = first.state()
    answer = second.expect({name: tuple(tensor.shape) for name, tensor in stored.items()})
    for name, tensor in second.state().items():
        tensor.copy_(stored[name])
    return {"sums": before + sums(second, rank, range(3, STEPS)), "answer": answer}


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


if __name__ == "__main__":
    run(lambda world: main(world, Path(sys.argv[1])), PROCESSES)
