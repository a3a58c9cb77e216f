"""Step seconds, or a loss, that left the stage's own first window for good: the e-detector on batch means.

Until that window is complete, seconds are held against the slow end of the registered forecast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.config.live import Action
from tasks.live.alarms import Alarm
from tasks.live.expected import Expected, Known, flat
from tasks.live.steps import Step, Terms

BATCH_STEPS, FIRST_BATCHES = 20, 20  # the first window: the least that fit_baseline takes
CONFIRMED_BATCHES = 2  # running, before anything is said of a stage that has no level of its own yet
WARM_UP_STEPS = 10  # of an attempt, whose seconds are not counted: compilation, caches, connections
LEAST_LOSS_SD = 0.001  # nats: reruns of one recipe differ as much (GATES 2.2), so no batch mean is surer
RECOVERED_BATCHES = 5  # in a row below the bar, after which another alarm is news

Spoken = Literal["nothing", "warned", "alarmed"]


@dataclass
class Drift:
    """A stream in batches: the first twenty set its level, the others are held against it.

    ``regime`` is the batch in sequences, with which both streams change: another one is another Drift.
    """

    name: Literal["throughput", "loss"]
    regime: int = 0
    skip: int = 0  # steps still to be passed over
    values: list[float] = field(default_factory=list)  # of the batch that is being filled
    tokens: list[float] = field(default_factory=list)
    first: int = 0  # step with which that batch began
    early: list[tuple[float, float]] = field(default_factory=list)  # (mean, tokens) of the first batches
    expected: Expected | None = None  # known once armed
    level: float = 0.0  # mean of the first batches, above what was expected of them
    detector: dict[str, Any] | None = None  # a TwoTiers, as JSON: most looks end no batch, and need no numpy
    since: int | None = None  # step from which on the batches lie above the bar
    higher: list[float] = field(default_factory=list)  # number and sum of the batches since then
    below: int = 0  # batches in a row below it
    spoken: Spoken = "nothing"  # of the present change; nothing is said twice

    @classmethod
    def of(cls, name: Literal["throughput", "loss"], regime: int = 0) -> Drift:
        """Return a stream of which nothing is known."""
        return cls(name, regime, skip=WARM_UP_STEPS if name == "throughput" else 0)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Drift:
        """Read what :meth:`to_json` wrote."""
        expected = Expected.from_json(value["expected"]) if value["expected"] else None
        early = [(mean, tokens) for mean, tokens in value["early"]]
        return cls(**{**value, "expected": expected, "early": early})

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return {**vars(self), "expected": self.expected.to_json() if self.expected else None}

    def begin_again(self) -> None:
        """Leave a half-filled batch, and evidence against what ran before; the level stays."""
        self.values, self.tokens, self.skip = [], [], WARM_UP_STEPS if self.name == "throughput" else 0
        self._forget()

    def see(
        self, step: Step, value: float | None, canary: bool, known: Callable[[], Known], terms: Terms
    ) -> Iterator[Alarm]:
        """Take one more step of the stage's own; ``known`` is asked at the batches of the first window alone."""
        if self.skip:
            self.skip -= 1
            return
        if value is None or step.tokens is None:
            return
        self.first = self.first if self.values else step.number
        self.values.append(value)
        self.tokens.append(step.tokens)
        if len(self.values) < BATCH_STEPS:
            return
        mean, tokens = sum(self.values) / BATCH_STEPS, sum(self.tokens) / BATCH_STEPS
        self.values, self.tokens = [], []
        if self.detector is not None:
            yield from self._judge(step, mean, tokens, canary, terms)
            return
        self.early.append((mean, tokens))
        if self.name == "throughput":
            yield from self._against_forecast(step, known().slowest, canary, terms)
        if len(self.early) == FIRST_BATCHES:
            self._arm(known(), terms)

    def _against_forecast(
        self, step: Step, slowest: tuple[int, float] | None, canary: bool, terms: Terms
    ) -> Iterator[Alarm]:
        """Until the stage has a level of its own: two batches running slower than all that was forecast."""
        if slowest is None or slowest[0] != self.regime or self.spoken != "nothing":
            return
        bar = slowest[1] * (1 + terms.settings.throughput.tolerance)
        latest = [mean for mean, _ in self.early[-CONFIRMED_BATCHES:]]
        if len(latest) < CONFIRMED_BATCHES or min(latest) <= bar:
            return
        self.spoken = "alarmed"
        value, since = sum(latest) / len(latest), step.number - CONFIRMED_BATCHES * BATCH_STEPS + 1
        says = (
            f"steps take {value:.4g} s since step {since}, {value / slowest[1] - 1:.1%} more than at the slow end of "
            f"the forecast, {slowest[1]:.4g} s{_kind(terms)}: profile it, find the slow node"
        )
        yield Alarm(
            self.name, self._action(canary, terms), step.number, step.time, says, value, bar, (since, step.number)
        )

    def _arm(self, known: Known, terms: Terms) -> None:
        from tasks.statistics.detection import EDetector, TwoTiers, alarm_threshold, fit_baseline

        rules, loss = terms.settings, self.name == "loss"
        expected = known.expected if loss else flat()
        means = [mean - expected.at(tokens) for mean, tokens in self.early]
        self.early = []
        try:
            baseline = fit_baseline(means, least_sd=max(LEAST_LOSS_SD, known.loss_sd) if loss else 0.0)
        except ValueError:  # a series without any level: the next window may have one
            return
        if loss:
            detector = EDetector.additive(baseline, rules.loss.tolerance)
        else:  # never tighter than what launches of one recipe were measured to differ by
            detector = EDetector.relative(baseline, max(rules.throughput.tolerance, 2 * known.launch_sd))
        planned = max(1, math.ceil(terms.own_steps / BATCH_STEPS))
        self.expected, self.level = expected, baseline.mean
        self.detector = TwoTiers(detector, alarm_threshold(terms.false_stop_share, planned)).to_json()

    def _judge(self, step: Step, mean: float, tokens: float, canary: bool, terms: Terms) -> Iterator[Alarm]:
        from tasks.statistics.detection import TwoTiers

        excess = mean - (self.expected.at(tokens) if self.expected else 0.0)
        detector, tier = TwoTiers.from_json(self.detector or {}).update(excess)
        self.detector = detector.to_json()
        self._place(excess, detector.detector.bar)
        # Throughput speaks at once: a page costs nothing, and a canary is short. A loss is confirmed first.
        alarmed = tier == "stop" or (tier == "confirming" and self.name == "throughput")
        if alarmed and self.spoken != "alarmed":
            self.spoken = "alarmed"
            yield self._alarm(step, self._action(canary, terms), detector.detector.bar, terms)
        elif tier in ("warn", "confirming") and self.name == "loss" and self.spoken == "nothing":
            self.spoken = "warned"
            yield self._alarm(step, "note", detector.detector.bar, terms)

    def _place(self, excess: float, bar: float) -> None:
        """Keep since when, and how far on the mean, the batches lie above the bar."""
        self.below = 0 if excess > bar else self.below + 1
        if self.below >= RECOVERED_BATCHES:
            if self.spoken != "nothing":
                self._forget()
            self.since, self.higher = None, []
        elif self.since is not None:
            self.higher = [self.higher[0] + 1, self.higher[1] + excess]
        elif excess > bar:
            self.since, self.higher = self.first, [1, excess]

    def _forget(self) -> None:
        from dataclasses import replace

        self.since, self.higher, self.below, self.spoken = None, [], 0, "nothing"
        if self.detector is not None:
            from tasks.statistics.detection import TwoTiers

            known = TwoTiers.from_json(self.detector)
            self.detector = replace(known, detector=known.detector.restarted(), fresh=None).to_json()

    def _action(self, canary: bool, terms: Terms) -> Action:
        if self.name == "loss":
            return terms.granted(terms.settings.loss.action)
        rule = terms.settings.throughput
        return terms.granted(rule.in_canary if canary else rule.action)

    def _alarm(self, step: Step, action: Action, bar: float, terms: Terms) -> Alarm:
        since = self.since if self.since is not None else self.first
        value = self.higher[1] / self.higher[0] if self.higher else bar
        if self.name == "throughput":
            says = (
                f"steps take {value:.4g} s since step {since}, {value / self.level - 1:+.1%} on the {self.level:.4g} s "
                f"of the stage's first window; {bar / self.level - 1:.1%} is allowed{_kind(terms)}: profile it, "
                "find the slow node"
            )
        else:
            source = self.expected.source if self.expected else ""
            says = (
                f"the loss lies {value - self.level:.4f} nats above what {source} lets expect since step {since}; "
                f"{bar - self.level:.4f} is allowed"
            )
        return Alarm(self.name, action, step.number, step.time, says, value, bar, (since, step.number))


def _kind(terms: Terms) -> str:
    return " (modelled)" if terms.emulated else ""
