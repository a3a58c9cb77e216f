"""Run by test_dags in a process of its own: parses the DAG files as Airflow does, and prints what it saw as JSON."""

import json
import sys
import time

opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)

import airflow.providers.standard.decorators.python  # noqa: E402  # what a scheduler has in memory
import airflow.providers.standard.decorators.sensor  # noqa: E402
import airflow.sdk  # noqa: E402

before = time.monotonic()
import dags.nightly_regression as nightly_regression  # noqa: E402
import dags.scale_up as scale_up  # noqa: E402

seconds = time.monotonic() - before
try:
    import dags.broken_experiments

    broken = ""
except Exception as error:
    broken = f"{type(error).__name__}: {error}"


def told(task):
    return {
        "downstream": sorted(task.downstream_task_ids),
        "setup": task.is_setup,
        "teardown": task.is_teardown,
        "fails_run": task.on_failure_fail_dagrun,
        "retries": task.retries,
        "trigger_rule": str(task.trigger_rule.value),
        **{key: getattr(task, key) for key in ("mode", "timeout", "poke_interval") if hasattr(task, key)},
    }


night = getattr(nightly_regression, "dag", None)
dags = {name: dag for name, dag in vars(scale_up).items() if isinstance(dag, airflow.sdk.DAG)}
print(
    json.dumps(
        {
            "seconds": seconds,
            "broken": broken,
            "loaded": [name for name in ("torch", "mlflow", "pandas", "scipy", "numpy") if name in sys.modules],
            "opened": [path for path in opened if path.endswith(".yaml")],
            "nightly": night
            and {
                "tasks": {task.task_id: told(task) for task in night.tasks},
                "cron": night.timetable.expression if hasattr(night.timetable, "expression") else str(night.schedule),
                "zone": str(night.timezone),
                "catchup": night.catchup,
                "max_active_runs": night.max_active_runs,
            },
            "dags": {
                dag.dag_id: {
                    "tasks": {task.task_id: told(task) for task in dag.tasks},
                    "params": {key: dag.params.get_param(key).dump() for key in dag.params},
                    "doc": dag.doc_md,
                    "max_active_runs": dag.max_active_runs,
                    "tags": sorted(dag.tags),
                }
                for dag in dags.values()
            },
        },
        default=str,
    )
)
