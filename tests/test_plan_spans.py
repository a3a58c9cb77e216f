"""Which steps a stage takes: replay, canary and train without a gap, batches that grow, tokens carried on."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import yaml
from config_texts import EXPERIMENT
from hypothesis import given, settings
from hypothesis import strategies as st
from small_ladder import CLUSTERS, ladder

from tasks import plan
from tasks.config.as_trained import segments
from tasks.config.experiment import BatchFrom, Experiment
from training.config import TrainConfig


def spans(stage: plan.StagePlan) -> list[tuple[str, int, int, int]]:
    return [(span.phase, span.first_step, span.last_step, span.batch_sequences) for span in stage.spans]


def test_three_stages_hand_over_replay_and_go_on() -> None:
    first, second, third = ladder(stages={1: {"tokens": None, "steps": 60}}).stages
    assert spans(first) == [("train", 1, 50, 64)]
    assert spans(second) == [("replay", 41, 50, 64), ("canary", 51, 60, 128), ("train", 61, 110, 128)]
    assert spans(third) == [("replay", 101, 110, 128), ("canary", 111, 120, 1000), ("train", 121, 160, 1000)]
    assert [stage.hand_over_step for stage in (first, second, third)] == [40, 100, None]
    assert [(stage.first_step, stage.last_step) for stage in (first, second, third)] == [(1, 50), (51, 110), (111, 160)]
    assert [(stage.start.kind, stage.start.step) for stage in (first, second, third)] == [
        ("scratch", 0),
        ("continue", 40),
        ("continue", 100),
    ]
    assert [(stage.previous, stage.next) for stage in (first, second, third)] == [
        (None, "gpus_64"),
        ("gpus_8", "gpus_1000"),
        ("gpus_64", None),
    ]


def test_tokens_go_on_where_the_stage_before_ended() -> None:
    first, second, third = ladder(stages={1: {"tokens": None, "steps": 60}}).stages
    assert (first.tokens_first, first.tokens_last) == (0, 50 * 64 * 32)
    assert (second.tokens_first, second.tokens_last) == (first.tokens_last, first.tokens_last + 60 * 128 * 32)
    assert (third.tokens_first, third.tokens_last) == (second.tokens_last, second.tokens_last + 50 * 1000 * 32)


def test_a_replay_is_the_stage_before_in_batch_rate_and_schedule() -> None:
    first, second, _ = ladder().stages
    replayed = second.spans[0]
    assert replayed.phase == "replay"
    assert replayed.batch_sequences == first.spans[-1].batch_sequences
    assert replayed.learning_rate == first.spans[-1].learning_rate != second.spans[-1].learning_rate
    for step in range(replayed.first_step, replayed.last_step + 1):
        assert replayed.schedule.factor(step) == first.spans[-1].schedule.factor(step)


def test_a_replay_crosses_the_batches_of_the_stage_before() -> None:
    grows = [{"sequences": 64}, {"sequences": 128, "from_tokens": 64 * 32 * 45}]
    first, second, _ = ladder(stages={0: {"batch_sequences": grows}}).stages
    assert spans(first) == [("train", 1, 45, 64), ("train", 46, 50, 128)]
    assert spans(second)[:3] == [("replay", 41, 45, 64), ("replay", 46, 50, 128), ("canary", 51, 60, 128)]


def test_a_batch_that_grows_within_the_canary_splits_it() -> None:
    grows = [{"sequences": 64}, {"sequences": 128, "from_tokens": 64 * 32 * 4}]
    _, second, _ = ladder(stages={1: {"batch_sequences": grows, "tokens": None, "steps": 30}}).stages
    assert spans(second)[1:] == [("canary", 51, 54, 64), ("canary", 55, 60, 128), ("train", 61, 80, 128)]


def test_a_trainer_that_cannot_replay_begins_with_the_canary_at_the_hand_over() -> None:
    trainer = {"name": "mine", "command": ["run", "{stage_dir}"], "capabilities": ["resume"]}
    first, second, third = ladder(trainer=trainer, stages={1: {"tokens": None, "steps": 60}}).stages
    assert first.hand_over_step == 40
    assert spans(second) == [("canary", 41, 50, 128), ("train", 51, 100, 128)]
    assert spans(third) == [("canary", 91, 100, 1000), ("train", 101, 140, 1000)]
    assert second.tokens_first == 40 * 64 * 32
    assert third.tokens_first == second.tokens_first + 50 * 128 * 32


@pytest.mark.parametrize("start", ["scratch", {"weights": "kept/step_00000100"}])
def test_a_stage_that_continues_none_counts_from_one_again(start: Any) -> None:
    first, second, third = ladder(stages={1: {"start": start, "tokens": None, "steps": 60}}).stages
    assert first.hand_over_step is None
    assert spans(second) == [("canary", 1, 10, 128), ("train", 11, 60, 128)]
    assert (second.previous, second.start.step, second.tokens_first) == (None, 0, 0)
    assert second.start.checkpoint == (None if start == "scratch" else "kept/step_00000100")
    assert spans(third)[0] == ("replay", 51, 60, 128)
    assert first.spans[0].schedule.total_steps == 50
    assert second.spans[0].schedule.total_steps == third.spans[0].schedule.total_steps == 110


def test_one_schedule_spans_the_stages_that_continue_one_another() -> None:
    train = {**yaml.safe_load(EXPERIMENT)["train"], "schedule": {"kind": "cosine", "warmup_steps": 10, "floor": 0.2}}
    stages = ladder(train=train, stages={1: {"tokens": None, "steps": 60}}).stages
    own = [
        (span, step)
        for stage in stages
        for span in stage.own_spans
        for step in range(span.first_step, span.last_step + 1)
    ]
    factors = [span.schedule.factor(step) for span, step in own]
    assert [step for _, step in own] == list(range(1, 161))
    assert factors[9] == 1.0
    assert all(after < before for before, after in pairwise(factors[9:]))
    assert factors[-1] == pytest.approx(0.2)


def test_tokens_become_the_fewest_steps_that_reach_them() -> None:
    _, second, _ = ladder().stages
    steps = second.last_step - second.first_step + 1
    assert (steps - 1) * 128 * 32 < 500_000 <= steps * 128 * 32


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    gaps=st.lists(st.integers(1, 5000), min_size=3, max_size=3),
    sequence=st.integers(1, 64),
    steps=st.none() | st.integers(1, 300),
    tokens=st.integers(1, 200_000),
)
def test_segments_end_as_soon_as_they_may(
    sizes: list[int], gaps: list[int], sequence: int, steps: int | None, tokens: int
) -> None:
    marks = [sum(gaps[:index]) for index in range(len(sizes))]
    batches = tuple(BatchFrom(sequences=size, from_tokens=mark) for size, mark in zip(sizes, marks, strict=True))
    found = segments(batches, sequence, steps, None if steps else tokens)
    if steps:
        assert sum(count for _, count in found) == steps
    done = 0
    for size, count in found:
        for _ in range(count):
            in_force = max(index for index, mark in enumerate(marks) if mark <= done)
            assert size == sizes[in_force]
            assert steps or done < tokens
            done += size * sequence
    assert steps or done >= tokens


@st.composite
def ladders(draw: st.DrawFn) -> Experiment:
    """Draw an experiment of one to four stages, each of its own batches, length and start."""
    raw = yaml.safe_load(EXPERIMENT)
    hand_over, canary = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    sizes = sorted(draw(st.sets(st.sampled_from([1, 2, 4, 8, 16, 64, 512, 1000]), min_size=1, max_size=4)))
    stages = []
    for index, gpus in enumerate(sizes):
        stage = copy.deepcopy(raw["stages"][0])
        first, second = draw(st.integers(gpus, 2000)), draw(st.integers(gpus, 2000))
        steps = draw(st.integers(hand_over + canary + 1, 60))
        boundary = draw(st.integers(1, steps - 1)) * first * 32
        grows = [{"sequences": first}, {"sequences": second, "from_tokens": boundary}]
        stage.update(gpus=gpus, steps=steps, batch_sequences=draw(st.sampled_from([first, grows])))
        stage.update(start=draw(st.sampled_from(["continue", "continue", "scratch"])) if index else "scratch")
        stages.append(stage)
    trainer = {"name": "mine", "command": ["run"], "capabilities": draw(st.sampled_from([["replay"], []]))}
    keys = {"name": "x", "stages": stages, "hand_over_steps": hand_over, "canary_steps": canary, "rehearsal": {}}
    return Experiment.model_validate({**raw, **keys, "trainer": trainer})


@settings(max_examples=150, deadline=None)
@given(drawn=ladders())
def test_spans_cover_all_steps_once_and_replays_repeat_them_exactly(drawn: Experiment) -> None:
    stages = plan.resolve(drawn, clusters=CLUSTERS).stages
    seen: dict[int, tuple[int, float, Any]] = {}  # what each step of the ladder was, by its number
    consumed: dict[int, int] = {}  # sequences before each step, so where its samples begin
    for before, stage in zip([None, *stages], stages, strict=False):
        if stage.previous is None:
            seen, consumed = {}, {1: 0}
        steps = [step for span in stage.spans for step in range(span.first_step, span.last_step + 1)]
        assert steps == list(range(stage.start.step + 1, stage.last_step + 1))
        if before is not None and stage.previous:
            assert (stage.previous, before.hand_over_step) == (before.name, stage.start.step)
        for span in stage.spans:
            for step in range(span.first_step, span.last_step + 1):
                now = (span.batch_sequences, span.learning_rate, span.schedule)
                if span.phase == "replay":
                    assert seen[step] == now
                seen[step] = now
                consumed[step + 1] = consumed[step] + span.batch_sequences
        assert consumed[stage.first_step] * 32 == stage.tokens_first
        assert consumed[stage.last_step + 1] * 32 == stage.tokens_last
        assert stage.steps_in("canary") == (drawn.canary_steps if stage.index else 0)
        assert stage.steps_in("replay") == (
            drawn.hand_over_steps if stage.previous and drawn.trainer.can("replay") else 0
        )
        assert all(span.schedule == stage.spans[-1].schedule for span in stage.own_spans)
        assert TrainConfig.from_json(plan.train_config(stage, "r", 1).to_json()).spans == stage.spans
