"""``scaleup calibrate``: one stage several times, by the functions that climb a ladder, and what that shows.

What is written, is written once all repeats are there; an interrupted calibration goes on by its id.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any

from tasks import config, statistics
from tasks.cancel import reap
from tasks.climb import INTERRUPTED, REFUSED, Teller, cleared, climb_stage
from tasks.config.errors import unknown
from tasks.errors import GateFailed, ScaleupError
from tasks.gates.launches import LEAST_REPEATS
from tasks.launch import launch
from tasks.measure import end_probes
from tasks.plan import StagePlan
from tasks.run import ladder_of, new_run_id, open_run, user
from tasks.stage_dir import RunDir, StageDir
from tasks.watch import look

LAUNCHES = "launches: modelled noise drawn anew; weights and the order of data are the same"
SEEDS = "seeds: weights, the order of data, and modelled noise"
REAL_LAUNCHES = "launches: nodes and their state; weights and the order of data are the same"


@dataclass(frozen=True)
class Order:
    """What is to be repeated, how often, and what differs from repeat to repeat."""

    experiment: str
    repeats: int
    stage: str | None = None
    cluster: str | None = None
    vary_seed: bool = False
    id: str | None = None

    def command(self, known: str) -> str:
        """Return the command that goes on with this calibration."""
        said = f"scaleup calibrate {self.experiment} --repeats {self.repeats} --id {known}"
        said += f" --stage {self.stage}" if self.stage else ""
        said += f" --cluster {self.cluster}" if self.cluster else ""
        return said + (" --vary-seed" if self.vary_seed else "")


def calibrate(order: Order, teller: Teller, *, reference: bool = False) -> int:
    """Run all repeats, write what they show, say what gates now go by; return the exit code.

    Raises ScaleupError on an order that cannot be carried out, before anything starts.
    """
    if order.repeats < LEAST_REPEATS:
        raise ScaleupError(f"--repeats must be {LEAST_REPEATS} or more, not {order.repeats}: fewer tell no spread")
    target = _target(order)
    known = order.id or new_run_id()
    for line in reap():
        teller.say(line)
    done: list[StageDir] = []
    try:
        for number in range(1, order.repeats + 1):
            run = _open(order, known, number, target)
            teller.say(f"repeat {number} of {order.repeats}: run {run.experiment}/{run.run_id}")
            done.append(_repeat(run, target, teller))
    except KeyboardInterrupt:
        teller.say(f"interrupted after {len(done)} of {order.repeats} repeats; nothing is written")
        teller.say(f"go on with: {order.command(known)}{' --reference' if reference else ''}")
        return INTERRUPTED
    except ScaleupError as error:
        teller.say(f"repeat {len(done) + 1} ended: {error}")
        teller.say(f"nothing is written; go on with: {order.command(known)}{' --reference' if reference else ''}")
        return REFUSED
    _conclude(order, done, teller, reference)
    return 0


def _target(order: Order) -> str:
    names = [stage.name for stage in config.load_experiment(order.experiment).stages]
    if order.stage is not None and order.stage not in names:
        raise ScaleupError(f"--stage: {unknown('stage', order.stage, names)}")
    return order.stage or names[0]


def _open(order: Order, known: str, number: int, target: str) -> RunDir:
    """Open the run of one repeat; called again with the same id it is the same run."""
    drawn = int.from_bytes(hashlib.sha256(f"{known}/{number}".encode()).digest()[:4], "big") >> 1
    return open_run(
        order.experiment,
        run_id=f"calibrate_{known}_{number}",
        cluster=order.cluster,
        last=target,
        note=f"repeat {number} of {order.repeats} for scaleup calibrate",
        origin={"command": "scaleup calibrate", "by": user(), "calibration": known},
        seed=drawn if order.vary_seed else None,
        launch_seed=None if order.vary_seed else drawn,
    )


def _repeat(run: RunDir, target: str, teller: Teller) -> StageDir:
    """Climb to the stage and train it once more; what its gates say is told and decides nothing."""
    for decided in ladder_of(run).stages:
        stage = run.stage(decided.name)
        if stage.promotion.exists() or (decided.name == target and stage.verdict.exists()):
            continue
        with cleared(stage, teller):
            if decided.name == target:
                _train(stage, decided, teller)
            else:
                climb_stage(stage, decided, teller)
    return run.stage(target)


def _train(stage: StageDir, decided: StagePlan, teller: Teller) -> None:
    from tasks.evaluate import evaluate
    from tasks.forecast import forecast

    while forecast(stage).get("waiting_for") is not None:
        teller.show(stage.run)
        time.sleep(decided.cluster.poll_seconds)
    launch(stage)
    while not (seen := look(stage)).done and seen.state != "measuring":
        teller.show(stage.run)
        time.sleep(decided.cluster.poll_seconds)
    end_probes(stage, "a repeat is measured as it is, without probes")
    try:
        evaluate(stage)
    except GateFailed as error:
        first = str(error).splitlines()[0]
        teller.say(f"{first}; it counts as a repeat all the same, or only good runs would be measured")
    teller.show(stage.run)


def _conclude(order: Order, done: list[StageDir], teller: Teller, reference: bool) -> None:
    """Write what the repeats show, and say what gates now go by."""
    from tasks import noise  # frames and statistics: the command line starts without

    repeats = [noise.repeat_of(stage) for stage in done]
    emulated = repeats[0].seen.stage.emulated
    found = noise.measured(repeats, SEEDS if order.vary_seed else LAUNCHES if emulated else REAL_LAUNCHES)
    stored = noise.reference(repeats) if reference else None  # before anything is written, since it may refuse
    path = noise.write_noise(found)
    for line in _says(found):
        teller.say(line)
    teller.say(f"written: {path}; gates of {order.experiment} on {found['cluster']} go by it from now on")
    if stored is not None:
        reach = max(tokens for run in stored["runs"] for tokens in run["tokens"])
        teller.say(
            f"written: {noise.write_reference(stored)}; loss_near_baseline compares with these {len(done)} runs, up to "
            f"{reach:,.0f} tokens"
        )


def _says(found: dict[str, Any]) -> list[str]:
    """Return each standard deviation with its interval, its nature, and what gates do with it."""
    lines = [f"{found['repeats']} repeats of {found['gpus']} GPUs; what differed: {found['varied']}"]
    for key, name, scale, unit in (
        ("launch_sd", "throughput, launch to launch", 100.0, "%"),
        ("step_sd", "step seconds within a launch", 100.0, "%"),
        ("loss_sd", "held-out loss, run to run", 1.0, " nats"),
    ):
        value, interval, nature = found[key], found["intervals"][key], found["natures"][key]
        if value is None:
            lines.append(f"  {name:<29} unknown: not every repeat has a held-out loss at its end")
            continue
        low, high = (f"{scale * end:.2g}" for end in interval)
        said = f"  {name:<29} sd {scale * value:.2g}{unit} (95%: {low} to {high}{unit}), {nature}"
        if value == 0:
            said += ": the repeats agree to the last bit, so gates keep their prior"
        lines.append(said)
    return [*lines, *_too_few(found)]


def _too_few(found: dict[str, Any]) -> list[str]:
    """Warn where so few repeats make gates allow more for a launch than the prior does: then they decide less."""
    reach = statistics.t_quantile(0.975, found["repeats"] - 1) * found["launch_sd"]
    prior = statistics.t_quantile(0.975, math.inf) * statistics.LAUNCH_SD
    if reach <= prior:
        return []
    return [
        f"  gates now allow ±{reach:.1%} for a launch, where the prior allowed ±{prior:.1%}: "
        f"{found['repeats']} repeats know the sd poorly, and more of them would narrow it"
    ]
