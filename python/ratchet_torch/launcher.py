"""
Starts groups of ranks on one machine. Importing PyTorch takes seconds, so it is done once: a host imports, listens on a Unix socket, and forks a launcher for each
group that is asked for; the launcher forks the ranks, and ends all of them when one dies or Ratchet is gone. Several nodes are started by torchrun instead: then
every rank runs this file, and rank 0 finds Ratchet by the path of a Unix socket.
"""

import ctypes
import faulthandler
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time

from .wire import Wire

needed = ("torch", "transformers", "peft", "safetensors")
socket_variable = "RATCHET_TORCH_SOCKET"
control_descriptor = 3
look_ms = 100
host_look_ms = 5_000
stop_grace_s = 3.0
words_chars_max = 800  # as bytes below PIPE_BUF, so that the words of several ranks never mix
options_bytes_max = 64 * 1024


def main(arguments):
    path = os.environ.get(socket_variable)
    if path is not None and "RANK" in os.environ:
        return run_under_torchrun(json.loads(arguments[0]), path)
    die_with_parent(os.getppid())
    control = socket.socket(fileno=control_descriptor)
    missing = missing_packages()
    if missing is not None:
        Wire(control).send({"event": "fatal", "code": "ServerUnavailable", "message": missing})
        return 1
    from . import server  # seconds of imports, once for all groups

    return host_groups(arguments[0], control, server.serve)


def host_groups(path, control, serve):
    """Forks a launcher for every connection, until the control socket ends. The first line of a connection says what the group is."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    Wire(control).send({"event": "listening"})
    wanted = select.poll()
    wanted.register(listening, select.POLLIN)
    wanted.register(control, select.POLLIN | select.POLLHUP)
    host = os.getpid()
    while True:
        for descriptor, _ in wanted.poll(host_look_ms):
            if descriptor == control.fileno():
                return 0  # launchers and ranks end with this process
            wire, _ = listening.accept()
            if os.fork() == 0:
                die_with_parent(host)
                listening.close()
                control.close()
                os._exit(launch(wire, serve))
            wire.close()
        reap()


def launch(wire, serve):
    line = wire.makefile("rb").readline(options_bytes_max)
    return run_ranks(json.loads(line), wire, serve) if line else 0


def reap():
    """Launchers that have ended stay as zombies until somebody asks."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def missing_packages():
    """One line on what this Python lacks; None where it lacks nothing."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"{sys.executable} lacks {', '.join(missing)}: the trainer \"torch\" needs {', '.join(needed)}. Install them there: {sys.executable} -m pip install {' '.join(missing)}"


def run_ranks(options, wire, serve):
    world = options["ranks"]
    words_in, words_out = os.pipe()
    folder = tempfile.mkdtemp(prefix="ratchet-ranks-")
    parent = os.getpid()
    ranks = {}
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.close(words_in)
            die_with_parent(parent)
            if rank > 0:
                wire.close()
            os._exit(run_rank(options, rank, f"file://{folder}/rendezvous", wire if rank == 0 else None, serve, words_out))
        ranks[child] = rank
    os.close(words_out)
    died = watch(ranks, wire)
    for child in ranks:
        os.kill(child, signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    if died is None:
        return 0
    first = first_words(words_in) or {"code": "EngineDied", "message": f"Rank {died[0]} of {world} {died[1]}."}
    try:
        Wire(wire).send({"event": "fatal", **first})
    except OSError:
        pass  # Ratchet is gone, and nobody waits for it
    return 1


def watch(ranks, wire):
    """
    Waits until all ranks have ended well, or Ratchet is gone: None. Else a rank that ended badly, and how: one that a signal killed rather than one that ended
    since it lost another. Ended ones leave `ranks`.
    """
    hung_up = select.poll()
    hung_up.register(wire, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    stop_at = None
    while ranks:
        ended = ended_ranks(ranks)
        if ended and stop_at is None and any(code != 0 for _, code in ended):
            rank, code = min((pair for pair in ended if pair[1] != 0), key=lambda pair: pair[1])
            return rank, f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if stop_at is not None and time.monotonic() > stop_at:
            return None
        if stop_at is not None:
            time.sleep(look_ms / 1000)
        elif hung_up.poll(look_ms):
            stop_at = time.monotonic() + stop_grace_s
    return None


def ended_ranks(ranks):
    """All that have ended since the last look, with their exit codes; below 0 the signal."""
    ended = []
    while ranks:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            break
        ended.append((ranks.pop(child), os.waitstatus_to_exitcode(status)))
    return ended


def run_rank(options, rank, rendezvous, wire, serve, words):
    """Never raises: an error goes to the launcher as words, and makes the exit code 1."""
    faulthandler.enable()  # where it was goes to the log, if it dies of a signal
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options["ranks"]))
        serve(options, rendezvous, None if wire is None else Wire(wire))
        return 0
    except BaseException as error:
        os.write(words, (json.dumps(last_words(rank, error), ensure_ascii=False) + "\n").encode(errors="replace"))
        import traceback

        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def last_words(rank, error):
    text = f"{type(error).__name__}: {error}"[:words_chars_max]
    return {"code": "EngineDied", "message": f"Rank {rank}: {'out of memory: ' if is_out_of_memory(error) else ''}{text}"}


def is_out_of_memory(error):
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def first_words(pipe):
    """The words of a rank that name a cause; None without such words. Ranks that only lost another one are skipped."""
    os.set_blocking(pipe, False)
    try:
        said = os.read(pipe, 1 << 16)
    except BlockingIOError:
        return None
    lines = [json.loads(line) for line in said.splitlines() if line.endswith(b"}")]
    return next((line for line in lines if not any(sign in line["message"] for sign in ("closed by peer", "reset by peer"))), None)


def run_under_torchrun(options, path):
    die_with_parent(os.getppid())
    missing = missing_packages()
    rank = int(os.environ["RANK"])
    wire = None
    if rank == 0:
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(path)
    if missing is not None:
        if wire is not None:
            Wire(wire).send({"event": "fatal", "code": "ServerUnavailable", "message": missing})
        return 1
    from . import server

    try:
        server.serve({**options, "ranks": int(os.environ["WORLD_SIZE"])}, "env://", None if wire is None else Wire(wire))
        return 0
    except BaseException as error:
        if wire is not None:
            try:
                Wire(wire).send({"event": "fatal", **last_words(rank, error)})
            except OSError:
                pass
        raise


def die_with_parent(parent):
    """Linux kills this process when its parent ends, however that ends. Elsewhere the end of the wire has to do."""
    if not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above
