"""
Starts the ranks of a group on this machine. Importing PyTorch takes seconds, so it is done once: a host imports, listens on a Unix socket, and forks a launcher for
each group that is asked for; the launcher forks the ranks or has torchrun start them, and ends all of them when one dies or Ratchet is gone. A group on several
nodes has a launcher on each of them.
"""

import ctypes
import faulthandler
import importlib.util
import json
import os
import select
import shutil
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
    if socket_variable in os.environ and "LOCAL_RANK" in os.environ:
        return join_launcher(os.environ[socket_variable], int(os.environ["LOCAL_RANK"]))
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
    words_in, words_out = os.pipe()
    folder = tempfile.mkdtemp(prefix="ratchet-ranks-")  # only its user can enter
    options = {**options, "folder": folder}
    first = options.get("nodes", {}).get("first", 0)
    joining = None
    if options.get("launcher") == "torchrun":
        joining = Joining(options, wire, words_out)
        processes = {start_torchrun(options, joining.path): None}
    else:
        processes = {fork_rank(options, rank, wire, serve, words_in, words_out): rank for rank in range(options["ranks"])}
    died = watch(processes, wire, joining)
    pids = processes if joining is None else joining.pids
    stopped = [first + local for pid, local in pids.items() if is_stopped(pid)] if died is not None else []
    for child in processes:
        os.kill(child, signal.SIGKILL)
    for child in processes:
        os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    if died is None:
        return 0
    local, how = died
    name = "torchrun" if local is None else f"Rank {first + local} of {options.get('nodes', {}).get('world', options['ranks'])}"
    # A rank that ended without words of its own may have lost one on another node, which says more.
    cause = first_words(words_in) or {"code": "EngineDied", "message": f"{name} {how}.", "is_echo": "exit code" in how}
    # The others waited for it until their time was over.
    cause["message"] += "".join(f" Rank {rank} was stopped (SIGSTOP)." for rank in stopped)
    try:
        Wire(wire).send({"event": "fatal", **cause})
    except OSError:
        pass  # Ratchet is gone, and nobody waits for it
    return 1


def fork_rank(options, local, wire, serve, words_in, words):
    launcher = os.getpid()
    child = os.fork()
    if child != 0:
        return child
    os.close(words_in)
    die_with_parent(launcher)
    own = wire if is_asked(options, local) else None
    if own is None:
        wire.close()
    os._exit(run_rank(options, local, own, serve, words))


def is_asked(options, local):
    """Requests come to the first rank of the first node; the wire of another node only says that Ratchet is there."""
    return local == 0 and options.get("nodes", {}).get("first", 0) == 0


def start_torchrun(options, path):
    """Its own rendezvous is the static one: the other is made of pickles, which whoever reaches its port could write."""
    launcher = os.getpid()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = os.fork()
    if child != 0:
        return child
    die_with_parent(launcher)
    how = ["--nnodes", "1", "--nproc-per-node", str(options["ranks"]), "--max-restarts", "0"]
    how += ["--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    environment = {**os.environ, socket_variable: path, "PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "torch.distributed.run", *how, "-m", "ratchet_torch"], environment)


class Joining:
    """
    torchrun hands descriptors 0 to 2 on and no others. So its ranks fetch their options, the pipe for last words and the wire of rank 0 from a socket in a
    folder that only its user can enter, and keep the connection: its end is theirs.
    """

    def __init__(self, options, wire, words):
        self.path = os.path.join(options["folder"], "ranks")
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(self.path)
        self.listening.listen()
        self.links = {}
        self.pids = {}
        self._options = options
        self._wire, self._words = wire, words

    def accept(self):
        link, _ = self.listening.accept()
        local, pid = map(int, link.makefile("rb").readline(64).split())
        descriptors = [self._words] + ([self._wire.fileno()] if is_asked(self._options, local) else [])
        socket.send_fds(link, [json.dumps(self._options).encode()], descriptors)
        self.pids[pid] = local
        self.links[link.fileno()] = link, local
        return link


def join_launcher(path, local):
    die_with_parent(os.getppid())
    # torchrun sends it to the others when one dies; the launcher ends them itself, and has to see which was first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    link.sendall(f"{local} {os.getpid()}\n".encode())
    order, (words, *wires), _, _ = socket.recv_fds(link, options_bytes_max, 2)
    from . import server

    return run_rank(json.loads(order), local, socket.socket(fileno=wires[0]) if wires else None, server.serve, words)


def watch(processes, wire, joining):
    """
    Waits until all ranks have ended well, or Ratchet is gone: None. Else a rank that ended badly, and how: one that a signal killed rather than one that ended
    since it lost another. Ended processes leave `processes`.
    """
    wanted = select.poll()
    wanted.register(wire, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    if joining is not None:
        wanted.register(joining.listening, select.POLLIN)
    stop_at = None
    while processes:
        ended = ended_ranks(processes)
        bad = [pair for pair in ended if pair[1] != 0]
        if bad and stop_at is None:
            rank, code = min(bad, key=lambda pair: pair[1])
            return rank, f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if stop_at is not None and time.monotonic() > stop_at:
            return None
        if stop_at is not None:
            time.sleep(look_ms / 1000)
            continue
        events = [descriptor for descriptor, _ in wanted.poll(look_ms)]
        if wire.fileno() in events:
            stop_at = time.monotonic() + stop_grace_s
            continue
        for descriptor in events:
            if descriptor == joining.listening.fileno():
                wanted.register(joining.accept(), select.POLLHUP)
            else:
                return joining.links[descriptor][1], "was killed, or crashed"
    return None


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False  # no /proc here, or it has ended


def ended_ranks(ranks):
    """All that have ended since the last look, with their exit codes; below 0 the signal."""
    ended = []
    while ranks:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            break
        ended.append((ranks.pop(child), os.waitstatus_to_exitcode(status)))
    return ended


def run_rank(options, local, wire, serve, words):
    """Never raises: an error goes to the launcher as words, and makes the exit code 1. `local` is the rank among those of this machine."""
    faulthandler.enable()  # where it was goes to the log, if it dies of a signal
    nodes = options.get("nodes", {"first": 0, "world": options["ranks"]})
    rank = nodes["first"] + local
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(local), WORLD_SIZE=str(nodes["world"]))
        if options.get("gpus"):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in options["gpus"])
        if nodes.get("interface"):
            os.environ.update(GLOO_SOCKET_IFNAME=nodes["interface"], NCCL_SOCKET_IFNAME=nodes["interface"])
        serve(options, None if wire is None else Wire(wire))
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


def die_with_parent(parent):
    """Linux kills this process when its parent ends, however that ends. Elsewhere the end of the wire has to do."""
    if not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above
