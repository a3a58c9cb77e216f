"""The gates of a stage while it runs and at its end, and the verdict that only PASS promotes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks import measure, natures
from tasks.errors import DecisionNeeded, GateFailed
from tasks.evidence import evidence
from tasks.gates import Check, Outcome, enforced, judge_all, worst
from tasks.gates.core import gate_of
from tasks.records import read_metrics
from tasks.run import plan_of
from tasks.score import score
from tasks.stage_dir import StageDir, read_json, write_json


@dataclass(frozen=True)
class Verdict:
    """All checks of a stage and the worst of them; what a person's leave set aside is listed and does not count."""

    stage: str
    outcome: Outcome
    checks: tuple[Check, ...]
    time: float
    policy: Mapping[str, Any]
    emulated: bool
    set_aside: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return what ``verdict.json`` holds."""
        return {
            "stage": self.stage,
            "outcome": str(self.outcome),
            "checks": [check.to_json() for check in self.checks],
            "time": self.time,
            "policy": dict(self.policy),
            "emulated": self.emulated,
            "set_aside": list(self.set_aside),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verdict:
        """Read what :meth:`to_json` wrote."""
        plain = dict(value)
        plain["outcome"] = Outcome(plain["outcome"])
        plain["checks"] = tuple(Check.from_json(check) for check in plain["checks"])
        plain["set_aside"] = tuple(plain.get("set_aside", ()))
        return cls(**plain)


def early(stage: StageDir) -> list[Check]:
    """Return the early gates' checks, once every canary step is recorded; before that, none."""
    decided = plan_of(stage)
    canary = [span for span in decided.spans if span.phase == "canary"]
    if not canary:
        return []
    recorded = set(read_metrics(stage.metrics).steps["step"].tolist())
    if any(not recorded.issuperset(range(span.first_step, span.last_step + 1)) for span in canary):
        return []
    checks = judge_all(evidence(stage, "early"), decided.gates)
    write_json(stage.early, {"checks": [check.to_json() for check in checks], "time": time.time()})
    return checks


def evaluate(stage: StageDir) -> Verdict:
    """Ask all gates, write the verdict and return it; raise GateFailed where it is anything but PASS.

    DecisionNeeded, a kind of it, where nothing speaks against the stage and the gates could not decide.
    """
    decided = plan_of(stage)
    end = judge_all(evidence(stage, "end"), decided.gates)
    started = _kept(stage.forecast) + [c for c in _early(stage) if c.gate not in {e.gate for e in end}]
    leave = read_json(stage.leave)
    aside = {check.gate for check in started if check.outcome is not Outcome.PASS} if leave else set()
    verdict = Verdict(
        stage=stage.name,
        outcome=worst([c.outcome for c in enforced((*started, *end)) if c.gate not in aside]),
        checks=(*started, *end),
        time=time.time(),
        policy=decided.gates,
        emulated=decided.emulated,
        set_aside=tuple(sorted(aside)),
    )
    score(stage)  # before the verdict: with that, MLflow's summary of the stage is made
    write_json(stage.verdict, verdict.to_json())
    if verdict.outcome is not Outcome.PASS and not stage.promotion.exists():  # a person may have promoted it by now
        undecided = verdict.outcome is Outcome.NEED_MORE_DATA
        raise (DecisionNeeded if undecided else GateFailed)(failure(stage, verdict))
    return verdict


def still_measuring(stage: StageDir) -> str | None:
    """Return what is being measured before the verdict, buying it where a gate is undecided; None when nothing is."""
    measuring = measure.pending(stage)
    if measuring is not None:
        return measuring
    return measure.buy(stage, judge_all(evidence(stage, "end"), plan_of(stage).gates), "end")


def failure(stage: StageDir, verdict: Verdict) -> str:
    """Say which gates were against a stage, by how much, and what to do."""
    silent = {Outcome.PASS, Outcome.NOT_COMPARABLE} - {verdict.outcome}
    against = [c for c in enforced(verdict.checks) if c.outcome not in silent and c.gate not in verdict.set_aside]
    lines = "".join(
        f"\n  {c.gate} says {c.outcome}: {c.reason}{natures.mark(c.to_json(), verdict.emulated)}\n    {c.next_step}"
        for c in against
    )
    said = lines or "\n  no gate was asked, so nothing has been shown; name gates in the experiment's YAML"
    name = f"{stage.run.experiment}/{stage.run.run_id}"
    return (
        f"{stage.name} is not promoted: {verdict.outcome}{said}\n"
        f'A person may decide otherwise: scaleup promote {name} {stage.name} --because "..."'
    )


def _kept(path: Any) -> list[Check]:
    return [Check.from_json(check) for check in (read_json(path) or {}).get("checks", [])]


def _early(stage: StageDir) -> list[Check]:
    """Return the early gates' answers as kept while the stage ran; ask now what was never asked, or undecided."""
    kept = _kept(stage.early)
    if kept and all(check.outcome is not Outcome.NEED_MORE_DATA for check in kept):
        return kept
    asked = {name: chosen for name, chosen in plan_of(stage).gates.items() if gate_of(name).when == "early"}
    return judge_all(evidence(stage, "early"), asked) if asked else []
