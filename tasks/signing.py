"""The seal on a promotion: an HMAC over the whole record, by a key that whoever can write to a store does not have.

The record names the checkpoint's manifest by its SHA-256, and that names every file by its own, so the seal holds for
every byte.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import CheckpointUnsound

SEAL = "seal"


def sealed(record: Mapping[str, Any], key_file: str | None) -> dict[str, Any]:
    """Return the record with its seal; without a key file as it is."""
    return dict(record) if key_file is None else {**record, SEAL: _hmac(record, key_file)}


def check_seal(record: Mapping[str, Any], key_file: str | None, where: Path) -> None:
    """Raise CheckpointUnsound where a key file is named and ``record`` has no seal, or one of another key or text."""
    if key_file is None:
        return
    if SEAL not in record:
        raise CheckpointUnsound(
            f"{where} has no seal, and store.key_file asks for one: it was written without the key, or altered"
        )
    if not hmac.compare_digest(str(record[SEAL]), _hmac(record, key_file)):
        raise CheckpointUnsound(f"{where} was altered since it was sealed, or sealed by another key than {key_file}")


def _hmac(record: Mapping[str, Any], key_file: str) -> str:
    try:
        key = Path(key_file).read_bytes()
    except OSError as error:
        raise CheckpointUnsound(f"store.key_file {key_file} cannot be read: {error}") from error
    text = json.dumps({k: v for k, v in record.items() if k != SEAL}, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
