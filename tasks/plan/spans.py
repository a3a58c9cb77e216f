"""The steps of a stage as spans: what it replays, its canary, the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.config.as_trained import AsTrained
from tasks.plan.rates import schedule
from training.config import PhaseName, Span

if TYPE_CHECKING:
    from tasks.plan import StagePlan


def replay(before: Sequence[Span], steps: int) -> tuple[Span, ...]:
    """Return the last ``steps`` steps of a stage's own spans as a replay: batch, rate and schedule as they were."""
    begin = before[-1].last_step - steps + 1
    found = []
    for span in before:
        first = max(span.first_step, begin)
        if first <= span.last_step:
            found.append(replace(span, phase="replay", first_step=first, steps=span.last_step - first + 1))
    return _joined(found)


def own(
    trained: AsTrained, *, done: int, canary_steps: int, rates: Sequence[float], total_steps: int
) -> tuple[Span, ...]:
    """Return canary and train after step ``done``, one span a batch; a batch that outlasts the canary is cut there.

    ``rates`` holds the peak learning rate of each batch. The schedule counts from the start of the ladder's stages
    that continue one another, which is step 0, and ends after ``total_steps``.
    """
    shape = schedule(trained, total_steps)
    canary_ends = done + canary_steps
    found, step = [], done
    for (sequences, steps), rate in zip(trained.segments, rates, strict=True):
        in_canary = min(steps, max(0, canary_ends - step))
        parts: list[tuple[PhaseName, int]] = [("canary", in_canary), ("train", steps - in_canary)]
        for phase, count in parts:
            if count:
                found.append(Span(phase, step + 1, count, sequences, rate, shape))
                step += count
    return tuple(found)


def at_rate(parts: Sequence[Span], after: int, rate: float) -> tuple[Span, ...]:
    """Return spans whose own steps after step ``after`` have the peak rate ``rate``; a span is cut there.

    Where the batch grows later, its rates keep their ratio to the one in force. What is replayed stays as it was.
    """
    to_change = [span for span in parts if span.phase != "replay" and span.last_step > after]
    found = [span for span in parts if span not in to_change]
    for span in to_change:
        changed = replace(span, learning_rate=span.learning_rate * rate / to_change[0].learning_rate)
        kept = max(0, after - span.first_step + 1)
        if kept:
            found.append(replace(span, steps=kept))
        found.append(replace(changed, first_step=span.first_step + kept, steps=span.steps - kept))
    return tuple(found)


def done_before(previous: StagePlan | None, can_replay: bool) -> int:
    """Return the last step that is not this stage's own: all of the previous one, or up to its hand-over."""
    if previous is None:
        return 0
    return previous.last_step if can_replay else previous.hand_over_step or 0


def tokens_after(previous: StagePlan | None, step: int) -> int:
    """Return the tokens seen after ``step`` of a stage, 0 where there is none before."""
    if previous is None:
        return 0
    sequences = sum(
        span.batch_sequences * max(0, min(span.last_step, step) - span.first_step + 1) for span in previous.own_spans
    )
    return previous.tokens_first + sequences * previous.recipe.sequence_length


def _joined(parts: Sequence[Span]) -> tuple[Span, ...]:
    """Join neighbours that differ in nothing but the phase they once had."""
    found: list[Span] = []
    for span in parts:
        same = found and replace(span, first_step=found[-1].first_step, steps=found[-1].steps) == found[-1]
        if same:
            found[-1] = replace(found[-1], steps=found[-1].steps + span.steps)
        else:
            found.append(span)
    return tuple(found)
