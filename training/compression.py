"""Gradients summed over processes as codes of 1, 2 or 4 bits, with what the codes lose kept for the next step.

The sum goes in two phases, as in 1-bit Adam (Tang et al. 2021): every process sends each other one its part of the
vector in codes, adds up what it received, and sends the codes of that sum to all. Both sides keep their error and add
it to what they encode next (error feedback: Seide et al. 2014; Karimireddy et al. 2019 for why it converges).

All processes decode the same bytes, so copies of the weights that start equal stay equal bit for bit. A number that is
not finite makes its whole block not finite in every process, which then all skip the step, and never enters an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import Compression, TrainConfig
from training.processes import World

BLOCK = 256  # elements that share one scale: bf16, so 1/16 bit an element
SCALE_BYTES = 2
PREFIX = "compression."  # of errors in a checkpoint
# Distance between levels, in rms of the block: the uniform quantiser of least error for a Gaussian (Max 1960, table 2).
# On cubes of Gaussians it loses .19 of a block's energy in 4 bits; steps from the mean size instead lose .33.
STEP = {1: 1.5956, 2: 0.9957, 4: 0.3352}
BLOCKS_A_PASS = 2048  # 2 MiB an intermediate stays in the processor's cache: 2.1 ns an element, against 3.0 for 8192


@dataclass(frozen=True)
class Codec:
    """Blocks of float32 to bytes and back: levels at odd multiples of half a scale, evenly spaced around zero."""

    bits: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: its codes and its scale."""
        return BLOCK * self.bits // 8 + SCALE_BYTES

    def encode(self, values: Tensor, payload: Tensor) -> None:
        """Write ``values`` [blocks, 256] as ``payload`` [blocks, block_bytes]; leave in ``values`` what that loses."""
        for part, bytes_ in zip(_passes(values), _passes(payload), strict=True):
            self._encode(part, bytes_)

    def decode(self, payload: Tensor) -> Tensor:
        """Return the float32 [blocks, 256] that a ``payload`` [blocks, block_bytes] stands for."""
        codes, scale = self._views(payload)
        per_byte, mask = 8 // self.bits, (1 << self.bits) - 1
        values = torch.empty(len(payload), per_byte, BLOCK // per_byte, device=payload.device)
        for place in range(per_byte):
            values[:, place] = (codes >> (self.bits * place)) & mask
        return values.flatten(1).sub_(mask / 2).mul_(_read(scale))

    def _encode(self, values: Tensor, payload: Tensor) -> None:
        half = 1 << (self.bits - 1)
        step = torch.linalg.vector_norm(values, dim=1, keepdim=True).mul_(STEP[self.bits] / BLOCK**0.5)
        level = values / step.masked_fill_(step == 0, 1.0)
        level.floor_().clamp_(-half, half - 1)
        codes, scale = self._views(payload)
        _pack((level + half).to(torch.int8).view(torch.uint8), self.bits, codes)
        level += 0.5
        # Of all scales the one of least squares: whatever the block holds, the error is then shorter than the values,
        # which error feedback needs to stay bounded. Without, an outlier among zeros breaks that.
        fitted = torch.linalg.vecdot(values, level).div_(torch.linalg.vecdot(level, level)).to(torch.bfloat16)
        scale.copy_(fitted.view(torch.uint8).view(-1, SCALE_BYTES))
        values.sub_(level.mul_(fitted.float()[:, None])).nan_to_num_(0.0, 0.0, 0.0)

    def _views(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes [blocks, bytes] and the scales [blocks, 2] in a payload."""
        return payload[:, :-SCALE_BYTES], payload[:, -SCALE_BYTES:]


def _pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """Write ``codes`` [blocks, 256] of ``bits`` each into bytes: byte i takes elements i, i + 256 / per byte, ..."""
    planes = codes.view(len(codes), 8 // bits, -1)  # whole planes shift at once; neighbours in a byte would be strided
    packed.copy_(planes[:, 0])
    for place in range(1, planes.shape[1]):
        packed |= planes[:, place] << (bits * place)


def _passes(blocks: Tensor) -> Sequence[Tensor]:
    return torch.split(blocks, BLOCKS_A_PASS)


def _read(scale: Tensor) -> Tensor:
    return scale.contiguous().view(torch.bfloat16).float()


def place(config: TrainConfig, world: World) -> str:
    """Return the name of a process's errors: an error belongs to the elements, and to the process, that made it."""
    layout = config.layout
    cut = f"tensor_{layout.tensor}.pipeline_{layout.pipeline}.stages_{layout.stages_per_rank}.shard_{layout.shard}"
    return f"{PREFIX}{cut}.rank_{world.rank}_of_{world.processes}"


@dataclass
class Errors:
    """What the codes of one tensor have lost so far: of this process's gradient, and of the part it sums for all."""

    worker: Tensor  # float32 [processes x blocks of a part, 256]
    server: Tensor  # float32 [blocks of a part, 256]


class CompressedSum:
    """Sums tensors over a process group; keeps errors a tensor, by the name that the caller gives it."""

    def __init__(self, settings: Compression, place: str) -> None:
        """``place`` names this process in its layout: errors of another place or layout are never taken for its own."""
        self.begun = "new"  # what became of the errors that a checkpoint holds
        self._told = (0.0, 0)
        self.codec = Codec(settings.bits)
        self.place = place
        self.errors: dict[str, Errors] = {}
        self._factor = torch.ones((), dtype=torch.float64)  # that the gradients in the errors carry
        self.bytes_sent = 0  # by this process to others, so far
        self.codec_seconds = 0.0  # spent encoding and decoding, so far; on a GPU, which runs behind, only launching it

    def __call__(self, tensor: Tensor, group: dist.ProcessGroup | None, name: str) -> None:
        """Replace the float32 ``tensor`` by about its sum over ``group``; the same bits in all its processes.

        Every process calls it with as many elements under the same ``name``, which must mean the same elements in the
        same order at every call.
        """
        processes = dist.get_world_size(group)
        if processes == 1:
            return
        flat = tensor.view(-1)
        errors = self._errors(name, flat, processes)
        blocks = len(errors.server)
        sent = torch.empty(processes * blocks, self.codec.block_bytes, dtype=torch.uint8, device=flat.device)
        received = torch.empty_like(sent)
        with self._timed():
            mine = errors.worker.view(-1)
            mine[: len(flat)] += flat
            mine[len(flat) :] = 0.0
            self.codec.encode(errors.worker, sent)
        dist.all_to_all_single(received, sent, group=group)
        with self._timed():
            for part in received.chunk(processes):
                for sums, codes in zip(_passes(errors.server), _passes(part), strict=True):
                    sums += self.codec.decode(codes)
            total = sent[:blocks]
            self.codec.encode(errors.server, total)
        dist.all_gather_single(received, total, group=group)
        with self._timed():
            for part, values in zip(_passes(received), torch.split(flat, BLOCKS_A_PASS * BLOCK), strict=False):
                values.copy_(self.codec.decode(part).view(-1)[: len(values)])
        self.bytes_sent += 2 * (processes - 1) * total.numel()

    def rescale(self, factor: float) -> None:
        """Say what factor the gradients of the coming step carry (tokens, loss scale): errors are brought to it."""
        change = factor / float(self._factor)
        if change != 1.0:
            for errors in self.errors.values():
                errors.worker *= change
                errors.server *= change
            self._factor.fill_(factor)

    def state(self) -> dict[str, Tensor]:
        """Return the errors under names that hold this process's place, as a checkpoint must have them."""
        found = {f"{self.place}.factor": self._factor}
        for name, errors in self.errors.items():
            found |= {f"{self.place}.{name}.worker": errors.worker, f"{self.place}.{name}.server": errors.server}
        return found

    @property
    def kept(self) -> bool:
        """Whether the errors go on from those of a checkpoint."""
        return self.begun == "kept"

    def spent(self) -> dict[str, float]:
        """Return what the calls since the last time took, as a step's record says it."""
        before, self._told = self._told, (self.codec_seconds, self.bytes_sent)
        return {"codec_seconds": self._told[0] - before[0], "compressed_bytes": self._told[1] - before[1]}

    def expect(self, stored: Mapping[str, Sequence[int]]) -> None:
        """Make room for the errors in a checkpoint, given names and shapes of all that it holds.

        Those of another layout or number of processes are left there: an error belongs to the elements, and to the
        process, that made it. Loading then writes into what ``state`` returns.
        """
        mine = {name: shape for name, shape in stored.items() if name.startswith(f"{self.place}.")}
        if not mine:
            theirs = any(name.startswith(PREFIX) for name in stored)
            self.begun = f"reset: {'another layout' if theirs else 'no compression'} wrote the checkpoint"
            return
        for name, shape in mine.items():
            if name.endswith(".worker"):
                key = name.removeprefix(f"{self.place}.").removesuffix(".worker")
                server = mine[f"{self.place}.{key}.server"]
                self.errors[key] = Errors(torch.zeros(*shape), torch.zeros(*server))
        self.begun = "kept"

    def _errors(self, name: str, flat: Tensor, processes: int) -> Errors:
        if name not in self.errors:
            blocks = -(-len(flat) // (BLOCK * processes))  # of the part that each process sums
            worker = torch.zeros(processes * blocks, BLOCK, device=flat.device)
            self.errors[name] = Errors(worker, torch.zeros(blocks, BLOCK, device=flat.device))
        return self.errors[name]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.codec_seconds += time.perf_counter() - begin
