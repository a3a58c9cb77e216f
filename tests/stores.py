"""What the tests of stores share: places to keep checkpoints, and checkpoints that look like training's."""

import random
import struct
from pathlib import Path

from s3_servers import BUCKET

from training import manifest
from training.store import Place, Series, StoreSettings, open_series

KIB = 1 / 1024  # in MiB: tests cut small


def folder_settings(root: Path, **changes) -> StoreSettings:
    """A store in a folder, cut into chunks of 4 KiB."""
    return StoreSettings(Place(path=str(root)), **{"chunk_mib": 4 * KIB, "parallel": 4, "retry_seconds": 5} | changes)


def s3_settings(server, prefix: str = "ours", **changes) -> StoreSettings:
    """A store on a real server, with chunks of 4 KiB."""
    place = Place("s3", bucket=BUCKET, prefix=prefix, endpoint=server.endpoint, region="us-east-1")
    return StoreSettings(place, **{"chunk_mib": 4 * KIB, "parallel": 4, "retry_seconds": 5} | changes)


def series_of(settings: StoreSettings, name: str = "gpt/run_1/gpus_8") -> Series:
    return open_series(settings, name)


def checkpoint(
    parent: Path,
    step: int,
    *,
    seed: int = 0,
    purpose: manifest.Purpose = "periodic",
    numbers: int = 3000,
    world: int = 8,
) -> Path:
    """Write a checkpoint of two files: noisy floats that move a little from step to step, and ones that never move."""
    folder = parent / manifest.folder_name(step)
    (folder / "shards").mkdir(parents=True)
    chosen = random.Random(seed)
    moving = [chosen.gauss(0, 1) * (1 + 1e-4 * step * chosen.random()) for _ in range(numbers)]
    frozen = [chosen.gauss(0, 1) for _ in range(2048)]
    (folder / "shards" / "0.distcp").write_bytes(struct.pack(f"{numbers}f", *moving))
    (folder / "shards" / "1.distcp").write_bytes(struct.pack("2048f", *frozen))
    (folder / "index").write_text(f"step {step}\n")
    (folder / "empty").touch()
    manifest.write(folder, step=step, tokens=32 * step, purpose=purpose, world=world, config_digest="c")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, the manifest too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
