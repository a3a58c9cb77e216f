"""The task group of one stage: forecast, launch, watch, evaluate, ask, promote, and the teardowns cancel and report.

A DAG run's state is that of its leaves that are no teardowns. As teardowns, ``cancel`` and ``report`` run whatever
happened, also after a person's "mark failed", and hide no failed gate.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, XComArg, get_current_context, setup, task, task_group, teardown
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tasks.errors import DecisionNeeded, ScaleupError, StageStopped
from tasks.patience import failed_by_hand, probing_seconds, timeout_seconds
from tasks.plan import StagePlan
from tasks.run_id import safe

if TYPE_CHECKING:
    from tasks.stage_dir import RunDir

# Looks closer together than this keep their worker: ending and starting a task would cost more.
POKE_BELOW_SECONDS = 30.0
# What takes a look down (a full disk, a lost database) may take minutes to pass, and a failed look harms no stage.
LOOK_RETRIES = 10
NO_REASON = "(no reason given)"


def this_run(experiment: str) -> RunDir:
    """Return the folder of the DAG run that the calling task belongs to."""
    from tasks.stage_dir import RunDir

    return RunDir.of(experiment, safe(get_current_context()["dag_run"].run_id))


def step(work: Callable[..., Any], *arguments: Any, final: type[ScaleupError] = ScaleupError) -> Any:
    """Do one step; an error of class ``final`` fails the task with its sentence and is not tried again."""
    try:
        return work(*arguments)
    except final as error:
        raise AirflowFailException(str(error)) from error


def stage_group(decided: StagePlan, after: XComArg) -> tuple[XComArg, XComArg]:
    """Build the stage's group behind ``after``; return what the next stage waits for, and the report."""
    experiment, name = decided.experiment, decided.name

    @task_group(group_id=name, tooltip=f"{decided.gpus} GPUs on {decided.cluster.name}")
    def group() -> tuple[XComArg, XComArg]:
        foreseen = _forecast(decided)()
        launched = setup(_launch(experiment, name))()
        watched = _watch(decided)()
        evaluated = _evaluate(experiment, name)()
        asked = _ask(decided)
        promoted = _promote(experiment, name)()
        cancelled = teardown(_cancel(experiment, name))()
        reported = teardown(_report(experiment, name))()
        after >> foreseen >> launched >> watched >> evaluated >> promoted >> cancelled >> reported
        evaluated >> asked >> promoted
        launched >> cancelled
        promoted >> reported
        return promoted, reported

    return group()


def _forecast(decided: StagePlan) -> Any:
    # none_failed: a stage before this one that is no part of the run is skipped, and does not skip this one.
    @task.sensor(**_looking(decided, probing_seconds(decided) + 600.0), trigger_rule="none_failed")
    def forecast() -> bool:
        """Write down what the stage should show, judge the gates that may refuse it, and buy the probes they need."""
        from tasks.forecast import forecast

        _skip_unless_part_of(decided.experiment, decided.name)
        waiting = step(forecast, this_run(decided.experiment).stage(decided.name)).get("waiting_for")
        print(waiting or "registered")
        return waiting is None

    return forecast


def _looking(decided: StagePlan, timeout: float) -> dict[str, Any]:
    """Return how a sensor looks: short polls keep their worker, long ones give it back."""
    every = decided.cluster.poll_seconds
    return {"poke_interval": every, "mode": "poke" if every < POKE_BELOW_SECONDS else "reschedule", "timeout": timeout}


def _launch(experiment: str, name: str) -> Any:
    @task
    def launch() -> None:
        """Submit the stage's job, or find it already there by its name."""
        from tasks.launch import launch

        print(f"job {step(launch, this_run(experiment).stage(name)).name}")

    return launch


def _watch(decided: StagePlan) -> Any:
    @task.sensor(
        **_looking(decided, timeout_seconds(decided)),
        retries=LOOK_RETRIES,
        retry_delay=timedelta(seconds=max(2.0, decided.cluster.poll_seconds)),
        on_failure_callback=_remember_exception,
    )
    def watch() -> bool:
        """Look at the running job: new records go to MLflow, the early gates judge, and a cause to stop is recorded."""
        from tasks.watch import look

        ti = get_current_context()["ti"]
        ti.xcom_push(key="try", value=[ti.try_number, ti.max_tries])
        # Only a stage that was stopped is final. Any other error is one of looking, and the job is well.
        seen = step(look, this_run(decided.experiment).stage(decided.name), final=StageStopped)
        print(seen.line)
        return bool(seen.done)

    return watch


def _evaluate(experiment: str, name: str) -> Any:
    @task.branch
    def evaluate() -> str:
        """Ask all gates, and write the verdict: PASS promotes, an undecided one asks a person, any other ends it."""
        from tasks.evaluate import evaluate
        from tasks.question import question
        from tasks.report import report

        stage = this_run(experiment).stage(name)
        try:
            evaluate(stage)
        except DecisionNeeded:
            report(stage)
            get_current_context()["ti"].xcom_push(key="question", value=question(stage))
            return f"{name}.ask"
        except ScaleupError as error:
            raise AirflowFailException(str(error)) from error
        return f"{name}.promote"

    return evaluate


def _ask(decided: StagePlan) -> ApprovalOperator:
    """Ask a person where the gates could not decide; "no" and no answer in time both end the ladder, red."""
    name = decided.name
    # Airflow validates a form's defaults before anyone has seen it, so an empty one may not be forbidden.
    why = Param(NO_REASON, type="string", minLength=1, title="Because", description="kept with your name")
    return ApprovalOperator(
        task_id="ask",
        subject=f"{decided.experiment}: {name} is undecided. Go on?",  # Airflow's list shows 45 characters of it
        body=f"{{{{ ti.xcom_pull(task_ids='{name}.evaluate', key='question') }}}}",
        params={"because": why},
        fail_on_reject=True,
        response_timeout=timedelta(hours=decided.decision_hours),
        retries=0,  # another try would ask, and wait, once more
    )


def _promote(experiment: str, name: str) -> Any:
    @task(trigger_rule="none_failed_min_one_success")
    def promote() -> None:
        """Verify the checkpoint, keep it in the store, and write the leave for the next stage."""
        from tasks.promote import override, promote

        stage, answer = this_run(experiment).stage(name), get_current_context()["ti"].xcom_pull(task_ids=f"{name}.ask")
        if answer:
            who = (answer["responded_by_user"] or {}).get("name") or "a person in Airflow"
            step(override, stage, answer["params_input"].get("because") or NO_REASON, who)
        else:
            step(promote, stage)

    return promote


def _cancel(experiment: str, name: str) -> Any:
    @task
    def cancel() -> None:
        """Free the GPUs, on a recorded cause only; without one the job lives on and is found again."""
        from tasks.cancel import cancel, mark_person

        stage = this_run(experiment).stage(name)
        if ended_by_person(f"{name}.watch"):
            mark_person(stage, "Airflow", f"{name}.watch or the whole run was marked as failed")
        print(cancel(stage))

    return cancel


def _report(experiment: str, name: str) -> Any:
    @task
    def report() -> None:
        """Write what happened, for people."""
        from tasks.report import report

        _skip_unless_part_of(experiment, name)
        report(this_run(experiment).stage(name))

    return report


def _skip_unless_part_of(experiment: str, name: str) -> None:
    from tasks.run import ladder_of

    run = this_run(experiment)
    if not run.recipe.exists():
        raise AirflowSkipException("the run was never opened; see the task `start`")
    stages = [stage.name for stage in ladder_of(run).stages]
    if name not in stages:
        raise AirflowSkipException(f"{name} is no part of this run, which goes from {stages[0]} to {stages[-1]}")


def _remember_exception(context: Any) -> None:
    """Note that the look failed by itself; a task that a person marks as failed is killed and notes nothing."""
    context["ti"].xcom_push(key="exception", value=str(context.get("exception"))[:500])


def ended_by_person(watch: str) -> bool:
    """Say whether a person marked the task ``watch``, or its whole run, as failed; Airflow tells tasks no such thing.

    So the task says at each look which try it is, and notes an exception that fails it; what is killed notes none.
    """
    context = get_current_context()
    ti, run_id = context["ti"], context["dag_run"].run_id
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[watch], run_ids=[run_id]).get(run_id) or {}
    said = {key: ti.xcom_pull(task_ids=watch, key=key) for key in ("try", "exception")}
    return failed_by_hand(states.get(watch), said["try"], said["exception"])
