"""Nightly series, simulated: power and false alarms of N1 with its reruns, beside a fixed 5% and an Otava-like rule.

Every night is judged on the nights until then, as production does it, incidents and medians of reruns included. Noise
is AR(1) from night to night; a rerun of a night shares what the night before foretells and draws its own innovation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tasks.nightly.judge import (
    SERIES,
    Suspicion,
    agrees,
    confirmed,
    holds_for_good,
    night_value,
    recovered,
    suspicion,
    worse,
)
from tasks.statistics.change_points import ChangeRule, level_changes

SEED = 20_261_203
YEARS, DROPS = 20, 300
SPEED = SERIES["tokens_per_gpu_second"]
Rule = Callable[[list[float], int], Suspicion | None]
"""From the nights so far, tonight last, and the index of the baseline, to a suspicion."""


@dataclass(frozen=True)
class Noise:
    """How nights differ: ``sd`` (relative) with lag-1 correlation ``phi``; a share ``bad`` is slower by exp(5%)."""

    name: str
    sd: float
    phi: float
    bad: float = 0.0


NOISES = (
    Noise("phi 0, CV 1%", 0.01, 0.0),
    Noise("phi .3, CV 1%", 0.01, 0.3),
    Noise("phi .6, CV 1%", 0.01, 0.6),
    Noise("phi 0, CV 1%, bad nights", 0.01, 0.0, 0.03),
    Noise("phi .3, CV .5%, bad nights", 0.005, 0.3, 0.03),
    Noise("phi 0, CV 2%", 0.02, 0.0),
)


class Nights:
    """A series of nights, each of which can be measured again."""

    def __init__(self, noise: Noise, seed: int, *, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere
        self.rng = np.random.default_rng((SEED, seed, int(1000 * noise.sd), int(10 * noise.phi), int(100 * noise.bad)))
        self.noise, self.last, self.night = noise, 0.0, -1
        self.begins = self.shock() * noise.sd

    def shock(self) -> float:
        return float(self.rng.normal())

    def measure(self, night: int) -> float:
        """One run of a night: an AR(1) step from the night before; whether it is a bad one is the run's own luck."""
        if night != self.night:
            self.begins, self.night = (self.noise.phi * self.last if night else self.begins), night
            new = self.last = self.begins + self.shock() * self.noise.sd * math.sqrt(1 - self.noise.phi**2)
        elif self.elsewhere:  # on other nodes nothing of the night before is shared
            new = self.shock() * self.noise.sd
        else:
            new = self.begins + self.shock() * self.noise.sd * math.sqrt(1 - self.noise.phi**2)
        slow = min(0.5, float(self.rng.exponential(0.05))) if self.rng.random() < self.noise.bad else 0.0
        return 1000 * (1 + new) * (1 - slow)


def n1(p_value: float = 1e-3) -> Rule:
    def judge(values: list[float], known: int) -> Suspicion | None:
        return suspicion(values, SPEED, p_value=p_value, known=known)

    return judge


def otava_like(values: list[float], known: int) -> Suspicion | None:
    """Otava's defaults: p .001, no correlation, one night is a level, no magnitude."""
    if len(values) < 10:
        return None
    rule = ChangeRule(p_value=1e-3, least_change=0.0, least_segment=1, window=50, correlated=False)
    found = level_changes(values[-50:], rule)
    left = max(0, len(values) - 50)
    if not found or found[-1].index + left <= known + 1:
        return None
    last = found[-1]
    return Suspicion(last.index + left, last.before, last.after, last.p_value, "change")


def fixed(values: list[float], known: int) -> Suspicion | None:
    """Alarm where tonight lies 5% below the mean of the ten nights before."""
    if len(values) < 11:
        return None
    before = float(np.mean(values[-11:-1]))
    return Suspicion(len(values) - 1, before, values[-1], 0.0, "change") if values[-1] < 0.95 * before else None


def alarms(
    nights: Nights, count: int, rule: Rule, *, reruns: bool, drop: tuple[int, float] = (0, 1.0)
) -> tuple[list[int], list[int]]:
    """Return the nights that are suspect, and those on which an incident opens.

    ``drop`` is a night and the factor of the level from then on.
    """
    good: list[float] = []
    suspects: list[int] = []
    opened: list[int] = []
    known, since = 0, list[float]()
    incident: Suspicion | None = None

    def measure(night: int) -> float:
        return nights.measure(night) * (drop[1] if night >= drop[0] else 1.0)

    for night in range(count):
        tries = [measure(night)]
        if incident is not None:
            since.append(tries[0])
            if recovered(since, incident.before, incident.after):
                good, incident, since = good + since[-3:], None, []
            continue
        found = rule([*good, tries[0]], known)
        if found is not None and worse(found, SPEED):
            suspects.append(night)
        if found is not None and reruns and worse(found, SPEED):
            tries += [measure(night), measure(night)]
            again = rule([*good, night_value(tries)], known)
            if not confirmed(found, tries) or again is None:
                found = None
        good.append(night_value(tries))
        if found is None:
            continue
        if worse(found, SPEED):
            opened.append(night)
            incident, since = (
                found,
                [value for value in good[found.first :] if agrees(value, found.before, found.after)],
            )
            good = good[: found.first]
        elif holds_for_good(found, len(good), 1e-3):
            known = found.first  # the ratchet
    return suspects, opened


@dataclass(frozen=True)
class Policy:
    """A rule, and what is done about a suspicion: believed at once, or measured twice more, on other nodes or not."""

    rule: Rule
    reruns: bool = False
    elsewhere: bool = False


POLICIES = {
    "N1 p 1e-3, believed": Policy(n1()),
    "N1 p 1e-4, believed": Policy(n1(1e-4)),
    "N1, 2 of 3, same nodes": Policy(n1(), reruns=True),
    "N1, 2 of 3, other nodes": Policy(n1(), reruns=True, elsewhere=True),
    "Otava-like, believed": Policy(otava_like),
    "Otava-like, 2 of 3": Policy(otava_like, reruns=True, elsewhere=True),
    "fixed 5%, believed": Policy(fixed),
    "fixed 5%, 2 of 3": Policy(fixed, reruns=True, elsewhere=True),
}
CHANGES = ((0.97, 3), (0.97, 5), (0.95, 2), (0.98, 5))


def clean_years(policy: Policy, noise: Noise) -> tuple[float, float]:
    """Suspicions and alarms a year where nothing changes."""
    found = [
        alarms(Nights(noise, year, elsewhere=policy.elsewhere), 365, policy.rule, reruns=policy.reruns)
        for year in range(YEARS)
    ]
    return sum(len(suspects) for suspects, _ in found) / YEARS, sum(len(opened) for _, opened in found) / YEARS


def power(policy: Policy, factor: float, within: int) -> float:
    """Share of drops after 30 quiet nights that open an incident within some nights; noise of 1%."""
    hits = 0
    for run in range(DROPS):
        nights = Nights(NOISES[0], 10_000 + run, elsewhere=policy.elsewhere)
        _, opened = alarms(nights, 30 + within, policy.rule, reruns=policy.reruns, drop=(30, factor))
        hits += any(night >= 30 for night in opened)
    return hits / DROPS


@pytest.mark.timeout(3600)
def test_false_alarms_a_series_year_and_power() -> None:
    years = {name: [clean_years(policy, noise) for noise in NOISES] for name, policy in POLICIES.items()}
    powers = {name: [power(policy, *change) for change in CHANGES] for name, policy in POLICIES.items()}
    print(f"\nsuspicions / alarms a series-year, {YEARS} years each, nothing changed")
    print(" " * 26 + "".join(f"{noise.name:>28}" for noise in NOISES))
    for name, found in years.items():
        print(f"  {name:<24}" + "".join(f"{f'{suspects:.2f} / {opened:.2f}':>28}" for suspects, opened in found))
    print(f"alarmed in time, {DROPS} drops each after 30 nights, CV 1%, phi 0")
    for name, shares in powers.items():
        told = (
            f"{1 - factor:.0%} in {nights}: {share:.0%}"
            for (factor, nights), share in zip(CHANGES, shares, strict=True)
        )
        print(f"  {name:<24}  {',  '.join(told)}")
    best = "N1, 2 of 3, other nodes"
    assert powers[best][0] >= 0.8
    found = dict(zip(NOISES, years[best], strict=True))
    assert np.mean([suspects for noise, (suspects, _) in found.items() if not noise.bad]) <= 0.5
    # Up to a CV of 1% and phi .3, bad nights included. At phi .6, and at a CV of 2%, it was .2 and .3.
    assert all(opened <= 0.1 for noise, (_, opened) in found.items() if noise.sd <= 0.01 and noise.phi <= 0.3)
    assert np.mean([opened for _, opened in found.values()]) <= 0.15
