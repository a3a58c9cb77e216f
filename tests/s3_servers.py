"""Real S3 servers for tests, on 127.0.0.1: rclone, which checks signatures, and moto's, which knows conditional writes.

A rclone server keeps objects as files, one folder a bucket; two servers make two regions. It ignores ``If-None-Match``
and has no versions, as many servers that are not AWS. Moto's has both and replication rules, but checks no signature.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KEY, SECRET = "SCALEUPTESTKEY", "scaleup-test-secret"  # of servers that live for one test
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "checkpoints"


@dataclass
class S3Server:
    """One server; its port and its objects stay the same over a kill and a new start (moto forgets its objects)."""

    folder: Path
    kind: str = "rclone"
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bucket(self) -> Path:
        """Where rclone's objects lie."""
        return self.folder / "data" / BUCKET

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self.port = self.port or _free_port()
        self.bucket.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not _answers(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} did not start: {(self.folder / 'log.txt').read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a dying machine would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it accept connections and answer none."""
        if self.process is None:
            raise RuntimeError("the server does not run")
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _command(self) -> list[str]:
        bin_folder = Path(sys.executable).parent
        if self.kind == "moto":
            return [str(bin_folder / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]
        rclone = shutil.which("rclone", path=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
        if rclone is None:
            raise RuntimeError("rclone is not installed; `make test` installs it with the tools of development")
        return [
            rclone, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{self.port}",
            "--config", os.devnull, "--vfs-cache-mode", "off", str(self.folder / "data"),
        ]  # fmt: skip


@contextmanager
def s3_server(folder: Path, kind: str = "rclone") -> Iterator[S3Server]:
    """A server that runs while the block does."""
    server = S3Server(folder, kind)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
