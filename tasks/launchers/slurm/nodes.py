"""Nodes on which a job was lost, remembered for all runs on a cluster, and left out of later jobs for some hours."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable

from tasks.launchers.exit_record import read, write_whole
from tasks.launchers.slurm.client import Client, Refused, Silent
from tasks.launchers.slurm.site import Site

# A star behind a state: the node does not answer slurmctld.
_UNFIT = ("down", "drained", "draining", "drain", "fail", "failing", "error", "unknown", "powering_down", "reboot")


def unfit(client: Client, nodes: str) -> dict[str, str]:
    """Return those of ``nodes`` (``node[001-008]``) that are down, drained or silent, each with Slurm's words."""
    if not nodes:
        return {}
    try:
        said = client.run("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E")
    except (Refused, Silent):
        return {}
    found = {}
    for line in said.splitlines():
        name, state, why = line.split("|", 2)
        if state.endswith("*") or state.rstrip("*~#$@^!%+-").lower() in _UNFIT:
            found[name] = f"{state}{f': {why}' if why not in ('', 'none') else ''}"
    return found


def remember(site: Site, found: dict[str, str], job: str) -> None:
    """Write down that nodes were unfit when a job was lost on them."""
    file = site.bad_nodes_file
    if not found or not file.name.endswith(".json"):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read(file) or {}
        now = time.time()
        write_whole(file, {**known, **{node: {"why": why, "job": job, "time": now} for node, why in found.items()}})


def bad(site: Site, now: float | None = None) -> list[str]:
    """Return the nodes that a new job shall not get, by name."""
    now = time.time() if now is None else now
    known = (read(site.bad_nodes_file) or {}) if site.bad_nodes_file.is_file() else {}
    return sorted(node for node, said in known.items() if now - said["time"] < 3600 * site.bad_node_hours)


def shorten(nodes: Iterable[str]) -> str:
    """Return a list of names as Slurm's options take it."""
    return ",".join(nodes)
