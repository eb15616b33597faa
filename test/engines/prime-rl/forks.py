"""A parent that imports prime-rl's trainer once, and forks a process for each program that `forked.py` asks for: a start takes a second instead of half a minute.

    python forks.py SOCKET                prints "ready"; ends with its children when its stdin closes
    python forks.py SOCKET COMMAND…       is the life and the exit status of that command: on a node of its own, where this process may be the first one

A child has the arguments, variables, working folder and standard streams of the process that asked, dies with it, and gives it its exit status.
This process never computes, so that its children may have threads.
"""

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys


class Parent:
    def __init__(self, path, command):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.asked = {}  # pid: connection
        self.woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.command = subprocess.Popen(command).pid if command else None

    def serve(self):
        """Returns in a child, with what it is to run."""
        while True:
            ready, _, _ = select.select([self.listener, self.woken, *([0] if self.command is None else [])], [], [])
            if 0 in ready and os.read(0, 1) == b"":
                self.end(0)
            if self.woken in ready:
                os.read(self.woken, 512)
                self.reap()
            if self.listener in ready:
                connection, _ = self.listener.accept()
                asks, streams = receive(connection)
                if asks is None:
                    continue
                pid = os.fork()
                if pid == 0:
                    self.listener.close()
                    signal.set_wakeup_fd(-1)
                    return asks, streams
                for stream in streams:
                    os.close(stream)
                self.asked[pid] = connection
                tell(connection, {"pid": pid})

    def reap(self):
        while self.asked or self.command is not None:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == self.command:
                self.end(os.waitstatus_to_exitcode(status) % 256)
            connection = self.asked.pop(pid, None)
            if connection is None:
                continue  # an orphan, which comes to the first process of a node
            tell(connection, {"status": status})
            connection.close()

    def end(self, status):
        for pid in self.asked:
            os.kill(pid, signal.SIGKILL)
        os._exit(status)


def receive(connection):
    """The request, and the streams that came with it; None where the one who asked is gone already."""
    content, streams, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    while content and not content.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:
            break
        content += more
    if content.endswith(b"\n") and len(streams) == 4:
        return json.loads(content), streams
    connection.close()
    return None, streams


def tell(connection, told):
    try:
        connection.sendall(json.dumps(told).encode() + b"\n")
    except OSError:
        pass  # it is gone; the child hears of that itself


def become(asks, streams):
    """Makes this fork the process that was asked for. Where that one is dead already, nothing is seen in its folder."""
    die_with(streams.pop())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    os.setsid()
    os.environ.clear()
    os.environ.update(asks["environment"])
    os.chdir(asks["folder"])
    sys.executable = asks["executable"]
    sys.argv = [asks["module"], *asks["arguments"]]
    known = set(sys.path)
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place not in known]


def die_with(lifeline):
    """The kernel kills this process in the moment in which the other end of the pipe is closed, which the one who asked holds."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    import torch.distributed.run  # noqa: F401

    import prime_rl.trainer.rl.train  # noqa: F401

    gc.freeze()
    parent = Parent(sys.argv[1], sys.argv[2:])
    if parent.command is None:
        print("ready", flush=True)
    request, given = parent.serve()
    become(request, given)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
