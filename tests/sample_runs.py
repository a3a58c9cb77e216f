"""Folders of runs as the pipeline leaves them, written file by file, for tests of what reads them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.gates.core import Check, Outcome, enforced, worst
from tasks.stage_dir import RunDir, StageDir, write_json
from training.config import Emulation, Link, ModelShape, Schedule, Span, Start, TrainConfig

SEQUENCE = 32
MODEL = ModelShape(layers=2, hidden=64, heads=4, ffn=176, vocabulary=256)
EMULATION = Emulation(
    recipe_model=ModelShape(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000),
    recipe_sequence_length=4096,
    recipe_batch_sequences=32,
    recipe_shard=8,
    recipe_tensor=1,
    recipe_pipeline=1,
    recipe_micro_batch_sequences=1,
    gpus_per_node=8,
    flops_per_gpu=4e14,
    memory_gib_per_gpu=80.0,
    inside_node=Link(2.0, 450.0),
    between_nodes=Link(5.0, 50.0),
    tiers=((1000, 1.0),),
    overlap=0.5,
    launch_sd=0.005,
    step_sd=0.01,
    autocorrelation=0.3,
    spike_rate=0.0,
    spike_factor=1.0,
    seed=7,
)
FIELDS = {
    "loss": "real",
    "tokens": "real",
    "grad_norm": "real",
    "wall_seconds": "measured",
    "step_seconds": "modelled",
    "tokens_per_gpu_second": "modelled",
}
GPUS = {"gpus_8": 8, "gpus_64": 64, "gpus_1000": 1000}
BATCH = {"gpus_8": 256, "gpus_64": 512, "gpus_1000": 1000}


def new_run(home: Path, experiment: str = "gpt_stdlib", run_id: str = "20261201_030000") -> RunDir:
    """Write ``run.json`` of a run that Airflow started."""
    run = RunDir(home / "runs" / experiment / run_id)
    origin = {"by": "airflow", "dag_id": f"scale_up_{experiment}", "dag_run_id": "manual__2026-12-01T03:00:00+00:00"}
    write_json(
        run.info,
        {
            "experiment": experiment,
            "run_id": run_id,
            "origin": origin,
            "note": "a <b>note</b> & more",
            "stages": list(GPUS),
        },
    )
    return run


def config(stage: StageDir, *, first: int = 1, steps: int = 90, replay: int = 0) -> TrainConfig:
    """Write ``config.json``: ``replay`` steps before ``first``, then ``steps`` of training."""
    batch = BATCH[stage.name]
    spans = [Span("train", first, steps, batch, 0.003, Schedule())]
    if replay:
        spans = [Span("replay", first - replay, replay, 256, 0.003, Schedule()), *spans]
    start = Start("continue", "/store/step", first - replay - 1) if replay else Start()
    value = TrainConfig(
        stage.run.experiment,
        stage.run.run_id,
        stage.name,
        1,
        GPUS[stage.name],
        7,
        MODEL,
        SEQUENCE,
        tuple(spans),
        start,
        emulation=EMULATION,
    )
    write_json(stage.config, value.to_json())
    write_json(stage.job, {"name": f"{stage.run.run_id}-{stage.name}", "attempt": 1, "id": "4711", "nodes": 1})
    return value


def step(
    number: int, *, attempt: int = 1, phase: str = "train", batch: int = 256, speed: float = 11000.0
) -> dict[str, Any]:
    """Return a step record; the same number gives the same loss, whatever the attempt, but another time."""
    noise = random.Random(f"{number} {phase}")
    return {
        "kind": "step",
        "step": number,
        "tokens": number * batch * SEQUENCE,
        "loss": 2.6 + 3.0 * math.exp(-number / 40) + noise.gauss(0, 0.02),
        "step_seconds": 3.0 * 11000 / speed * (1 + noise.gauss(0, 0.004)),
        "tokens_per_gpu_second": speed * (1 + noise.gauss(0, 0.004)),
        "grad_norm": 1.0 + noise.random(),
        "wall_seconds": 0.05,
        "phase": phase,
        "attempt": attempt,
        "time": 1_800_000_000.0 + number + 1000 * attempt,
    }


def header(attempt: int = 1) -> dict[str, Any]:
    """Return an attempt's header."""
    return {"kind": "header", "attempt": attempt, "fields": FIELDS, "emulated": True}


def checkpoint(number: int, purpose: str = "periodic") -> dict[str, Any]:
    """Return the record of a whole checkpoint."""
    return {"kind": "checkpoint", "step": number, "path": f"checkpoints/step_{number:08d}", "purpose": purpose}


def held_out(number: int, loss: float, at: str = "step") -> dict[str, Any]:
    """Return a held-out record."""
    tokens = number * 256 * SEQUENCE
    return {
        "kind": "held_out",
        "step": number,
        "tokens": tokens,
        "loss": loss,
        "at": at,
        "time": 1_800_000_000.0 + number,
    }


def append(stage: StageDir, records: Iterable[dict[str, Any]]) -> None:
    """Append records as a trainer does."""
    stage.path.mkdir(parents=True, exist_ok=True)
    with stage.metrics.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def verdict(stage: StageDir, checks: list[Check]) -> None:
    """Write ``watch.json`` and ``verdict.json`` of a stage that ran to its end."""
    write_json(stage.watch, {"state": "succeeded", "step": 90, "offset": 0, "last_look": 1_800_002_000.0})
    outcome = str(worst([c.outcome for c in enforced(checks)]))
    plain = [c.to_json() for c in checks]
    write_json(
        stage.verdict,
        {"stage": stage.name, "outcome": outcome, "checks": plain, "time": 1_800_002_001.0, "emulated": True},
    )


def promotion(
    stage: StageDir, *, person: str | None = None, because: str = "all 4 checks passed", kind: str = "rehearsal"
) -> None:
    """Write ``promotion.json``."""
    folder = f"/store/{stage.run.experiment}/{stage.run.run_id}/{stage.name}/step_00000070"
    by = "person" if person else "gates"
    place = {"path": folder, "manifest_sha256": "ab" * 32, "step": 70}
    write_json(
        stage.promotion,
        {"by": by, "person": person, "because": because, "kind": kind, "checkpoint": place, "time": 1_800_002_002.0},
    )


def finished_stage(run: RunDir, name: str = "gpus_8", *, failed: bool = False) -> StageDir:
    """Write a whole stage: 20 steps of replay (after the first stage), 90 of its own, a verdict and a promotion."""
    stage, index = run.stage(name), list(GPUS).index(name)
    first, replay, speed = 1 + 90 * index, 20 if index else 0, 11000.0 * (1 - 0.02 * index - (0.2 if failed else 0))
    config(stage, first=first, replay=replay)
    own = (
        step(n, speed=speed, phase="canary" if index and n < first + 20 else "train") for n in range(first, first + 90)
    )
    append(stage, [header(), held_out(first - replay - 1, 5.6 - index, "start")])
    append(stage, [step(n, phase="replay", speed=speed) for n in range(first - replay, first)])
    append(stage, [*own, held_out(first + 89, 3.1 - 0.2 * index, "end")])
    append(stage, [checkpoint(first + 69, "hand_over"), checkpoint(first + 89, "final")])
    band = {"median": 10900.0, "low": 10400.0, "high": 11400.0}
    expected = {
        "throughput": {**band, "says": "from gpus_8"} if index else {"median": None, "says": "unknown: nothing before"},
        "time": 1_799_999_990.0,
        "wrong": {"p_right": 0.97, "says": "a wrong start costs 12 GPU-hours where the canary stops it"},
        "checks": [],
        "outcome": "PASS",
    }
    write_json(stage.forecast, expected)
    verdict(stage, checks(name, failed=failed))
    if not failed:
        promotion(stage)
    return stage


def scored(stage: StageDir) -> None:
    """Write ``score.json``: a speed that came inside its interval, a loss that did not."""
    speed = {"quantity": "throughput", "unit": "tokens/s/GPU", "nature": "modelled", "says": "steps 111..180"}
    speed |= {"median": 10900.0, "low": 10400.0, "high": 11400.0, "outcome": 10780.0, "quantile": 0.36}
    loss = {"quantity": "held_out_loss", "unit": "nats", "nature": "real", "says": "held-out set at step 180"}
    loss |= {"median": 2.9, "low": 2.8, "high": 3.0, "outcome": 3.1, "quantile": 0.99}
    rows = [{**row, "inside": inside, "error": row["outcome"] / row["median"] - 1} for row, inside in (
        (speed, True), (loss, False))]  # fmt: skip
    failures = {"quantity": "failures", "unit": "failures", "says": "not scored", "outcome": None, "inside": None}
    write_json(stage.score, {"stage": stage.name, "time": 1_800_002_001.0, "quantities": [*rows, failures]})


def checks(name: str, *, failed: bool = False) -> list[Check]:
    """Return checks as gates give them, one of them failed where asked."""
    unit, window = "tokens/s/GPU", "steps 21..90, phase train"
    found = [
        Check(
            "finite_loss",
            Outcome.PASS,
            "all 90 losses are finite",
            0.0,
            None,
            0.0,
            "losses that are not finite",
            90,
            window,
        ),
        Check(
            "steady_throughput",
            Outcome.PASS,
            "11,000 tokens/s/GPU ±0.5%",
            11000.0,
            (10945.0, 11055.0),
            10780.0,
            unit,
            70,
            window,
        ),
    ]
    if name != "gpus_8":
        share = 0.78 if failed else 0.98
        outcome = Outcome.FAIL if failed else Outcome.PASS
        reason = f"{share:.0%} of gpus_8's tokens/s/GPU; at least 90% is asked"
        low, high = share - 0.01, share + 0.01
        mend = "see where a step's time goes <communication first>" if failed else ""
        found += [
            Check(
                "replay_parity",
                Outcome.PASS,
                "losses pair to 0.0001 nats",
                0.0001,
                (-0.0004, 0.0006),
                0.01,
                "nats",
                20,
                "steps 71..90, phase replay",
            ),
            Check(
                "scaling_efficiency",
                outcome,
                reason,
                share,
                (low, high),
                0.9,
                f"of gpus_8's {unit}",
                70,
                window,
                "gpus_8",
                "ratio",
                mend,
            ),
        ]
    return found
