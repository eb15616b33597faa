"""The ranks of a group: who is here, and what they tell one another."""

import hmac
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .devices import device_for, shares_weights
from .folders import Folders
from .rendezvous import Rendezvous
from .wire import Refused

# The other ranks wait for the next request of rank 0 as long as it takes; all else has a limit.
idle = timedelta(days=365)
progress_s = 1.0


class Ranks:
    def __init__(self, options, wire):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local = int(os.environ["LOCAL_RANK"])
        self.of_node = options["ranks"]
        kind = device_for(options.get("device"), self.world, torch.cuda.is_available(), torch.backends.mps.is_available())
        self.device = torch.device(kind, self.local) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            if self.local >= torch.cuda.device_count():
                raise RuntimeError(f"there is no GPU for it: {options['ranks']} ranks, and {torch.cuda.device_count()} GPUs ({os.environ.get('CUDA_VISIBLE_DEVICES', 'all')})")
            torch.cuda.set_device(self.device)
        nodes = options.get("nodes")
        store = Rendezvous(nodes["store"]) if nodes else None
        timeout = timedelta(seconds=options.get("timeout_s", 600))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
            store=store,
            init_method=None if nodes else f"file://{options['folder']}/rendezvous",
            rank=self.rank,
            world_size=self.world,
            timeout=timeout,
        )
        self._control = dist.new_group(backend="gloo", timeout=timeout if self.is_first else idle)
        if nodes:
            for name, group in (("all", None), ("control", self._control)):
                self.prove(store, name, group)
        self.shares = shares_weights(kind, self.world, options)
        self.mesh = init_device_mesh(kind, (self.world,)) if self.shares else None
        self.folders = Folders(self, options, nodes)
        self._wire = wire
        self._progress_at = 0.0

    @property
    def is_first(self):
        return self.rank == 0

    def prove(self, store, name, group):
        """
        Gloo takes whoever connects first to a rank's port for the rank that it waits for. So each pair proves that it is of the group before one of them reads a
        pickle of the other. The key comes from the rendezvous, which only nodes with the secret reach.
        """
        if self.is_first:
            store.set(f"ratchet/{name}", os.urandom(32))
        key = store.get(f"ratchet/{name}")

        def proof(sender, receiver):
            return hmac.digest(key, f"{name} {sender} {receiver}".encode(), "sha256")

        for low in range(self.world):
            for high in range(low + 1, self.world):
                if self.rank not in (low, high):
                    continue
                other = high if self.rank == low else low
                told = torch.frombuffer(bytearray(proof(self.rank, other)), dtype=torch.uint8)
                heard = torch.zeros_like(told)
                for is_sending in (self.rank == low, self.rank != low):
                    if is_sending:
                        dist.send(told, other, group=group)
                    else:
                        dist.recv(heard, other, group=group)
                if not hmac.compare_digest(bytes(heard.tolist()), proof(other, self.rank)):
                    raise RuntimeError(f"what connected as rank {other} has not proved that it is: another program of this network connected to a rank's port")

    def progress(self):
        """Tells Ratchet that the work goes on: without a word for long it ends the group."""
        now = time.monotonic()
        if self._wire is not None and now - self._progress_at > progress_s:
            self._progress_at = now
            self._wire.send({"event": "progress"})

    def share(self, value):
        """Gives all ranks the value of rank 0."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def first(self, find):
        """Returns what rank 0 finds, and None on the others. All refuse what it refuses."""
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

    def gather(self, value):
        """Gives all ranks the values of all, in the order of ranks."""
        if self.world == 1:
            return [value]
        box = [None] * self.world
        dist.all_gather_object(box, value)
        return box

    def send(self, tensor, source=0):
        """Gives all ranks the tensor of one of them, in place."""
        if self.world > 1:
            dist.broadcast(tensor, src=source)

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
