"""What follows a batch that grows: the learning rate by its rule, the half-life of the optimizer's second moment."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.config.as_trained import AsTrained
from tasks.config.experiment import LearningRateRule
from training import config as contract


def rates(trained: AsTrained, before: Mapping[str, tuple[float, int]]) -> tuple[float, ...]:
    """Return the peak learning rate of each batch of a stage, in turn.

    A number holds for all of them. A rule scales from the rate of the stage's own first batch, or from the last
    ``(rate, batch in tokens)`` of the earlier stage that it names: so it holds between stages and inside one alike.
    """
    rule = trained.stage.learning_rate
    sizes = [sequences * trained.recipe.sequence_length for sequences, _ in trained.segments]
    if not isinstance(rule, LearningRateRule):
        return (rule,) * len(sizes)
    rate, base = (rule.rate, sizes[0]) if rule.rate is not None else before[rule.from_ or ""]
    return tuple(rate * rule.factor(size / base) for size in sizes)


def optimizer(trained: AsTrained, first_batch: int) -> contract.Optimizer:
    """Return the optimizer as the trainer is told it; ``first_batch`` is that of the ladder's first step, sequences."""
    said = trained.recipe.optimizer
    reference = first_batch if said.second_moment == "tokens" else None
    return contract.Optimizer(**said.model_dump(exclude={"second_moment"}), reference_batch_sequences=reference)


def schedule(trained: AsTrained, total_steps: int) -> contract.Schedule:
    """Return the schedule of all steps from 1 to ``total_steps``, the last of the stages that continue one another."""
    shape = trained.recipe.schedule
    decay = shape.decay_steps or round((shape.decay_part or 0.0) * total_steps)
    return contract.Schedule(shape.kind, 0, shape.warmup_steps, total_steps, shape.floor, decay)
