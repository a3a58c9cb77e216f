"""The DAG files as Airflow parses them: one DAG an experiment, light, typed, and red where it must be."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEPS = ["forecast", "launch", "watch", "evaluate", "ask", "promote", "cancel", "report"]


def parse(tmp_path, configs=ROOT / "configs", dag_id=None):
    """Return what a fresh process finds in the DAG files."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    variables |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "SCALEUP_HOME": str(tmp_path / "home"),
        "SCALEUP_CONFIGS": str(configs),
        "PYTHONPATH": str(ROOT),
        **({"_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag_id} if dag_id else {}),
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "parse_dags.py")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    return parse(tmp_path_factory.mktemp("parse"))


@pytest.fixture(scope="module")
def ladder(parsed):
    return parsed["dags"]["scale_up_gpt_stdlib"]


def test_each_shipped_experiment_is_a_dag(parsed):
    names = {path.stem for path in (ROOT / "configs" / "experiments").glob("*.yaml")}
    assert set(parsed["dags"]) == {f"scale_up_{name}" for name in names}
    assert parsed["broken"] == ""


def test_parsing_loads_nothing_heavy(parsed):
    assert parsed["loaded"] == []


def test_stages_are_groups_of_the_same_steps_in_order(ladder):
    tasks = ladder["tasks"]
    stages = ["gpus_8", "gpus_64", "gpus_1000"]
    assert set(tasks) == {"start", "report", "outcome", *(f"{s}.{step}" for s in stages for step in STEPS)}
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        chain = ["forecast", "launch", "watch", "evaluate", "promote", "cancel", "report"]
        assert tasks[f"{stage}.ask"]["downstream"] == [f"{stage}.promote"]
        assert f"{stage}.ask" in tasks[f"{stage}.evaluate"]["downstream"]
        for step, then in itertools.pairwise(chain):
            assert f"{stage}.{then}" in tasks[f"{stage}.{step}"]["downstream"]
        assert tasks[f"{stage}.launch"]["setup"]
        assert "cancel" in " ".join(tasks[f"{stage}.launch"]["downstream"])
        if after:
            assert f"{after}.forecast" in tasks[f"{stage}.promote"]["downstream"]
            assert tasks[f"{after}.forecast"]["trigger_rule"] == "none_failed"


def test_only_promotions_and_the_outcome_decide_the_colour_of_a_run(ladder):
    """A run's state is that of its effective leaves, as airflow.models.dagrun computes them."""
    tasks = ladder["tasks"]

    def counts(name):
        return not tasks[name]["teardown"] or tasks[name]["fails_run"]

    leaves = {n for n, t in tasks.items() if counts(n) and not any(counts(d) for d in t["downstream"])}
    assert leaves == {"gpus_1000.promote", "outcome"}
    assert tasks["outcome"]["retries"] == 0


def test_watch_keeps_its_worker_in_a_rehearsal(ladder):
    watch = ladder["tasks"]["gpus_8.watch"]
    assert (watch["mode"], watch["poke_interval"]) == ("poke", 1)
    assert watch["retries"] >= 3


def test_the_form_is_typed_and_described(ladder):
    params = ladder["params"]
    assert list(params) == ["cluster", "first", "last", "seed", "note"]
    assert all(param["description"] for param in params.values())
    assert set(params["cluster"]["schema"]["enum"]) == {p.stem for p in (ROOT / "configs" / "clusters").glob("*.yaml")}
    assert params["first"]["schema"]["enum"] == ["gpus_8", "gpus_64", "gpus_1000"] == params["last"]["schema"]["enum"]
    assert (params["first"]["value"], params["last"]["value"]) == ("gpus_8", "gpus_1000")
    assert params["seed"]["schema"] == {"type": "integer", "minimum": 0}
    assert ladder["max_active_runs"] == 1


def test_the_page_says_what_climbs_and_what_is_emulated(ladder):
    assert "| `gpus_1000` | 1000 | laptop |" in ladder["doc"]
    assert "**emulated**" in ladder["doc"]
    assert "`forecast_efficiency` (reference gpus_64" in ladder["doc"]


def test_a_broken_file_is_an_import_error_of_its_own(tmp_path, configs):
    configs.experiment("good")
    (configs.root / "experiments" / "broken.yaml").write_text("cluster: here\nstages: nonsense\n")
    (configs.root / "nightly.yaml").write_text("cron: hourly\n")
    seen = parse(tmp_path, configs.root)
    assert sorted(seen["dags"]) == ["scale_up_good", "scale_up_tiny"]
    assert seen["broken"].startswith("ConfigInvalid") and "broken.yaml" in seen["broken"]
    assert "nightly.yaml is not a valid plan of nightly runs:\n  cron: 'hourly' must be five fields" in seen["broken"]
    assert seen["nightly"] is None


def test_running_a_task_reads_no_sibling_and_watch_has_the_limit_of_its_stage(tmp_path, configs):
    configs.cluster(poll_seconds=60, queue_hours=200.0)
    (configs.root / "experiments" / "broken.yaml").write_text("{")
    seen = parse(tmp_path, configs.root, "scale_up_tiny")
    assert list(seen["dags"]) == ["scale_up_tiny"]
    watch = seen["dags"]["scale_up_tiny"]["tasks"]["gpus_8.watch"]
    assert watch["mode"] == "reschedule"
    # Queue, the stage's hour, repairs, and two probes with a queue of their own: more than Airflow's 7 days.
    assert watch["timeout"] == 3600 * (200 + 1 + 1 + 2 * (200 + 1))
    assert not any(path.endswith("broken.yaml") for path in seen["opened"])
    assert seen["nightly"] is None  # no file, no DAG
    assert seen["broken"] == ""


def test_the_night_is_one_at_a_time_without_catching_up_and_red_by_its_conclusion(parsed):
    night = parsed["nightly"]
    assert (night["cron"], night["zone"], night["catchup"], night["max_active_runs"]) == ("30 1 * * *", "UTC", False, 1)
    tasks = night["tasks"]
    assert set(tasks) == {"plan", "measure", "conclude"}
    assert tasks["measure"]["downstream"] == ["conclude"] and tasks["conclude"]["fails_run"]
    assert tasks["conclude"]["teardown"]
