"""``python -m training.evaluate CHECKPOINT --config STAGE_DIR/config.json``: a checkpoint's held-out loss, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from training import data, manifest
from training.checkpoint import Resume, State, weights
from training.config import ConfigError, read_config
from training.emulate import held_out_loss
from training.model import GPT
from training.processes import REFUSED, World


def evaluate(checkpoint: Path, config_path: Path) -> dict[str, object]:
    """Return the loss and what it was measured on; raise ConfigError for a checkpoint that is not sound."""
    if problems := manifest.verify(checkpoint):
        raise ConfigError("; ".join(problems))
    config = read_config(config_path.parent)
    found = manifest.read(checkpoint)
    dataset = data.open_dataset(config.data, config.model.vocabulary)
    world = World()
    model = GPT(config.model, config.seed)
    State(weights(dict(model.named_parameters())), world).load(Resume(found, weights_only=True))
    samples = dataset.held_out(config.held_out.sequences, config.sequence_length)
    return {
        "loss": held_out_loss(model, samples, world, config.precision),
        "step": found.step,
        "tokens": found.tokens,
        "sequences": len(samples),
        "fingerprint": dataset.fingerprint,
        "manifest_sha256": found.digest,
    }


def main(arguments: list[str]) -> int:
    """Print the evaluation as one JSON object; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint folder with its manifest")
    parser.add_argument("--config", type=Path, required=True, help="config.json of the stage it belongs to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        print(json.dumps(evaluate(options.checkpoint, options.config)))
    except ConfigError as error:
        print(f"training: {error}", file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
