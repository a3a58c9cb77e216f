"""One DAG an experiment: the ladder from its first stage to its last, started from Airflow's form.

A DAG is built for each file in ``configs/experiments``. Where Airflow wants one DAG, to run a task of it, no other
experiment's file is even read, so that a broken one cannot stop a running one.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from airflow.sdk import DAG, Param, get_current_context, get_parsing_context, task, teardown
from airflow.sdk.exceptions import AirflowFailException

from dags.stage import stage_group, step, this_run
from tasks import plan
from tasks.config import Experiment, clusters, experiments, load_experiment
from tasks.errors import ScaleupError
from tasks.ladder_text import markdown

PREFIX = "scale_up_"


def form(experiment: Experiment, stages: list[str]) -> dict[str, Param]:
    """Return the trigger form's fields: typed, checked by Airflow before the run starts."""
    return {
        "cluster": Param(experiment.cluster, type="string", enum=clusters(), description="Where the jobs run."),
        "first": Param(stages[0], type="string", enum=stages, description="First stage of this run."),
        "last": Param(stages[-1], type="string", enum=stages, description="Last stage; later ones are skipped."),
        "seed": Param(experiment.seed, type="integer", minimum=0, description="Decides weights, data order, noise."),
        "note": Param("", type="string", maxLength=500, description="Why you start it; kept with the run."),
    }


def build(name: str) -> DAG:
    """Return the DAG of one experiment; raise ConfigInvalid where its file is wrong."""
    # Gates are checked by whoever opens a run: their check would import pandas each time a file is parsed.
    experiment = load_experiment(name, gates=False)
    ladder = plan.resolve(experiment)
    with DAG(
        dag_id=f"{PREFIX}{name}",
        description=experiment.description,
        doc_md=markdown(experiment, ladder),
        schedule=None,
        max_active_runs=1,
        catchup=False,
        params=form(experiment, [stage.name for stage in ladder.stages]),
        tags=["scale-up", f"cluster:{experiment.cluster}"],
        default_args={"owner": experiment.owner or "scaleup", "retries": 3, "retry_delay": timedelta(seconds=2)},
    ) as dag:
        before = _start(name)()
        reports = []
        for stage in ladder.stages:
            before, reported = stage_group(stage, before)
            reports.append(reported)
        reported = teardown(_report(name))()
        [*reports, before] >> reported >> teardown(_outcome(name), on_failure_fail_dagrun=True)()
    return dag


def _start(name: str) -> Any:
    @task
    def start() -> str:
        """Open the run: freeze the recipe, and write down who started it and why; end jobs that nobody looks at."""
        from tasks.cancel import reap
        from tasks.run import open_run

        context = get_current_context()
        said, run_id = context["params"], context["dag_run"].run_id
        page = f"{os.environ.get('SCALEUP_AIRFLOW_URL', '')}/dags/{PREFIX}{name}/runs/{quote(run_id)}"
        origin = {"dag_id": f"{PREFIX}{name}", "dag_run_id": run_id, "url": page}
        run = this_run(name)

        def opened() -> None:
            chosen = {key: said[key] for key in ("cluster", "first", "last", "seed", "note")}
            open_run(name, run_id=run.run_id, origin=origin, **chosen)

        step(opened)
        for line in reap():
            print(line)
        return f"{name}/{run.run_id}"

    return start


def _report(name: str) -> Any:
    @task
    def report() -> None:
        """Write the ladder's report: all stages side by side."""
        from tasks.report import report_run

        report_run(this_run(name))

    return report


def _outcome(name: str) -> Any:
    # A teardown, since "mark failed" on a whole run skips every ordinary task that waits, and a run whose last task
    # is skipped is green; on_failure_fail_dagrun, so that the run is green only where all stages were promoted.
    @task(retries=0)
    def outcome() -> str:
        """Say in one sentence how the ladder ended; fails unless every stage of the run was promoted."""
        from tasks.ladder_outcome import outcome

        ended = outcome(this_run(name))
        if not ended.promoted:
            raise AirflowFailException(ended.sentence)
        return ended.sentence

    return outcome


def _build_all() -> list[DAG]:
    wanted = get_parsing_context().dag_id
    built = []
    for name in experiments():
        if wanted in (None, f"{PREFIX}{name}"):
            try:
                built.append(build(name))
            except ScaleupError:
                # Not here: an error in this file would take every other experiment's DAG away.
                # dags/broken_experiments.py shows it.
                continue
    return built


for _dag in _build_all():
    globals()[_dag.dag_id] = _dag
