"""The shipped clusters against the step-time model and the gates on speed: one carries the ladder, one does not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pandas as pd
import pytest

from tasks import config, expectation, plan, statistics
from tasks.config import files as config_files
from tasks.gates import EarlierStage, Evidence, Outcome, judge_all
from tasks.gates.core import gate_of
from training import step_time

ON_SPEED = {"forecast_efficiency", "canary", "steady_throughput", "stall_free", "scaling_efficiency"}


def modelled(name: str) -> list[float]:
    """Return the modelled tokens/s/GPU of each stage, without noise."""
    stages = plan.resolve(config.load_experiment(name, gates=False)).stages
    speeds = []
    for stage in stages:
        emulation = plan.train_config(stage, "r", 1).emulation
        assert emulation is not None
        seconds = step_time.ideal(emulation, stage.gpus).total
        speeds.append(stage.throughput_batch_tokens / stage.gpus / seconds)
    return speeds


def chance(speeds: list[float], bar: float) -> float:
    """Return the forecast's chance that 1000 GPUs keep ``bar`` of what a GPU does among 64."""
    return statistics.weak_scaling([8, 64], speeds[:2], 1000).above(math.log(bar * speeds[1]))


def test_the_good_network_passes_every_bar_with_room() -> None:
    eight, sixty_four, thousand = speeds = modelled("gpt_stdlib")
    assert sixty_four / eight > 0.98
    assert thousand / sixty_four > 0.96
    assert chance(speeds, 0.90) > 0.98


def test_the_weak_network_passes_64_and_is_rightly_refused_at_1000() -> None:
    eight, sixty_four, thousand = speeds = modelled("gpt_stdlib_weak_network")
    assert 0.82 < sixty_four / eight < 0.88
    assert chance(speeds, 0.90) < 0.01
    assert thousand / sixty_four < 0.80  # the forecast does not cry wolf


@pytest.mark.parametrize("name", ["gpt_stdlib", "gpt_stdlib_weak_network"])
def test_the_speeds_in_the_cluster_files_comments_are_what_the_model_says(name: str) -> None:
    cluster = config.load_experiment(name, gates=False).cluster
    text = (config_files.config_root() / "clusters" / f"{cluster}.yaml").read_text()
    said = re.search(r"8 GPUs (\d+) +64 GPUs (\d+) .*1000 GPUs (\d+)", text)
    assert said is not None
    assert [float(number) for number in said.groups()] == pytest.approx(modelled(name), abs=1)


def drawn(stage: plan.StagePlan) -> pd.DataFrame:
    """Return the records of a stage as far as speed goes, with the noise that its seed draws."""
    emulation = plan.train_config(stage, "r", 1).emulation
    assert emulation is not None
    rows = []
    for span in stage.spans:
        for step in range(span.first_step, span.last_step + 1):
            seconds = step_time.drawn(emulation, stage.gpus, 1, step).total
            speed = stage.throughput_batch_tokens / stage.gpus / seconds
            row = {"step": step, "tokens": step, "loss": 2.0, "phase": span.phase, "attempt": 1}
            rows.append({**row, "step_seconds": seconds, "tokens_per_gpu_second": speed})
    return pd.DataFrame(rows)


def climb(name: str, seed: int) -> dict[str, Outcome]:
    """Ask the gates on speed, stage by stage, until one refuses; return its answer, or nothing where all passed."""
    no_held_out = pd.DataFrame(columns=["step", "tokens", "loss", "at"])
    earlier: dict[str, EarlierStage] = {}
    for stage in plan.resolve(config.load_experiment(name, gates=False), seed=seed).stages:
        steps = drawn(stage)
        gates = {key: chosen for key, chosen in stage.gates.items() if gate_of(key).name in ON_SPEED}
        before = Evidence(stage.facts(), steps.iloc[:0], no_held_out, dict(earlier), moment="entry")
        forecast: Mapping[str, object] = {"throughput": expectation.throughput(before)[0]}
        for moment, phases in (("entry", ()), ("early", ("replay", "canary")), ("end", ("replay", "canary", "train"))):
            seen = steps[steps["phase"].isin(phases)]
            evidence = Evidence(
                stage.facts(), seen, no_held_out, dict(earlier), forecast, moment=moment, previous=stage.previous
            )
            refused = {f"{stage.name} {c.gate}": c.outcome for c in judge_all(evidence, gates) if c.outcome != "PASS"}
            if refused:
                return refused
        earlier[stage.name] = EarlierStage(stage.facts(), steps, no_held_out, forecast)
    return {}


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_good_network_is_climbed_to_the_top(seed: int) -> None:
    assert climb("gpt_stdlib", seed) == {}


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_weak_network_is_refused_before_1000_gpus_start(seed: int) -> None:
    assert climb("gpt_stdlib_weak_network", seed) == {"gpus_1000 forecast_efficiency": Outcome.FAIL}


def test_the_long_rehearsal_is_climbed_too() -> None:
    assert climb("gpt_stdlib_1m", 1) == {}
