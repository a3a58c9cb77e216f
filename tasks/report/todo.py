"""What a person does now, with the command to type; and what it costs to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.report import words
from tasks.report.story import Story, log_of

if TYPE_CHECKING:
    from tasks.plan import StagePlan


def next_steps(story: Story) -> list[str]:
    """Return what a person does now, the most useful first."""
    if story.outcome == "PASS":
        if not story.promotion:
            return ["The gates passed, but the checkpoint is not promoted: see what the promotion said."]
        after = story.next_plan.name if story.next_plan else None
        return [f"Nothing: {after} may start." if after else "Nothing: this run has no stage after this one."]
    found = list(dict.fromkeys(words.sentence(check.next_step) for check in story.bad if check.next_step))
    if story.outcome == "STOPPED":
        found.insert(0, f"Read the end of {log_of(story)}.")
    if story.outcome == "NEED_MORE_DATA" and not story.promotion:
        found.insert(0, "Decide: Airflow asks on its page Required Actions (task ask), or use the command below.")
    return found or ["Wait: nothing is decided yet."]


def commands(story: Story) -> list[tuple[str, str]]:
    """Return (what for, the exact command); empty where nothing stands against the stage."""
    if story.promotion or story.outcome in ("PASS", "RUNNING", "WAITING"):
        return []
    run, stage = story.stage.run, story.stage.name
    found = [("Once it is mended, start a new run:", f"scaleup run {run.experiment}")]
    if story.outcome == "STOPPED" and story.cause.get("cause") != "gate":
        found = [("Go on from its newest checkpoint:", f"scaleup run {run.experiment} --run-id {run.run_id}")]
    if story.outcome == "NEED_MORE_DATA":
        found = []
    if any(check.outcome == "NEED_MORE_DATA" and _by_prior(check.inputs) for check in story.bad):
        known = f"scaleup calibrate {run.experiment} --repeats 5 --stage {stage}"
        found.append(("Gates went by priors. Measure the noise in their place (5 runs of this stage):", known))
    said = f'scaleup promote {story.name} {stage} --because "..."'
    found.append(("Go on in spite of it, by your name and with a reason, which this report will then state:", said))
    return found


def _by_prior(inputs: object) -> bool:
    return isinstance(inputs, dict) and any(str(source).startswith("prior") for source in inputs.values())


def cost_to_go_on(story: Story) -> str:
    """Say what the next stage costs at most; of a refused stage, what it would cost itself, and what if it is wrong."""
    plan = story.plan if story.outcome in ("REFUSED", "WAITING") else story.next_plan
    if story.plan is None:
        return "unknown: the plan of the run cannot be read"
    if plan is None:
        return "nothing more: this run has no stage after this one"
    said = price_of(plan)
    if plan is not story.plan:
        return said
    expected = (story.forecast.get("gpu_hours") or {}).get("median")
    said += f"; {words.gpu_hours(expected, story.price)} are forecast" if expected else ""
    wrong = story.forecast.get("wrong") or {}
    if isinstance(wrong.get("p_right"), int | float) and isinstance(wrong.get("error_gpu_hours"), int | float):
        lost = words.gpu_hours(wrong["error_gpu_hours"], story.price)
        said += f". It holds with a chance of {wrong['p_right']:.1%}; else {lost} are lost until the canary stops it"
    return said


def price_of(plan: StagePlan) -> str:
    """Say what a stage costs at most."""
    price = plan.cluster.price_per_gpu_hour
    said = f"{plan.name}: at most {words.hours(plan.gpu_hours)}, {words.money(plan.cost)}"
    said += f" ({plan.gpus} GPUs for {plan.gpu_hours / plan.gpus:g} h at {words.money(price)})"
    return said + ("; that is the real stage's price, rehearsed it costs this machine's time" if plan.emulated else "")
