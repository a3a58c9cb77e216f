"""What MLflow shows as a stage's parameters: all that was decided before it started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.stage_dir import StageDir, read_json


def params(stage: StageDir) -> dict[str, str]:
    """Return what was decided before the stage started."""
    config = read_json(stage.config)
    if config is None:
        return {}
    span = config["spans"][-1]
    emulation: Mapping[str, Any] = config.get("emulation") or {}
    job = read_json(stage.job) or {}
    found: dict[str, Any] = {
        "gpus": config["gpus"],
        "nodes": -(-config["gpus"] // emulation["gpus_per_node"]) if emulation else job.get("nodes"),
        "batch_sequences": span["batch_sequences"],
        "learning_rate": span["learning_rate"],
        "emulated": bool(emulation),
        "sequence_length": config["sequence_length"],
        "precision": config["precision"],
        "processes": config.get("processes") or config["gpus"],
        "data": config["data"],
        "seed": config["seed"],
        "start": config["start"]["kind"],
        # Words, not two numbers: the compare page draws the first three numeric parameters that differ.
        "steps": f"{config['spans'][0]['first_step']} to {span['first_step'] + span['steps'] - 1}",
    }
    found |= {f"model_{name}": value for name, value in config["model"].items()}
    if emulation:
        found["layout"] = "tensor {recipe_tensor} x pipeline {recipe_pipeline} x shard {recipe_shard}".format(
            **emulation
        )
        found["recipe_batch_sequences"] = emulation["recipe_batch_sequences"]
        found["recipe_sequence_length"] = emulation["recipe_sequence_length"]
    return {name: str(value) for name, value in found.items() if value is not None}
