"""A stage's records judged anew by live rules, from the first line on: what they would have said, and how it differs.

All rules but ``hang`` follow from the records alone. That one goes by the clock of the looks, which no record keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tasks.config.live import Live
from tasks.live import terms_of
from tasks.live.alarms import Alarm
from tasks.live.state import LiveState
from tasks.live.steps import finite
from tasks.plan import StagePlan
from tasks.records import each
from tasks.stage_dir import StageDir, read_json

REPLAYED = ("throughput", "loss", "spikes", "finite")
NOTHING = "no alarm"
_CHUNK = 1024  # records held at once


@dataclass(frozen=True)
class Replayed:
    """The alarms of one set of rules, oldest first, and the step with which it leaves what really happened.

    ``parts_at`` is the first restart or stop that was made and would not have been, or the other way round; what came
    after it the records cannot say, so later alarms are left out.
    """

    alarms: tuple[Alarm, ...]
    parts_at: int | None = None
    stops: bool = False  # there: the rules would have stopped the stage, so its end is known

    def of(self, rule: str) -> list[Alarm]:
        """Return one rule's alarms."""
        return [alarm for alarm in self.alarms if alarm.rule == rule]


@dataclass(frozen=True)
class LiveAnew:
    """One stage's live rules: what looks said then, what its own rules say today, and what others say."""

    then: Replayed
    today: Replayed
    anew: Replayed
    notes: tuple[str, ...] = ()  # what cannot be judged anew, and why


def judge_live(stage: StageDir, decided: StagePlan, rules: Live) -> LiveAnew:
    """Judge a stage's records by its own live rules and by ``rules``; raise RecordsInvalid where they are unsound.

    Of a stage without records nothing new can be said.
    """
    then = recorded(stage)
    if not stage.metrics.exists():
        return LiveAnew(then, then, then)
    today = replay(stage, decided, decided.live)
    anew = today if rules.settings == decided.live.settings else replay(stage, decided, rules)
    return LiveAnew(then, today, anew, (hang_in_words(stage, decided, rules),))


def recorded(stage: StageDir) -> Replayed:
    """Return what looks said while the stage ran; nothing, where nobody looked."""
    said = (read_json(stage.live) or {}).get("alarms", [])
    return Replayed(tuple(Alarm.from_json(alarm) for alarm in said))


def replay(stage: StageDir, decided: StagePlan, rules: Live) -> Replayed:
    """Judge all records of a stage by ``rules``, as looks would have; raise RecordsInvalid where they are unsound."""
    terms = replace(terms_of(stage, decided), settings=rules, leave=False)
    left = finite((read_json(stage.leave) or {}).get("time"))
    state = LiveState(begun=1.0)
    for attempt, records in _attempts(stage):
        state.begin(1.0, attempt)
        for granted, some in _by_leave(records, left):
            state.feed(some, replace(terms, leave=granted), 0.0)
    return _until_it_parts(recorded(stage).alarms, state.alarms)


def in_words(there: Replayed, rule: str) -> str:
    """Return a rule's alarms in a few words: how many of each action, and the step of the first."""
    found: dict[str, list[int]] = {}
    for alarm in there.of(rule):
        found.setdefault(alarm.action, []).append(alarm.step)
    said = [
        f"{action} at step {steps[0]}" if len(steps) == 1 else f"{len(steps)} x {action}, first at step {steps[0]}"
        for action, steps in found.items()
    ]
    return "; ".join(said) or NOTHING


def hang_in_words(stage: StageDir, decided: StagePlan, rules: Live) -> str:
    """Say why ``hang`` is not judged anew, what it said then, and the longest gap between two records' times."""
    said = in_words(recorded(stage), "hang")
    times = [float(at) for _, records in _attempts(stage) for row in records if (at := finite(row.get("time")))]
    gap = max((after - before for before, after in pairwise(times)), default=None)
    longest = "records without times" if gap is None else f"the longest gap between two records is {gap:,.0f} s"
    return (
        f"{decided.name}: hang is not judged anew, since it goes by the clock of the looks, which no record keeps "
        f"(then: {said}; {longest}; at least {rules.hang.at_least_seconds:,.0f} s are allowed)"
    )


def _attempts(stage: StageDir) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """Yield records in the order written, some at a time, with the attempt that wrote them.

    A trainer that does not say its attempt is taken to begin one with each header.
    """
    attempt, some = 0, list[Mapping[str, Any]]()
    for record in each(stage.metrics):
        wrote = record.get("attempt")
        begins = not isinstance(wrote, int) and record.get("kind") == "header"
        now = max(attempt, wrote if isinstance(wrote, int) else attempt + begins, 1)
        if (now != attempt and some) or len(some) == _CHUNK:
            yield attempt, some
            some = []
        attempt = now
        some.append(record)
    yield max(attempt, 1), some


def _by_leave(
    records: Sequence[Mapping[str, Any]], left: float | None
) -> Iterator[tuple[bool, Sequence[Mapping[str, Any]]]]:
    """Split records at the moment of a person's leave, from which on nothing stops."""
    first = len(records)
    if left is not None:
        first = next((at for at, row in enumerate(records) if (finite(row.get("time")) or 0.0) >= left), first)
    yield False, records[:first]
    yield True, records[first:]


def _until_it_parts(then: Sequence[Alarm], anew: Sequence[Alarm]) -> Replayed:
    """Cut alarms behind the first restart or stop that is not among those which were really made, or misses one."""
    made, would = _acts(then), _acts(anew)
    same = 0
    while same < min(len(made), len(would)) and _act(made[same]) == _act(would[same]):
        same += 1
    if same == len(made) == len(would):
        return Replayed(tuple(anew))
    ahead = [acts[same] for acts in (made, would) if same < len(acts)]
    at = min(alarm.step for alarm in ahead)
    other = would[same] if same < len(would) and would[same].step == at else None
    kept = anew[: anew.index(other) + 1] if other else [alarm for alarm in anew if alarm.step <= at]
    return Replayed(tuple(kept), at, stops=other is not None and other.action == "stop")


def _acts(alarms: Sequence[Alarm]) -> list[Alarm]:
    return [alarm for alarm in alarms if alarm.rule in REPLAYED and alarm.action in ("restart", "stop")]


def _act(alarm: Alarm) -> tuple[str, int]:
    return alarm.action, alarm.step
