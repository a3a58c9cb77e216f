"""Gate settings from a file, for runs that are over: what ``scaleup rejudge --gates FILE`` judges by.

Two forms. ``stages: {gpus_64: {canary: {at_least: 0.9}}}`` is laid over the gates that a run had: thresholds are
merged, a gate that is named anew is added, ``dropped`` takes one away. ``live: {...}``, for all stages or among the
gates of one, is laid over the live rules likewise. An experiment's file, whose ``stages`` is a list, replaces them: its
stages' gates and live rules are taken as they stand there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tasks import config
from tasks.config import files
from tasks.config.as_trained import as_trained
from tasks.config.errors import Problem, from_pydantic, invalid, shown, unknown
from tasks.config.experiment import Experiment, GateChoice, Stage
from tasks.config.gates_asked import gate_problems
from tasks.config.live import Live
from tasks.errors import ConfigInvalid
from tasks.plan import Ladder, StagePlan

Thresholds = dict[str, Any]


@dataclass(frozen=True)
class Policy:
    """Gate settings and live rules by stage: laid over a run's own, or those of an experiment in their place."""

    path: Path
    overlay: Mapping[str, Mapping[str, Any]]
    experiment: Experiment | None = None
    live: Mapping[str, Any] = field(default_factory=dict)  # of all stages
    live_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of one, which has the last word

    def gates(self, ladder: Ladder) -> dict[str, dict[str, Thresholds]]:
        """Return the gates of each stage of a run's ladder under this policy, as ``StagePlan.gates`` has them.

        Raises ConfigInvalid where the policy asks of a stage what cannot be asked of it.
        """
        if self.experiment is not None:
            return {plan.name: _experiment_stage(self.experiment, plan).asked for plan in ladder.stages}
        merged = {plan.name: _merged(plan, self.overlay.get(plan.name, {})) for plan in ladder.stages}
        problems = _problems(ladder, merged, touched=[name for name in merged if name in self.overlay])
        if problems:
            raise invalid(self.path, "gate policy", problems)
        stages = {plan.name: plan.trained.stage for plan in ladder.stages}
        return {name: stages[name].model_copy(update={"gates": gates}).asked for name, gates in merged.items()}

    def rules(self, ladder: Ladder) -> dict[str, Live]:
        """Return the live rules of each stage of a run's ladder under this policy.

        Raises ConfigInvalid where they do not fit those that a run had.
        """
        if self.experiment is not None:
            return {plan.name: _experiment_stage(self.experiment, plan).live for plan in ladder.stages}
        found = {}
        for plan in ladder.stages:
            said = files.deep_merge(self.live, self.live_of.get(plan.name, {}))
            found[plan.name] = Live.model_validate(files.deep_merge(config.dump(plan.live), said))
        return found


def read_policy(said: str, ladders: Sequence[Ladder]) -> Policy:
    """Read a policy for these runs; raise ConfigInvalid with all that is wrong, stages that no run has among it."""
    path = Path(said)
    if not path.is_file():
        raise ConfigInvalid(f"{said} does not exist; --gates takes a file with `stages: {{gpus_64: {{GATE: ...}}}}`")
    raw = files.parse(path, "gate policy")
    there = list(dict.fromkeys(plan.name for ladder in ladders for plan in ladder.stages))
    if isinstance(raw.get("stages"), list) or "extends" in raw:
        experiment = config.load_experiment(path)
        if not {stage.name for stage in experiment.stages} & set(there):
            raise ConfigInvalid(f"{shown(path)} has none of the runs' stages, which are {', '.join(there)}")
        return Policy(path, {}, experiment)
    problems = [Problem("", unknown("key", key, ["stages", "live"])) for key in raw if key not in ("stages", "live")]
    stages = raw.get("stages", {} if "live" in raw else None)
    if not isinstance(stages, Mapping) or not (stages or "live" in raw):
        problems.append(Problem("stages", "must map stages to their gates, for example {gpus_64: {canary: }}"))
        stages = {}
    problems += [Problem("stages", unknown("stage", name, there)) for name in stages if name not in there]
    live = raw.get("live", {})
    problems += _live_problems(("live",), live)
    overlay, live_of = {}, {}
    for name, said in stages.items():
        gates: Any = said
        if isinstance(said, Mapping) and "live" in said:
            gates = {key: value for key, value in said.items() if key != "live"}
            live_of[name] = said["live"]
            problems += _live_problems(("stages", name, "live"), said["live"])
            if not gates:
                continue
        overlay[name], wrong = _chosen(name, gates)
        problems += wrong
    if problems:
        raise invalid(path, "gate policy", problems)
    return Policy(path, overlay, live=live, live_of=live_of)


def _live_problems(place: tuple[str, ...], said: Any) -> list[Problem]:
    """Return what is wrong with live rules, each problem at its place in the file."""
    try:
        Live.model_validate(said)
    except ValidationError as error:
        return from_pydantic(error.errors(), Live, place)
    return []


def _chosen(stage: str, gates: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Return the gates of one stage as an experiment would hold them, and what is wrong with their form."""
    if not isinstance(gates, Mapping) or not gates:
        return {}, [Problem(f"stages.{stage}", "must map gates to thresholds, for example {canary: {at_least: 0.9}}")]
    found, problems = {}, []
    for name, value in gates.items():
        try:
            found[name] = TypeAdapter(GateChoice).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"])
            problems.append(Problem(f"stages.{stage}.{name}", str(reason)))
    return found, problems


def _merged(plan: StagePlan, over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay gates over those that a stage had; ``{}`` means a gate's defaults, so it replaces what was set."""
    own: dict[str, Any] = dict(plan.trained.stage.gates)
    for name, chosen in over.items():
        own[name] = files.deep_merge({name: own.get(name)}, {name: chosen})[name] if chosen else chosen
    return own


def _problems(ladder: Ladder, gates: Mapping[str, Mapping[str, Any]], touched: Sequence[str]) -> list[Problem]:
    """Return what is wrong with the stages that the policy touches, each place named as its file has it."""
    stages = [
        {"gpus": plan.gpus, "start": plan.trained.stage.start, "gates": gates[plan.name]} for plan in ladder.stages
    ]
    found = []
    for problem in gate_problems(stages, ladder.stages[0].trainer):
        _, index, _, *rest = problem.path.split(".")
        name = ladder.stages[int(index)].name
        if name in touched:
            found.append(replace(problem, path=".".join(["stages", name, *rest])))
    return found


def _experiment_stage(experiment: Experiment, plan: StagePlan) -> Stage:
    """Return a stage as an experiment has it, rehearsed if the run's was; the run's own where it has none such."""
    names = [stage.name for stage in experiment.stages]
    if plan.name not in names:
        return plan.trained.stage.model_copy(update={"live": plan.live})
    return as_trained(experiment, names.index(plan.name), plan.emulated).stage
