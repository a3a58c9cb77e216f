"""What a person is asked where gates could not decide: Markdown for Airflow's form, to be understood at 3 a.m."""

from __future__ import annotations

from collections.abc import Sequence

from tasks import natures
from tasks.evaluate import Verdict
from tasks.gates import Check, Outcome
from tasks.plan import StagePlan
from tasks.report import words
from tasks.report.check_card import check_row
from tasks.report.todo import price_of
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import StageDir, read_json


def question(stage: StageDir) -> str:
    """Return what is open, by how much and how surely; what a wrong yes costs; and what each answer does."""
    verdict, plan = Verdict.from_json(read_json(stage.verdict) or {}), plan_of(stage)
    asked = [check for check in verdict.checks if check.outcome is Outcome.NEED_MORE_DATA and not check.shadow]
    others = [check for check in verdict.checks if check not in asked]
    head = (
        f"**{plan.name} has trained to its last step. {_listed([check.gate for check in asked])} could not be decided; "
        f"nothing speaks against it.** {_spent(stage, plan)}"
    )
    parts = [head, *(_open(check, plan, verdict.emulated) for check in asked), _answers(stage, plan)]
    if others:
        parts.append("#### All other gates\n\n" + _table(others))
    where = f"Pictures of every check: `{stage.report_html}`"
    return "\n\n".join([*parts, where + (". Speeds are modelled: a rehearsal." if verdict.emulated else "")])


def _spent(stage: StageDir, plan: StagePlan) -> str:
    """Say what was measured already, so that nobody asks for it again."""
    bought = [order for probe in stage.probes if not (order := read_json(probe.order) or {}).get("inside")]
    allowed = plan.trained.stage.probes
    if not allowed:
        return "No further measurement was allowed (`probes: 0`)."
    cost = sum(float(order.get("gpu_hours") or 0.0) for order in bought)
    said = f"{len(bought)} of {allowed} probes that it may buy were run"
    return f"{said}, for {words.gpu_hours(cost, plan.cluster.price_per_gpu_hour)}." if bought else f"{said}."


def _open(check: Check, plan: StagePlan, emulated: bool) -> str:
    """Return an undecided check: its finding, distance and sureness, what would decide it, the price of being wrong."""
    row = check_row(check, emulated=emulated, price=plan.cluster.price_per_gpu_hour)
    lines = [
        ("Found", f"{row['reason']}{natures.mark(check.to_json(), emulated)}"),
        ("How far", words.sentence(row["distance"])),
        ("How sure", row["sureness"]),
        ("Goes by", words.sentence(row["inputs"])),
        ("Would decide", row["measurement"]),
    ]
    return "\n".join([f"#### ? {check.gate}", "", *(f"- **{name}:** {said}" for name, said in lines if said)])


def _answers(stage: StageDir, plan: StagePlan) -> str:
    """Return what each answer does, and what it costs."""
    name = f"{stage.run.experiment}/{stage.run.run_id}"
    if plan.next is None:
        yes = f"promotes the checkpoint of {plan.name}, under your name. It is the last stage: nothing more is spent."
    else:
        after = ladder_of(stage.run).stage(plan.next)
        canary = "its canary" if after.steps_in("canary") else "nothing"
        yes = (
            f"promotes {plan.name} under your name and starts **{price_of(after)}**. Should it be slow, {canary} stops "
            "it before the rest is spent."
        )
    later = f'`scaleup promote {name} {plan.name} --because "..."`'
    return "\n".join(
        [
            "#### Your answer",
            "",
            f"- **Approve** {yes}",
            f"- **Reject** ends this run, red. No checkpoint is lost; you can still say yes later: {later}",
            f"- **No answer** within {plan.decision_hours:g} h is a Reject.",
            "",
            "Write why under *Because*: the report quotes it.",
        ]
    )


def _table(checks: Sequence[Check]) -> str:
    rows = []
    for check in checks:
        says = f"{words.SIGNS[check.outcome]} {words.SAYS[check.outcome]}{' (shadow)' if check.shadow else ''}"
        rows.append(f"| {check.gate} | {says} | {words.sentence(check.reason).replace('|', '/')} |")
    return "\n".join(["| gate | | why |", "|---|---|---|", *rows])


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
