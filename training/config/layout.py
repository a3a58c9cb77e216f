"""How a model and its batch are cut onto the processes of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from training.config.model import ModelShape


@dataclass(frozen=True)
class Layout:
    """``tensor`` x ``pipeline`` processes compute one sequence together, ``shard`` such groups share one copy's states.

    What remains of the processes holds further copies: replicas = processes / (tensor x pipeline x shard).
    """

    tensor: int = 1
    pipeline: int = 1
    shard: int = 1
    micro_batch_sequences: int | None = None  # sequences of one forward pass; None: as many as fit the cache
    sequence_parallel: bool = True  # norms and residuals are split along the sequence between tensor ranks
    stages_per_rank: int = 1  # of the pipeline; more than one is the interleaved schedule
    activation_checkpointing: bool = False  # activations of a block are computed again in the backward pass
    cpu_offload: bool = False  # sharded weights, gradients and moments wait in the host's memory

    @property
    def group(self) -> int:
        """Processes that compute one sequence together."""
        return self.tensor * self.pipeline

    @property
    def plain(self) -> bool:
        """Whether every process holds the whole model: data parallelism and nothing else."""
        return self.group * self.shard == 1 and not self.activation_checkpointing and not self.cpu_offload

    def misfits(self, shape: ModelShape, sequence_length: int, processes: int) -> Iterator[str]:
        """Yield what does not divide, each a sentence that names what to change."""
        yield from self.uneven(shape, sequence_length)
        if uneven := self.shared_by(processes):
            yield uneven

    def shared_by(self, processes: int) -> str | None:
        """Say why so many processes cannot hold whole copies of the model, if so."""
        together = self.group * self.shard
        if processes % together == 0:
            return None
        near = sorted({processes // together * together, -(-processes // together) * together} - {0})
        return (
            f"{processes} processes do not divide by tensor {self.tensor} x pipeline {self.pipeline} x shard "
            f"{self.shard}; {' or '.join(map(str, near))} would"
        )

    def uneven(self, shape: ModelShape, sequence_length: int) -> Iterator[str]:
        """Yield what of the model does not divide by what of the layout, the first along each axis."""
        yield from islice(self._tensor(shape, sequence_length), 1)
        interleaved = f" x stages_per_rank {self.stages_per_rank}" if self.stages_per_rank > 1 else ""
        if shape.layers % (self.pipeline * self.stages_per_rank):
            yield f"{shape.layers} layers do not divide by pipeline {self.pipeline}{interleaved}"
        elif interleaved and self.pipeline == 1:
            yield f"stages_per_rank {self.stages_per_rank} needs a pipeline of at least 2"

    def _tensor(self, shape: ModelShape, sequence_length: int) -> Iterator[str]:
        widths = {name: getattr(shape, name) for name in ("hidden", "ffn", "vocabulary")}
        if shape.experts > 1 and self.tensor > 1:
            yield f"{shape.experts} experts are not cut over tensor ranks; tensor must be 1, not {self.tensor}"
        for name, heads in (("heads", shape.heads), ("kv_heads", shape.kv_heads or shape.heads)):
            if heads % self.tensor:
                yield f"{heads} {name} do not divide by tensor {self.tensor}"
        for name, width in widths.items():
            if width % self.tensor:
                yield f"{name} {width} does not divide by tensor {self.tensor}"
        if self.sequence_parallel and sequence_length % self.tensor:
            yield (
                f"sequence_length {sequence_length} does not divide by tensor {self.tensor}; "
                "with sequence_parallel: false it need not"
            )
        for name, width in widths.items():
            # FSDP2 pads rows that shards share unevenly, but not where tensor ranks have shared them before.
            if self.tensor > 1 and width % (self.tensor * self.shard):
                yield f"{name} {width} does not divide by tensor {self.tensor} x shard {self.shard}"
