"""Where a process stands: one DeviceMesh of pipeline x replicate x shard x tensor over all processes of a job.

Tensor ranks are neighbours, since they talk most; then shards, then replicas, and the stages of a pipeline lie farthest
apart. Processes that differ in shard or replicate alone see different samples: together they are the data ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from training.config import Layout
from training.processes import World

Axis = Literal["pipeline", "replicate", "shard", "tensor"]
AXES: tuple[Axis, ...] = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Mesh:
    """The processes of a job on four axes, and this one's coordinates; every process makes it, together."""

    devices: DeviceMesh

    @classmethod
    def of(cls, world: World, layout: Layout) -> Mesh:
        """Return the mesh of ``layout`` over all processes; they must divide (``layout.misfits`` says it of orders)."""
        if not dist.is_initialized():  # one process alone: collectives over itself need a group all the same
            backend = "nccl" if world.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        replicas = world.processes // (layout.group * layout.shard)
        sizes = (layout.pipeline, replicas, layout.shard, layout.tensor)
        return cls(init_device_mesh(world.device.type, sizes, mesh_dim_names=AXES))

    def size(self, axis: Axis) -> int:
        """Return how many processes lie along an axis."""
        return self.devices[axis].size()

    def place(self, axis: Axis) -> int:
        """Return where this process lies on an axis, from 0."""
        return self.devices.get_local_rank(axis)

    def group(self, axis: Axis) -> dist.ProcessGroup:
        """Return the processes that differ from this one on that axis alone."""
        return self.devices.get_group(axis)

    @property
    def data_ranks(self) -> int:
        """Groups of processes that each take a share of a step's samples."""
        return self.size("replicate") * self.size("shard")

    @property
    def data_rank(self) -> int:
        """This process's group among them."""
        return self.place("replicate") * self.size("shard") + self.place("shard")

    @property
    def first_tensor_rank(self) -> bool:
        """Whether this process speaks for its tensor ranks, which all compute the same losses."""
        return self.place("tensor") == 0
