"""Stands where a Python would be: asks the parent of `forks.py` for a fork that runs the trainer or its launcher, and is its life and its exit status.

    python -IS forked.py SOCKET EXECUTABLE REAL [-u] -m MODULE [ARGUMENT…]

EXECUTABLE is the command that came here, which the launcher starts ranks with. Anything but those two programs is run by REAL, the Python itself.
"""

import json
import os
import signal
import socket
import sys

FORKED = ("torch.distributed.run", "prime_rl.trainer.rl.train")


def main():
    path, executable, real, *words = sys.argv[1:]
    given = words[1:] if words[:1] == ["-u"] else words
    if len(given) < 2 or given[0] != "-m" or given[1] not in FORKED:
        os.execv(real, [real, *words])
    module, *arguments = given[1:]
    lifeline, held = os.pipe()  # held by this process alone, and closed by its death
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    asks = {"module": module, "arguments": arguments, "executable": executable, "folder": os.getcwd(), "environment": dict(os.environ)}
    content = json.dumps(asks).encode() + b"\n"
    sent = socket.send_fds(connection, [content], [0, 1, 2, lifeline])
    connection.sendall(content[sent:])
    os.close(lifeline)
    told = connection.makefile()
    pid = json.loads(told.readline())["pid"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    last = told.readline()
    if not last:
        sys.exit("the parent of forks has ended")
    status = json.loads(last)["status"]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


main()
