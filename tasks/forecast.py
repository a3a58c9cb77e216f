"""The first step of a stage: write down what it should show before it starts, and ask the gates that may refuse it."""

from __future__ import annotations

import time
from typing import Any

from tasks import expectation, measure, natures
from tasks.errors import StageRefused
from tasks.evidence import before, evidence
from tasks.gates import Check, Evidence, Outcome, enforced, judge_all, worst
from tasks.plan import Ladder, StagePlan
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import StageDir, read_json, write_json


def forecast(stage: StageDir) -> dict[str, Any]:
    """Register the stage's forecast and return it; raise StageRefused where an entry gate or the budget is against it.

    Where a gate is undecided and a probe would decide it, ``waiting_for`` says what is being measured: ask again until
    it is None. What was registered and passed is never made anew. Where a person gave leave to a refused stage, the
    refusal stays written and is not raised.
    """
    known = read_json(stage.forecast)
    if known is not None and known["outcome"] == Outcome.PASS:
        return known
    if known is None or not stage.leave.exists():
        measuring = measure.pending(stage)
        if known is not None and measuring is not None:
            return {**known, "waiting_for": measuring}
        known = _made(stage)
        known["waiting_for"] = measure.buy(stage, [Check.from_json(check) for check in known["checks"]], "entry")
        write_json(stage.forecast, known)
    if known.get("waiting_for") is not None:
        return known
    if known["outcome"] != Outcome.PASS and not stage.leave.exists():
        raise StageRefused(refusal(stage, [Check.from_json(check) for check in known["checks"]]))
    return known


def refusal(stage: StageDir, checks: list[Check]) -> str:
    """Say what refused a stage, by how much, and what to do."""
    against = [check for check in enforced(checks) if check.outcome is not Outcome.PASS]
    emulated = plan_of(stage).emulated
    lines = "".join(
        f"\n  {c.gate} says {c.outcome}: {c.reason}{natures.mark(c.to_json(), emulated)}\n    {c.next_step}"
        for c in against
    )
    name = f"{stage.run.experiment}/{stage.run.run_id}"
    return (
        f"{stage.name} is refused before it starts:{lines}\n"
        f"Change configs/experiments/{stage.run.experiment}.yaml or the cluster and start a new run, or let a person "
        f'grant it: scaleup promote {name} {stage.name} --because "..."'
    )


def _made(stage: StageDir) -> dict[str, Any]:
    """Return the forecast and the answers of the entry gates."""
    ladder = ladder_of(stage.run)
    decided = ladder.stage(stage.name)
    seen = evidence(stage, "entry")
    speed, outlook = expectation.throughput(seen)
    spent = expectation.spending(decided, ladder, speed)
    checks = judge_all(seen, decided.gates) + _budget(stage, decided, ladder, seen, spent)
    return {
        "stage": stage.name,
        "time": time.time(),
        "emulated": decided.emulated,
        "throughput": speed,
        "held_out_loss": expectation.held_out_loss(seen, decided, ladder),
        **{key: spent[key] for key in ("wall_seconds", "gpu_hours", "cost")},
        "spending": {key: spent[key] for key in ("tokens", "nature", "says")},
        "uninterrupted": expectation.uninterrupted(decided, spent["wall_seconds"]),
        "wrong": expectation.price_of_error(seen, decided, outlook, spent),
        "checks": [check.to_json() for check in checks],
        "outcome": str(worst([c.outcome for c in enforced(checks)]) if enforced(checks) else Outcome.PASS),
    }


def _budget(stage: StageDir, decided: StagePlan, ladder: Ladder, seen: Evidence, spent: dict[str, Any]) -> list[Check]:
    """Refuse a stage whose GPU-hours, with those of the stages before, exceed the budget, if there is one."""
    recipe = read_json(stage.run.recipe) or {}
    allowed = recipe.get("experiment", {}).get("budget_gpu_hours")
    if allowed is None:
        return []
    used = 0.0
    for plan in before(ladder, decided):
        known = (read_json(stage.run.stage(plan.name).forecast) or {}).get("gpu_hours") or {}
        used += _hours(known)
    probed = sum(measure.gpu_hours(stage.run.stage(plan.name)) for plan in (*before(ladder, decided), decided))
    wanted = used + probed + _hours(spent["gpu_hours"])
    good = wanted <= float(allowed)
    names = ", ".join([*seen.earlier, stage.name])
    return [
        Check(
            "budget",
            Outcome.PASS if good else Outcome.FAIL,
            f"{names} need {wanted:,.0f} GPU-hours{f', {probed:,.1f} of them for probes' if probed else ''}; "
            f"the budget is {float(allowed):,.0f}",
            estimate=wanted,
            limit=float(allowed),
            unit="GPU-hours",
            n=len(seen.earlier) + 1,
            window=names,
            against="budget_gpu_hours",
            method="forecast medians; where there is none, the most that the job's hours allow",
            next_step="" if good else "raise budget_gpu_hours, or train fewer tokens at this size",
        )
    ]


def _hours(known: dict[str, Any]) -> float:
    """Return forecast GPU-hours, or the most there can be."""
    median = known.get("median")
    return float(known.get("at_most", 0.0) if median is None else median)
