"""The recipe of a run as plain JSON: frozen at the start, read back, compared with what the files say now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tasks.config.as_trained import dump
from tasks.config.cluster import Cluster
from tasks.config.experiment import Experiment
from tasks.errors import ConfigInvalid

_ABSENT = "(absent)"


def freeze(experiment: Experiment, clusters: Mapping[str, Cluster]) -> dict[str, Any]:
    """Return what ``recipe.json`` holds: the experiment and its clusters, defaults written out."""
    return {
        "experiment": dump(experiment),
        "clusters": {name: dump(cluster) for name, cluster in sorted(clusters.items())},
    }


def thaw(frozen: Mapping[str, Any]) -> tuple[Experiment, dict[str, Cluster]]:
    """Return what :func:`freeze` was given; raise ConfigInvalid where the format has changed since."""
    try:
        clusters = {name: Cluster.model_validate(plain) for name, plain in frozen["clusters"].items()}
        return Experiment.model_validate(frozen["experiment"]), clusters
    except (KeyError, ValidationError) as error:
        raise ConfigInvalid(f"a frozen recipe cannot be read; another version of scaleup wrote it: {error}") from error


def difference(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that changed: ``stages.1.batch_sequences: 256 -> 512``."""
    before, after = dict(_leaves(frozen)), dict(_leaves(now))
    return [
        f"{path.removeprefix('experiment.')}: {before.get(path, _ABSENT)} -> {after.get(path, _ABSENT)}"
        for path in dict.fromkeys([*before, *after])
        if before.get(path, _ABSENT) != after.get(path, _ABSENT)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted path, value)`` of everything that holds nothing further; an empty mapping or list counts."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{index}")
    else:
        yield path, value
