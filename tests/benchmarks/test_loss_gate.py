"""The loss gate on really trained runs: reruns pass, an excess is caught, a doubled batch is told from a bad rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_evidence import facts
from loss_trainings import BASE_TOKENS, BATCH, BFLOAT, DOUBLED, LENGTH, SAME, TOKENS, TOO_HIGH, Outcome, base, train
from rates import table, with_interval

from tasks import gates
from tasks.gates import REGISTRY, Check, Evidence, judge

pytestmark = pytest.mark.timeout(3600)  # about ninety trainings of some seconds each

RERUNS, DOUBLINGS, REFERENCES = 62, 12, 8
EXCESS = 0.02  # nats
FINGERPRINT = "f" * 64


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Trainings from one hand-over, by recipe."""
    root = tmp_path_factory.mktemp("trainings")
    wanted = [(SAME, 1 + seed) for seed in range(RERUNS)]
    wanted += [(BFLOAT, 1 + seed) for seed in range(DOUBLINGS)]  # the samples of the first reruns, other arithmetic
    wanted += [(recipe, 101 + seed) for recipe in (DOUBLED, TOO_HIGH) for seed in range(DOUBLINGS)]
    found: dict[str, list[Outcome]] = {}
    for outcome in train(root, base(root), wanted):
        found.setdefault(outcome.recipe.name, []).append(outcome)
    return found


def judged(run: Outcome, references: Sequence[Outcome], *, excess: float = 0.0) -> Check:
    """Ask the gate as ``evaluate`` does: the run's records against stored reference runs on the same data."""
    recipe, step = run.recipe, np.arange(1, run.recipe.steps + 1)
    batch_tokens = recipe.batch * LENGTH
    at = facts("gpus_8", batch_tokens=batch_tokens, fingerprint=FINGERPRINT, last_step=recipe.steps, seed=run.seed)
    loss = np.array(run.losses) + excess
    steps = pd.DataFrame({"step": step, "tokens": BASE_TOKENS + step * batch_tokens, "loss": loss, "phase": "train"})
    held = pd.DataFrame({"step": [recipe.steps], "tokens": [BASE_TOKENS + TOKENS], "at": ["end"]})
    held["loss"] = run.held_out[-1] + excess
    baseline = {"fingerprint": FINGERPRINT, "batch_tokens": BATCH * LENGTH, "runs": [stored(r) for r in references]}
    return judge(REGISTRY["loss_near_baseline"], Evidence(stage=at, steps=steps, held_out=held, baseline=baseline))


def stored(run: Outcome) -> dict[str, Any]:
    """Return a run as ``scaleup calibrate --reference`` stores it."""
    step = np.arange(1, run.recipe.steps + 1)
    return {
        "seed": run.seed,
        "tokens": list(run.tokens),
        "held_out_loss": list(run.held_out),
        "step_tokens": (BASE_TOKENS + step * run.recipe.batch * LENGTH).tolist(),
        "step_loss": list(run.losses),
    }


def drawn(pool: Sequence[Outcome], but: Outcome | None, count: int, seed: int) -> list[Outcome]:
    """Draw reference runs, never the one that is judged."""
    others = [run for run in pool if run is not but]
    chosen = np.random.default_rng(seed).choice(len(others), size=count, replace=False)
    return [others[index] for index in chosen]


def outcomes(runs: Sequence[Outcome], pool: Sequence[Outcome], count: int, excess: float = 0.0) -> list[str]:
    """Judge each run against ``count`` reference runs drawn anew for it."""
    return [str(judged(run, drawn(pool, run, count, seed), excess=excess).outcome) for seed, run in enumerate(runs)]


def test_reruns_excesses_and_doubled_batches(trained_runs: dict[str, list[Outcome]]) -> None:
    same = trained_runs[SAME.name]
    spread = float(np.std([run.held_out[-1] for run in same], ddof=1))
    rows, shares = [], {}
    cases = [(SAME.name, 0.0), (SAME.name, EXCESS), (DOUBLED.name, 0.0), (TOO_HIGH.name, 0.0)]
    for count in (2, 4, REFERENCES):
        for name, excess in cases:
            found = outcomes(trained_runs[name], same, count, excess)
            shares[name, excess, count] = {word: found.count(word) / len(found) for word in gates.Outcome}
            counts = [with_interval(found.count(word), len(found)) for word in ("PASS", "FAIL", "NEED_MORE_DATA")]
            rows.append([name, f"{excess:+g}", count, len(found), *counts])
    print(
        f"\nheld-out loss of {len(same)} reruns in another order of samples: sd {spread:.5f} nats (real, trained here)"
    )
    print(table(["recipe", "excess planted", "references", "runs", "PASS", "FAIL", "NEED_MORE_DATA"], rows))
    for count in (2, 4, REFERENCES):
        assert shares[SAME.name, 0.0, count]["FAIL"] <= 0.05
    assert shares[SAME.name, EXCESS, REFERENCES]["FAIL"] >= 0.9
    assert shares[DOUBLED.name, 0.0, REFERENCES]["PASS"] > shares[DOUBLED.name, 0.0, REFERENCES]["FAIL"]
    assert shares[TOO_HIGH.name, 0.0, REFERENCES]["FAIL"] >= 0.9


def test_one_reference_run_decides_where_samples_were_the_same(trained_runs: dict[str, list[Outcome]]) -> None:
    """The same samples in bf16 for float32: one repeat is enough to pass, and to see an excess of .02 nats."""
    same = {run.seed: run for run in trained_runs[SAME.name]}
    rows, shares = [], {}
    for excess in (0.0, EXCESS):
        found = [str(judged(run, [same[run.seed]], excess=excess).outcome) for run in trained_runs[BFLOAT.name]]
        shares[excess] = found
        counts = [with_interval(found.count(word), len(found)) for word in ("PASS", "FAIL", "NEED_MORE_DATA")]
        rows.append([BFLOAT.name, f"{excess:+g}", 1, len(found), *counts])
    print(
        "\n" + table(["recipe, paired", "excess planted", "references", "runs", "PASS", "FAIL", "NEED_MORE_DATA"], rows)
    )
    assert set(shares[0.0]) == {"PASS"} and set(shares[EXCESS]) == {"FAIL"}


def test_one_reference_run_on_other_samples_says_what_is_missing(trained_runs: dict[str, list[Outcome]]) -> None:
    same = trained_runs[SAME.name]
    check = judged(same[0], [same[1]])
    assert check.outcome == "NEED_MORE_DATA" and "scaleup calibrate" in check.reason
