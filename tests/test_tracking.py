"""MLflow holds each step once, whatever is killed; every test talks to a real server."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sample_runs as sample
from mlflow_server import MlflowServer

from tasks import tracking
from tasks.stage_dir import RunDir, StageDir, read_json, write_json
from tasks.tracking import curves


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def client(mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    monkeypatch.setenv("SCALEUP_AIRFLOW_URL", "http://127.0.0.1:8080")
    import mlflow

    return mlflow.MlflowClient(mlflow_server.uri)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return sample.new_run(tmp_path, experiment=f"e{random.getrandbits(48):x}")


def child(client: Any, stage: StageDir) -> Any:
    state = read_json(stage.tracking)
    assert state is not None
    return client.get_run(state["run_id"])


def steps_of(client: Any, stage: StageDir, key: str = "curves/loss") -> list[int]:
    return [m.step for m in client.get_metric_history(child(client, stage).info.run_id, key)]


def tokens(numbers: range | list[int]) -> list[int]:
    return [n * 256 * sample.SEQUENCE for n in numbers]


def shipped(run: RunDir) -> None:
    result = tracking.sync(run)
    assert not result.pending, result.reason


def test_no_address_means_no_tracking(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = tracking.sync(run)
    assert not result.pending and result.run_url is None and "MLFLOW_TRACKING_URI is not set" in result.reason


def test_a_finished_ladder(client: Any, run: RunDir) -> None:
    stages = [sample.finished_stage(run, name, failed=name == "gpus_1000") for name in sample.GPUS]
    shipped(run)
    parent = client.get_run(read_json(run.tracking)["run_id"])  # type: ignore[index]
    assert parent.data.tags["scaleup.run"] == f"{run.experiment}/{run.run_id}"
    assert parent.info.status == "FAILED"
    link = f"http://127.0.0.1:8080/dags/scale_up_{run.experiment}/runs/manual__2026-12-01T03%3A00%3A00%2B00%3A00"
    assert parent.data.tags["scaleup.airflow"] == link
    seen = [child(client, stage) for stage in stages]
    assert {r.data.tags["mlflow.parentRunId"] for r in seen} == {parent.info.run_id}
    assert [r.info.status for r in seen] == ["FINISHED", "FINISHED", "FAILED"]
    assert seen[2].data.tags["scaleup.failed_gates"] == "scaling_efficiency"
    assert seen[1].data.tags["scaleup.numbers.modelled"] == "step_seconds, tokens_per_gpu_second"
    assert [r.data.params["gpus"] for r in seen] == ["8", "64", "1000"]
    assert seen[1].data.metrics["efficiency_vs_previous"] == 0.98
    for name in ("tokens_per_gpu_second", "step_seconds", "held_out_loss", "train_loss", "gpu_hours"):
        assert all(name in r.data.metrics for r in seen), name
    assert steps_of(client, stages[1]) == tokens(range(91, 181))
    assert steps_of(client, stages[1], "replay/loss") == tokens(range(71, 91))
    first = client.get_metric_history(seen[1].info.run_id, "curves/loss")[0]
    assert first.timestamp == 1_800_001_091_000 and first.value == sample.step(91, phase="canary")["loss"]
    held_out = client.get_metric_history(seen[1].info.run_id, "held_out_loss")
    assert [(m.step, m.value) for m in held_out] == [(tokens([70])[0], 4.6), (tokens([180])[0], pytest.approx(2.9))]
    assert {f.path for f in client.list_artifacts(seen[0].info.run_id)} >= {"config.json", "verdict.json"}


def test_a_promotion_is_a_version_by_reference(client: Any, run: RunDir) -> None:
    stage = sample.finished_stage(run)
    shipped(run)
    shipped(run)
    version = client.get_model_version_by_alias(run.experiment, "gpus_8")
    assert version.source == f"store:///store/{run.experiment}/{run.run_id}/gpus_8/step_00000070"
    assert version.run_id == child(client, stage).info.run_id
    assert (
        version.tags["scaleup.manifest_sha256"] == "ab" * 32 and version.tags["scaleup.promotion_kind"] == "rehearsal"
    )
    assert len(client.search_model_versions(f"name = '{run.experiment}'")) == 1
    assert (tracking.registered(stage) or {})["version"] == "1"


def test_a_rehearsal_does_not_take_a_real_alias(client: Any, run: RunDir) -> None:
    sample.promotion(sample.finished_stage(run), kind="real", person="Ada", because="seen on the cluster")
    shipped(run)
    other = RunDir(run.path.parent / "20261202_030000")
    sample.finished_stage(other)
    shipped(other)
    assert client.get_model_version_by_alias(run.experiment, "gpus_8").version == "1"
    assert client.get_model_version_by_alias(run.experiment, "gpus_8_rehearsal").version == "2"


def test_only_what_no_restart_can_repeat_is_shipped(client: Any, run: RunDir) -> None:
    stage = run.stage("gpus_8")
    sample.config(stage)
    sample.append(stage, [sample.header(), *(sample.step(n) for n in range(1, 51))])
    shipped(run)
    assert steps_of(client, stage) == []
    assert child(client, stage).data.tags["scaleup.step"] == "50"
    sample.append(stage, [sample.checkpoint(30)])
    shipped(run)
    assert steps_of(client, stage) == tokens(range(1, 31))
    again = (sample.step(n, attempt=2) for n in range(31, 91))  # killed after 50, resumed from 30
    sample.append(stage, [sample.header(2), *again, sample.checkpoint(90, "final")])
    shipped(run)
    assert steps_of(client, stage) == tokens(range(1, 91))
    repeated = client.get_metric_history(child(client, stage).info.run_id, "curves/loss")[40]
    assert repeated.timestamp == round(1000 * sample.step(41, attempt=2)["time"])


def test_a_job_that_goes_on_after_its_end_logs_no_step_twice(client: Any, run: RunDir) -> None:
    stage = run.stage("gpus_8")
    sample.config(stage)
    sample.append(stage, [sample.header(), *(sample.step(n) for n in range(1, 51)), sample.checkpoint(30)])
    sample.verdict(stage, sample.checks("gpus_8"))
    shipped(run)
    sample.append(stage, [sample.header(2), *(sample.step(n, attempt=2) for n in range(31, 91))])
    shipped(run)
    assert steps_of(client, stage) == tokens(range(1, 91))


DYING = """
import os, sys
from pathlib import Path
from tasks import stage_dir, tracking
import tasks.tracking.stage as stage
def dies(path, value):
    if path.name == "tracking.json" and "curves" in value:
        os._exit(9)
    stage_dir.write_json(path, value)
stage.write_json = dies
tracking.sync(stage_dir.RunDir(Path(sys.argv[1])))
"""


def test_a_crash_between_points_and_marker_stores_nothing_twice(client: Any, run: RunDir) -> None:
    stage = sample.finished_stage(run)
    died = subprocess.run([sys.executable, "-c", DYING, str(run.path)], env=os.environ, timeout=60)
    assert died.returncode == 9
    assert len(steps_of(client, stage)) == 90 and "curves" not in (read_json(stage.tracking) or {})
    shipped(run)
    assert steps_of(client, stage) == tokens(range(1, 91))
    assert len(client.search_runs([child(client, stage).info.experiment_id])) == 2


def test_two_syncs_at_once_make_one_run(client: Any, run: RunDir) -> None:
    stage = sample.finished_stage(run)
    code = "import sys, pathlib; from tasks import tracking, stage_dir"
    code += "; assert not tracking.sync(stage_dir.RunDir(pathlib.Path(sys.argv[1]))).pending"
    other = subprocess.Popen([sys.executable, "-c", code, str(run.path)], env=os.environ)
    with ThreadPoolExecutor(4) as pool:
        assert not any(result.pending for result in pool.map(tracking.sync, [run] * 4))
    assert other.wait(60) == 0
    assert len(client.search_runs([child(client, stage).info.experiment_id])) == 2
    assert steps_of(client, stage) == tokens(range(1, 91))


def test_killed_server_loses_nothing(client: Any, run: RunDir, mlflow_server: MlflowServer) -> None:
    stage = run.stage("gpus_8")
    sample.config(stage)
    sample.append(stage, [sample.header(), *(sample.step(n) for n in range(1, 51)), sample.checkpoint(40)])
    shipped(run)
    sample.append(stage, [*(sample.step(n) for n in range(51, 91)), sample.checkpoint(90, "final")])
    mlflow_server.kill()
    result = tracking.sync(run)
    assert result.pending and mlflow_server.uri in result.reason and result.run_url is not None
    sample.verdict(stage, sample.checks("gpus_8"))
    waiting = tracking.sync(run)
    assert waiting.pending and waiting.reason == result.reason  # asked again only after a while
    mlflow_server.start()
    tracking._looks.clear()  # as the next process would: it remembers no waiting time
    shipped(run)
    assert steps_of(client, stage) == tokens(range(1, 91))
    assert child(client, stage).info.status == "FINISHED"


def test_a_run_of_the_same_name_from_another_machine_is_another_run(client: Any, run: RunDir, tmp_path: Path) -> None:
    other = RunDir(tmp_path / "other" / "runs" / run.experiment / run.run_id)
    for started, each in ((1.0, run), (2.0, other)):
        write_json(each.info, {"started": started})
        sample.finished_stage(each)
        shipped(each)
    assert tracking.run_url(run) != tracking.run_url(other)
    assert steps_of(client, run.stage("gpus_8")) == steps_of(client, other.stage("gpus_8")) == tokens(range(1, 91))


def test_another_server_gets_everything(client: Any, run: RunDir, mlflow_server: MlflowServer) -> None:
    stage = sample.finished_stage(run)
    shipped(run)
    before = child(client, stage).info.run_id
    client.delete_run(read_json(run.tracking)["run_id"])  # type: ignore[index]
    client.delete_run(before)
    tracking._looks.clear()
    shipped(run)
    assert child(client, stage).info.run_id != before
    assert steps_of(client, stage) == tokens(range(1, 91))


def test_nothing_new_asks_the_server_nothing(client: Any, run: RunDir, mlflow_server: MlflowServer) -> None:
    sample.finished_stage(run)
    shipped(run)
    with mlflow_server.paused():
        shipped(run)


def test_addresses(client: Any, run: RunDir, mlflow_server: MlflowServer) -> None:
    assert tracking.run_url(run) is None and tracking.compare_url(run) is None
    stages = [sample.finished_stage(run, name) for name in ("gpus_8", "gpus_64")]
    write_json(run.stage("gpus_1000").forecast, {"outcome": "FAIL", "checks": []})  # refused: nothing to compare
    shipped(run)
    assert child(client, run.stage("gpus_1000")).info.status == "FAILED"
    ids = [child(client, stage).info.run_id for stage in stages]
    parent = read_json(run.tracking) or {}
    where = parent["experiment_id"]
    assert tracking.run_url(run) == f"{mlflow_server.uri}/#/experiments/{where}/runs/{parent['run_id']}"
    query = f"runs=%5B%22{ids[0]}%22%2C%22{ids[1]}%22%5D&experiments=%5B%22{where}%22%5D"
    assert tracking.compare_url(run) == f"{mlflow_server.uri}/#/compare-runs?{query}"
    chosen = "metric=%22curves%2Floss%22&plot_metric_keys=%5B%22curves%2Floss%22%5D&x_axis=step"
    assert tracking.curves_url(run) == f"{mlflow_server.uri}/#/metric?{query}&{chosen}"


def ship_all(stage: StageDir, planned: int, looks: int, records: list[dict[str, Any]]) -> list[curves.Point]:
    """Return all points of a stage that is looked at ``looks`` times while it grows, then is over."""
    marker, points = curves.Marker(), []
    part = max(1, len(records) // looks)
    for start in range(0, len(records), part):
        sample.append(stage, [*records[start : start + part], sample.checkpoint(records[start]["step"])])
        batch = curves.next_batch(stage.metrics, marker, planned_steps=planned, first_step=1, over=False, began=0)
        points, marker = points + batch.points, batch.marker
    batch = curves.next_batch(stage.metrics, marker, planned_steps=planned, first_step=1, over=True, began=0)
    return points + batch.points


@pytest.mark.parametrize("looks", [1, 37])
def test_long_curves_are_thinned_and_keep_every_spike(tmp_path: Path, looks: int) -> None:
    stage = sample.new_run(tmp_path).stage("gpus_8")
    records = [{"step": n, "tokens": n * 10, "loss": 3 + random.Random(n).gauss(0, 0.01)} for n in range(1, 20_001)]
    spikes = random.Random(1).sample(range(1, 20_001), 60)
    for n in spikes:
        records[n - 1]["loss"] = 6.0 + n / 1e6
    records[12_345]["loss"] = float("nan")
    points = ship_all(stage, 20_000, looks, records)
    kept = [p.tokens // 10 for p in points]
    assert len(kept) == len(set(kept)) <= curves.POINTS
    assert kept == sorted(kept)
    assert set(spikes) <= set(kept) and 12_346 in kept
    assert 1 in kept and len(kept) > 2500


def test_thinning_does_not_depend_on_when_it_looks(tmp_path: Path) -> None:
    records = [{"step": n, "tokens": n, "loss": random.Random(n).gauss(3, 0.1)} for n in range(1, 12_001)]
    one, other = sample.new_run(tmp_path / "a").stage("gpus_8"), sample.new_run(tmp_path / "b").stage("gpus_8")
    assert ship_all(one, 12_000, 1, records) == ship_all(other, 12_000, 11, records)


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    stage = sample.new_run(tmp_path).stage("gpus_8")
    sample.append(stage, [sample.step(1)])
    with stage.metrics.open("a") as file:
        file.write('{"step": 2, "tok\n')
    sample.append(stage, [sample.header(2), sample.step(2, attempt=2)])
    with stage.metrics.open("a") as file:
        file.write('{"step": 3')
    batch = curves.next_batch(stage.metrics, curves.Marker(), planned_steps=3, first_step=1, over=True, began=0)
    assert [p.tokens for p in batch.points if p.key == "curves/loss"] == tokens([1, 2])
    assert batch.newest is not None and batch.newest["step"] == 2
