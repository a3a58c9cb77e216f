"""Jobs on a Slurm cluster, as text: one job, one srun, one torchrun a node.

``script`` writes what runs, ``submit`` starts it once, ``state`` says how it is, ``cancel`` ends it; ``squeue`` and
``client`` know Slurm's words; ``nodes`` remembers bad ones. The folders of a run must be the nodes' as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.launchers import Job, JobState
from tasks.launchers.slurm import cancel, squeue, state, submit
from tasks.launchers.slurm.client import Silent
from tasks.launchers.slurm.site import Site

__all__ = ["SlurmLauncher"]


@dataclass(frozen=True)
class SlurmLauncher(Site):
    """Runs jobs on a Slurm cluster; the fields are those of :class:`tasks.launchers.slurm.site.Site`."""

    def submit(self, job: Job) -> str:
        """Submit the job, or find it already there by its name; return its number."""
        return submit.submit(self, job)

    def poll(self, job: Job) -> JobState:
        """Say how the job is now; a controller that does not answer makes it ``unknown``."""
        return state.look(self, job)

    def cancel(self, job: Job, because: str, *, save: bool = False) -> None:
        """End the job by number and by name, and wait until nothing of it runs; raise LaunchFailed if Slurm is away."""
        cancel.cancel(self, job, because, save=save)

    def end(self, name: str) -> str:
        """End a job of which nothing but its name is known; say so. Raise LaunchFailed where Slurm is away."""
        return cancel.end(self, name)

    def names(self) -> list[str]:
        """Return the names of all this user's jobs that wait or run here; nothing where Slurm does not answer.

        One that only ends is left out: there is nothing to do about it.
        """
        try:
            return [row.name for row in squeue.of_user(self.client) if row.state not in squeue.ENDING]
        except Silent:
            return []
