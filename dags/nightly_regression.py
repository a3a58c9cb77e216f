"""The scheduled runs at small scale: plan the night, measure its cases, conclude. Built from ``configs/nightly.yaml``.

Without that file there is no such DAG; what is wrong in it is the import error of ``broken_experiments.py``.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Param, get_current_context, get_parsing_context, task, teardown
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from dags.stage import LOOK_RETRIES, POKE_BELOW_SECONDS, step
from tasks.config.nightly import Nightly, load_nightly, path
from tasks.errors import ScaleupError

DAG_ID = "nightly_regression"


def build(loaded: Nightly) -> DAG:
    """Return the DAG of the nights."""
    with DAG(
        dag_id=DAG_ID,
        description="Runs small scales by the clock, and notices when the ground has moved",
        schedule=loaded.cron,
        start_date=datetime(2025, 1, 1, tzinfo=ZoneInfo(loaded.time_zone)),
        catchup=False,
        max_active_runs=1,
        params={
            "night": Param("", type="string", description="Its date, 2026-12-31; empty: by when the run was made."),
            "release": Param(False, type="boolean", description="Also the weekly cases and those before a release."),
        },
        tags=["nightly"],
        default_args={"owner": loaded.owner, "retries": 3, "retry_delay": timedelta(seconds=2)},
    ) as dag:
        names = _plan(loaded)()
        measured = _measure(loaded).expand(case=names)
        measured >> teardown(_conclude(loaded)(), on_failure_fail_dagrun=True)
    return dag


def this_night(loaded: Nightly) -> str:
    """Return the date of the calling task's night: the form's, else that on which the run was made."""
    context = get_current_context()
    said = str(context["params"].get("night") or "")
    return said or context["dag_run"].run_after.astimezone(ZoneInfo(loaded.time_zone)).date().isoformat()


def _plan(loaded: Nightly) -> Any:
    @task
    def plan() -> list[str]:
        """Choose the cases that are due and fit the budget; a night that is planned already stays as it is."""
        from tasks.nightly.night import plan_night

        release = bool(get_current_context()["params"].get("release"))
        names: list[str] = step(lambda: plan_night(this_night(loaded), release=release))
        if not names:
            raise AirflowSkipException("no case is due tonight that fits the budget")
        return names

    return plan


def _measure(loaded: Nightly) -> Any:
    # A sensor, so that a case that waits hours for its cluster or its job holds no worker. Whose turn it is the lease
    # of the cluster says: Airflow's limits count no task that is between two looks.
    every = loaded.poll_seconds
    mode = "poke" if every < POKE_BELOW_SECONDS else "reschedule"

    @task.sensor(
        poke_interval=every,
        mode=mode,
        timeout=3600 * (2 * loaded.budget.hours + 1),  # the night gives a case up by itself; this is for what hangs
        retries=LOOK_RETRIES,
        max_active_tis_per_dagrun=loaded.at_once,
        map_index_template="{{ task.op_kwargs['case'] }}",
    )
    def measure(case: str) -> bool:
        """Look at a case: start it, measure it, judge it, and where it is suspect measure it twice more."""
        from tasks.nightly.night import look

        seen = look(this_night(loaded), case)
        print(seen.line)
        return bool(seen.done)

    return measure


def _conclude(loaded: Nightly) -> Any:
    # A teardown that may fail the run: it concludes also where a case's task failed, and the night is red where an
    # alarm is open that nobody acknowledged.
    @task(retries=2)
    def conclude() -> str:
        """Open and close incidents, write the page, and say in a sentence what the night came to."""
        from tasks.nightly.conclude import conclude

        found: dict[str, Any] = step(conclude, this_night(loaded))
        if found["red"]:
            raise AirflowFailException(found["sentence"])
        return str(found["sentence"])

    return conclude


if get_parsing_context().dag_id in (None, DAG_ID) and path().is_file():
    with contextlib.suppress(ScaleupError):  # dags/broken_experiments.py shows it
        dag = build(load_nightly(check=False))
