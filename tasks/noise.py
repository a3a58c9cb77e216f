"""What repeats of one stage show: how far launches, steps and losses lie apart, and the losses as a reference.

Written into ``configs/baselines``, where :mod:`tasks.evidence` finds them for the gates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks import statistics
from tasks.config import files
from tasks.errors import ScaleupError
from tasks.evidence import evidence
from tasks.gates import Evidence, Unusable, frames
from tasks.records import read_metrics
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import StageDir, write_json
from training.config import Nature

KEPT_STEPS = 10_000  # of a reference run: more than a gate pairs, few enough to read in a moment


@dataclass(frozen=True)
class Repeat:
    """One run of the stage: its mean speed and the noise within it, and its loss at the end, where it has one."""

    stage: StageDir
    seen: Evidence
    speed: statistics.Mean
    step_sd: float
    loss: float | None


def repeat_of(stage: StageDir) -> Repeat:
    """Read a repeat; raise ScaleupError where its records show no speed."""
    seen = evidence(stage, "end")
    try:
        speed, seconds, _ = frames.measured(seen, seen.stage)
    except Unusable as reason:
        raise ScaleupError(f"{stage.path} shows no speed: {reason}") from reason
    try:
        loss, step, _ = frames.held_out_loss(seen, stage.name, at="end")
    except Unusable:
        loss, step = math.nan, 0
    known = math.isfinite(loss) and step == seen.stage.last_step
    return Repeat(stage, seen, speed, float(seconds.std(ddof=1) / seconds.mean()), loss if known else None)


def measured(repeats: Sequence[Repeat], varied: str) -> dict[str, Any]:
    """Return what the noise file holds; raise ScaleupError where the repeats are not of one kind.

    ``launch_sd`` as :func:`launch_spread` has it; ``step_sd`` root mean square over launches; ``loss_sd`` in nats, None
    without held-out losses. All with their 95% intervals.
    """
    first = repeats[0].seen.stage
    marks = {repeat.seen.stage.fingerprint for repeat in repeats}
    if len(marks) > 1:
        raise ScaleupError(f"the repeats trained on different data ({', '.join(sorted(m[:12] for m in marks))})")
    launch = launch_spread([repeat.speed for repeat in repeats])
    losses = [repeat.loss for repeat in repeats if repeat.loss is not None]
    loss = statistics.spread(losses) if len(losses) == len(repeats) else None
    decided = plan_of(repeats[0].stage)
    steps = _root_mean_square([repeat.step_sd for repeat in repeats])
    return {
        "experiment": decided.experiment,
        "cluster": decided.cluster.name,
        "gpus": first.gpus,
        "repeats": len(repeats),
        "launch_sd": launch.sd,
        "step_sd": steps[0],
        "loss_sd": None if loss is None else loss.sd,
        "intervals": {
            "launch_sd": [launch.low, launch.high],
            "step_sd": list(steps[1:]),
            "loss_sd": None if loss is None else [loss.low, loss.high],
        },
        "fingerprint": first.fingerprint,
        "natures": natures(repeats[0].stage),
        "varied": varied,
        "runs": [repeat.stage.run.run_id for repeat in repeats],
        "time": time.time(),
    }


def launch_spread(speeds: Sequence[statistics.Mean]) -> statistics.Spread:
    """Return the relative sd from launch to launch: of ln throughput, less what the steps' noise leaves in a mean.

    One-way random effects: launch^2 = s^2 - mean(within^2), the interval's ends likewise. Where that leaves nothing,
    the whole stands, which is the most it can be: launches are then no further apart than their steps explain.
    """
    whole = statistics.spread([math.log(speed.value) for speed in speeds])
    within = math.sqrt(float(np.mean([(speed.se / speed.value) ** 2 for speed in speeds])))
    if whole.sd <= within:
        return whole
    low, sd, high = (statistics.without(end, within) for end in (whole.low, whole.sd, whole.high))
    return statistics.Spread(sd, low, high, whole.n)


def _root_mean_square(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the root mean square of sds and the t interval of their mean: steps are no independent draws."""
    x = np.asarray(values, dtype=float)
    middle = float(np.sqrt((x**2).mean()))
    reach = statistics.t_quantile(0.975, x.size - 1) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return middle, max(0.0, middle - reach), middle + reach


def natures(stage: StageDir) -> dict[str, Nature | str]:
    """Return what kind of number each sd is, as the trainer's header says of the field that it comes from."""
    fields = read_metrics(stage.metrics).header.get("fields") or {}
    speed = fields.get("tokens_per_gpu_second", fields.get("step_seconds", "unknown"))
    steps = fields.get("step_seconds", speed)
    return {"launch_sd": speed, "step_sd": steps, "loss_sd": fields.get("loss", "unknown")}


def reference(repeats: Sequence[Repeat]) -> dict[str, Any]:
    """Return the repeats as reference runs for ``loss_near_baseline``: held-out curve, and steps to pair with.

    Raises ScaleupError where a repeat has fewer than 2 held-out losses or its data no fingerprint.
    """
    facts = repeats[0].seen.stage
    if not facts.fingerprint:
        raise ScaleupError("the trainer's header names no fingerprint of the data, and a reference is of one data set")
    if facts.synthetic:
        raise ScaleupError("the samples are synthetic: a loss on random tokens is no reference for any other")
    return {
        "experiment": plan_of(repeats[0].stage).experiment,
        "fingerprint": facts.fingerprint,
        "batch_tokens": facts.batch_tokens,
        "gpus": facts.gpus,
        "nature": natures(repeats[0].stage)["loss_sd"],
        "runs": [_reference_run(repeat) for repeat in repeats],
        "time": time.time(),
    }


def _reference_run(repeat: Repeat) -> dict[str, Any]:
    """Return one run with the stages that it goes on from, on one axis of tokens."""
    parts = [(repeat.seen.steps, repeat.seen.held_out)]
    plan = plan_of(repeat.stage)
    while plan.previous is not None:
        earlier = repeat.seen.earlier[plan.previous]
        parts.insert(0, (earlier.steps, earlier.held_out))
        plan = ladder_of(repeat.stage.run).stage(plan.previous)
    steps = _rising([part[part["phase"] != "replay"] for part, _ in parts])[-KEPT_STEPS:]
    held = _rising([part for _, part in parts])
    if len(held) < 2:
        raise ScaleupError(f"{repeat.stage.path} has {len(held)} held-out losses; a reference curve needs 2")
    return {
        "run": repeat.stage.run.run_id,
        "seed": repeat.seen.stage.seed,
        "tokens": [tokens for tokens, _ in held],
        "held_out_loss": [loss for _, loss in held],
        "step_tokens": [tokens for tokens, _ in steps],
        "step_loss": [loss for _, loss in steps],
    }


def _rising(parts: Sequence[Any]) -> list[tuple[float, float]]:
    """Return (tokens, loss) of rows in order of tokens, the last of equal ones; what is not finite is left out."""
    found: dict[float, float] = {}
    for part in parts:
        for tokens, loss in zip(part["tokens"].tolist(), part["loss"].tolist(), strict=True):
            if tokens is not None and loss is not None and tokens > 0 and math.isfinite(tokens) and math.isfinite(loss):
                found[float(tokens)] = float(loss)
    return sorted(found.items())


def write_noise(value: dict[str, Any]) -> Path:
    """Write the noise file whole and return where it lies."""
    path = _folder() / "noise_{experiment}_{cluster}_{gpus}gpus.json".format(**value)
    write_json(path, value)
    return path


def write_reference(value: dict[str, Any]) -> Path:
    """Write the reference runs whole and return where they lie."""
    path = _folder() / f"{value['experiment']}_{value['fingerprint'][:12]}.json"
    write_json(path, value)
    return path


def _folder() -> Path:
    return files.config_root() / "baselines"
