"""From the plan of a stage to the trainer's orders: ``config.json``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import data
from tasks.config.cluster import Link
from tasks.plan.rates import optimizer
from training import config as contract
from training.config import Emulation, TrainConfig

if TYPE_CHECKING:
    from tasks.plan import StagePlan


def train_config(plan: StagePlan, run_id: str, attempt: int, start_checkpoint: str | Path | None = None) -> TrainConfig:
    """Return the trainer's orders; ``start_checkpoint`` is the promoted hand-over of the stage before."""
    recipe = plan.recipe
    start = plan.start
    if start_checkpoint is not None:
        start = dataclasses.replace(start, checkpoint=str(start_checkpoint))
    return TrainConfig(
        experiment=plan.experiment,
        run_id=run_id,
        stage=plan.name,
        attempt=attempt,
        gpus=plan.gpus,
        seed=plan.seed,
        model=recipe.model.shape,
        sequence_length=recipe.sequence_length,
        spans=plan.spans,
        start=start,
        hand_over_step=plan.hand_over_step,
        data=data.orders(recipe.data),
        layout=recipe.cut,
        compression=contract.Compression(**recipe.compression.model_dump()) if recipe.compression else None,
        precision=recipe.precision,
        loss_scale=contract.LossScale(**recipe.loss_scale.model_dump()),
        optimizer=optimizer(plan.trained, plan.first_batch_sequences),
        checkpointing=contract.Checkpointing(**recipe.checkpointing.model_dump()),
        held_out=contract.HeldOut(**recipe.held_out.model_dump()),
        processes=recipe.processes,
        reduction=recipe.reduction,
        emulation=_emulation(plan),
        extra=dict(plan.trainer.settings),
    )


def _emulation(plan: StagePlan) -> Emulation | None:
    """Return what stands in for the GPUs: the real recipe's shape and batch, and the cluster's numbers."""
    recipe, cluster = plan.modelled, plan.cluster
    network, flops, memory = cluster.network, cluster.flops_per_gpu, cluster.memory_gib_per_gpu
    if recipe is None or network is None or flops is None or memory is None:
        return None  # real GPUs; a cluster file with emulated ones has all of these, or does not load
    return Emulation(
        recipe_model=recipe.model.shape,
        recipe_sequence_length=recipe.sequence_length,
        recipe_batch_sequences=plan.throughput_batch_tokens // recipe.sequence_length,
        recipe_shard=recipe.layout.shard,
        recipe_tensor=recipe.layout.tensor,
        recipe_pipeline=recipe.layout.pipeline,
        recipe_micro_batch_sequences=recipe.micro_batch_sequences or 1,
        gpus_per_node=cluster.gpus_per_node,
        flops_per_gpu=flops,
        memory_gib_per_gpu=memory,
        inside_node=_link(network.inside_node),
        between_nodes=_link(network.between_nodes),
        tiers=tuple((tier.gpus, tier.factor) for tier in network.tiers),
        overlap=network.overlap,
        seed=plan.seed if plan.launch_seed is None else plan.launch_seed,
        recipe_activation_checkpointing=recipe.activation_checkpointing,
        **cluster.noise.model_dump(),
    )


def _link(link: Link) -> contract.Link:
    return contract.Link(link.latency_us, link.gbytes_per_second)
