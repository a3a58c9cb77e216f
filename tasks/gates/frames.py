"""Which records a gate may use, and the refusal where they are not sound. Raises :class:`Unusable`, never guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks import statistics
from tasks.gates.core import EarlierStage, Evidence, StageFacts, Unusable

if TYPE_CHECKING:
    import pandas as pd


SMALLEST, LARGEST = 1e-45, 3.4028235e38  # of a float32
SHORTEST, LONGEST = 1e-6, 1e7  # seconds; no step takes less or more
OTHER_UNIT = 100.0  # times that a step's seconds may differ from the time between two steps' ends


class Recorded(Protocol):
    """What :class:`Evidence` and :class:`EarlierStage` share, as far as frames are concerned."""

    @property
    def steps(self) -> pd.DataFrame:
        """Step records."""

    @property
    def held_out(self) -> pd.DataFrame:
        """Held-out rows."""


def numbers(frame: pd.DataFrame, column: str, what: str) -> statistics.Array:
    """Return a column as finite floats; raise where it is missing, empty or holds anything else."""
    import pandas as pd

    if column not in frame.columns:
        raise Unusable(f"{what} have no column {column!r}")
    if not len(frame):
        raise Unusable(f"there are no {what}")
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values)
    if bad.any():
        raise Unusable(f"{column} is not a finite number in {int(bad.sum())} of {bad.size} {what}")
    beyond = ~in_float32(values)
    if beyond.any():
        raise Unusable(f"{column} is {values[beyond][0]:g} in {what}: no float32 holds that, so nobody measured it")
    return np.asarray(values)


def in_float32(values: statistics.Array) -> NDArray[np.bool_]:
    """Say of each number whether a float32 could hold it: zero, or between its smallest and its largest."""
    size = np.abs(values)
    return np.asarray((size == 0) | ((size >= SMALLEST) & (size <= LARGEST)))


def steps(of: Recorded, name: str, phases: Sequence[str] = ("train",)) -> pd.DataFrame:
    """Return the step records of some phases in order, each step once; a record without a phase is trained."""
    frame = of.steps
    what = f"{' and '.join(phases)} steps of {name}"
    if "phase" in frame.columns:
        frame = frame[frame["phase"].fillna("train").isin(list(phases))]
    elif "train" not in phases:
        raise Unusable(f"the records of {name} name no phase, so there are no {what}")
    frame = frame.assign(step=numbers(frame, "step", what))
    return frame.sort_values("step", kind="stable").drop_duplicates("step", keep="last").reset_index(drop=True)


def moved(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that moved the weights: gradients of a skipped one overflowed, so it has no finite norm."""
    import pandas as pd

    if "skipped_steps" not in frame.columns:
        return frame
    return frame[~(pd.to_numeric(frame["skipped_steps"], errors="coerce") > 0)]


def refuse_gaps(evidence: Evidence, seen: statistics.Array) -> None:
    """Refuse records with steps missing, ``seen`` being those there are: a hole may hide what a gate looks for."""
    facts = evidence.stage
    lost = int(seen[-1]) - int(seen[0]) + 1 - seen.size
    if lost:
        raise Unusable(f"{lost} steps between {int(seen[0])} and {int(seen[-1])} of {facts.name} have no record")
    if evidence.moment != "end":
        return
    if seen[0] > max(facts.first_step, 1):
        raise Unusable(f"the records of {facts.name} begin at step {int(seen[0])}, not at {max(facts.first_step, 1)}")
    if facts.last_step and seen[-1] < facts.last_step:
        raise Unusable(f"the records of {facts.name} end at step {int(seen[-1])}; its last is {facts.last_step}")


def refuse_cut_short(evidence: Evidence, frame: pd.DataFrame, phase: str) -> None:
    """Refuse a phase with holes, and at the end of a stage records that end before it does."""
    facts, seen = evidence.stage, frame["step"].to_numpy(dtype=int)
    lost = int(seen[-1]) - int(seen[0]) + 1 - seen.size
    if lost:
        raise Unusable(f"{lost} {phase} steps of {facts.name} between {seen[0]} and {seen[-1]} have no record")
    if phase == "train" and evidence.moment == "end" and seen[-1] < facts.last_step:
        raise Unusable(f"the records of {facts.name} end at step {seen[-1]}; its last is {facts.last_step}")


def window(frame: pd.DataFrame, phase: str) -> str:
    """Say which steps were used: ``steps 111..180, phase train``."""
    return f"steps {int(frame['step'].iloc[0])}..{int(frame['step'].iloc[-1])}, phase {phase}"


def seconds(frame: pd.DataFrame, facts: StageFacts, what: str) -> statistics.Array:
    """Seconds a step in which a GPU does its share of ``throughput_batch_tokens``; refuses a clock that stands still.

    ``tokens_per_gpu_second`` goes first where every record has it, since a batch may change within a stage.
    """
    if "tokens_per_gpu_second" in frame.columns and frame["tokens_per_gpu_second"].notna().all():
        speed = numbers(frame, "tokens_per_gpu_second", what)
        if (speed <= 0).any():
            raise Unusable(f"tokens_per_gpu_second is not positive in {int((speed <= 0).sum())} {what}")
        values = facts.throughput_batch_tokens / (facts.gpus * speed)
    else:
        values = numbers(frame, "step_seconds", what)
    if (values <= 0).any():
        raise Unusable(f"step_seconds is not positive in {int((values <= 0).sum())} of {values.size} {what}")
    if not (values.min() >= SHORTEST and values.max() <= LONGEST):
        raise Unusable(f"{what} took {values.min():.3g} to {values.max():.3g} s; no step does, so it is another unit")
    _refuse_other_clock(frame, values, facts, what)
    if np.ptp(values) <= 1e-12 * values[0]:
        raise Unusable(
            f"all {values.size} {what} took exactly {values[0]:g} s; a clock that stands still shows nothing"
        )
    return np.asarray(values)


def _refuse_other_clock(frame: pd.DataFrame, values: statistics.Array, facts: StageFacts, what: str) -> None:
    """Refuse step seconds that the steps' own time stamps contradict a hundredfold; modelled ones have no clock."""
    if facts.emulated or "time" not in frame.columns or len(frame) < 2:
        return
    apart = np.diff(frame["time"].to_numpy(dtype=float))
    if not (np.isfinite(apart).all() and (apart > 0).all()):
        return
    said, passed = float(np.median(values)), float(np.median(apart))
    if not passed / OTHER_UNIT < said < passed * OTHER_UNIT:
        raise Unusable(f"{what} say that they took {said:.3g} s and ended {passed:.3g} s apart: another unit")


def measured(
    of: Recorded, facts: StageFacts, *, phases: tuple[str, ...] = ("train",)
) -> tuple[statistics.Mean, statistics.Array, str]:
    """Return throughput (tokens/s/GPU) of one launch, the step seconds it rests on, and their window.

    Its interval knows only the noise within the launch. Warm-up is dropped from the records with which a stage or a
    probe begins; where replay or canary ran before, it is over.
    """
    frame = steps(of, facts.name, phases)
    phase = " and ".join(phases)
    values = seconds(frame, facts, f"{phase} steps of {facts.name}")
    least = statistics.SMALLEST_WINDOW
    if values.size < least:
        raise Unusable(f"{values.size} {phase} steps of {facts.name} are too few; {least} are the least")
    cold = phases in (("train",), ("probe",)) and int(frame["step"].iloc[0]) <= max(facts.first_step, 1)
    dropped = statistics.warm_up(values) if cold else 0
    kept = values[dropped:]
    if kept.size < least:
        raise Unusable(
            f"of {values.size} {phase} steps of {facts.name} {dropped} are warm-up; the {kept.size} left are too few"
        )
    per_gpu = facts.throughput_batch_tokens / facts.gpus
    return statistics.inverse(statistics.batch_means(kept), per_gpu), kept, window(frame.iloc[dropped:], phase)


def held_out_loss(of: Recorded, name: str, *, at: str | None = None, step: int | None = None) -> tuple[float, int, int]:
    """Return (loss, step, tokens) of the last held-out row ``at`` a moment or ``step``; tokens are 0 where unknown."""
    frame = of.held_out
    where = f"at {at}" if at else f"at step {step}"
    if at is not None:
        if "at" not in frame.columns:
            raise Unusable(f"the held-out rows of {name} do not say when they were taken (no column 'at')")
        frame = frame[frame["at"] == at]
    if not len(frame):
        raise Unusable(f"{name} has no held-out loss {where}")
    rows = frame.assign(step=numbers(frame, "step", f"held-out rows of {name}"))
    if step is not None:
        rows = rows[rows["step"] == step]
        if not len(rows):
            raise Unusable(f"{name} has no held-out loss {where}")
    row = rows.sort_values("step", kind="stable").iloc[[-1]]
    loss = float(numbers(row, "loss", f"held-out rows of {name} {where}")[0])
    tokens = row["tokens"].iloc[0] if "tokens" in row.columns else 0
    return loss, int(row["step"].iloc[0]), int(tokens) if np.isfinite(float(tokens)) else 0


def earlier(evidence: Evidence, name: str | None, role: str) -> EarlierStage:
    """Return a stage before this one by name, or refuse with the names there are."""
    if name is None:
        raise Unusable(f"{evidence.stage.name} has no {role}: it goes on from no earlier stage")
    if name not in evidence.earlier:
        there = ", ".join(evidence.earlier) or "none"
        raise Unusable(f"{role} {name!r} is no earlier stage of this run with records; there are: {there}")
    return evidence.earlier[name]
