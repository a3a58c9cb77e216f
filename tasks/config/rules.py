"""What must hold between the keys of an experiment and its clusters, checked before a GPU is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tasks.config import rates
from tasks.config.as_trained import AsTrained, as_trained
from tasks.config.cluster import Cluster
from tasks.config.data import is_synthetic
from tasks.config.errors import Problem
from tasks.config.experiment import Experiment, Stage
from tasks.config.recipe import Recipe
from training import config as contract

REHEARSABLE_PARAMETERS = 100_000_000  # a CPU does not end a stage of anything larger


def stage_clusters(
    experiment: Experiment, clusters: Mapping[str, Cluster], cluster: str | None = None
) -> list[Cluster]:
    """Return the cluster of each stage: its own, else ``cluster``, else the experiment's."""
    return [clusters[stage.cluster or cluster or experiment.cluster] for stage in experiment.stages]


def problems(experiment: Experiment, where: Sequence[Cluster]) -> list[Problem]:
    """Return all that is wrong between keys; ``where`` is the cluster of each stage."""
    found = [*_order(experiment), *_budget(experiment)]
    for index, cluster in enumerate(where):
        found += _size(index, experiment.stages[index], cluster)
        found += _probes(index, experiment.stages[index], cluster)
        found += _memory(index, experiment.stages[index], cluster)
        found += _start(experiment, index, where)
        found += _stage(experiment, index, as_trained(experiment, index, emulated=False), rehearsed=False)
        if cluster.emulated:
            trained = as_trained(experiment, index, emulated=True)
            found += _stage(experiment, index, trained, rehearsed=True)
            found += _rehearsable(trained, cluster)
    if not found:  # only then is it known how many steps there are
        for index, cluster in enumerate(where):
            for emulated in sorted({False, cluster.emulated}):
                found += rates.schedule(_path(experiment, index, "schedule", emulated), experiment, index, emulated)
    return found


def _order(experiment: Experiment) -> Iterator[Problem]:
    sizes = [stage.gpus for stage in experiment.stages]
    for index, (before, after) in enumerate(pairwise(sizes), start=1):
        if after <= before:
            yield Problem(f"stages.{index}.gpus", f"must be more than the {before} of the stage before, not {after}")


def _budget(experiment: Experiment) -> Iterator[Problem]:
    wanted = sum(stage.gpus * stage.hours for stage in experiment.stages)
    if experiment.budget_gpu_hours is not None and wanted > experiment.budget_gpu_hours:
        yield Problem(
            "budget_gpu_hours",
            f"allows {experiment.budget_gpu_hours:g} GPU-hours but the stages' gpus x hours add up to {wanted:g}",
        )


def _size(index: int, stage: Stage, cluster: Cluster) -> Iterator[Problem]:
    """GPUs fill whole nodes, or a part of one, and the cluster has that many."""
    gpus, per_node = stage.gpus, cluster.gpus_per_node
    if gpus > per_node and gpus % per_node:
        near = sorted({gpus // per_node * per_node, -(-gpus // per_node) * per_node})
        would = " or ".join(str(count) for count in near)
        text = f"{gpus} GPUs do not fill nodes of {per_node} (cluster {cluster.name}); {would} would"
        yield Problem(f"stages.{index}.gpus", text)
    if gpus > cluster.gpus:
        yield Problem(
            f"stages.{index}.gpus",
            f"{gpus} GPUs are more than the {cluster.gpus} of cluster {cluster.name} "
            f"({cluster.nodes} nodes of {per_node})",
        )


def _probes(index: int, stage: Stage, cluster: Cluster) -> Iterator[Problem]:
    """A probe inside the stage's allocation is smaller than the stage, and takes whole nodes of it."""
    for gpus in stage.probe_gpus:
        where = f"stages.{index}.probe_gpus"
        if gpus >= stage.gpus:
            yield Problem(where, f"{gpus} GPUs are no less than the stage's {stage.gpus}; name smaller sizes")
        elif gpus > cluster.gpus_per_node and gpus % cluster.gpus_per_node:
            yield Problem(where, f"{gpus} GPUs do not fill nodes of {cluster.gpus_per_node} (cluster {cluster.name})")


def _memory(index: int, stage: Stage, cluster: Cluster) -> Iterator[Problem]:
    """Whoever asks for head-room says of how much."""
    if cluster.memory_gib_per_gpu is None and "memory_headroom" in stage.asked:
        text = (
            f"cluster {cluster.name} does not say memory_gib_per_gpu; write it in configs/clusters/{cluster.name}.yaml"
        )
        yield Problem(f"stages.{index}.gates.memory_headroom", text)


def _start(experiment: Experiment, index: int, where: Sequence[Cluster]) -> Iterator[Problem]:
    start = experiment.stages[index].starts(index)
    if start != "continue":
        return
    if index == 0:
        yield Problem("stages.0.start", "the first stage has nothing to continue; write scratch or {weights: PATH}")
    elif where[index].emulated != where[index - 1].emulated:
        kinds = {True: "rehearsed", False: "real"}
        now, before = (
            f"{experiment.stages[at].name} is {kinds[where[at].emulated]} on {where[at].name}"
            for at in (index, index - 1)
        )
        text = f"{now} and cannot continue where {before}; write start: scratch or choose clusters of one kind"
        yield Problem(f"stages.{index}.cluster", text)


def _stage(experiment: Experiment, index: int, trained: AsTrained, *, rehearsed: bool) -> Iterator[Problem]:
    """All rules of one stage as it is trained."""

    def path(key: str) -> str:
        return _path(experiment, index, key, rehearsed)

    place = path("layout") if rehearsed else f"stages.{index}"
    yield from _groups(place, trained.stage.gpus, trained.recipe)
    yield from _shape(path("layout"), path("model"), trained.recipe)
    yield from rates.learning_rate(path("learning_rate"), experiment, index, trained.stage)
    yield from rates.loss_scale(path("loss_scale"), trained.recipe)
    if (trained.stage.steps is None) == (trained.stage.tokens is None):
        said = "and says neither" if trained.stage.steps is None else "not both"
        yield Problem(_path(experiment, index, "", rehearsed), f"must say steps or tokens, {said}")
        return
    listed = list(_batches(path("batch_sequences"), trained))
    yield from listed
    if not listed:
        yield from _length(path("tokens" if trained.stage.steps is None else "steps"), experiment, index, trained)
    if rehearsed:
        processes = trained.recipe.processes
        if processes and trained.stage.gpus % processes:
            yield Problem(path("processes"), f"{processes} processes cannot share {trained.stage.gpus} ranks evenly")
        if processes and (uneven := trained.recipe.cut.shared_by(processes)):
            yield Problem(path("processes"), uneven)
    else:
        yield from _fed(path("batch_sequences"), trained)
    yield from _compressed(path("compression"), trained, rehearsed)
    if is_synthetic(trained.recipe.data):
        yield from _judged(path("gates"), path("data"), trained.stage)


def _compressed(where: str, trained: AsTrained, rehearsed: bool) -> Iterator[Problem]:
    """Compressed gradients are sent between real copies of the weights."""
    recipe = trained.recipe
    if recipe.compression is None:
        return
    together = recipe.layout.group * recipe.layout.shard
    processes = (recipe.processes or max(2, together)) if rehearsed else trained.stage.gpus
    virtual = recipe.reduction == "exact" or (rehearsed and together == 1)
    if needless := contract.Compression(recipe.compression.bits).needless(processes // together, virtual):
        yield Problem(where, needless)


def _judged(where: str, said: str, stage: Stage) -> Iterator[Problem]:
    """Random tokens teach nothing, so no gate may judge what was learnt."""
    from tasks.gates.core import gate_of  # needs pandas

    for key in stage.asked:
        if gate_of(key).judges_learning:
            text = f"judges a loss, and {said} is synthetic: random tokens show nothing; write {key}: dropped"
            yield Problem(f"{where}.{key}", text)


def _path(experiment: Experiment, index: int, key: str, rehearsed: bool) -> str:
    """Return where the value of ``key`` was said: in a rehearsal of the stage or of all, in the stage, or in train."""
    stage = f"stages.{index}"
    if not key:
        return stage
    if rehearsed and key in experiment.stages[index].rehearsal:
        return f"{stage}.rehearsal.{key}"
    if rehearsed and key in experiment.rehearsal:
        return f"rehearsal.{key}"
    own = experiment.stages[index].layout is not None if key == "layout" else key in Stage.model_fields
    return f"{stage}.{key}" if own else f"train.{key}"


def _groups(where: str, gpus: int, recipe: Recipe) -> Iterator[Problem]:
    """The GPUs divide into model-parallel groups, and those into shards."""
    layout = recipe.layout
    words = f"(tensor {layout.tensor} x pipeline {layout.pipeline})"
    if gpus % layout.group:
        would = _fitting(gpus, recipe)
        yield Problem(where, f"{gpus} GPUs do not divide into groups of {layout.group} {words}; {would}")
    elif (gpus // layout.group) % layout.shard:
        copies = gpus // layout.group
        fits = _nearest([n for n in range(1, copies + 1) if copies % n == 0], layout.shard)
        groups = f"{copies} groups" if layout.group > 1 else f"{copies} GPUs"
        yield Problem(where, f"{groups} do not divide into shards of {layout.shard}; {_either('shard', fits)} would")


def _shape(where: str, model_path: str, recipe: Recipe) -> Iterator[Problem]:
    """The model divides into its heads, and into what one GPU of a group holds."""
    model = recipe.model
    yield from (Problem(model_path, problem) for problem in model.shape.problems())
    yield from (Problem(where, uneven) for uneven in recipe.cut.uneven(model.shape, recipe.sequence_length))


def _fitting(gpus: int, recipe: Recipe) -> str:
    """Propose layouts near the one that does not fit: another pipeline, else another tensor."""
    tensor, pipeline, model = recipe.layout.tensor, recipe.layout.pipeline, recipe.model
    pipelines = [n for n in range(1, model.layers + 1) if model.layers % n == 0 and gpus % (tensor * n) == 0]
    if pipelines:
        near = _nearest(pipelines, pipeline)
        return f"tensor {tensor} x {_either('pipeline', near)} would"
    tensors = [n for n in range(1, model.heads + 1) if model.heads % n == 0 and gpus % (n * pipeline) == 0]
    if tensors:
        near = _nearest(tensors, tensor)
        return f"{_either('tensor', near)} x pipeline {pipeline} would"
    return "tensor 1 x pipeline 1 would"


def _nearest(numbers: Sequence[int], wanted: int) -> list[int]:
    """Return the three numbers nearest to ``wanted``, ascending."""
    return sorted(sorted(numbers, key=lambda n: abs(n - wanted))[:3])


def _either(word: str, numbers: Sequence[int]) -> str:
    return f"{word} {' or '.join(str(number) for number in numbers)}"


def _batches(where: str, trained: AsTrained) -> Iterator[Problem]:
    """A list of batches begins at 0, ascends in tokens, and is reached to its end."""
    batches = trained.stage.batches
    marks = [batch.from_tokens for batch in batches]
    if marks[0] != 0:
        yield Problem(f"{where}.0.from_tokens", f"must be 0 (or left out) in the first entry, not {marks[0]}")
    elif marks != sorted(set(marks)):
        yield Problem(where, f"must ascend in from_tokens, not {', '.join(str(mark) for mark in marks)}")
    elif len(trained.segments) < len(batches):
        done = sum(sequences * steps for sequences, steps in trained.segments) * trained.recipe.sequence_length
        yield Problem(
            f"{where}.{len(batches) - 1}.from_tokens",
            f"{marks[-1]} tokens are never reached: the stage ends after {done}",
        )


def _length(where: str, experiment: Experiment, index: int, trained: AsTrained) -> Iterator[Problem]:
    """A stage is longer than the parts of it that belong to its neighbours' checks."""
    last = index + 1 == len(experiment.stages)
    hands_over = not last and experiment.stages[index + 1].starts(index + 1) == "continue"
    parts = {
        "canary_steps": trained.canary_steps if index else 0,
        "hand_over_steps": trained.hand_over_steps if hands_over else 0,
    }
    needed = sum(parts.values())
    if trained.steps <= needed:
        named = " + ".join(f"{key} {steps}" for key, steps in parts.items() if steps)
        total = f" = {needed}" if "+" in named else ""
        yield Problem(where, f"{trained.steps} steps are too few; there must be more than {named}{total}")


def _fed(where: str, trained: AsTrained) -> Iterator[Problem]:
    """A real GPU without a sequence in any step is paid for nothing."""
    copies = trained.stage.gpus // trained.recipe.layout.group
    least = min(batch.sequences for batch in trained.stage.batches)
    if least < copies:
        yield Problem(where, f"{least} sequences leave {copies - least} of {copies} data-parallel groups without any")


def _rehearsable(trained: AsTrained, cluster: Cluster) -> Iterator[Problem]:
    parameters = trained.recipe.model.shape.parameters
    if parameters > REHEARSABLE_PARAMETERS:
        yield Problem(
            "rehearsal.model",
            f"cluster {cluster.name} emulates its GPUs, and {parameters / 1e6:.0f}M parameters are too many to train "
            f"in their place; write a model of at most {REHEARSABLE_PARAMETERS / 1e6:.0f}M here",
        )
