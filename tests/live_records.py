"""Records as a running stage writes them, made of numbers, and live rules fed with them in looks of any size."""

import json

import numpy as np

from tasks.config.live import Live
from tasks.live.state import LiveState
from tasks.live.steps import Terms
from training.config import Schedule, Span


def span(phase, first, steps, batch=16):
    return Span(phase, first, steps, batch, 0.001, Schedule())


SPANS = (span("replay", 1, 20, 8), span("canary", 21, 60), span("train", 81, 4000))


def terms(spans=SPANS, **said):
    rules = {key: said.pop(key) for key in list(said) if key in Live.model_fields}
    return Terms(spans, settings=Live.model_validate(rules), **said)


def series(count, first=1, seed=0, loss=3.0, loss_sd=0.02, seconds=0.5, **columns):
    """Return step records of clean noise; columns of numbers replace what they name."""
    random = np.random.default_rng(seed)
    made = {
        "step": np.arange(first, first + count),
        "loss": loss + loss_sd * random.normal(size=count),
        "step_seconds": seconds * (1 + 0.015 * random.normal(size=count)),
    } | columns
    rows = [
        dict(zip(made, row, strict=True)) for row in zip(*(np.asarray(c).tolist() for c in made.values()), strict=True)
    ]
    return [{**row, "tokens": row["step"] * 1000, "time": float(row["step"])} for row in rows]


def fed(records, with_terms=None, chunk=None, state=None):
    """Feed records in looks of ``chunk``, what is remembered passing through JSON between them; return the state."""
    state = state or LiveState(begun=1.0)
    chunk = chunk or len(records) or 1
    for at in range(0, len(records), chunk):
        state = LiveState.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
        state.feed(records[at : at + chunk], with_terms or terms(), 0.0)
    return state


def said(state):
    return [(alarm.rule, alarm.action, alarm.step) for alarm in state.alarms]
