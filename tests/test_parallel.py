"""However a model is cut onto eight processes, it learns as on one: same losses, same gradients, same checkpoints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import layouts
import pytest


def in_a_world_of_eight(folder: Path, steps: int | None = None, timeout: float = 280) -> dict:
    """What eight processes found, see :mod:`layouts`; a warning of torch's is an error there too."""
    file = folder / "found.json"
    asked = [str(file)] + ([str(steps)] if steps else [])
    command = [sys.executable, "-W", "error::UserWarning", layouts.__file__, *asked]
    environment = {**os.environ, "PYTHONPATH": str(Path(layouts.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return in_a_world_of_eight(tmp_path_factory.mktemp("layouts"))


def same_curve(alone: dict, cut: dict) -> None:
    """Both have learnt the same: to 1e-5 of the loss at every step, 1e-6 of the held-out loss before and after."""
    steps = len(cut["loss"])
    assert cut["loss"] == pytest.approx(alone["loss"][:steps], rel=1e-5)
    assert cut["norm"] == pytest.approx(alone["norm"][:steps], rel=1e-4)
    assert cut["held_out"][0] == pytest.approx(alone["held_out"][0], rel=1e-6)
    if steps == len(alone["loss"]):
        assert cut["held_out"][1] == pytest.approx(alone["held_out"][1], rel=1e-6)
    if steps == layouts.LONG:
        assert cut["loss"][-1] < cut["loss"][0] - 1, "and it does learn"


@pytest.mark.parametrize("layout", layouts.CURVES)
def test_every_layout_gives_the_losses_of_one_process(found, layout):
    curves = found["curves"][layout]
    assert len(curves["cut"]["loss"]) == layouts.CURVES[layout][1]
    same_curve(curves["alone"], curves["cut"])


def test_every_layout_has_the_very_gradient_of_one_process(found):
    """AdamW nearly hides a gradient that is a multiple of the right one; this does not."""
    errors = {layout: curves["gradient_error"] for layout, curves in found["curves"].items()}
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("layout", layouts.HALVES)
def test_in_bf16_a_layout_stays_within_a_thousandth_of_a_nat_of_one_process(found, layout):
    alone, cut = (found["bf16"][layout][which]["loss"] for which in ("alone", "cut"))
    assert max(abs(one - other) for one, other in zip(alone, cut, strict=False)) < 1e-3
    float32 = found["curves"][layout]["cut"]["loss"]
    assert cut != pytest.approx(float32[: len(cut)], abs=1e-6), "it is bf16"


def test_a_checkpoint_opens_in_every_other_layout_with_the_same_state_and_loss(found):
    assert len(found["reshard"]) == len(layouts.PLACES) * (len(layouts.PLACES) - 1)
    for pair, said in found["reshard"].items():
        before, after = said["held_out"]
        assert said["unequal"] == [], pair
        assert after == pytest.approx(before, abs=1e-6), pair
