"""Gates on scaling: a GPU among many does what a GPU among few did, and will go on doing so at the next size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tasks import statistics
from tasks.gates import frames, launches, next_measurement, scaling
from tasks.gates.core import Check, EarlierStage, Evidence, Measurement, Outcome, Undecided, Unusable, gate
from tasks.gates.launches import Launch, LaunchNoise
from tasks.gates.thresholds import Confidence, Excess, Probability, Ratio, RelativeSd
from tasks.gates.throughput import BATCH_MEANS, OUTCOMES, UNIT


@dataclass(frozen=True)
class _Comparison:
    """Launches of this stage and of its reference, and the share that a GPU does now of what it did then."""

    here: Sequence[Launch]
    there: Sequence[Launch]
    noise: LaunchNoise
    confidence: float

    @property
    def now(self) -> statistics.Mean:
        """Tokens/s/GPU of this stage."""
        return launches.together(self.here, self.noise, self.confidence)

    @property
    def then(self) -> statistics.Mean:
        """Tokens/s/GPU of the reference."""
        return launches.together(self.there, self.noise, self.confidence)

    @property
    def share(self) -> statistics.Mean:
        """The one over the other."""
        return statistics.ratio(self.now, self.then, confidence=self.confidence)

    def outcome(self, at_least: float) -> Outcome:
        """What the interval says of a bar."""
        return OUTCOMES[statistics.decide(self.share.low, self.share.high, at_least)]

    def buy(self, evidence: Evidence, at_least: float) -> Measurement:
        """Return the launch at one of the two sizes that would decide."""

        def decided(sides: Sequence[Sequence[Launch]]) -> bool:
            after = _Comparison(sides[0], sides[1], self.noise, self.confidence)
            return after.outcome(at_least) is not Outcome.NEED_MORE_DATA

        wrong = next_measurement.wrong_start(evidence.following, self.now.value)
        mine = launches.alike(self.there[0].facts, evidence.stage)  # a probe has this stage's work a GPU
        return next_measurement.another_launch(
            [self.here, self.there], self.noise, decided, wrong, only=None if mine else 0
        )


@gate(when="end", needs=("step_seconds",), ordered=(("at_least", "superlinear"),))
def scaling_efficiency(
    evidence: Evidence,
    *,
    reference: str,
    at_least: Ratio = 0.90,
    superlinear: Excess = 1.05,
    launch_sd: RelativeSd | None = None,
    confidence: Confidence = 0.95,
) -> Check:
    """A GPU of this stage does at least the asked part of the work of a GPU of the reference stage."""
    base = frames.earlier(evidence, reference, "reference stage")
    noise = launches.launch_noise(evidence.noise, launch_sd)
    here = launches.same_size(launches.of_whole_stage(evidence), evidence)
    there = launches.same_size(launches.of_stage(base, base.facts), evidence)
    compared = _Comparison(here, there, noise, confidence)
    share, outcome = compared.share, compared.outcome(at_least)
    if share.low > superlinear:
        raise Unusable(
            f"a GPU did {share.value:.3g} times the work that it did in {reference}, more than {superlinear:g}: "
            f"{reference} was slowed by something (memory, recomputation), or one of the two is in another unit"
        )
    kind = scaling.kind(base.facts, evidence.stage)
    buy = compared.buy(evidence, at_least) if outcome is Outcome.NEED_MORE_DATA else None
    return Check(
        "scaling_efficiency",
        outcome,
        f"{compared.now.value:,.0f} {UNIT} is {share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of {reference}'s "
        f"{compared.then.value:,.0f}, {kind}; at least {at_least:.0%} is asked",
        estimate=share.value,
        interval=(share.low, share.high),
        limit=at_least,
        unit=f"of {reference}'s {UNIT}",
        n=share.n,
        window=launches.window(here),
        against=f"{reference} ({kind})",
        method=f"ratio of means; {BATCH_MEANS} ({share.batches} batches or more each); "
        f"{len(here)} against {len(there)} launches",
        next_step={
            Outcome.PASS: "",
            Outcome.FAIL: "see where a step's time goes (communication first), or change layout or batch at this scale",
        }.get(outcome, f"the interval spans the bar: {buy.says if buy else ''}, or more steps, would decide"),
        measurement=buy,
        inputs={"launch_sd": noise.says},
    )


@dataclass(frozen=True)
class _Bars:
    """The thresholds of a forecast."""

    at_least: float
    pass_at: float
    fail_at: float

    def outcome(self, chance: float) -> Outcome:
        """What a chance of reaching the bar says."""
        if chance >= self.pass_at:
            return Outcome.PASS
        return Outcome.FAIL if chance <= self.fail_at else Outcome.NEED_MORE_DATA


@gate(when="entry", needs=("step_seconds",), ordered=(("fail_at", "pass_at"),))
def forecast_efficiency(
    evidence: Evidence,
    *,
    reference: str,
    at_least: Ratio = 0.90,
    pass_at: Probability = 0.95,
    fail_at: Probability = 0.05,
    superlinear: Excess = 1.05,
    present_at_least: Ratio = 0.95,
) -> Check:
    """This stage will, in all likelihood, reach the asked part of the reference stage's throughput a GPU."""
    base = frames.earlier(evidence, reference, "reference stage")
    points = launches.points(evidence)
    scaling.refuse_superlinear(points, superlinear)
    foreseen = _Foreseen(evidence, base, points, _Bars(at_least, pass_at, fail_at), _outlook(evidence, points, base))
    answer = foreseen.answer(present_at_least)
    return Check(
        "forecast_efficiency",
        answer.outcome,
        answer.said,
        estimate=foreseen.share(0.5),
        interval=(foreseen.share(0.05), foreseen.share(0.95)),
        limit=at_least,
        unit=f"of {reference}'s {UNIT}",
        n=len(points),
        window=", ".join(f"{p.facts.name} {p.window}" for p in points),
        against=f"{reference} ({foreseen.kind})",
        method=f"{foreseen.outlook.method}; median and 90% interval; P(at least the limit) = {foreseen.chance:.4f}",
        next_step={
            Outcome.PASS: "",
            Outcome.FAIL: "mend what slows the larger scale (network, layout, batch), or ask less of it in the recipe",
        }.get(answer.outcome, answer.buy.says if answer.buy else ""),
        measurement=answer.buy,
        inputs={"scaling": "prior, from published tables"},
    )


@dataclass(frozen=True)
class _Answer:
    """An outcome, the sentence that tells why, and what would decide an open one."""

    outcome: Outcome
    said: str
    buy: Measurement | None


@dataclass(frozen=True)
class _Foreseen:
    """What launches so far foretell of this stage, beside a reference stage and the bars."""

    evidence: Evidence
    base: EarlierStage
    points: Sequence[Launch]
    bars: _Bars
    outlook: scaling.Outlook

    @cached_property
    def now(self) -> float:
        """Tokens/s/GPU at the reference's size."""
        return _at_reference(self.points, self.base)

    @property
    def kind(self) -> str:
        """Weak or strong scaling."""
        return scaling.kind(self.base.facts, self.evidence.stage)

    @cached_property
    def chance(self) -> float:
        """Chance that the bar is reached."""
        return self.outlook.above(self.bars.at_least * self.now)

    def share(self, p: float) -> float:
        """Return a quantile of what is expected, as a share of the reference."""
        return self.outlook.quantile(p) / self.now

    def answer(self, present_at_least: float) -> _Answer:
        """Decide by the chance; what ran behind its own forecast speaks against, an unseen network tier holds back."""
        outcome, said = self.bars.outcome(self.chance), self._in_words()
        late = scaling.behind_forecast(self.evidence, self.points)
        if late is not None and late < present_at_least:
            newest = launches.newest(self.points).facts.name
            outcome = Outcome.FAIL
            said += f"; {newest} itself reached only {late:.1%} of what had been forecast for it"
        buy = self._point_to_buy() if outcome is Outcome.NEED_MORE_DATA else None
        if self.evidence.stage.tier > max(p.facts.tier for p in self.points):
            return self._beyond_tiers(_Answer(outcome, said, buy))
        return _Answer(outcome, said, buy)

    def _in_words(self) -> str:
        low, middle, high = map(self.share, (0.05, 0.5, 0.95))
        return (
            f"{self.evidence.stage.gpus} GPUs are expected at {middle:.1%} ({low:.1%} to {high:.1%}) of "
            f"{self.base.facts.name}'s {self.now:,.0f} {UNIT}, {self.kind}; the chance of at least "
            f"{self.bars.at_least:.0%} is {self.chance:.1%}, {self.bars.pass_at:.0%} is asked"
        )

    def _point_to_buy(self) -> Measurement:
        """Return the cheapest probe after which the forecast would be decided."""
        stage, base = self.evidence.stage, self.base.facts

        def decided(after: Sequence[Launch]) -> bool:
            chance = scaling.predict(after, base, stage).above(self.bars.at_least * _at_reference(after, self.base))
            return self.bars.outcome(chance) is not Outcome.NEED_MORE_DATA

        wrong = next_measurement.wrong_start(stage, self.outlook.quantile(0.5))
        return next_measurement.towards(self.evidence, self.points, base, decided, wrong)

    def _beyond_tiers(self, answer: _Answer) -> _Answer:
        """Hold back a PASS beyond the tiers seen, unless the stage's canary decides (GATES 4.2 and its correction)."""
        said = f"{answer.said}; it spans a network tier that no record has seen, "
        if answer.outcome is not Outcome.PASS:
            return replace(answer, said=f"{said}which records cannot speak for")
        if self.evidence.stage.asks_canary:
            return replace(answer, said=f"{said}so the canary decides")
        buy = next_measurement.beyond_tier(self.evidence, self.points, self.outlook.quantile(0.5))
        return _Answer(Outcome.NEED_MORE_DATA, f"{said}and no canary is asked that would decide", buy)


def _at_reference(points: Sequence[Launch], base: EarlierStage) -> float:
    """Return tokens/s/GPU of all launches at the reference's size together."""
    there = [p.throughput for p in points if p.facts.gpus == base.facts.gpus and launches.alike(p.facts, base.facts)]
    return math.exp(sum(map(math.log, there)) / len(there))


def _outlook(evidence: Evidence, points: Sequence[Launch], base: EarlierStage) -> scaling.Outlook:
    """Return what is foretold of this stage; where the launches cannot tell, name the probe that makes them."""
    try:
        return scaling.predict(points, base.facts, evidence.stage)
    except Undecided as reason:
        last = launches.newest(points)
        seconds = launches.per_gpu(evidence.stage) / last.throughput
        wrong = next_measurement.wrong_start(evidence.stage, last.throughput)
        what = f"a point with {evidence.stage.name}'s work a GPU"
        raise Undecided(str(reason), next_measurement.probe(base.facts.gpus, seconds, wrong, what)) from reason
