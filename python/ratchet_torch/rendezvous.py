"""
How ranks of several nodes find one another: a store of keys that the first node keeps. PyTorch's own listens on every interface and asks nobody who they are; this
one is reached by a Unix socket, and from other nodes by what `ratchet worker` has there, over TLS with a shared secret.
"""

import base64
import json
import socket
from datetime import timedelta

import torch.distributed as dist

usual = timedelta(minutes=30)


class Rendezvous(dist.Store):
    """PyTorch asks from several threads, and a question may wait for the answer to another: each has a connection of its own."""

    def __init__(self, path):
        super().__init__()
        self._path = path
        self._free = []
        self._timeout = usual

    def _ask(self, op, **args):
        connection = self._free.pop() if self._free else Connection(self._path)
        answer = connection.ask({"op": op, **args})
        self._free.append(connection)
        if "error" in answer:
            raise dist.DistStoreError(answer["error"])
        return answer.get("result")

    def set(self, key, value):
        self._ask("set", key=key, value=encoded(value))

    def get(self, key):
        self.wait([key])
        return base64.b64decode(self._ask("get", key=key))

    def add(self, key, amount):
        return self._ask("add", key=key, amount=amount)

    def compare_set(self, key, expected, desired):
        return base64.b64decode(self._ask("compare_set", key=key, expected=encoded(expected), desired=encoded(desired)))

    def delete_key(self, key):
        return self._ask("delete", key=key)

    def num_keys(self):
        return self._ask("count")

    def check(self, keys):
        return self._ask("check", keys=list(keys))

    def wait(self, keys, timeout=None):
        self._ask("wait", keys=list(keys), ms=(timeout or self._timeout) / timedelta(milliseconds=1))

    def set_timeout(self, timeout):
        self._timeout = timeout

    def clone(self):
        return Rendezvous(self._path)


class Connection:
    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")

    def ask(self, question):
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise dist.DistStoreError("the first node is gone: its rendezvous has ended")
        return json.loads(line)


def encoded(value):
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
