"""Change points against Apache Otava: the same breaks under the same settings, and why ours are not its defaults.

Otava pins numpy and brings clients of BigQuery and Slack, so it lives in an environment of its own, made on first use
in the user's cache folder; where it cannot be installed the comparison says so and is skipped. Where the two differ on
Otava's own test series, `otava_choices.py` says by which of its choices.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from otava_choices import OURS, Choices, breaks
from otava_tests import OwnTest, own_tests
from rates import table, with_interval
from scipy.signal import lfilter

from tasks.statistics import ChangeRule, level_changes

OTAVA = "apache-otava==0.8.0"
ORACLE = Path(__file__).with_name("change_point_oracle.py")
LITERAL: dict[str, tuple[list[float], list[int]]] = {  # series and the nights at which they break
    "step down": ([1.03, 0.97, 1.00, 0.99, 1.08, 0.94, 1.01, 0.61, 0.58, 0.60, 0.59, 0.63], [7]),
    "step up": ([48.2, 47.9, 48.3, 48.0, 47.7, 48.1, 55.9, 56.2, 56.0, 55.7, 56.3, 56.1, 55.8], [6]),
    "small step": ([3.02, 3.03, 3.01, 3.04, 3.02, 2.81, 2.83, 2.79, 2.81, 2.80, 2.82, 2.80], [5]),
    "stairs": ([2.0, 2.1, 1.9, 2.0, 2.1, 2.0, 4.0, 4.1, 3.9, 4.0, 4.1, 4.0, 7.0, 7.1, 6.9, 7.0, 7.1, 7.0], [6, 12]),
    "flat": ([9.02, 8.97, 9.01, 8.99, 9.03, 9.00, 8.98, 9.01, 8.96, 9.02, 9.00, 8.99], []),
    "one bad night": ([9.02, 8.97, 9.01, 8.99, 9.03, 9.00, 4.11, 9.01, 8.96, 9.02, 9.00, 8.99], []),
    "two nights": ([9.02, 8.97, 9.01, 8.99, 9.03, 9.00, 8.98, 9.01, 8.96, 9.02, 9.00, 8.99, 7.51, 7.46], [12]),
}


@pytest.fixture(scope="module")
def otava() -> Path:
    """Python of an environment with Otava in it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "scaleup" / OTAVA.replace("==", "-")
    python = home / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import otava"], capture_output=True).returncode:
        venv.create(home, with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", OTAVA], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{OTAVA} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.fixture(scope="module")
def its_tests(otava: Path) -> list[OwnTest]:
    """Otava's tests, which only its source distribution has."""
    there = otava.parents[1]
    name = OTAVA.replace("==", "-").replace("apache-", "apache_") + ".tar.gz"
    if not (there / name).exists():
        fetch = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--dest", there, OTAVA]
        done = subprocess.run([otava, "-m", "pip", *fetch], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the source of {OTAVA} cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    return own_tests(there / name)


def by_otava(python: Path, series: Sequence[Sequence[float]], **settings: float) -> list[list[int]]:
    asked = json.dumps({"series": [list(map(float, y)) for y in series], **settings})
    return json.loads(subprocess.run([python, ORACLE], input=asked, capture_output=True, text=True, check=True).stdout)


def by_us(series: Sequence[Sequence[float]], rule: ChangeRule) -> list[list[int]]:
    return [[point.index for point in level_changes(y, rule)] for y in series]


def nights(count: int, phi: float, seed: int, sd: float = 0.01) -> np.ndarray:
    """Sixty nights of AR(1) scatter, so many series."""
    shocks = np.random.default_rng((seed, int(10 * phi))).normal(size=(count, 60)) * np.sqrt(1 - phi**2)
    shocks[:, 0] /= np.sqrt(1 - phi**2)
    return 1 + sd * lfilter([1.0], [1.0, -phi], shocks, axis=1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("p_value", [1e-3, 1e-4])
@pytest.mark.parametrize(("series", "breaks"), LITERAL.values(), ids=LITERAL)
def test_the_same_breaks(otava: Path, series: list[float], breaks: list[int], p_value: float):
    settings = {"p_value": p_value, "least_change": 0.02, "window": 50}
    assert by_otava(otava, [series], **settings) == [breaks]
    assert by_us([series], ChangeRule(correlated=False, **settings)) == [breaks]


@pytest.mark.timeout(600)
def test_its_own_test_series(otava: Path, its_tests: list[OwnTest]):
    """With its choices on our energy statistic all breaks are Otava's; each choice taken back, some are not."""
    assert len(its_tests) >= 11
    asked = [
        (
            np.array(one.series, dtype=float),
            ChangeRule(one.p_value, one.least_change, window=one.window, correlated=False),
        )
        for one in its_tests
    ]
    expected = [one.breaks for one in its_tests]
    rows = []
    for one, (y, rule) in zip(its_tests, asked, strict=True):
        settings = {"p_value": rule.p_value, "least_change": rule.least_change, "window": rule.window}
        assert by_otava(otava, [y], **settings) == [one.breaks]
        ours = [point.index for point in level_changes(y, rule)]
        assert ours == breaks(y, rule, OURS)
        rows.append([one.name, rule.p_value, shown(one.breaks), shown(breaks(y, rule, Choices())), shown(ours)])
    print("\n")
    print(table(["Otava's test", "p", "Otava", "ours, with its choices", "ours, without AR(1)"], rows))
    for name, choices in Choices().without():
        same = sum(breaks(y, rule, choices) == there for (y, rule), there in zip(asked, expected, strict=True))
        print(f"its choices without {name}: the same breaks in {same} of {len(asked)}")
    assert all(breaks(y, rule, Choices()) == there for (y, rule), there in zip(asked, expected, strict=True))


def shown(found: list[int]) -> str:
    return " ".join(map(str, found)) if len(found) <= 15 else f"{len(found)}: {' '.join(map(str, found[:11]))} ..."


@pytest.mark.timeout(600)
def test_the_same_breaks_in_series_made_by_chance(otava: Path):
    """One to three steps of 5 to 20% each in a hundred nights of white scatter of 1%, all of them seen by both."""
    rng = np.random.default_rng(31)
    series, true = [], []
    for _ in range(100):
        at = np.sort(rng.choice(np.arange(10, 90, 10), rng.integers(1, 4), replace=False))
        level = np.ones(100)
        for night in at:
            level[night:] *= 1 + rng.choice([-1, 1]) * rng.uniform(0.05, 0.20)
        series.append(level * (1 + 0.01 * rng.normal(size=100)))
        true.append(at.tolist())
    settings = {"p_value": 1e-3, "least_change": 0.02, "window": 50}
    theirs, ours = by_otava(otava, series, **settings), by_us(series, ChangeRule(correlated=False, **settings))
    same = sum(a == b for a, b in zip(theirs, ours, strict=True))
    rule = ChangeRule(correlated=False, **settings)
    assert [breaks(y, rule, Choices()) for y in series] == theirs
    print(f"\n\nidentical breaks: {same} of 100; exactly the true ones:", end=" ")
    print(f"Otava {sum_of(theirs, true)}, ours {sum_of(ours, true)} of 100")
    assert same >= 90
    assert sum_of(ours, true) >= sum_of(theirs, true)


def sum_of(found: Sequence[list[int]], true: Sequence[list[int]]) -> int:
    return sum(a == b for a, b in zip(found, true, strict=True))


@pytest.mark.timeout(600)
def test_false_alarms_and_sight_side_by_side(otava: Path):
    """Sixty nights: where nothing changes, and where a fall of 5% lasts for ten; Otava's defaults, and p 1e-4, 2%."""
    count, rows, false = 200, [], {}
    for phi in (0.0, 0.3, 0.6):
        quiet = nights(count, phi, 1)
        fallen = nights(count, phi, 2)
        fallen[:, 25:35] *= 0.95
        for name, find in (
            ("ours", lambda y: by_us(y, ChangeRule())),
            ("Otava, defaults", lambda y: by_otava(otava, y, window=50, p_value=1e-3, least_change=0.0)),
            ("Otava, p 1e-4, 2%", lambda y: by_otava(otava, y, window=50, p_value=1e-4, least_change=0.02)),
        ):
            alarms = sum(bool(breaks) for breaks in find(quiet))
            seen = sum(len(b) == 2 and abs(b[0] - 25) <= 1 and abs(b[1] - 35) <= 1 for b in find(fallen))
            false[name, phi] = alarms / count
            rows.append([name, phi, with_interval(alarms, count), with_interval(seen, count)])
    print("\n\nscatter 1% from night to night")
    print(table(["", "phi", "false alarms in 60 nights", "there and back found, to a night"], rows))
    assert all(false["ours", phi] <= 0.03 for phi in (0.0, 0.3, 0.6))
    assert false["Otava, defaults", 0.6] > 5 * false["ours", 0.6]
