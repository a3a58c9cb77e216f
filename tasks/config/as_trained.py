"""An experiment's stages as they are trained: really, or rehearsed with overrides laid over the recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.config.cluster import Strict
from tasks.config.experiment import BatchFrom, Experiment, Stage
from tasks.config.files import deep_merge
from tasks.config.live import Live
from tasks.config.recipe import Recipe

RUN_KEYS = ("hand_over_steps", "canary_steps")  # of the experiment, which a rehearsal may change
PACE_KEYS = ("hours", "steps", "tokens", "live")  # of every stage, which a rehearsal may change for all at once
STAGE_KEYS = (*PACE_KEYS, "batch_sequences", "learning_rate", "gates", "probes", "probe_gpus")
RECIPE_KEYS = tuple(Recipe.model_fields)
# How a model is cut onto processes, and what they send each other: of these a rehearsal says its own.
CUT_KEYS = ("layout", "processes", "micro_batch_sequences", "activation_checkpointing", "compression")


def dump(model: Strict) -> dict[str, Any]:
    """Return a model as the plain mapping its YAML would hold, defaults written out."""
    return model.model_dump(mode="json", by_alias=True)


def rehearsed_stage(stage: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a rehearsal's stage keys over a stage; ``steps`` and ``tokens`` replace one another."""
    merged = dict(stage)
    for override in overrides:
        over = {key: value for key, value in override.items() if key in STAGE_KEYS}
        replaced = {"learning_rate", "batch_sequences"} & over.keys()  # a number and a mapping do not mix
        if "steps" in over or "tokens" in over:
            replaced |= {"steps", "tokens"}
        merged = deep_merge({key: value for key, value in merged.items() if key not in replaced}, over)
    return merged


def rehearsed_recipe(train: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay overrides over a recipe; how a model is cut onto GPUs says nothing of how its rehearsal is: data parallel."""
    merged: dict[str, Any] = {key: value for key, value in train.items() if key not in CUT_KEYS}
    for override in overrides:
        if "data" in override:  # other data has no sample in common, so what is skipped of the one is not of the other
            merged.pop("data", None)
        merged = deep_merge(merged, {key: value for key, value in override.items() if key in RECIPE_KEYS})
    return merged


@dataclass(frozen=True)
class AsTrained:
    """One stage of an experiment, resolved for real GPUs or for a rehearsal."""

    stage: Stage
    recipe: Recipe
    hand_over_steps: int
    canary_steps: int

    @property
    def segments(self) -> list[tuple[int, int]]:
        """``(sequences, steps)`` of each batch in turn, without the replay."""
        return segments(self.stage.batches, self.recipe.sequence_length, self.stage.steps, self.stage.tokens)

    @property
    def steps(self) -> int:
        """Steps of the stage, canary and train together."""
        return sum(steps for _, steps in self.segments)


def as_trained(experiment: Experiment, index: int, emulated: bool) -> AsTrained:
    """Return stage ``index`` as it is trained on real GPUs, or in the place of emulated ones."""
    stage = experiment.stages[index]
    live = Live.model_validate(deep_merge(dump(experiment.live), dump(stage.live)))
    stage = stage.model_copy(update={"live": live})
    if not emulated:
        own_layout = {"layout": stage.layout} if stage.layout else {}
        recipe = experiment.train.model_copy(update=own_layout)
        return AsTrained(stage, recipe, experiment.hand_over_steps, experiment.canary_steps)
    pace = {key: value for key, value in experiment.rehearsal.items() if key in PACE_KEYS}
    return AsTrained(
        Stage.model_validate(rehearsed_stage(dump(stage), pace, stage.rehearsal)),
        Recipe.model_validate(rehearsed_recipe(dump(experiment.train), experiment.rehearsal, stage.rehearsal)),
        experiment.rehearsal.get("hand_over_steps", experiment.hand_over_steps),
        experiment.rehearsal.get("canary_steps", experiment.canary_steps),
    )


def chain_steps(experiment: Experiment, index: int, emulated: bool) -> int:
    """Return the last step of the stages that continue one another around stage ``index``, all of one kind."""
    begin = index
    while experiment.stages[begin].starts(begin) == "continue":
        begin -= 1
    total, at = 0, begin
    while True:
        trained = as_trained(experiment, at, emulated)
        total += trained.steps
        at += 1
        if at == len(experiment.stages) or experiment.stages[at].starts(at) != "continue":
            return total
        if not experiment.trainer.can("replay"):
            total -= trained.hand_over_steps


def segments(
    batches: tuple[BatchFrom, ...], sequence_length: int, steps: int | None, tokens: int | None
) -> list[tuple[int, int]]:
    """Return ``(sequences, steps)`` of each batch: a batch lasts until the next one's tokens are reached.

    The last lasts until ``steps`` or ``tokens`` of the stage are reached; a step is never cut, so tokens may be
    exceeded by less than a batch. A batch that the stage never reaches does not appear.
    """
    found: list[tuple[int, int]] = []
    done_tokens = done_steps = 0
    for index, batch in enumerate(batches):
        step_tokens = batch.sequences * sequence_length
        until = batches[index + 1].from_tokens if index + 1 < len(batches) else math.inf
        count = math.inf if math.isinf(until) else math.ceil(max(0, until - done_tokens) / step_tokens)
        if steps is not None:
            count = min(count, steps - done_steps)
        if tokens is not None:
            count = min(count, math.ceil(max(0, tokens - done_tokens) / step_tokens))
        if count > 0:
            found.append((batch.sequences, int(count)))
        done_steps += int(count)
        done_tokens += int(count) * step_tokens
    return found
