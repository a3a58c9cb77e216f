"""``python -m training.export CHECKPOINT --out FOLDER``: a model's weights as safetensors, its shape beside them.

A safetensors file is eight bytes with the length of a JSON header, the header (type, shape, place of each tensor), and
the bytes: https://huggingface.co/docs/safetensors. Tensors have the names of :class:`training.model.GPT`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from training import manifest
from training.processes import REFUSED

WEIGHTS, SHAPE = "model.safetensors", "model.json"
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_PREFIX = "model."


class ExportRefused(ValueError):
    """A checkpoint is not sound, or the place is taken; the message says which."""


def export(checkpoint: Path, out: Path) -> dict[str, Any]:
    """Write the weights of a sound checkpoint into a new folder, whole or not at all; return what was written."""
    if out.exists():
        raise ExportRefused(f"{out} exists; name a folder that does not")
    if problems := manifest.verify(checkpoint):  # before torch unpickles its index
        raise ExportRefused("; ".join(problems))
    found = manifest.read(checkpoint)
    index = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in index.items()
        if name.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    load(weights, checkpoint_id=checkpoint, no_dist=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        _write({name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}, draft / WEIGHTS, found)
        (draft / SHAPE).write_text(json.dumps(found.extra.get("model"), indent=1, sort_keys=True) + "\n")
        draft.chmod(0o755)
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    parameters = sum(tensor.numel() for tensor in weights.values())
    return {"out": str(out), "tensors": len(weights), "parameters": parameters, "step": found.step}


def _write(tensors: Mapping[str, Tensor], path: Path, found: manifest.Manifest) -> None:
    about = {"step": str(found.step), "tokens": str(found.tokens), "manifest_sha256": found.digest, "format": "pt"}
    header: dict[str, Any] = {"__metadata__": about}
    at = 0
    for name, tensor in sorted(tensors.items()):
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the bytes behind it begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in sorted(tensors.items()):
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def main(arguments: list[str]) -> int:
    """Export and print one JSON object; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint folder with its manifest")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(export(options.checkpoint, options.out)))
    except ExportRefused as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
