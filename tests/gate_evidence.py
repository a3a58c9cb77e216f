"""Ladders as gates see them, made of numbers: what the gate tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tasks.gates import REGISTRY, Check, EarlierStage, Evidence, StageFacts, judge

STEPS = 90
HAND_OVER = 20
THRESHOLDS: dict[str, dict[str, Any]] = {
    "scaling_efficiency": {"reference": "gpus_8"},
    "forecast_efficiency": {"reference": "gpus_64"},
    "within": {"metric": "loss", "low": 0.1, "high": 10.0},
}


def facts(name: str = "gpus_8", gpus: int = 8, *, per_gpu: int = 4096, index: int = 0, **other: Any) -> StageFacts:
    """A stage of 90 own steps; the throughput batch grows with the GPUs (weak scaling) unless told otherwise."""
    values: dict[str, Any] = {
        "name": name,
        "gpus": gpus,
        "nodes": max(1, gpus // 8),
        "emulated": True,
        "throughput_batch_tokens": per_gpu * gpus,
        "batch_tokens": 8192,
        "tier": min(2, len(str(gpus)) - 1),
        "tier_ends": (8, 64, 1024),
        "memory_gib_per_gpu": 80.0,
        "seed": 1,
        "fingerprint": "f" * 64,
        "first_step": 1 + STEPS * index,
        "last_step": STEPS * (index + 1),
    }
    return StageFacts(**{**values, **other})


def noise(n: int, sd: float, phi: float, seed: int) -> np.ndarray:
    """AR(1) noise of a given stationary sd."""
    shocks = np.random.default_rng(seed).normal(size=n)
    out = np.empty(n)
    out[0] = shocks[0]
    for i in range(1, n):
        out[i] = phi * out[i - 1] + np.sqrt(1 - phi**2) * shocks[i]
    return sd * out


def loss_at(step: np.ndarray) -> np.ndarray:
    """A falling loss with the noise that a step's samples give: the same for the same step."""
    rng = np.random.default_rng(7)
    return 5.5 - 0.5 * np.log(step) + 0.05 * rng.normal(size=1000)[step]


def steps(of: StageFacts, speed: float, *, canary: bool = True, seed: int = 0, sd: float = 0.01) -> pd.DataFrame:
    """Step records of a stage that runs at ``speed`` tokens/s/GPU: replay and canary where it goes on from another."""
    first = of.first_step
    number = np.arange(first, of.last_step + 1)
    phase = np.full(number.size, "train", dtype=object)
    if canary and first > 1:
        phase[:HAND_OVER] = "canary"
        number = np.concatenate([np.arange(first - HAND_OVER, first), number])
        phase = np.concatenate([np.full(HAND_OVER, "replay", dtype=object), phase])
    seconds = of.throughput_batch_tokens / of.gpus / speed * (1 + noise(number.size, sd, 0.5, seed + of.gpus))
    return pd.DataFrame(
        {
            "step": number,
            "tokens": number * of.batch_tokens,
            "loss": loss_at(number),
            "grad_norm": 0.6 * np.exp(noise(number.size, 0.1, 0.3, seed + of.gpus + 1)),
            "step_seconds": seconds,
            "time": 1.7e9 + np.cumsum(1.01 * seconds),
            "memory_gib": 40.0 + 0.1 * np.sin(number),
            "phase": phase,
            "attempt": 1,
        }
    )


def held_out(of: StageFacts, start: float, end: float, hand_over: float | None = None) -> pd.DataFrame:
    """Held-out rows at the start, at the hand-over and at the end."""
    first = of.first_step - 1 - (HAND_OVER if of.first_step > 1 else 0)
    rows = [(first, start, "start"), (of.last_step, end, "end")]
    if hand_over is not None:
        rows.insert(1, (of.last_step - HAND_OVER, hand_over, "step"))
    frame = pd.DataFrame(rows, columns=["step", "loss", "at"])
    return frame.assign(tokens=frame["step"] * of.batch_tokens)


def second_stage(*, speed: float = 97.0, first_speed: float = 100.0, seed: int = 0, **changes: Any) -> Evidence:
    """Evidence at the end of a healthy stage on 64 GPUs that went on from one on 8."""
    one, two = facts(), facts("gpus_64", 64, index=1)
    evidence = Evidence(
        stage=two,
        steps=steps(two, speed, seed=seed),
        held_out=held_out(two, 3.2, 2.9, 2.95),
        earlier={"gpus_8": EarlierStage(one, steps(one, first_speed, seed=seed), held_out(one, 5.5, 3.1, 3.2))},
        forecast={
            "throughput": {"median": 97.3, "low": 93.0, "high": 101.0},
            "held_out_loss": {"low": 2.8, "median": 2.9, "high": 3.0},
        },
        previous="gpus_8",
    )
    return replace(evidence, **changes)


def third_stage_entry(slope: float, *, seed: int = 0, sd: float = 0.0001, **target: Any) -> Evidence:
    """Evidence before a stage on 1000 GPUs starts, after 8 and 64 whose ln throughput falls by ``slope`` a doubling."""
    stages = {}
    for index, gpus in enumerate((8, 64)):
        of = facts(f"gpus_{gpus}", gpus, index=index)
        speed = 100.0 * float(np.exp(slope * np.log2(gpus / 8)))
        stages[of.name] = EarlierStage(of, steps(of, speed, seed=seed, sd=sd), held_out(of, 5.5, 3.1, 3.2))
    empty = pd.DataFrame({"step": [], "tokens": [], "loss": [], "step_seconds": [], "phase": []})
    stage = facts("gpus_1000", 1000, index=2, **{"asks_canary": True, "steps_at_stake": 120, **target})
    rows = pd.DataFrame({"step": [], "tokens": [], "loss": [], "at": []})
    return Evidence(stage, empty, rows, stages, previous="gpus_64", moment="entry")


def healthy(gate: str) -> Evidence:
    """Evidence of real stages on which a gate passes: of a rehearsal's clock less is asked."""
    evidence = third_stage_entry(-0.005) if gate == "forecast_efficiency" else second_stage()
    earlier = {name: replace(e, facts=replace(e.facts, emulated=False)) for name, e in evidence.earlier.items()}
    if gate != "forecast_efficiency":
        earlier["gpus_8"] = replace(earlier["gpus_8"], held_out=held_out(facts(), 5.5, 3.1, hand_over=3.2))
    return replace(evidence, stage=replace(evidence.stage, emulated=False), earlier=earlier)


def ask(gate: str, evidence: Evidence) -> Check:
    """Ask a gate with the thresholds that it must be given."""
    return judge(REGISTRY[gate], evidence, THRESHOLDS.get(gate))


def fields(gate: str) -> list[str]:
    """The columns that a gate reads, by what it says it needs: these are spoilt below."""
    capabilities = {"held_out": "loss", "replay": "loss"}
    named = [capabilities.get(need, need) for need in REGISTRY[gate].needs]
    return [*named, THRESHOLDS.get(gate, {}).get("metric", named[0])]


def damaged(evidence: Evidence, spoil: Any) -> Evidence:
    """The same evidence with every frame spoilt."""
    earlier = {n: EarlierStage(e.facts, spoil(e.steps), spoil(e.held_out)) for n, e in evidence.earlier.items()}
    return replace(evidence, steps=spoil(evidence.steps), held_out=spoil(evidence.held_out), earlier=earlier)
