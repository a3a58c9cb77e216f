"""The loss forecast on curves that were really trained: three seeds of gpt_stdlib's rehearsal, batch 256, 512, 1000.

``real_curves.json`` holds of each stage its own steps' losses and its held-out rows ``[step, loss, at]``, as the
trainer recorded them. Nothing of the forecast was fitted to them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import statistics
from tasks.statistics import LossForecast

CURVES = json.loads((Path(__file__).parent / "real_curves.json").read_text())
CASES = [pytest.param(run, k, id=f"seed {run['seed']} {run['stages'][k]['stage']}") for run in CURVES for k in (1, 2)]


def held_out(stage: dict[str, Any], at: str) -> float:
    return next(loss for _, loss, moment in stage["held_out"] if moment == at)


def foretold(run: dict[str, Any], k: int, losses: str) -> LossForecast:
    """The forecast of stage ``k``'s last held-out loss from the stages before it."""
    before = run["stages"][:k]
    tokens = np.concatenate([np.full(len(s["loss"]), s["batch_tokens"]) for s in before])
    planned = np.full(len(run["stages"][k]["loss"]), run["stages"][k]["batch_tokens"])
    if losses == "training":
        values = np.concatenate([s["loss"] for s in before])
        return statistics.forecast_loss(tokens, np.arange(1, values.size + 1), values, planned)
    rows = dict((step, loss) for s in before for step, loss, _ in s["held_out"] if step)
    return statistics.forecast_loss(tokens, list(rows), list(rows.values()), planned)


@pytest.mark.parametrize(("run", "k"), CASES)
def test_the_band_covers_what_came_and_shows_a_stuck_and_a_worse_loss(run: dict[str, Any], k: int):
    came, start = held_out(run["stages"][k], "end"), held_out(run["stages"][k], "start")
    try:
        band = foretold(run, k, "held-out")
    except ValueError:  # three rows in a first stage are too few: training losses stand in
        band = foretold(run, k, "training")
    assert band.low <= came <= band.high
    assert band.high + 0.01 < start  # a loss that stays where it was is seen
    assert band.high + 0.01 < came + 0.3  # and so is one 0.3 nats too high
