"""Ports of this machine: free or taken, and by whom."""

from __future__ import annotations

import socket

import psutil  # type: ignore[import-untyped,unused-ignore]

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Say whether a server could listen on ``port`` now; a listener on any address of the machine takes it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too: a port whose last connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def holder(port: int) -> str:
    """Return who listens on ``port``: ``process 4711 (nginx)``, or ``another program`` if this user may not see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:  # macOS shows other users' sockets to root alone
        return "another program"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.Error:
                break
    return "another program"
