"""What must hold for learning rates, their schedule and the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.config.as_trained import as_trained, chain_steps
from tasks.config.errors import Problem, unknown
from tasks.config.experiment import Experiment, LearningRateRule, Stage
from tasks.config.recipe import Recipe
from training import config as contract


def learning_rate(where: str, experiment: Experiment, index: int, stage: Stage) -> Iterator[Problem]:
    """A rule scales from an earlier stage, or from a rate of its own."""
    rule = stage.learning_rate
    if not isinstance(rule, LearningRateRule):
        return
    earlier = [before.name for before in experiment.stages[:index]]
    if (rule.from_ is None) == (rule.rate is None):
        said = "says neither" if rule.rate is None else "not both"
        yield Problem(where, f"must say from (an earlier stage) or rate (that of the first batch), and {said}")
        return
    if rule.from_ is None or rule.from_ in earlier:
        return
    if rule.from_ in [other.name for other in experiment.stages]:
        before = ", ".join(earlier) if earlier else "none"
        text = f"{rule.from_!r} does not come before {stage.name}; the stages before it are {before}"
        yield Problem(f"{where}.from", text)
    else:
        yield Problem(f"{where}.from", unknown("stage", rule.from_, [s.name for s in experiment.stages]))


def loss_scale(where: str, recipe: Recipe) -> Iterator[Problem]:
    """A loss scale does not begin below its floor."""
    for text in contract.LossScale(**recipe.loss_scale.model_dump()).problems():
        yield Problem(where, text)


def schedule(where: str, experiment: Experiment, index: int, emulated: bool) -> Iterator[Problem]:
    """A decay is said once, by wsd alone, and lies with the warm-up inside the steps of the ladder."""
    said = as_trained(experiment, index, emulated).recipe.schedule
    if said.kind != "wsd":
        if said.decay_steps or said.decay_part:
            key = "decay_steps" if said.decay_steps else "decay_part"
            yield Problem(f"{where}.{key}", f"only wsd decays in its last steps, not {said.kind}; remove it")
        return
    if (said.decay_steps is None) == (said.decay_part is None):
        both = "says neither" if said.decay_steps is None else "not both"
        yield Problem(where, f"wsd must say decay_steps or decay_part, and {both}")
        return
    total = chain_steps(experiment, index, emulated)
    decay = said.decay_steps or round((said.decay_part or 0.0) * total)
    if said.warmup_steps + decay > total:
        words = f"warm-up {said.warmup_steps} + decay {decay} = {said.warmup_steps + decay}"
        yield Problem(where, f"{words} steps are more than the {total} of all stages that continue one another")
