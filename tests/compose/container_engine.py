"""A container engine of the test's own: ``dockerd`` with its data and its socket in one folder, ended with all in it.

Never an engine that already runs: the stand-ins carry the names of real images. SCALEUP_TEST_ENGINE names a folder
that is kept, so that the next run finds its images again; without it all is thrown away.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager


def why_not():
    """Return why no engine can start here, or nothing."""
    missing = [name for name in ("dockerd", "docker", "debootstrap") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not installed: `.ci/install docker`"
    return "" if os.geteuid() == 0 else "a container engine of its own needs root"


class Engine:
    """One engine; ``environment`` is what every client of it needs."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_BUILDKIT": "0"}

    def __call__(self, *arguments, check=True, **options):
        """Run ``docker ARGUMENTS``; return its output, both streams, as text."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
        done = subprocess.run(["docker", *arguments], env=self.environment, **options)
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.returncode}\n{(done.stdout or '')[-4000:]}")
        return done.stdout

    @contextmanager
    def up(self):
        """Run the daemon; end it, and with it every container, when the block is over."""
        command = [
            *("dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")),
            *("--pidfile", str(self.folder / "pid"), "--host", self.environment["DOCKER_HOST"], "--bridge", "none"),
            # Networks of its own, should another engine run beside it.
            *("--default-address-pool", "base=10.213.0.0/16,size=24"),
        ]
        log = self.folder / "dockerd.log"
        with log.open("wb") as output:
            daemon = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while "Server:" not in self("version", check=False) or "Cannot connect" in self("version", check=False):
                assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.2)
            yield self
        finally:
            if daemon.poll() is None and (running := self("ps", "-q", check=False).split()):
                self("kill", *running, check=False)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
