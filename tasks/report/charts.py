"""The curves of a stage: loss over tokens and speed over steps, with what was forecast and when an alarm fell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report import pictures, words
from tasks.report.story import Story, earlier_stages, finite, story_of

_ALARM_INKS = {"stop": "#b3261e", "restart": "#b3261e", "page": "#8a5a00", "note": "#5b6770"}
_ALARM_TONES = {"stop": "FAIL", "restart": "FAIL", "page": "NEED_MORE_DATA"}
_MOST_MARKS = 8  # more would hide the curve: the worst and newest are drawn, the list has them all


def loss_chart(story: Story) -> Any:
    """Return the loss over tokens: this stage's phases, held-out points, and the stages before it on the same axis."""
    curves = []
    for place, earlier in enumerate(earlier_stages(story.stage)):
        told = story_of(earlier)
        if told.metrics is not None:
            train = _phases(told.metrics.steps, "train", "canary")
            ink = pictures.INKS[(place + 1) % len(pictures.INKS)]
            curves.append(pictures.Curve(earlier.name, finite(train, "tokens", "loss"), ink, faint=True))
    bands, at = [], {}
    if story.metrics is not None:
        steps, own = story.metrics.steps, pictures.INKS[0]
        train, replay = _phases(steps, "train", "canary"), _phases(steps, "replay")
        canary = finite(_phases(steps, "canary"), "tokens", "loss")
        curves.append(pictures.Curve(story.stage.name, finite(train, "tokens", "loss"), own))
        curves.append(pictures.Curve("replay (counted once)", finite(replay, "tokens", "loss"), "#111", dashed=True))
        held = finite(story.metrics.held_out, "tokens", "loss")
        curves.append(pictures.Curve("held-out loss", held, pictures.TONES["FAIL"], dots=True))
        if canary:
            bands.append(pictures.Band("canary", canary[0][0], canary[-1][0], pictures.TONES["NEED_MORE_DATA"], True))
        at = {int(step): tokens for step, tokens in finite(steps, "step", "tokens")}
    return pictures.chart(
        curves, bands, _marks(story, at), x="tokens", y="loss (nats)", x_number=words.short, y_number=words.short
    )


def speed_chart(story: Story) -> Any:
    """Return tokens/s/GPU over steps with what was forecast."""
    if story.metrics is None:
        return ""
    curves, steps = [], story.metrics.steps
    for phases, name, ink, dashed in (
        (("train", "canary"), "tokens/s/GPU", pictures.INKS[0], False),
        (("replay",), "replay (not judged on speed)", "#111", True),
    ):
        points = finite(_phases(steps, *phases), "step", "tokens_per_gpu_second")
        curves.append(pictures.Curve(name, points, ink, dashed))
    expected = forecast_band(story.forecast)
    bands = [pictures.Band("forecast", *expected, pictures.TONES["PASS"])] if expected else []
    at = {int(step): step for step, _ in finite(steps, "step", "step")}
    return pictures.chart(
        curves, bands, _marks(story, at), x="step", y="tokens/s/GPU" + (" (modelled)" if story.emulated else ""),
        x_number=words.short, y_number=words.short,
    )  # fmt: skip


def forecast_band(forecast: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range of tokens/s/GPU that was forecast, where one was."""
    expected = forecast.get("throughput") or {}
    low, high = expected.get("low"), expected.get("high")
    if low is None or high is None:
        low, high = expected.get("interval") or (expected.get("median"), expected.get("median"))
    return (float(low), float(high)) if low is not None and high is not None else None


def alarm_rows(story: Story) -> list[dict[str, Any]]:
    """Return every alarm in words, oldest first."""
    return [
        {
            "rule": str(alarm.get("rule", "")),
            "action": str(alarm.get("action", "")),
            "tone": _ALARM_TONES.get(str(alarm.get("action")), "WAITING"),
            "step": alarm.get("step", "unknown"),
            "time": words.moment(alarm.get("time")),
            "says": str(alarm.get("says", "")),
        }
        for alarm in story.alarms
    ]


def _marks(story: Story, at: Mapping[int, float]) -> list[pictures.Mark]:
    """Return the alarms' moments on an axis; ``at`` is where each step stands on it."""
    worst = ("stop", "restart", "page", "note")
    alarms = [alarm for alarm in story.alarms if alarm.get("action") in worst and isinstance(alarm.get("step"), int)]
    alarms = sorted(reversed(alarms), key=lambda alarm: worst.index(alarm["action"]))[:_MOST_MARKS]
    found = []
    for alarm in sorted(alarms, key=lambda alarm: int(alarm["step"])):
        before = [step for step in at if step <= alarm["step"]]
        if before:
            name = f"{alarm.get('rule')} ({alarm['action']}), step {alarm['step']}"
            found.append(pictures.Mark(name, at[max(before)], _ALARM_INKS[alarm["action"]]))
    return found


def _phases(steps: Any, *wanted: str) -> Any:
    return steps[steps["phase"].fillna("train").isin(wanted)] if len(steps) else steps
