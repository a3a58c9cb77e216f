"""From folders to what gates see: frames, facts, what was registered, and the stored reference curve, if any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config import files
from tasks.gates.core import EarlierStage, Evidence, Noise, When
from tasks.plan import Ladder, StagePlan
from tasks.probe import taken
from tasks.records import Metrics, read_metrics
from tasks.run import ladder_of
from tasks.stage_dir import StageDir, read_json

if TYPE_CHECKING:
    import pandas as pd


def evidence(stage: StageDir, moment: When = "end") -> Evidence:
    """Return all that gates may look at for ``stage``, as its folder and those before it stand now."""
    ladder = ladder_of(stage.run)
    decided = ladder.stage(stage.name)
    metrics = _read(stage, decided)
    earlier = {plan.name: _earlier(stage.run.stage(plan.name), plan) for plan in before(ladder, decided)}
    fingerprint = fingerprint_of(metrics)
    return Evidence(
        stage=decided.facts(fingerprint),
        steps=metrics.steps,
        held_out=metrics.held_out,
        earlier=earlier,
        forecast=read_json(stage.forecast),
        baseline=baseline(stage.run.experiment, fingerprint),
        previous=decided.previous,
        moment=moment,
        probes=taken(stage, decided, fingerprint),
        noise=noise(stage.run.experiment, decided.cluster.name, decided.gpus, fingerprint),
        declared=declared(stage),
        following=ladder.stage(decided.next).facts() if decided.next else None,
        checkpoints=metrics.checkpoints,
    )


def before(ladder: Ladder, decided: StagePlan) -> list[StagePlan]:
    """Return the stages before one, in ladder order."""
    names = [plan.name for plan in ladder.stages]
    return list(ladder.stages[: names.index(decided.name)])


def fingerprint_of(metrics: Metrics) -> str:
    """Return the fingerprint of the data, as the trainer's header says it; empty where it does not."""
    return str(metrics.header.get("fingerprint") or "")


def baseline(experiment: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the stored reference runs on data of this fingerprint, or None.

    ``configs/baselines/<experiment>_<first 12 of the fingerprint>.json``: ``fingerprint``, ``batch_tokens`` and
    ``runs``, each with rising ``tokens`` and the ``held_out_loss`` there.
    """
    if not fingerprint:
        return None
    return read_json(files.config_root() / "baselines" / f"{experiment}_{fingerprint[:12]}.json")


def noise(experiment: str, cluster: str, gpus: int, fingerprint: str) -> Noise:
    """Return what repeats on this cluster have shown, of this size or else of the nearest; nothing where none ran.

    ``configs/baselines/noise_<experiment>_<cluster>_<gpus>gpus.json`` as ``scaleup calibrate`` writes it. A spread of
    losses is of the data it was measured on, so it counts for that fingerprint alone.
    """
    found = dict(_calibrated(experiment, cluster))
    if not found:
        return Noise()
    nearest = min(found, key=lambda size: (abs(math.log(size / gpus)), size))
    said = read_json(found[nearest]) or {}
    of_data = not said.get("fingerprint") or said["fingerprint"] == fingerprint
    return Noise(
        launch_sd=_spread(said, "launch_sd"),
        step_sd=_spread(said, "step_sd"),
        loss_sd=_spread(said, "loss_sd") if of_data else None,
        repeats=int(said.get("repeats", 0)),
        source=found[nearest].name + ("" if nearest == gpus else f", the nearest to {gpus} GPUs"),
    )


def _calibrated(experiment: str, cluster: str) -> Iterator[tuple[int, Path]]:
    """Yield GPUs and file of each size at which repeats were run."""
    head = f"noise_{experiment}_{cluster}_"
    for path in sorted((files.config_root() / "baselines").glob(f"{head}*gpus.json")):
        size = path.name.removeprefix(head).removesuffix("gpus.json")
        if size.isdigit() and int(size) > 0:
            yield int(size), path


def _spread(said: Mapping[str, Any], key: str) -> float | None:
    """Return a standard deviation, or None where none was measured: 0 is no measurement of noise."""
    value = said.get(key)
    usable = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if usable and value is not None else None


def declared(stage: StageDir) -> dict[str, str]:
    """Return the changes that the run's recipe declares against the baseline, each with its reason."""
    recipe = read_json(stage.run.recipe) or {}
    said = recipe.get("experiment", {}).get("declares") or {}
    return {what: why for what, why in said.items() if why}


def _earlier(stage: StageDir, plan: StagePlan) -> EarlierStage:
    metrics = _read(stage, plan)
    facts = plan.facts(fingerprint_of(metrics))
    return EarlierStage(
        facts, metrics.steps, _with_evaluated(stage, metrics.held_out), read_json(stage.forecast), taken(stage, plan)
    )


def _with_evaluated(stage: StageDir, held_out: pd.DataFrame) -> pd.DataFrame:
    """Return the held-out rows, with the loss at which the promoted checkpoint was evaluated if it has no row."""
    promoted = (read_json(stage.promotion) or {}).get("checkpoint", {})
    if not promoted.get("evaluated") or (held_out["step"] == promoted["step"]).any():
        return held_out
    row = {"step": promoted["step"], "tokens": promoted["tokens"], "at": "evaluated", **promoted["evaluated"]}
    import pandas as pd

    return pd.DataFrame([*held_out.to_dict("records"), row])


def _read(stage: StageDir, plan: StagePlan) -> Metrics:
    """Read the records; their phase is what the plan says of that step, so that a trainer need not repeat it."""
    metrics = read_metrics(stage.metrics)
    step = metrics.steps["step"]
    for span in plan.spans:
        metrics.steps.loc[step.between(span.first_step, span.last_step), "phase"] = span.phase
    return metrics
