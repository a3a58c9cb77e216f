"""The same ladder without Airflow: the steps of each stage in order, in this process; the job itself outlives it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tasks.cancel import cancel, mark_person, reap
from tasks.errors import ScaleupError
from tasks.launch import launch
from tasks.promote import promote
from tasks.run import ladder_of, new_run_id, open_run, user
from tasks.stage_dir import RunDir, StageDir
from tasks.watch import look

if TYPE_CHECKING:
    from tasks.plan import StagePlan

REFUSED, INTERRUPTED = 1, 130  # exit codes; the second is what a shell says of a program ended by Ctrl-C


class Teller(Protocol):
    """Where the climb says how it goes."""

    def say(self, line: str) -> None:
        """Tell one line that stays."""

    def show(self, run: RunDir) -> None:
        """Show how the run stands now."""


def climb(experiment: str, teller: Teller, *, run_id: str | None = None, **chosen: Any) -> int:
    """Climb all stages of a new run, or what is left of run ``run_id``; return the exit code.

    ``chosen`` is as :func:`tasks.run.open_run` takes it: cluster, first, last, seed, note.
    """
    for line in reap():
        teller.say(line)
    origin: Mapping[str, Any] = {"command": "scaleup run", "by": user()}
    run = open_run(experiment, run_id=run_id or new_run_id(), origin=origin, **chosen)
    teller.say(f"run {run.experiment}/{run.run_id} in {run.path}")
    for decided in ladder_of(run).stages:
        stage = run.stage(decided.name)
        if stage.promotion.exists():
            teller.say(f"{stage.name} is promoted already")
            continue
        try:
            with cleared(stage, teller):
                climb_stage(stage, decided, teller)
        except KeyboardInterrupt:
            teller.say(f"interrupted; go on with: scaleup run {run.experiment} --run-id {run.run_id}")
            return INTERRUPTED
        except ScaleupError as error:
            teller.say(f"{stage.name} ended: {error}")
            return REFUSED
    teller.say(f"all stages were promoted: {', '.join(decided.name for decided in ladder_of(run).stages)}")
    return 0


def climb_stage(stage: StageDir, decided: StagePlan, teller: Teller) -> None:
    """One stage, by the functions that Airflow's tasks call, in the same order."""
    from tasks.evaluate import evaluate  # what judges brings pandas and scipy; the command line starts without
    from tasks.forecast import forecast

    while forecast(stage).get("waiting_for") is not None:
        teller.show(stage.run)
        time.sleep(decided.cluster.poll_seconds)
    teller.show(stage.run)
    launch(stage)
    while not look(stage).done:
        teller.show(stage.run)
        time.sleep(decided.cluster.poll_seconds)
    teller.show(stage.run)
    evaluate(stage)
    teller.show(stage.run)
    promote(stage)


@contextmanager
def cleared(stage: StageDir, teller: Teller) -> Iterator[None]:
    """Do afterwards, whatever happened, what Airflow's teardowns do: cancel on a recorded cause, and report."""
    from tasks.report import report

    try:
        yield
    except KeyboardInterrupt:
        if stage.job.exists():
            mark_person(stage, user(), "pressed Ctrl-C")
        raise
    finally:
        if stage.job.exists():
            done = cancel(stage)
            if sys.exc_info()[0] is not None:
                teller.say(done)
        report(stage)
        teller.show(stage.run)
