"""Which installation this is: an id of its home, drawn once, so that two that share a cluster share no job's name."""

from __future__ import annotations

import os
import secrets

from tasks.stage_dir import home, write_whole


def deployment_id() -> str:
    """Return the id; the first call draws it, and of two first calls at once one wins."""
    path = home() / "deployment"
    if not path.exists():
        draft = path.with_name(f".deployment.{os.getpid()}.{secrets.token_hex(4)}")
        write_whole(draft, secrets.token_hex(4) + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()
