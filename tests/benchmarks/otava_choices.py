"""Change points as Apache Otava 0.8.0 finds them, choice by choice, on our energy statistic.

Each choice may be taken back to ours alone, so that a difference between the two has a name. Read in its code:
`otava/analysis.py` and `otava/change_point_divisive/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from scipy.stats import ttest_ind_from_stats

from tasks.statistics import ChangeRule
from tasks.statistics.change_points import CANDIDATE, best_split

Array = np.ndarray


@dataclass(frozen=True)
class Choices:
    """What Otava does otherwise than we do; False takes one back."""

    sd_by_n: bool = True  # its t test takes sd that were divided by n where the formula asks for n - 1: p is too small
    single_nights: bool = True  # one night may be a level
    left_not_judged_anew: bool = True  # once a break is struck, it judges the next two anew, and the one before never
    ends_at_first_doubt: bool = True  # a part whose best break is doubtful ends the search of the whole window
    tests_whole_part: bool = True  # a candidate is tested against all up to the next break, not the level that follows
    doubles: bool = True  # p of .05 to .5 enters at twice the p; ours at ten times, .5 at most
    windows_to_the_end: bool = True  # smaller and smaller windows after the one that reaches the last night
    either_way: bool = True  # a fall of 9% counts as a rise of 10%

    def without(self) -> Iterator[tuple[str, Choices]]:
        """Yield each choice's name, and all others without it."""
        for field in fields(self):
            yield field.name, replace(self, **{field.name: False})


OURS = Choices(*(False for _ in fields(Choices)))


def breaks(y: Array, rule: ChangeRule, choices: Choices) -> list[int]:
    """Return the nights at which a series breaks; with :data:`OURS` as `level_changes` does without AR(1)."""
    found: set[int] = set()
    start = 0
    while start < y.size:
        end = min(start + rule.window, y.size)
        inside = _of_window(y, start, end, rule, choices)
        found.update(inside)
        if end == y.size and not choices.windows_to_the_end:
            break
        start = max([start + rule.window // 2, *inside])
    return _believed(y, sorted(found), rule, choices)


def _of_window(y: Array, start: int, end: int, rule: ChangeRule, choices: Choices) -> list[int]:
    p = rule.p_value
    enters = min(0.5, CANDIDATE * p)
    if choices.doubles and p >= 0.05:
        enters = 2 * p if p < 0.5 else p
    least = 1 if choices.single_nights else rule.least_segment
    found: list[int] = []
    closed: set[tuple[int, int]] = set()
    while True:
        parts = [part for part in pairwise([start, *found, end]) if part[1] - part[0] >= 2 * least]
        candidates = [(*best_split(y[a:b], least), a, b) for a, b in parts if (a, b) not in closed]
        if not candidates:
            return found
        left, right, _, a, b = max(candidates, key=lambda candidate: candidate[2])
        stop = b if choices.tests_whole_part else a + right
        if _p(y[a : a + left], y[a + left : stop], choices) <= enters:
            found = sorted([*found, a + left])
        elif choices.ends_at_first_doubt:
            return found
        else:
            closed.add((a, b))


def _p(left: Array, right: Array, choices: Choices) -> float:
    """Student's p, from the two sd as Otava hands them to scipy; that of one night is 0."""
    if left.size + right.size <= 2:
        return 1.0
    sd = [side.std(ddof=0 if choices.sd_by_n else 1) if side.size > 1 else 0.0 for side in (left, right)]
    with np.errstate(divide="ignore", invalid="ignore"):
        p = ttest_ind_from_stats(left.mean(), sd[0], left.size, right.mean(), sd[1], right.size).pvalue
    return float(p)


def _believed(y: Array, found: list[int], rule: ChangeRule, choices: Choices) -> list[int]:
    def judged(at: int) -> tuple[float, float]:
        edges = [0, *found, y.size]
        left, right = y[edges[at] : edges[at + 1]], y[edges[at + 1] : edges[at + 2]]
        ways = [right.mean() / left.mean() - 1, left.mean() / right.mean() - 1]
        return _p(left, right, choices), max(map(abs, ways if choices.either_way else ways[:1]))

    said = [judged(at) for at in range(len(found))]
    while found:
        weakest = max(range(len(found)), key=lambda at: said[at][0])
        if said[weakest][0] < rule.p_value:
            weakest = min(range(len(found)), key=lambda at: said[at][1])
            if said[weakest][1] > rule.least_change:
                return found
        del found[weakest], said[weakest]
        for at in (weakest, weakest + 1) if choices.left_not_judged_anew else range(len(found)):
            if at < len(found):
                said[at] = judged(at)
    return found
