"""What a stage's folder tells, gathered for the report. What is missing is said, never raised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import natures
from tasks.errors import ScaleupError
from tasks.gates.core import REGISTRY, Check
from tasks.records import Metrics, read_metrics
from tasks.revisions import Revision, revisions
from tasks.run import ladder_of
from tasks.stage_dir import RunDir, StageDir, read_json
from tasks.tracking import summary

if TYPE_CHECKING:
    from tasks.plan import Ladder, StagePlan


@dataclass
class Story:
    """A stage as its folder tells it; a part that is not there is empty, and ``missing`` says so."""

    stage: StageDir
    plan: StagePlan | None = None
    next_plan: StagePlan | None = None
    config: dict[str, Any] = field(default_factory=dict)
    forecast: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)
    promotion: dict[str, Any] = field(default_factory=dict)
    leave: dict[str, Any] = field(default_factory=dict)
    cause: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    score: dict[str, Any] = field(default_factory=dict)
    revisions: list[Revision] = field(default_factory=list)  # of the recipe, made for this stage
    alarms: list[dict[str, Any]] = field(default_factory=list)  # of the live rules, oldest first
    metrics: Metrics | None = None
    checks: list[Check] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """The verdict's outcome, or what stands in its place: refused, stopped, running, waiting."""
        if self.verdict:
            return str(self.verdict.get("outcome"))
        if self.cause:
            return "STOPPED"
        if self.forecast.get("outcome", "PASS") != "PASS" and not self.config:
            return "REFUSED"
        return "RUNNING" if self.config else "WAITING"

    @property
    def tone(self) -> str:
        """The outcome of a gate that the outcome of the stage resembles."""
        return {"STOPPED": "FAIL", "REFUSED": "FAIL"}.get(self.outcome, self.outcome)

    @property
    def bad(self) -> list[Check]:
        """Checks that stand in the stage's way: no shadow, and none that was not to be compared."""
        return [check for check in self.checks if natures.speaks_against(check.to_json())]

    @property
    def price(self) -> float | None:
        """US dollars a GPU-hour, where the plan says them."""
        return self.plan.cluster.price_per_gpu_hour if self.plan else None

    @property
    def name(self) -> str:
        """``experiment/run_id``, as every command takes it."""
        return f"{self.stage.run.experiment}/{self.stage.run.run_id}"

    @property
    def emulated(self) -> bool | None:
        """Whether the stage's GPUs are emulated; None where nothing says so."""
        header = self.metrics.header if self.metrics else {}
        said = [self.config.get("emulation") is not None, header.get("emulated"), self.verdict.get("emulated")]
        if any(said) or (self.plan is not None and self.plan.emulated):
            return True
        return False if self.config or self.plan else None

    @property
    def gpus(self) -> int | None:
        """GPUs of the stage, where anything says so."""
        return self.plan.gpus if self.plan else self.config.get("gpus")

    @cached_property
    def values(self) -> dict[str, float]:
        """Summary metrics, as MLflow has them; empty where a file they need cannot be read."""
        try:
            return summary.metrics(self.stage)[0]
        except (ScaleupError, KeyError, TypeError):
            return {}

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """(nature, fields) as the trainer's header says: real, measured, modelled, synthetic."""
        fields: Mapping[str, str] = (self.metrics.header if self.metrics else {}).get("fields") or {}
        found = [(nature, sorted(n for n, is_a in fields.items() if is_a == nature)) for nature in _NATURES]
        return [(nature, ", ".join(names)) for nature, names in found if names]


_NATURES = ("real", "measured", "modelled", "synthetic")
_FILES = ("config", "forecast", "verdict", "promotion", "leave", "cause", "job")
_EXPECTED = {
    "forecast": "no forecast was registered before it started",
    "config": "it was never launched",
    "verdict": "its gates have given no verdict",
}


def story_of(stage: StageDir, ladder: Ladder | None = None) -> Story:
    """Gather everything that the folder of a stage holds."""
    found = Story(stage)
    for name in _FILES:
        try:
            setattr(found, name, read_json(getattr(stage, name)) or {})
        except ScaleupError as error:
            found.missing.append(str(error))
    ladder = ladder or _ladder(stage.run, found.missing)
    if ladder is not None:
        found.plan = next((p for p in ladder.stages if p.name == stage.name), None)
        following = found.plan.next if found.plan else None
        found.next_plan = next((p for p in ladder.stages if p.name == following), None)
    try:
        found.metrics = read_metrics(stage.metrics)
    except ScaleupError as error:
        found.missing.append(f"its records cannot be read: {error}")
    found.score = told(stage.score)
    found.revisions = [revision for revision in revisions(stage.run) if revision.stage == stage.name]
    found.alarms = [alarm for alarm in told(stage.live).get("alarms") or [] if isinstance(alarm, dict)]
    found.checks = _checks(found)
    found.missing += [f"{name}.json: {what}" for name, what in _EXPECTED.items() if not getattr(found, name)]
    if found.metrics is not None and found.metrics.steps.empty and found.config:
        found.missing.append("metrics.jsonl: the trainer has recorded no step")
    return found


def _ladder(run: RunDir, missing: list[str]) -> Ladder | None:
    try:
        return ladder_of(run)
    except (ScaleupError, KeyError, TypeError, ValueError) as error:
        missing.append(f"recipe.json: the plan of the run cannot be read, so nothing says what goes on costs ({error})")
        return None


def _checks(found: Story) -> list[Check]:
    """Return all checks, the ones that did not pass first; before the verdict those of the entry and early gates."""
    kept = found.verdict.get("checks") or [
        *found.forecast.get("checks", []),
        *told(found.stage.early).get("checks", []),
    ]
    checks = []
    for plain in kept:
        try:
            checks.append(Check.from_json(plain))
        except (KeyError, TypeError, ValueError) as error:
            found.missing.append(f"a check cannot be read ({type(error).__name__}: {error}): {json.dumps(plain)[:200]}")
    return sorted(checks, key=lambda check: (not natures.speaks_against(check.to_json()), check.outcome == "PASS"))


def stories_of(run: RunDir) -> tuple[list[Story], list[str]]:
    """Return the planned stages of a run in order (those with a folder where no plan is there), and what is missing."""
    missing: list[str] = []
    ladder = _ladder(run, missing)
    if ladder is None:
        return [story_of(stage) for stage in summary.stages(run)], missing
    return [story_of(run.stage(plan.name), ladder) for plan in ladder.stages], missing


def earlier_stages(stage: StageDir) -> list[StageDir]:
    """Return the stages before this one that have records."""
    begun = [s for s in summary.stages(stage.run) if s.metrics.exists()]
    names = [s.name for s in begun]
    return begun[: names.index(stage.name)] if stage.name in names else begun


def claim_of(check: Check) -> str:
    """Return what the gate claims, where the gate is still registered."""
    import tasks.gates  # noqa: F401  # registers all gates

    gate = REGISTRY.get(check.gate)
    return gate.claim if gate else ""


def told(path: Path) -> dict[str, Any]:
    """Return the object in a file that decides nothing here, empty where it is missing or broken."""
    try:
        return read_json(path) or {}
    except ScaleupError:
        return {}


def log_of(story: Story) -> Path:
    """Return the log of the newest attempt."""
    return story.stage.attempt(int(story.job.get("attempt") or 1)) / "log.txt"


def tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of a text file, empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def finite(rows: Any, x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the rows of a frame where both are finite numbers."""
    if not len(rows) or x not in rows or y not in rows:
        return []
    pairs = zip(rows[x].tolist(), rows[y].tolist(), strict=True)
    return [(float(a), float(b)) for a, b in pairs if _number(a) and _number(b)]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
