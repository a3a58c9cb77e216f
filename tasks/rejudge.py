"""Runs that are over, judged anew under another policy: what would have changed. Writes nothing.

Each gate sees what it could see at its moment: before the stage none of its records, at the canary none after it. The
live rules take the records one by one, as the looks did.
The run's own policy is judged anew beside it, so that what another baseline, noise file or version of a gate changes
is not laid at the policy's door.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tasks.config.live import Live
from tasks.errors import ScaleupError
from tasks.evidence import evidence, noise
from tasks.gates import REGISTRY, Check, Evidence, Outcome, When, enforced, judge_all, worst
from tasks.ladder_state import ENDED, stages_now
from tasks.live.replay import NOTHING, REPLAYED, LiveAnew, Replayed, in_words, judge_live
from tasks.plan import StagePlan
from tasks.run import ladder_of
from tasks.stage_dir import RunDir, StageDir, read_json

MOMENTS: tuple[When, ...] = ("entry", "early", "end")
NOT_ASKED = "not asked"
_WINDOW = re.compile(r"steps \d+\.\.(\d+)")
_DECIDED = ENDED | {"undecided"}  # an undecided stage waits for a person; nothing more will be measured


@dataclass(frozen=True)
class GateAnew:
    """One gate at one moment: what was recorded, what its own policy says today, and what the other policy says.

    At the moment ``live`` it is a live rule, and what it says are its alarms.
    """

    gate: str
    moment: When | Literal["live"]
    recorded: str
    today: str
    anew: str
    reason: str

    @property
    def changed(self) -> bool:
        """Whether the other policy answers otherwise than was recorded."""
        return self.recorded != self.anew

    @property
    def by_policy(self) -> bool:
        """Whether the policy alone makes the difference: the run's own, judged today, still says what was recorded."""
        return self.today == self.recorded or self.today == NOT_ASKED


@dataclass(frozen=True)
class StageAnew:
    """One stage: how it ended, how it would today by its own policy, and how by the other one.

    ``UNKNOWN``: it would have gone on, and never did. ``NOT REACHED``: the stage before it would not have passed.
    """

    name: str
    recorded: str
    today: str
    anew: str
    gates: tuple[GateAnew, ...]
    notes: tuple[str, ...] = ()  # what could not be judged anew, and why

    @property
    def promotion_changed(self) -> bool | None:
        """Whether the policy would have decided otherwise on its promotion; None where nobody knows."""
        return None if "UNKNOWN" in (self.today, self.anew) else (self.today == "PASS") != (self.anew == "PASS")

    @property
    def drifted(self) -> bool:
        """Whether its own policy decides otherwise today, by another baseline, noise file or version of a gate."""
        return self.today != "UNKNOWN" and (self.recorded == "PASS") != (self.today == "PASS")


def refuse_unfinished(run: RunDir) -> None:
    """Raise ScaleupError naming the stage that is still under way."""
    for stage in stages_now(run):
        if stage.state == "promoted":
            continue
        if stage.state not in _DECIDED:
            name = f"{run.experiment}/{run.run_id}"
            raise ScaleupError(f"{name} is not over: {stage.name} is {stage.state}; only runs that are over are judged")
        return


def rejudge(
    run: RunDir, gates: Mapping[str, Mapping[str, Mapping[str, Any]]], rules: Mapping[str, Live] | None = None
) -> list[StageAnew]:
    """Judge every stage of a run that had begun, under ``gates`` and live ``rules`` by stage; in ladder order.

    Without ``rules`` each stage keeps its own.
    """
    found: list[StageAnew] = []
    today = anew = True  # whether the stage is reached, by either policy
    for plan in ladder_of(run).stages:
        stage = run.stage(plan.name)
        if not stage.forecast.exists():
            break
        judged = _stage(stage, plan, gates[plan.name], rules[plan.name] if rules else plan.live)
        ends = (judged.today if today else "NOT REACHED", judged.anew if anew else "NOT REACHED")
        found.append(replace(judged, today=ends[0], anew=ends[1]))
        by_person = (read_json(stage.promotion) or {}).get("by") == "person" and judged.recorded != "PASS"
        today, anew = (by_person or end in ("PASS", "UNKNOWN") for end in ends)
    return found


def _stage(stage: StageDir, plan: StagePlan, gates: Mapping[str, Mapping[str, Any]], rules: Live) -> StageAnew:
    recorded = {moment: _recorded(stage, moment) for moment in MOMENTS}
    today: dict[When, list[Check]] = {}
    anew: dict[When, list[Check]] = {}
    rows: list[GateAnew] = []
    for moment in MOMENTS:
        if not _reached(stage, plan, moment):
            continue
        seen = as_it_was(stage, plan, moment)
        kept = [check for check in recorded[moment] if check.gate.partition(".")[0] not in REGISTRY]  # the budget
        for policy, checks in ((plan.gates, today), (gates, anew)):
            checks[moment] = [*kept, *judge_all(seen, _asked(stage, moment, policy))]
        rows += _rows(moment, recorded[moment], today[moment], anew[moment])
    live = judge_live(stage, plan, rules)
    before: dict[When, list[Check]] = {moment: recorded[moment] for moment in anew}
    policies = ((before, live.then), (today, live.today), (anew, live.anew))
    recorded_end, today_end, anew_end = (_ended(stage, checks, went) for checks, went in policies)
    return StageAnew(plan.name, recorded_end, today_end, anew_end, (*rows, *_live_rows(live)), live.notes)


def _live_rows(live: LiveAnew) -> list[GateAnew]:
    """Return what each live rule said, where any of the three said something."""
    rows = []
    for rule in REPLAYED:
        then, today, anew = (in_words(of, rule) for of in (live.then, live.today, live.anew))
        if {then, today, anew} != {NOTHING}:
            alarms = live.anew.of(rule) or live.then.of(rule)
            why = alarms[-1].says if alarms else "its own policy alone speaks today"
            rows.append(GateAnew(rule, "live", then, today, anew, why if live.anew.of(rule) else f"then: {why}"))
    return rows


def _asked(stage: StageDir, moment: When, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gates asked at a moment; where nobody looked at the canary, the verdict asked only the early ones."""
    if moment == "early" and not stage.early.exists():
        return {key: chosen for key, chosen in policy.items() if _moments(key)[:1] == ("early",)}
    return dict(policy)


def _ended(stage: StageDir, checks: Mapping[When, Sequence[Check]], live: Replayed) -> str:
    """Say how the stage ends with these answers; a person's leave sets entry, early and live answers aside."""
    leave, cause = stage.leave.exists(), (read_json(stage.cause) or {}).get("cause")
    if not leave and _worst(checks.get("entry", ())) is not Outcome.PASS:
        return "REFUSED"
    if not stage.config.exists():
        return "UNKNOWN"
    early = enforced(checks.get("early", ()))
    if not leave and (live.stops or any(c.outcome in (Outcome.FAIL, Outcome.INVALID) for c in early)):
        return "STOPPED"
    if live.parts_at is not None and not live.stops:
        return "UNKNOWN"
    if "end" not in checks:  # by its hours, a person, a live rule: no gate's doing
        return "STOPPED" if cause not in (None, "gate") else "UNKNOWN"
    started = [*checks.get("entry", ()), *checks.get("early", ())]
    end = {check.gate for check in checks["end"]}
    counted = [c for c in started if c.gate not in end and not (leave and c.outcome is not Outcome.PASS)]
    return str(worst([check.outcome for check in enforced([*counted, *checks["end"]])]))


def _worst(checks: Sequence[Check]) -> Outcome:
    """Return the worst outcome that counts; where nothing was asked, nothing stands against it."""
    counted = enforced(checks)
    return worst([check.outcome for check in counted]) if counted else Outcome.PASS


def _reached(stage: StageDir, plan: StagePlan, moment: When) -> bool:
    """Whether the stage came to this moment, so that there is something to judge."""
    if moment == "entry":
        return True
    if moment == "early":
        return any(span.phase == "canary" for span in plan.spans) and (stage.early.exists() or stage.verdict.exists())
    return stage.verdict.exists()


def _recorded(stage: StageDir, moment: When) -> list[Check]:
    """Return the answers that decided at a moment; a verdict holds the last word on early gates that were open."""
    said = [Check.from_json(check) for check in (read_json(_file(stage, moment)) or {}).get("checks", [])]
    if moment == "entry":
        return said
    verdict = [Check.from_json(check) for check in (read_json(stage.verdict) or {}).get("checks", [])]
    entry = {check.gate for check in _recorded(stage, "entry")}
    if moment == "end":
        return [check for check in verdict if check.gate not in entry and "end" in _moments(check.gate)]
    last = {check.gate: check for check in verdict if "end" not in _moments(check.gate) and check.gate not in entry}
    return [last.pop(check.gate, check) for check in said] + list(last.values())


def _file(stage: StageDir, moment: When) -> Any:
    return {"entry": stage.forecast, "early": stage.early, "end": stage.verdict}[moment]


def _moments(key: str) -> tuple[When, ...]:
    gate = REGISTRY.get(key.partition(".")[0])
    return gate.moments if gate else ()


def as_it_was(stage: StageDir, plan: StagePlan, moment: When) -> Evidence:
    """Return what gates could see at a moment of a stage that is over."""
    seen = evidence(stage, moment)
    if moment == "end":
        return seen
    probes = tuple(probe for probe in seen.probes if probe.facts.name in _probes_before(stage, moment))
    if moment == "entry":
        return replace(
            _until(seen, -1),
            stage=replace(seen.stage, fingerprint=""),
            forecast=None,
            baseline=None,
            probes=probes,
            noise=noise(stage.run.experiment, plan.cluster.name, plan.gpus, ""),
        )
    kept = [Check.from_json(check) for check in (read_json(stage.early) or {}).get("checks", [])]
    reopened = not kept or any(check.outcome is Outcome.NEED_MORE_DATA for check in kept)
    if reopened and stage.verdict.exists():
        return seen  # open at the canary, so asked again with all that there was in the end
    ends = [int(end) for check in kept for end in _WINDOW.findall(check.window)]
    canary = [span.last_step for span in plan.spans if span.phase == "canary"]
    return replace(_until(seen, max([*ends, *canary])), probes=probes)


def _until(seen: Evidence, step: int) -> Evidence:
    """Return the evidence without what was recorded after ``step``."""
    return replace(
        seen,
        steps=seen.steps[seen.steps["step"] <= step],
        held_out=seen.held_out[seen.held_out["step"] <= step],
        checkpoints=None if seen.checkpoints is None else seen.checkpoints[seen.checkpoints["step"] <= step],
    )


def _probes_before(stage: StageDir, moment: When) -> set[str]:
    """Return the probes that were there: bought before the stage; at the canary also those inside its allocation."""
    orders = {f"{stage.name}/{probe.name}": read_json(probe.order) or {} for probe in stage.probes}
    return {
        name
        for name, order in orders.items()
        if order.get("moment") == "entry" or (moment == "early" and order.get("inside"))
    }


def _rows(moment: When, recorded: Sequence[Check], today: Sequence[Check], anew: Sequence[Check]) -> list[GateAnew]:
    old, now, new = ({check.gate: check for check in checks} for checks in (recorded, today, anew))
    rows = []
    for gate in dict.fromkeys([*old, *new]):
        reason = new[gate].reason if gate in new else "the policy does not ask it"
        rows.append(GateAnew(gate, moment, _answer(old, gate), _answer(now, gate), _answer(new, gate), reason))
    return rows


def _answer(checks: Mapping[str, Check], gate: str) -> str:
    """Return a gate's answer in a word; a shadow's says so, since it counts for nothing."""
    if gate not in checks:
        return NOT_ASKED
    return str(checks[gate].outcome) + (" (shadow)" if checks[gate].shadow else "")
