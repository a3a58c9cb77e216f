"""Real Slurm for tests: one cluster of 8 nodes for the session, others for as long as a test needs them."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "slurm_cluster.sh"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")


class Cluster:
    """A cluster that is up, and what tests do to it."""

    def __init__(self, folder, nodes):
        self.folder, self.nodes = folder, nodes
        first = free_ports(nodes + 1)
        self.variables = {
            **os.environ, "CLUSTER_DIR": str(folder), "CONTROLLER_PORT": str(first), "FIRST_NODE_PORT": str(first + 1),
            "CREDENTIAL_LIFE_S": "5" if nodes <= 8 else "15",
        }  # fmt: skip
        self.conf = str(folder / "slurm.conf")

    def do(self, *command):
        """Run one command of the script; return what it prints."""
        done = subprocess.run([SCRIPT, *command], env=self.variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, *command):
        """Run one of Slurm's own commands on it; return what it prints."""
        done = subprocess.run(
            command, env={**os.environ, "SLURM_CONF": self.conf}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self, name):
        """Return the numbers of all jobs that ever bore the name, refused ones left out."""
        said = self.ask("squeue", "-h", "-t", "all", "-n", name, "-o", "%i %r")
        return [line.split()[0] for line in said.splitlines() if not line.endswith("BadConstraints")]

    @contextmanager
    def frozen(self):
        """Stop the controller's clock for a while: it takes connections and answers none."""
        self.do("freeze-controller")
        try:
            yield
        finally:
            self.do("thaw-controller")


@contextmanager
def cluster(nodes):
    """Bring a cluster up, make it the one that Slurm's commands mean, and take it down again."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurmctld slurmd slurm-client munge")
    folder = Path(tempfile.mkdtemp(prefix="scaleup_slurm_"))
    folder.chmod(0o755)  # munge wants everybody to reach its socket, which pytest's folders do not allow
    made = Cluster(folder, nodes)
    made.do("up", str(nodes))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", made.conf)
            yield made
    finally:
        made.do("down")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slurm():
    """The session's cluster of 8 nodes with 8 GPUs each."""
    with cluster(8) as made:
        yield made


def free_ports(count):
    """Return the first of so many ports in a row that nobody listens on; below those that the kernel gives away."""
    for first in range(20000 + os.getpid() % 50 * 200, 32000, 200):
        if all(_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"no {count} free ports in a row")


def _free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
