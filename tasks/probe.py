"""A probe as files: what is ordered, whether it is complete, and its records as evidence.

A probe keeps nothing: from fresh weights, at learning rate 0, it takes some steps with the stage's batch a GPU, which
are timed and thrown away. So it can be of any size, before the stage or after it, and any trainer can run it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import TYPE_CHECKING, Any

from tasks.plan import StagePlan
from tasks.records import read_metrics
from tasks.stage_dir import ProbeDir, StageDir, read_json, write_json
from training.config import Checkpointing, HeldOut, Schedule, Span, Start, TrainConfig

if TYPE_CHECKING:
    from tasks.gates.core import Probe, StageFacts


def order_inside(stage: StageDir, decided: StagePlan) -> list[ProbeDir]:
    """Order the sizes that are measured inside the stage's allocation; return those still to be run."""
    from tasks.gates.next_measurement import STEPS  # numbers and frames, which a launch without probes is spared

    left = []
    for gpus in decided.trained.stage.probe_gpus:
        probe = stage.probe(f"gpus_{gpus}")
        if not probe.order.exists():
            says = f"{gpus} GPUs inside the {decided.gpus} of {stage.name}, before it trains: a point for what follows"
            order(probe, stage, decided, gpus=gpus, steps=STEPS, inside=True, says=says)
        if not complete(probe):
            left.append(probe)
    return left


def order(probe: ProbeDir, stage: StageDir, decided: StagePlan, *, gpus: int, steps: int, **said: Any) -> None:
    """Write the probe's orders, then that it is ordered: whoever finds ``probe.json`` finds the rest as well."""
    write_json(probe.config, probe_config(decided, stage.run.run_id, probe.name, gpus, steps).to_json())
    write_json(probe.order, {"gpus": gpus, "steps": steps, "time": time.time(), **said})


def complete(probe: ProbeDir) -> bool:
    """Say whether all steps that were ordered are recorded."""
    wanted = (read_json(probe.order) or {}).get("steps")
    return wanted is not None and bool(probe.metrics.exists()) and len(read_metrics(probe.metrics).steps) >= wanted


def taken(stage: StageDir, decided: StagePlan, fingerprint: str = "") -> tuple[Probe, ...]:
    """Return the complete probes of a stage as evidence, oldest first."""
    from tasks.gates.core import Probe

    done = [(read_json(probe.order) or {}, probe) for probe in stage.probes if complete(probe)]
    return tuple(
        Probe(
            probe_facts(decided, probe.name, said["gpus"], said["steps"], fingerprint),
            read_metrics(probe.metrics).steps.assign(phase="probe"),
        )
        for said, probe in sorted(done, key=lambda pair: float(pair[0]["time"]))
    )


def probe_facts(decided: StagePlan, name: str, gpus: int, steps: int, fingerprint: str = "") -> StageFacts:
    """Return what gates may know of a probe: the stage's facts, at its own size, with the same batch a GPU."""
    return dataclasses.replace(
        decided.facts(fingerprint),
        name=f"{decided.name}/{name}",
        gpus=gpus,
        nodes=-(-gpus // decided.cluster.gpus_per_node),
        throughput_batch_tokens=_sequences(decided, _real_sequences(decided), gpus) * _real_length(decided),
        batch_tokens=_sequences(decided, decided.spans[-1].batch_sequences, gpus) * decided.recipe.sequence_length,
        tier=decided.cluster.tier(gpus),
        first_step=1,
        last_step=steps,
    )


def probe_config(decided: StagePlan, run_id: str, name: str, gpus: int, steps: int) -> TrainConfig:
    """Return the trainer's orders for a probe; its modelled launch is drawn anew, as another launch would be."""
    from tasks.plan import train_config

    base = train_config(decided, run_id, 1)
    batch = _sequences(decided, decided.spans[-1].batch_sequences, gpus)
    emulation = base.emulation and dataclasses.replace(
        base.emulation,
        recipe_batch_sequences=_sequences(decided, _real_sequences(decided), gpus),
        seed=_seed(base.emulation.seed, f"{decided.name}/{name}"),
    )
    return dataclasses.replace(
        base,
        stage=f"{decided.name}/{name}",
        gpus=gpus,
        spans=(Span("probe", 1, steps, batch, 0.0, Schedule()),),
        start=Start("scratch"),
        hand_over_step=None,
        checkpointing=Checkpointing(every_steps=steps + 1, keep=1),
        held_out=HeldOut(sequences=1),
        processes=base.processes if base.processes and gpus % base.processes == 0 else None,
        emulation=emulation,
    )


def _seed(of_run: int, what: str) -> int:
    """Return another seed for what is drawn anew; a function of both alone."""
    return int.from_bytes(hashlib.sha256(f"{of_run}/{what}".encode()).digest()[:4], "big")


def _real_sequences(decided: StagePlan) -> int:
    return decided.throughput_batch_tokens // _real_length(decided)


def _real_length(decided: StagePlan) -> int:
    """Tokens of a sequence of the recipe whose speed is recorded."""
    return (decided.modelled or decided.recipe).sequence_length


def _sequences(decided: StagePlan, of_stage: int, gpus: int) -> int:
    """Sequences a step at another size with the same batch a GPU, at least one."""
    return max(1, round(of_stage * gpus / decided.gpus))
