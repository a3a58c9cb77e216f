"""The probes of a stage in words: who asked for which, why, and what it showed."""

from __future__ import annotations

from typing import Any

from tasks.errors import ScaleupError
from tasks.report import words
from tasks.report.story import Story, told


def probe_rows(story: Story) -> list[dict[str, Any]]:
    """Return every probe ordered for the stage, oldest first."""
    reached = _speeds(story)
    rows = []
    for probe in sorted(story.stage.probes, key=lambda probe: float(told(probe.order).get("time") or 0.0)):
        order = told(probe.order)
        known = reached.get(f"{story.stage.name}/{probe.name}")
        asked = f"{order['gate']} ({order.get('moment', '')})" if order.get("gate") else "the experiment (probe_gpus)"
        price = order.get("gpu_hours")
        rows.append(
            {
                "name": probe.name,
                "size": f"{order.get('steps', '?')} steps on {order.get('gpus', '?')} GPUs",
                "asked": asked,
                "why": str(order.get("says", "")),
                "reached": known or "not complete",
                "cost": words.gpu_hours(price, story.price) if isinstance(price, int | float) else "",
            }
        )
    return rows


def _speeds(story: Story) -> dict[str, str]:
    """Return tokens/s/GPU with its interval of each complete probe, by ``gpus_64/gpus_16``; reasons where unusable."""
    from tasks.gates.core import Unusable
    from tasks.gates.launches import of_probe
    from tasks.probe import taken

    if story.plan is None:
        return {}
    try:
        probes = taken(story.stage, story.plan)
    except (ScaleupError, KeyError, TypeError, ValueError):
        return {}
    found = {}
    for probe in probes:
        try:
            speed = of_probe(probe).speed
        except Unusable as reason:
            found[probe.facts.name] = f"unusable: {reason}"
            continue
        kind = " (modelled)" if story.emulated else ""
        found[probe.facts.name] = (
            f"{words.number(speed.value)} ({words.number(speed.low)} to {words.number(speed.high)}) tokens/s/GPU{kind}"
        )
    return found
