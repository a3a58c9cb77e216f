"""How long a step of the real recipe would take on the real cluster: the *modelled* numbers of a rehearsal. No torch.

Sources: FLOPs a token from Chowdhery et al. 2022 (PaLM, appendix B); ring collectives after Hockney 1994 and
Thakur et al. 2005; sharding's traffic from Rajbhandari et al. 2020 (ZeRO-3: weights gathered twice, gradients
scattered once), as PyTorch's FSDP does it a layer at a time, gathering again for every micro-batch; tensor and
pipeline parallelism from Narayanan et al. 2021 (Megatron-LM: four all-reduces a layer; bubble (p - 1) / m);
activation memory from Korthikanti et al. 2022. Whether a real cluster behaves so, only a real cluster can say.

Randomness is counter-based: each number is a hash of (seed, what it is for), so the value at a step depends on no
earlier call, and a restarted job meets the same steps again.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

from training.config import ConfigError, Emulation, Link

WEIGHT_BYTES = 2  # bf16 in flight
GRADIENT_BYTES = 4  # reduced in float32, FSDP's usual choice
ACTIVATION_BYTES = 2
STATE_BYTES = 16  # float32 weight and gradient, two Adam moments
ACTIVATION_BYTES_PER_TOKEN_AND_HIDDEN = 34  # of a layer, without the s^2 term that flash attention never stores
OPTIMIZER_BYTES = 28  # read and written for one parameter's update
GPU_MEMORY_BYTES_PER_SECOND = 3.35e12  # an H100 SXM's, by its data sheet
DATA_SECONDS = 0.001  # judgement: samples are prefetched, what remains is handing them over
FORMULA = (
    "compute = FLOPs / flops_per_gpu, times 1 + (p - 1) / m; communication = tensor + max(0, sharding + replicas - "
    "overlap x compute), Hockney rings; times exp(launch + AR(1) noise); a spike's excess is communication"
)


@dataclass(frozen=True)
class StepSeconds:
    """Where one step's time goes; communication is what does not hide behind computing."""

    data: float
    forward: float
    backward: float
    communication: float
    optimizer: float

    @property
    def total(self) -> float:
        """The step's seconds: the sum of its phases."""
        return self.data + self.forward + self.backward + self.communication + self.optimizer


@dataclass(frozen=True)
class _Layout:
    """The recipe cut onto GPUs."""

    gpus: int
    model_parallel: int
    shard: int
    replicas: int
    sequences: int  # of the rank that has most; all wait for it
    micro_batches: int

    @classmethod
    def of(cls, recipe: Emulation, gpus: int) -> _Layout:
        model_parallel = recipe.recipe_tensor * recipe.recipe_pipeline
        if gpus % (model_parallel * recipe.recipe_shard):
            raise ConfigError(
                f"emulation: {gpus} GPUs do not divide into groups of {model_parallel * recipe.recipe_shard} (tensor "
                f"{recipe.recipe_tensor} x pipeline {recipe.recipe_pipeline} x shard {recipe.recipe_shard})"
            )
        ranks = gpus // model_parallel
        sequences = -(-recipe.recipe_batch_sequences // ranks)
        micro_batches = -(-sequences // recipe.recipe_micro_batch_sequences)
        return cls(gpus, model_parallel, recipe.recipe_shard, ranks // recipe.recipe_shard, sequences, micro_batches)


def ideal(recipe: Emulation, gpus: int) -> StepSeconds:
    """Return a step's seconds on ``gpus`` GPUs without noise; raise ConfigError where the layout does not divide."""
    layout = _Layout.of(recipe, gpus)
    shape, length = recipe.recipe_model, recipe.recipe_sequence_length
    flops = shape.flops_per_token(length) * layout.sequences * length / layout.model_parallel
    busy = flops / recipe.flops_per_gpu
    compute = busy * (1 + (recipe.recipe_pipeline - 1) / layout.micro_batches)
    forward = compute / 3  # a backward pass costs two forward passes
    recomputed = forward if recipe.recipe_activation_checkpointing else 0.0
    hidden = recipe.overlap * (compute + recomputed)
    exposed = max(0.0, sharding(recipe, layout) + replication(recipe, layout) - hidden) + tensor(recipe, layout)
    updated = shape.parameters / layout.model_parallel / layout.shard
    return StepSeconds(
        data=DATA_SECONDS,
        forward=forward,
        backward=2 * compute / 3 + recomputed,
        communication=exposed,
        optimizer=updated * OPTIMIZER_BYTES / GPU_MEMORY_BYTES_PER_SECOND,
    )


def drawn(recipe: Emulation, gpus: int, attempt: int, step: int) -> StepSeconds:
    """Return the seconds of one step of one launch: the ideal ones, with what makes real steps differ."""
    base = ideal(recipe, gpus)
    launch = recipe.launch_sd * normal(f"{recipe.seed}/launch/{gpus}/{attempt}")
    factor = math.exp(launch + recipe.step_sd * correlated(recipe.seed, gpus, step, recipe.autocorrelation))
    spiked = uniform(f"{recipe.seed}/spike/{gpus}/{step}") < recipe.spike_rate
    waited = (recipe.spike_factor - 1) * base.total * factor if spiked else 0.0
    return StepSeconds(
        data=base.data * factor,
        forward=base.forward * factor,
        backward=base.backward * factor,
        communication=base.communication * factor + waited,  # all wait in the collective for who is late
        optimizer=base.optimizer * factor,
    )


def sharding(recipe: Emulation, layout: _Layout) -> float:
    """Seconds of FSDP's traffic: two gathers of the weights a micro-batch, one scatter of the gradients."""
    if layout.shard == 1:
        return 0.0
    width = layout.model_parallel * layout.shard
    link = recipe.inside_node if width <= recipe.gpus_per_node else between(recipe, layout.gpus)
    parameters = recipe.recipe_model.parameters / layout.model_parallel
    layers = _layers(recipe)
    gather = ring(link, layout.shard, parameters * WEIGHT_BYTES, passes=1, messages=layers)
    scatter = ring(link, layout.shard, parameters * GRADIENT_BYTES, passes=1, messages=layers)
    return layout.micro_batches * (2 * gather + scatter)


def replication(recipe: Emulation, layout: _Layout) -> float:
    """Seconds of the gradients' all-reduce between copies of the weights, each GPU its own shard of them."""
    if layout.replicas == 1:
        return 0.0
    link = recipe.inside_node if layout.gpus <= recipe.gpus_per_node else between(recipe, layout.gpus)
    size = recipe.recipe_model.parameters / layout.model_parallel / layout.shard * GRADIENT_BYTES
    return ring(link, layout.replicas, size, passes=2, messages=_layers(recipe))


def tensor(recipe: Emulation, layout: _Layout) -> float:
    """Seconds of tensor parallelism's all-reduces, four a layer and micro-batch; nothing hides them."""
    if recipe.recipe_tensor == 1:
        return 0.0
    inside = recipe.recipe_tensor <= recipe.gpus_per_node
    link = recipe.inside_node if inside else between(recipe, layout.gpus)
    tokens = recipe.recipe_micro_batch_sequences * recipe.recipe_sequence_length
    size = tokens * recipe.recipe_model.hidden * ACTIVATION_BYTES
    return layout.micro_batches * 4 * _layers(recipe) * ring(link, recipe.recipe_tensor, size, passes=2, messages=1)


def ring(link: Link, ranks: int, size: float, *, passes: int, messages: int) -> float:
    """Hockney's time of a ring over ``ranks``: one pass gathers or scatters ``size`` bytes, two all-reduce them.

    ``messages`` collectives share the bytes, and each pays the latency of every hop again.
    """
    latency = passes * (ranks - 1) * link.latency_us * 1e-6 * messages
    return latency + passes * (ranks - 1) / ranks * size / (link.gbytes_per_second * 1e9)


def between(recipe: Emulation, gpus: int) -> Link:
    """Return the link between nodes as a job of ``gpus`` GPUs finds it: its tier's factor lowers the bandwidth."""
    factor = next((factor for most, factor in recipe.tiers if gpus <= most), recipe.tiers[-1][1] if recipe.tiers else 1)
    link = recipe.between_nodes
    return Link(link.latency_us, link.gbytes_per_second * factor)


def memory_gib(recipe: Emulation, gpus: int) -> float:
    """Return a GPU's peak: sharded state, two gathered layers, activations in flight, and the last layer's logits."""
    layout = _Layout.of(recipe, gpus)
    shape, tensor_ranks = recipe.recipe_model, recipe.recipe_tensor
    parameters = shape.parameters / layout.model_parallel
    layers = _layers(recipe)
    tokens = recipe.recipe_micro_batch_sequences * recipe.recipe_sequence_length
    gathered = 0.0 if layout.shard == 1 else 2 * parameters / layers * (WEIGHT_BYTES + GRADIENT_BYTES)
    one_layer = tokens * shape.hidden * ACTIVATION_BYTES_PER_TOKEN_AND_HIDDEN / tensor_ranks
    stored = tokens * shape.hidden * ACTIVATION_BYTES if recipe.recipe_activation_checkpointing else one_layer
    in_flight = min(layout.micro_batches, recipe.recipe_pipeline)
    logits = tokens * shape.vocabulary * (ACTIVATION_BYTES + GRADIENT_BYTES) / tensor_ranks
    activations = in_flight * layers * stored + one_layer + logits
    return (parameters / layout.shard * STATE_BYTES + gathered + activations) / 2**30


def refuse_impossible(recipe: Emulation, gpus: int) -> None:
    """Raise ConfigError for a layout that does not divide, or that a real GPU would run out of memory on."""
    needed = memory_gib(recipe, gpus)
    if needed > recipe.memory_gib_per_gpu:
        raise ConfigError(
            f"emulation: the recipe needs {needed:.1f} GiB a GPU on {gpus} GPUs (modelled), which have "
            f"{recipe.memory_gib_per_gpu:g}; shard over more GPUs, checkpoint activations, or use smaller micro-batches"
        )


def correlated(seed: int, gpus: int, step: int, coefficient: float) -> float:
    """Return an AR(1) process of unit variance at ``step``, as its moving average, cut where it no longer matters."""
    if coefficient == 0.0:
        return normal(f"{seed}/step/{gpus}/{step}")
    terms = math.ceil(math.log(1e-9) / math.log(abs(coefficient)))
    total = sum(coefficient**lag * normal(f"{seed}/step/{gpus}/{step - lag}") for lag in range(terms))
    return math.sqrt(1 - coefficient**2) * total


@lru_cache(maxsize=8192)  # the moving average asks for each again at the next step
def normal(key: str) -> float:
    """Return a standard normal number that is a function of ``key`` alone (Box and Muller 1958)."""
    return math.sqrt(-2 * math.log(1 - uniform(f"{key}/radius"))) * math.cos(2 * math.pi * uniform(f"{key}/angle"))


def uniform(key: str) -> float:
    """Return a number in [0, 1) that is a function of ``key`` alone."""
    return (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11) / 2.0**53


def _layers(recipe: Emulation) -> int:
    return -(-recipe.recipe_model.layers // recipe.recipe_pipeline)
