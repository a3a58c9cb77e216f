"""What stands in for GPUs that do not exist: the real recipe, and what its cluster would do."""

from __future__ import annotations

from dataclasses import dataclass

from training.config.model import ModelShape


@dataclass(frozen=True)
class Link:
    """One tier of a network as a GPU sees it: Hockney's T = latency + bytes / bandwidth."""

    latency_us: float
    gbytes_per_second: float


@dataclass(frozen=True)
class Emulation:
    """What stands in for GPUs: how virtual ranks run here, and what the step time is modelled for and from.

    ``recipe`` is the real recipe (its shape, sequence length, batch of this stage, layout); ``cluster`` what a GPU
    and its network would do. Every number drawn comes from ``seed``.
    """

    recipe_model: ModelShape
    recipe_sequence_length: int
    recipe_batch_sequences: int
    recipe_shard: int  # GPUs that share one copy of the weights (FSDP inside), a divisor of the GPUs
    recipe_tensor: int
    recipe_pipeline: int
    recipe_micro_batch_sequences: int
    gpus_per_node: int
    flops_per_gpu: float  # FLOP/s that a GPU reaches on this kind of model
    memory_gib_per_gpu: float
    inside_node: Link
    between_nodes: Link
    tiers: tuple[tuple[int, float], ...]  # (GPUs up to which it holds, factor on the bandwidth between nodes)
    overlap: float  # part of the compute time behind which communication hides
    launch_sd: float  # relative standard deviation from launch to launch
    step_sd: float  # relative standard deviation of a step
    autocorrelation: float  # AR(1) coefficient of the step noise
    spike_rate: float  # chance that a step is a spike
    spike_factor: float  # how many times longer a spiked step takes
    seed: int
    recipe_activation_checkpointing: bool = False  # activations are computed again in the backward pass
