"""The DAG that ends jobs whose run is over: what a teardown missed, and runs that somebody deleted in Airflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, get_current_context, task

if TYPE_CHECKING:
    from tasks.stage_dir import RunDir

DAG_ID, EVERY = "reap", timedelta(minutes=15)

with DAG(
    dag_id=DAG_ID,
    description="Ends jobs on clusters whose run is over",
    schedule=EVERY,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "scaleup", "retries": 0},
) as dag:

    @task
    def reap() -> None:
        """End every orphan; a run that Airflow does not know any more is one."""
        from tasks.reap import reap
        from tasks.stage_dir import read_json

        ti = get_current_context()["ti"]

        def forgotten(run: RunDir) -> bool:
            origin = (read_json(run.info) or {}).get("origin", {})
            if "dag_run_id" not in origin:
                return False  # started by `scaleup run`
            return ti.get_dr_count(dag_id=origin["dag_id"], run_ids=[origin["dag_run_id"]]) == 0

        for line in reap(forgotten=forgotten):
            print(line)

    reap()
