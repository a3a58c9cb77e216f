"""How a model and its batch are cut onto the processes of a job."""

from __future__ import annotations

from dataclasses import dataclass


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
