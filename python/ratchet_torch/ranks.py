"""The ranks of a group: who is here, and what they tell one another."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .wire import Refused

# Ranks wait for the next request as long as it takes; only what they compute together has a limit.
idle = timedelta(days=365)


class Ranks:
    def __init__(self, options, rendezvous):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        kind = options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
            init_method=rendezvous,
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=options.get("timeout_s", 600)),
        )
        self._control = dist.new_group(backend="gloo", timeout=idle)
        self.mesh = init_device_mesh(kind, (self.world,))

    @property
    def is_first(self):
        return self.rank == 0

    def share(self, value):
        """Gives all ranks the value of rank 0."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def first(self, find):
        """What rank 0 finds; None on the others. All refuse what it refuses."""
        found, refusal = None, None
        if self.is_first:
            try:
                found = find()
            except Refused as error:
                refusal = error.code, str(error)
        refusal = self.share(refusal)
        if refusal is not None:
            raise Refused(*refusal)
        return found

    def send(self, tensor):
        """Gives all ranks the tensor of rank 0, in place."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)

    def gather(self, value):
        """Gives all ranks the values of all, in the order of ranks."""
        if self.world == 1:
            return [value]
        box = [None] * self.world
        dist.all_gather_object(box, value)
        return box

    def total(self, values):
        """Sums over ranks, in double precision."""
        tensor = torch.tensor(values, dtype=torch.float64)
        return self.add(tensor).tolist()

    def add(self, tensor):
        """The sum over ranks of a tensor on the CPU, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def close(self):
        dist.destroy_process_group()
