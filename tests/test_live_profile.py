"""A slow-down's alarm says which phases of a step grew."""

import json

import pytest

from tasks.live.alarms import Alarm
from tasks.live.profile import profiled

PHASES = {"data_seconds": 0.01, "forward_seconds": 0.1, "backward_seconds": 0.2, "communication_seconds": 0.15}


def written(path, *, slow_from=401, grows=None, phases=PHASES, **columns):
    """Write 500 steps; from ``slow_from`` on the phases of ``grows`` take so much longer."""
    lines = []
    for step in range(1, 501):
        took = {name: value + (grows or {}).get(name, 0.0) * (step >= slow_from) for name, value in phases.items()}
        total = sum(took.values()) if took else 0.5
        lines.append(
            {"step": step, "tokens": 1000 * step, "loss": 3.0, "step_seconds": total, "batch": 8, **took, **columns}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def said(path, window=(401, 440)):
    alarm = Alarm("throughput", "page", window[1], 0.0, "steps take longer", window=window)
    return profiled(alarm, path).says


def test_the_phase_that_grew_is_named_with_its_share(tmp_path):
    path = written(tmp_path / "m.jsonl", grows={"communication_seconds": 0.08, "data_seconds": 0.02})
    assert said(path) == (
        "steps take longer; what grew: communication (0.15 to 0.23 s, 80% of it), data (0.01 to 0.03 s, 20% of it)"
    )


def test_only_steps_up_to_the_alarm_count(tmp_path):
    path = written(tmp_path / "m.jsonl", slow_from=441, grows={"communication_seconds": 0.09})
    assert said(path).endswith("no phase of a step grew with it: look outside the phases that are recorded")


@pytest.mark.parametrize(
    ("made", "window", "end"),
    [
        (
            {"phases": {}},
            (401, 440),
            "its records have no phases (data, forward, backward, communication, optimizer) to compare",
        ),
        ({}, (1, 40), "there are no steps before it to compare with"),
        ({"phase": "replay"}, (401, 440), "there are no steps before it to compare with"),
    ],
)
def test_what_records_do_not_tell_is_said(tmp_path, made, window, end):
    assert said(written(tmp_path / "m.jsonl", **made), window).endswith(end)


def test_other_alarms_stay_as_they_are(tmp_path):
    alarm = Alarm("loss", "stop", 440, 0.0, "the loss lies above", window=(401, 440))
    assert profiled(alarm, tmp_path / "none.jsonl") is alarm
