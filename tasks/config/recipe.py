"""What is trained, apart from what changes from stage to stage: `train:` of an experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool

from tasks.config.cluster import Count, CountOrZero, NotNegative, Part, Positive, Strict
from tasks.config.data import DataChoice
from training import config as contract


def whole(value: Any) -> Any:
    """Take 2.0e9 for the whole number it is: nobody counts the zeros of a token budget."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Tokens = Annotated[Count, BeforeValidator(whole)]


class Layout(Strict):
    """How the model is split: ``tensor`` x ``pipeline`` GPUs hold it once, ``shard`` such groups share its states."""

    tensor: Count = 1
    pipeline: Count = 1
    shard: Count = 1
    sequence_parallel: StrictBool = Field(default=True, description="tensor ranks share the sequence between matrices")
    stages_per_rank: Count = Field(default=1, description="of a pipeline; more than one interleaves them")
    cpu_offload: StrictBool = Field(default=False, description="shards wait in the host's memory")

    @property
    def group(self) -> int:
        """GPUs that compute one sequence together."""
        return self.tensor * self.pipeline


class Model(Strict):
    """A decoder-only transformer: pre-norm, RoPE, no biases; unsaid, it has SwiGLU, tied embeddings, one key a head."""

    layers: Count = Field(description="how many blocks")
    hidden: Count = Field(description="width of the residual stream")
    heads: Count = Field(description="attention heads")
    ffn: Count = Field(description="width inside the MLP, or inside each expert")
    vocabulary: Count = Field(description="how many tokens there are")
    kv_heads: Count | None = Field(default=None, description="heads of keys and values, shared by queries")
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    tied: StrictBool = Field(default=True, description="the head's matrix is the embedding's")
    rope_base: Positive = 10_000.0
    norm_eps: Positive | None = None
    base_hidden: Count | None = Field(default=None, description="muP: the width that rates were tuned at")
    experts: Count = Field(default=1, description="MLPs in a layer; more than one are routed to")
    experts_per_token: Count = 2
    expert_capacity: Positive = Field(default=1.25, description="places of an expert over an equal share")
    balance_factor: NotNegative = Field(default=0.01, description="of the loss that evens out the experts' shares")

    @property
    def shape(self) -> contract.ModelShape:
        """The same numbers as the trainer's contract has them."""
        return contract.ModelShape(**self.model_dump())


Beta = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]


class LossScaleConfig(Strict):
    """The dynamic loss scale of ``precision: fp16``; with another precision nothing reads it."""

    initial: Positive = 8192.0
    growth: Annotated[float, Field(strict=True, gt=1, allow_inf_nan=False)] = 2.0
    growth_steps: Count = 2000
    backoff: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.5
    floor: Positive = 1.0
    storm_steps: Count = Field(default=16, description="skipped steps in a row after which training ends")


class OptimizerConfig(Strict):
    """AdamW; the learning rate stands in the stages."""

    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.1
    clip: Positive = 1.0
    # `tokens` follows Marek et al. 2025, who shrink batches. Growing them it gained nothing here: 0.12M parameters,
    # 32 -> 64 -> 128 sequences with the rate by sqrt, betas[1] of .95, .98 and .99: held-out loss .003 nats higher than
    # with `steps` in the mean of 9 pairs, standard error .001. So betas stay what they say until somebody asks.
    second_moment: Literal["tokens", "steps"] = Field(
        default="steps", description="in what its half-life stays the same when the batch grows"
    )


class CompressionConfig(Strict):
    """Gradients travel between copies of the model as codes of a few bits, what those lose a step later."""

    bits: Literal[1, 2, 4] = Field(default=2, description="an element; 2 cut bytes by 93.5%, 1 by 96.7%, 4 by 87.3%")


class ScheduleConfig(Strict):
    """Shape of the learning rate over all stages that continue one another: warm-up once, then one of three.

    ``constant``; ``cosine`` down to ``floor`` at the end; ``wsd``: stable, then down to ``floor`` in the last steps.
    """

    kind: Literal["constant", "cosine", "wsd"] = "constant"
    warmup_steps: CountOrZero = 0
    floor: Part = 0.1
    decay_steps: Count | None = Field(default=None, description="of wsd, the last steps of all")
    decay_part: Annotated[float, Field(strict=True, gt=0, le=1)] | None = Field(
        default=None, description="of wsd, in place of decay_steps: their part of all"
    )


class CheckpointingConfig(Strict):
    """When checkpoints are written beside hand-over and end, and how many are kept."""

    every_steps: Count = 1000
    every_minutes: Positive | None = Field(default=None, description="by the clock as well; 15 is usual")
    keep: Count = 3


class HeldOutConfig(Strict):
    """The fixed held-out set: its size, and after how many tokens it is looked at between start and end."""

    sequences: Count = 256
    every_tokens: Tokens | None = None


class Recipe(Strict):
    """What is trained, apart from what changes from stage to stage."""

    model: Model = Field(description="layers, hidden, heads, ffn, vocabulary")
    sequence_length: Count = Field(description="tokens of one sequence")
    micro_batch_sequences: Count | None = Field(default=None, description="of one forward pass; else what suits it")
    precision: Literal["float32", "bf16", "fp16"] = "bf16"
    loss_scale: LossScaleConfig = LossScaleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    data: DataChoice = "stdlib"
    layout: Layout = Layout()
    activation_checkpointing: StrictBool = False
    compression: CompressionConfig | None = Field(default=None, description="of gradients between copies of the model")
    checkpointing: CheckpointingConfig = CheckpointingConfig()
    held_out: HeldOutConfig = HeldOutConfig()
    processes: Count | None = Field(default=None, description="real processes; fewer than GPUs means virtual ranks")
    reduction: Literal["batched", "exact"] = "batched"

    @property
    def cut(self) -> contract.Layout:
        """How the trainer cuts model and batch onto its processes."""
        return contract.Layout(
            **self.layout.model_dump(),
            micro_batch_sequences=self.micro_batch_sequences,
            activation_checkpointing=self.activation_checkpointing,
        )
