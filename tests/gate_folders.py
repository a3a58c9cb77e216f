"""Real folders of a three-stage ladder, with records as a trainer would have written them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gate_evidence import noise

from tasks.plan import StagePlan
from tasks.run import open_run, plan_of
from tasks.stage_dir import RunDir, StageDir

THREE_STAGES: dict[str, Any] = {
    "hand_over_steps": 20,
    "canary_steps": 20,
    "trainer": {
        "name": "told",
        "command": ["true", "{stage_dir}"],
        "capabilities": ["replay", "resume", "save_at", "checkpoints", "held_out"],
    },
    "stages": [
        {"gpus": 8, "batch_sequences": 64, "gates": {"finite_loss": {}, "steady_throughput": {}}},
        {
            "gpus": 64,
            "batch_sequences": 512,
            "rehearsal": {"batch_sequences": 128},
            "gates": {
                "forecast_efficiency": {"reference": "gpus_8", "at_least": 0.8},
                "resume_parity": {},
                "replay_parity": {},
                "canary": {},
                "finite_loss": {},
                "scaling_efficiency": {"reference": "gpus_8"},
                "loss_near_baseline": {},
            },
        },
        {
            "gpus": 1000,
            "batch_sequences": 8000,
            "rehearsal": {"batch_sequences": 250},
            "gates": {"forecast_efficiency": {"reference": "gpus_64"}, "canary": {}, "finite_loss": {}},
        },
    ],
}


def open_ladder(configs: Any, **changes: Any) -> RunDir:
    """Open a run of three stages of 90 steps each on an emulated cluster of 128 nodes."""
    stages = [{"hours": 1, "steps": 90, "learning_rate": 0.002, **stage} for stage in THREE_STAGES["stages"]]
    configs.cluster("here", nodes=128, price_per_gpu_hour=2.0)
    configs.experiment("ladder", **{**THREE_STAGES, "stages": stages, **changes})
    return open_run("ladder", run_id="run_1", origin={"by": "a test"})


def loss_after(tokens: float) -> float:
    """A curve that bends: a power law with a floor."""
    return float(1.2 + 60.0 * max(tokens, 1000.0) ** -0.3)


def write_records(
    stage: StageDir, speed: float, *, until: int | None = None, extra: float = 0.0, seed: int = 0, stuck: bool = False
) -> StagePlan:
    """Write ``metrics.jsonl`` of a stage that runs at ``speed`` tokens/s/GPU, up to step ``until``.

    ``extra`` nats are added to the loss of its own steps; a ``stuck`` stage learns nothing after its start.
    """
    plan = plan_of(stage)
    lines: list[dict[str, Any]] = [{"kind": "header", "trainer": "told", "fingerprint": "f" * 64}]
    tokens = _tokens_at_start(stage, plan)
    level = loss_after(tokens)
    begin = plan.spans[0].first_step - 1
    lines.append({"kind": "held_out", "step": begin, "tokens": tokens, "loss": level, "at": "start"})
    numbers = [(span, n) for span in plan.spans for n in range(span.first_step, span.last_step + 1)]
    slow = 1 + noise(len(numbers), 0.01, 0.3, seed + plan.gpus)
    samples = np.random.default_rng(1).normal(size=2000)
    for (span, number), factor in zip(numbers, slow, strict=True):
        tokens += span.batch_sequences * plan.recipe.sequence_length
        curve = level if stuck else loss_after(tokens) + (0.0 if span.phase == "replay" else extra)
        if until is not None and number > until:
            break
        seconds = plan.throughput_batch_tokens / plan.gpus / speed * factor
        record = {"step": number, "tokens": tokens, "loss": curve + 0.02 * samples[number], "step_seconds": seconds}
        lines.append(record)
        at = "end" if number == plan.last_step else "step"
        if number % 10 == 0:
            lines.append({"kind": "held_out", "step": number, "tokens": tokens, "loss": curve, "at": at})
    stage.path.mkdir(parents=True, exist_ok=True)
    stage.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return plan


def _tokens_at_start(stage: StageDir, plan: StagePlan) -> int:
    """Tokens after the step that a stage starts from."""
    if plan.previous is None:
        return 0
    for line in stage.run.stage(plan.previous).metrics.read_text().splitlines():
        record = json.loads(line)
        if record.get("step") == plan.spans[0].first_step - 1 and "kind" not in record:
            return int(record["tokens"])
    raise ValueError(f"{plan.previous} never got to where {plan.name} starts")
