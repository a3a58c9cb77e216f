"""How often the throughput decision passes, fails and asks for more, by true throughput and number of launches.

GATES 7.1 has a table of it, and says little of the procedure behind it. `as_published` is one that gives its 45 rates:
one-sided bounds of 95%, and with two or three launches the launch sd that these show, taken for known. That is why the
table errs in 8% of the cases at the bar where one launch, with the prior, errs in 3%. Ours goes by the prior, or what
calibration measured, and by two-sided intervals: at the bar it errs in 3%, however many launches there are. All other
cells are the table's within simulation error, or right more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest
from gate_evidence import facts, second_stage
from rates import table, with_interval
from scipy.signal import lfilter
from scipy.stats import binomtest

from tasks import statistics
from tasks.gates import REGISTRY, EarlierStage, judge
from tasks.gates.core import Noise
from tasks.gates.launches import Launch, launch_noise, together

BAR, STEPS, LAUNCH_SD, PHI = 0.95, 60, 0.005, 0.5
STEP_SD = 0.014  # not named with the published table; of .010 to .015 the one that gives its rates best
SERIES = 2_000  # a cell: a rate's standard error is at most .011
KNOWN = statistics.Mean(1.0, 0.0, math.inf, 1.0, 1.0, 0, 0)  # a bar that is exact, as the table has it
BY_PRIOR = Noise()
ANSWERS = ("pass", "fail", "more")
PUBLISHED = {  # GATES 7.1: true throughput to (pass, fail, more) with 1, 2 and 3 launches
    0.93: ((0.00, 0.94, 0.06), (0.00, 0.98, 0.02), (0.00, 1.00, 0.00)),
    0.94: ((0.00, 0.41, 0.59), (0.00, 0.71, 0.29), (0.00, 0.83, 0.17)),
    0.95: ((0.03, 0.03, 0.94), (0.08, 0.08, 0.84), (0.08, 0.07, 0.85)),
    0.96: ((0.42, 0.00, 0.58), (0.71, 0.00, 0.29), (0.83, 0.00, 0.17)),
    0.97: ((0.94, 0.00, 0.06), (0.97, 0.00, 0.03), (1.00, 0.00, 0.00)),
}


def launch(true: float, rng: np.random.Generator, steps: int = STEPS, start: float = 1.0) -> np.ndarray:
    """Seconds a step of one launch whose GPUs do ``true`` of what is due, give or take the launch."""
    shocks = rng.normal(size=steps) * math.sqrt(1 - PHI**2)
    shocks[0] /= math.sqrt(1 - PHI**2)
    return start * (1 + STEP_SD * lfilter([1.0], [1.0, -PHI], shocks)) / (true * (1 + LAUNCH_SD * rng.normal()))


def decision(launches: Sequence[np.ndarray], noise: Noise = BY_PRIOR) -> str:
    """Decide as the gate does, by its own default (the prior) or what was measured; against a bar that is exact."""
    speeds = [statistics.inverse(statistics.batch_means(seconds), 1.0) for seconds in launches]
    measured = [Launch(facts(), speed, "") for speed in speeds]
    share = statistics.ratio(together(measured, launch_noise(noise, None), 0.95), KNOWN)
    return statistics.decide(share.low, share.high, BAR)


def as_published(launches: Sequence[np.ndarray], *, known: bool = False) -> str:
    """Decide as the table of GATES 7.1 does: all batch means as one sample, and the launch sd of these launches on top.

    One launch shows no spread, so the prior stands in; ``known`` has it stand in for two and three launches as well.
    """
    batches = (1 / np.array(launches)).reshape(len(launches), -1, 10).mean(axis=2)
    of_launches = LAUNCH_SD if known or len(launches) == 1 else batches.mean(axis=1).std(ddof=1)
    se = math.sqrt(batches.var(ddof=1) / batches.size + of_launches**2 / len(launches))
    half = statistics.t_quantile(0.95, batches.size - 1) * se
    return statistics.decide(batches.mean() - half, batches.mean() + half, BAR)


PROCEDURES: dict[str, Callable[[Sequence[np.ndarray]], str]] = {
    "ours": decision,
    "ours, calibrated": partial(decision, noise=Noise(launch_sd=LAUNCH_SD, repeats=20)),
    "the table's": as_published,
    "the table's, launch sd known": partial(as_published, known=True),
}
OURS = ("ours", "ours, calibrated")


def test_operating_characteristic():
    outside: dict[str, list[str]] = {name: [] for name in PROCEDURES}
    rows, apart, erred = [], dict.fromkeys(PROCEDURES, 0.0), {name: [0.0] * 3 for name in PROCEDURES}
    for true, published in PUBLISHED.items():
        for count, expected in enumerate(published, start=1):
            rng = np.random.default_rng((7, int(100 * true), count))
            series = [[launch(true, rng) for _ in range(count)] for _ in range(SERIES)]
            cells = []
            for name, decides in PROCEDURES.items():
                found = [decides(one) for one in series]
                rates = [found.count(answer) / SERIES for answer in ANSWERS]
                off = [answer for answer, a, b in zip(ANSWERS, rates, expected, strict=True) if beyond_error(a, b)]
                right = 0 if true > BAR else 1
                better = " (more often right)" if true != BAR and rates[right] > expected[right] else ""
                outside[name] += [f"{true:.2f} {answer} with {count}{better}" for answer in off]
                if true != BAR or name not in OURS:
                    apart[name] = max(apart[name], *(abs(a - b) for a, b in zip(rates, expected, strict=True)))
                wrong = max(rates[1] if true >= BAR else 0.0, rates[0] if true <= BAR else 0.0)
                erred[name][count - 1] = max(erred[name][count - 1], wrong)
                cells.append(as_rates(rates))
            rows.append([f"{true:.2f}", count, as_rates(expected), *cells])
    print(f"\n\nbar {BAR}, {STEPS} steps, step sd {STEP_SD:.1%}, phi {PHI}, launch sd {LAUNCH_SD:.1%}; {SERIES} series")
    print(table(["true", "launches", "GATES 7.1: pass fail more", *PROCEDURES], rows))
    for name, wrong in erred.items():
        print(f"{name}: wrong in at most {', '.join(f'{w:.3f}' for w in wrong)} with 1, 2, 3 launches; ", end="")
        print(f"farthest from GATES 7.1 {apart[name]:.3f}{', the bar left out' if name in OURS else ''}")
        within = 45 - len(outside[name])
        print(f"    {within} of 45 cells within simulation error; not: {', '.join(outside[name]) or 'none'}")
    for name in OURS:  # at the bar the table errs in 8%, by an sd from two or three launches; with a known one 3%
        assert all(cell.endswith("right)") or cell.startswith(f"{BAR:.2f}") for cell in outside[name])
        assert not any(cell.endswith(" 1") for cell in outside[name])
        assert max(erred[name]) <= 0.05
        assert apart[name] <= 0.05
    assert apart["the table's"] <= 0.035  # some hundred series a cell, as a rate of .4 asks for: .025 is one se
    assert min(erred["the table's"][1:]) > max(erred["the table's, launch sd known"]) > 0.035


def beyond_error(ours: float, published: float) -> bool:
    """Whether two rates differ by more than two standard errors, of ours and of some 400 series, and the rounding."""
    rate = (ours + published) / 2
    return abs(ours - published) > 2 * math.sqrt(rate * (1 - rate) * (1 / SERIES + 1 / 400)) + 0.005


def as_rates(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


@pytest.mark.parametrize("true", [0.90, 0.93, 0.95, 0.97, 1.0])
def test_the_gate_itself_errs_in_at_most_one_of_twenty(true: float):
    """scaling_efficiency on whole evidence, its reference measured too: wrong answers, of those that are wrong."""
    rng = np.random.default_rng((8, int(100 * true)))
    one, two, found = facts(), facts("gpus_64", 64, index=1), []
    for _ in range(200):
        frames = [
            pd.DataFrame({"step": np.arange(of.first_step, of.last_step + 1), "phase": "train"}).assign(
                step_seconds=launch(speed, rng, of.last_step - of.first_step + 1)
            )
            for of, speed in ((one, 1.0), (two, true))
        ]
        evidence = second_stage(steps=frames[1], earlier={"gpus_8": EarlierStage(one, frames[0], frames[0].iloc[:0])})
        check = judge(REGISTRY["scaling_efficiency"], evidence, {"reference": "gpus_8", "at_least": BAR})
        found.append(str(check.outcome))
    print(f"\ntrue {true:.2f}: " + ", ".join(f"{o} {with_interval(found.count(o), 200)}" for o in sorted(set(found))))
    assert set(found) <= {"PASS", "FAIL", "NEED_MORE_DATA"}
    wrong = found.count("FAIL") if true >= BAR else found.count("PASS")
    assert binomtest(wrong, 200).proportion_ci(0.95).low <= 0.05
    if abs(true - BAR) >= 0.05:
        assert found.count("PASS" if true > BAR else "FAIL") / 200 >= 0.95
