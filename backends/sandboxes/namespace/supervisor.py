"""The first process of a sandbox of namespaces: makes its root, then runs programs in it until it is told to end, its time is over, or its worker is gone.

Speaks on descriptor 3, a socket pair, in frames: the length of a JSON text, the length of what follows it, the text, the bytes. The first frame says what the
sandbox is (`main`); the answer is {"ready": …}. Then, with the number `id` of a command that the worker chose:
  → start (argv, cwd, env, timeoutS; or `task`, one of TASKS, with its arguments), in (bytes for its input), close (the end of its input), took (bytes of its output), kill
  ← took (bytes of its input that are gone), out and err (its output), end (code, signal, isTimedOut, isOverMemory), fail (why it did not begin)
Neither side sends more than WINDOW bytes of a stream before the other has taken some: a slow reader slows its command, and no other.
"""
import errno, fcntl, json, os, resource, selectors, signal, socket, stat, struct, sys, tarfile, time

sys.path[0] = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
from isolation import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, Filter, drop_privileges, families, is_below, libc, mount, must, new_root, remount_read_only, set_capabilities, show
del sys.path[0]

WINDOW = 256 * 1024
PIECE = 64 * 1024
# Connections of the route at once; each may hold a piece in either direction.
ROUTES_MAX = 256
FILES_MAX = 1024
# How often memory is looked at, and how long output is waited for that a process in the background may still hold.
WATCH_S, DRAIN_S = 0.1, 0.2
# CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_PTRACE: to become the user of a program, and to look at and end what it began.
KEPT = (5, 6, 7, 8, 19)
WORK = "/work"


def own_root(given):
    user = given["user"] or 0
    is_open = given["network"] == "open"

    def finish(stage):
        for folder in ("/work", "/tmp", "/proc", "/dev/shm", "/dev/pts", "/run", "/space"):
            os.makedirs(stage + folder, exist_ok=True)
        # One space for all that may be written, with one limit.
        mount("none", stage + "/space", "tmpfs", MS_NOSUID | MS_NODEV, f"size={given['limits']['diskMb']}m,nr_inodes={given['limits']['diskMb'] * 64 + 4096},mode=755")
        for name, mode in (("work", 0o700), ("tmp", 0o700), ("shm", 0o700)):
            os.mkdir(f"{stage}/space/{name}", mode)
            os.chown(f"{stage}/space/{name}", user, user)
            mount(f"{stage}/space/{name}", stage + {"work": WORK, "tmp": "/tmp", "shm": "/dev/shm"}[name], None, MS_BIND)
        must(libc.umount2((stage + "/space").encode(), 2), "umount /space")
        os.rmdir(stage + "/space")
        mount("proc", stage + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        # Files there that the user of number 0 may write without any privilege, which is who a program is inside a namespace of users.
        for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"):
            if os.path.exists(f"{stage}/proc/{name}"):
                mount(f"{stage}/proc/{name}", f"{stage}/proc/{name}", None, MS_BIND)
                remount_read_only(f"{stage}/proc/{name}")
        for name in ("kcore", "keys", "timer_list", "kmsg", "kallsyms", "latency_stats", "sched_debug"):
            if os.path.exists(f"{stage}/proc/{name}"):
                mount("/dev/null", f"{stage}/proc/{name}", None, MS_BIND)
        try:
            mount("devpts", stage + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
            os.symlink("pts/ptmx", stage + "/dev/ptmx")
        except OSError:
            pass  # programs without a terminal of their own
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
            os.symlink(target, f"{stage}/dev/{name}")
        write = lambda name, text: open(f"{stage}/etc/{name}", "w").write(text)
        os.makedirs(stage + "/etc", exist_ok=True)
        write("passwd", f"root:x:0:0:root:/work:/bin/sh\nagent:x:{user}:{user}:agent:/work:/bin/sh\n" if user else "root:x:0:0:root:/work:/bin/sh\n")
        write("group", f"root:x:0:\nagent:x:{user}:\n" if user else "root:x:0:\n")
        write("nsswitch.conf", f"passwd: files\ngroup: files\nhosts: files{' dns' if is_open else ''}\n")
        write("hostname", "sandbox\n")
        if not is_open:
            write("hosts", "127.0.0.1 localhost sandbox\n")

        for folder in given["folders"]:
            if is_below(folder, "/tmp"):
                show(folder)

    shown = ["/dev/random", "/dev/full", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/sbin", "/etc/mime.types", "/etc/services", "/etc/protocols", *(folder for folder in given["folders"] if not is_below(folder, "/tmp"))]
    if is_open:
        shown += ["/etc/hosts", "/etc/resolv.conf"]
    new_root(shown, finish)


class Stream:
    """Bytes on the way to a descriptor that may be slow."""

    def __init__(self):
        self.parts, self.size = [], 0

    def add(self, part):
        if part:
            self.parts.append(memoryview(part))
            self.size += len(part)

    def send(self, fd):
        """Writes what there is room for; how much it was."""
        sent = 0
        while self.parts:
            try:
                count = os.write(fd, self.parts[0][:PIECE])
            except BlockingIOError:
                break
            sent += count
            self.parts[0] = self.parts[0][count:]
            if len(self.parts[0]) == 0:
                self.parts.pop(0)
        self.size -= sent
        return sent


class Loop:
    """What each descriptor is waited for, and who is told."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()

    def wait_for(self, fd, events, then):
        known = self.selector.get_map().get(fd)
        if events == 0:
            if known:
                self.selector.unregister(fd)
        elif not known:
            self.selector.register(fd, events, then)
        elif known.events != events or known.data is not then:
            self.selector.modify(fd, events, then)

    def run_once(self, timeout):
        for key, events in self.selector.select(timeout):
            if self.selector.get_map().get(key.fd) is key:
                key.data(events)


READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
loop = Loop()


class Worker:
    """The process that has this sandbox, at the other end of descriptor 3."""

    def __init__(self, fd):
        self.fd, self.received, self.out = fd, bytearray(), Stream()
        os.set_blocking(fd, False)
        self.then = self.ready
        loop.wait_for(fd, READ, self.then)

    def tell(self, message, content=b""):
        text = json.dumps(message).encode()
        self.out.add(struct.pack("!II", len(text), len(content)) + text + content)
        self.flush()

    def flush(self):
        try:
            self.out.send(self.fd)
        except OSError:
            os._exit(0)
        loop.wait_for(self.fd, READ | (WRITE if self.out.size else 0), self.then)

    def ready(self, events):
        if events & WRITE:
            self.flush()
        if not events & READ:
            return
        try:
            part = os.read(self.fd, 4 * PIECE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            os._exit(0)  # and with the first process every other ends
        self.received += part
        for message, content in self.frames():
            handle(message, content)

    def frames(self):
        while len(self.received) >= 8:
            text, content = struct.unpack("!II", self.received[:8])
            if len(self.received) < 8 + text + content:
                return
            frame = bytes(self.received[8:8 + text + content])
            del self.received[:8 + text + content]
            yield json.loads(frame[:text]), frame[text:]


class Command:
    """A program that runs, or one of TASKS."""

    def __init__(self, number, given):
        self.number, self.given = number, given
        self.input, self.is_closed = Stream(), False
        self.unread = {"out": 0, "err": 0}
        self.is_timed_out = self.is_over_memory = False
        self.status = self.drained_at = None
        self.ends_at = time.monotonic() + given["timeoutS"]
        ours, theirs = zip(*((w, r) if i == 0 else (r, w) for i, (r, w) in enumerate(pipe() for _ in range(3))))
        try:
            self.pid = os.fork()
        except OSError:
            for fd in (*ours, *theirs):
                os.close(fd)
            raise
        if self.pid == 0:
            begin(given, theirs)
        for fd in theirs:
            os.close(fd)
        for fd in ours:
            os.set_blocking(fd, False)
        self.stdin, *outputs = ours
        self.outputs = dict(zip(("out", "err"), outputs))
        self.feed_then = self.feed
        self.read_then = {name: (lambda events, name=name: self.read(name)) for name in self.outputs}
        for name, fd in self.outputs.items():
            loop.wait_for(fd, READ, self.read_then[name])

    def feed(self, events=0):
        if self.stdin is None:
            return
        try:
            sent = self.input.send(self.stdin)
        except OSError:  # it reads no more
            sent, self.input, self.is_closed = self.input.size, Stream(), True
        if sent:
            worker.tell({"id": self.number, "is": "took", "bytes": sent})
        if self.input.size == 0 and self.is_closed:
            self.close_input()
        else:
            loop.wait_for(self.stdin, WRITE if self.input.size else 0, self.feed_then)

    def close_input(self):
        if self.stdin is not None:
            loop.wait_for(self.stdin, 0, None)
            os.close(self.stdin)
            self.stdin = None

    def read(self, name):
        fd = self.outputs[name]
        try:
            part = os.read(fd, PIECE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if part:
            self.unread[name] += len(part)
            worker.tell({"id": self.number, "is": name}, part)
            self.await_output(name)
        else:
            self.close_output(name)

    def await_output(self, name):
        """Reads on when the worker has taken what it was sent."""
        loop.wait_for(self.outputs[name], READ if self.unread[name] < WINDOW else 0, self.read_then[name])

    def close_output(self, name):
        loop.wait_for(self.outputs[name], 0, None)
        os.close(self.outputs.pop(name))

    def took(self, name, count):
        self.unread[name] -= count
        if name in self.outputs:
            self.await_output(name)

    def kill(self):
        end_all(self.pid)

    def ended(self, status):
        self.status, self.drained_at = status, time.monotonic() + DRAIN_S
        self.close_input()

    def is_over(self, now):
        """It has ended, and its output is read, or kept open by something that it left behind."""
        if self.status is None:
            return False
        is_held_up = any(self.unread[name] >= WINDOW for name in self.outputs)
        return not self.outputs or (now >= self.drained_at and not is_held_up)

    def close(self):
        for name in list(self.outputs):
            self.close_output(name)
        code, signal_number = (None, -self.status) if self.status < 0 else (self.status, None)
        name = None if signal_number is None else signal_name(signal_number)
        worker.tell({"id": self.number, "is": "end", "code": code, "signal": name, "isTimedOut": self.is_timed_out, "isOverMemory": self.is_over_memory})


def pipe():
    return os.pipe2(os.O_CLOEXEC)


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def begin(given, streams):
    """In the child: becomes the program. What goes wrong is told as a shell does, by the exit codes 126 and 127."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for fd, own in zip(streams, (0, 1, 2)):
            os.dup2(fd, own)
        os.closerange(3, FILES_MAX)
        restrict()
        if "task" in given:
            TASKS[given["task"]](*given["arguments"])
            os._exit(0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        environment = {**sandbox["env"], **given["env"]}
        os.chdir(os.path.join(WORK, given["cwd"] or ""))
        os.execvpe(given["argv"][0], given["argv"], environment)
    except FileNotFoundError as error:
        os.write(2, f"{given.get('argv', ['it'])[0]}: {error.strerror}\n".encode())
        os._exit(127)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(126)


def restrict():
    limits = sandbox["limits"]
    for kind, value in (
        (resource.RLIMIT_DATA, limits["memoryMb"] * 2**20),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 64 * 1024),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    drop_privileges(sandbox["user"] or 0)
    system_calls = Filter().refuse("kernel", "memory", *(["affinity"] if limits["cpus"] else [])).no_clone3().no_namespaces()
    system_calls.sockets(families(), route=True).buffers_stay_small().apply()


# What the worker asks of the files: in a process that has the program's own rights, so that no link leads further than the program itself gets.

def read_file(path, bytes_max):
    fd = os.open(os.path.join(WORK, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "no plain file")
    if os.fstat(fd).st_size > bytes_max:
        raise OSError(errno.EFBIG, f"{os.fstat(fd).st_size} bytes, expected at most {bytes_max}")
    left = bytes_max
    while left > 0:
        part = os.read(fd, min(PIECE, left))
        if not part:
            break
        write_all(1, part)
        left -= len(part)


def write_file(path, mode):
    """As it is whole: a reader sees the old content or the new."""
    target = os.path.join(WORK, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    beside = f"{target}.{os.getpid()}.part"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        while part := os.read(0, PIECE):
            write_all(fd, part)
        os.fchmod(fd, mode)
        os.rename(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def write_all(fd, part):
    while part:
        part = part[os.write(fd, part):]


def save_folder(bytes_max):
    """The work folder as a tar: plain files, folders and links as links; sockets, pipes and what is gone are left out."""
    class Bounded:
        left = bytes_max

        def write(self, part):
            self.left -= len(part)
            if self.left < 0:
                raise OSError(errno.EFBIG, f"the work folder has more than {bytes_max} bytes")
            write_all(1, part)
            return len(part)

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk() else None

    def save(path, name):
        try:
            tar.add(path, arcname=name, recursive=False, filter=plain)
            below = sorted(os.listdir(path)) if stat.S_ISDIR(os.lstat(path).st_mode) else []
        except (FileNotFoundError, NotADirectoryError):
            return  # what is beside it is saved all the same
        for one in below:
            save(f"{path}/{one}", f"{name}/{one}")

    with tarfile.open(fileobj=Bounded(), mode="w|", format=tarfile.PAX_FORMAT, dereference=False) as tar:
        for name in sorted(os.listdir(WORK)):
            save(os.path.join(WORK, name), name)


def fill_folder():
    """Puts a tar, which the worker has looked through, into the work folder. No link is followed on the way, whatever the folder holds already."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        for entry in tar:
            *folders, name = entry.name.split("/")
            parent = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY)
            for folder in folders:
                below = open_folder(parent, folder)
                os.close(parent)
                parent = below
            if entry.isdir():
                os.close(open_folder(parent, name))
            elif entry.issym():
                os.symlink(entry.linkname, name, dir_fd=parent)
            elif entry.islnk():
                os.link(os.path.join(WORK, entry.linkname), name, dst_dir_fd=parent, follow_symlinks=False)
            else:
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, entry.mode & 0o777, dir_fd=parent)
                content = tar.extractfile(entry)
                while part := content.read(PIECE):
                    write_all(fd, part)
                os.fchmod(fd, entry.mode & 0o777)
                os.utime(fd, (entry.mtime, entry.mtime))
                os.close(fd)
            os.close(parent)


def open_folder(parent, name):
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        pass
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


TASKS = {"fill": fill_folder, "read": read_file, "write": write_file, "save": save_folder}


def end_all(first):
    """Ends a process, its group, its session and all that descend from it, until no more are found."""
    for _ in range(20):
        processes = processes_here()
        doomed = {first}
        while True:
            more = {pid for pid, (parent, group, session) in processes.items() if parent in doomed or first in (group, session)} - doomed
            if not more:
                break
            doomed |= more
        alive = [pid for pid in doomed if pid in processes]
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not alive:
            return


def processes_here():
    """Parent, group and session of each process that runs."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                state, parent, group, session = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if state not in "ZX":
                found[int(name)] = (int(parent), int(group), int(session))
    return found


def memory_of(pid, file, names):
    """Sum of these lines, in KiB; 0 for a process that is gone."""
    try:
        with open(f"/proc/{pid}/{file}") as lines:
            return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    except (OSError, ValueError, IndexError):
        return 0


def watch_memory(pids):
    """Ends the largest process where all together hold more than they may. Pages that several share count once, which takes longer to find out."""
    most = sandbox["limits"]["memoryMb"] * 1024
    if sum(memory_of(pid, "status", ("RssAnon:", "RssShmem:", "VmSwap:")) for pid in pids) <= most:
        return
    held = {pid: memory_of(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")) for pid in pids}
    if sum(held.values()) <= most:
        return
    largest = max(held, key=lambda pid: held[pid])
    try:
        os.kill(largest, signal.SIGKILL)
    except ProcessLookupError:
        return
    for command in commands.values():
        command.is_over_memory = True


class Route:
    """One connection from inside to the socket of the route."""

    def __init__(self, inner, outer):
        self.ends = (inner, outer)
        self.waiting = (Stream(), Stream())  # on their way to that end
        self.is_read, self.is_shut = [False, False], [False, False]
        self.then = tuple((lambda events, i=i: self.ready(i, events)) for i in (0, 1))
        for end in self.ends:
            end.setblocking(False)
        self.await_both()

    def ready(self, i, events):
        try:
            if events & WRITE:
                self.waiting[i].send(self.ends[i].fileno())
            if events & READ and not self.is_read[i]:
                part = os.read(self.ends[i].fileno(), PIECE)
                self.waiting[1 - i].add(part)
                self.is_read[i] = not part
                self.waiting[1 - i].send(self.ends[1 - i].fileno())
            for j in (0, 1):
                if self.is_read[1 - j] and self.waiting[j].size == 0 and not self.is_shut[j]:
                    self.is_shut[j] = True
                    self.ends[j].shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            return self.close()
        if all(self.is_shut):
            return self.close()
        self.await_both()

    def await_both(self):
        for i in (0, 1):
            wants_read = not self.is_read[i] and self.waiting[1 - i].size == 0
            loop.wait_for(self.ends[i].fileno(), (READ if wants_read else 0) | (WRITE if self.waiting[i].size else 0), self.then[i])

    def close(self):
        routes.discard(self)
        for end in self.ends:
            loop.wait_for(end.fileno(), 0, None)
            end.close()


def open_route(given):
    """Listens on the loopback of the sandbox; the port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", given["port"] if sandbox["network"] == "route" else 0))
    listener.listen(64)
    listener.setblocking(False)

    def accept(events):
        try:
            inner, _ = listener.accept()
        except OSError:
            return
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        outer.setblocking(False)  # refused where its queue is full
        try:
            if len(routes) >= ROUTES_MAX:
                raise OSError(errno.EMFILE, "too many connections")
            # The folder was opened before it went out of sight. Its socket may have come since.
            outer.connect(f"/proc/self/fd/{given['folder']}/{given['name']}")
            routes.add(Route(inner, outer))
        except OSError:
            inner.close()
            outer.close()

    loop.wait_for(listener.fileno(), READ, accept)
    listeners.append(listener)
    return listener.getsockname()[1]


def bring_up_loopback():
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16sH14x", b"lo", 0)
    flags = struct.unpack("16sH14x", fcntl.ioctl(probe, 0x8913, request))[1]  # SIOCGIFFLAGS
    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP
    probe.close()


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for command in commands.values():
            if command.pid == pid:
                command.ended(os.waitstatus_to_exitcode(status))


def handle(message, content):
    number, what = message["id"], message["do"]
    if what == "start":
        try:
            commands[number] = Command(number, message)
        except OSError as error:
            worker.tell({"id": number, "is": "fail", "error": str(error)})
        return
    command = commands.get(number)
    if command is None:
        return  # it has ended since
    if what == "in":
        command.input.add(content)
        command.feed()
    elif what == "close":
        command.is_closed = True
        command.feed()
    elif what == "took":
        command.took(message["of"], message["bytes"])
    elif what == "kill":
        command.kill()


def look_around(now):
    """What happens by the clock: memory, time limits, ends."""
    for command in list(commands.values()):
        if command.status is None and now >= command.ends_at:
            command.is_timed_out, command.ends_at = True, now + 1
            command.kill()
        elif command.is_over(now):
            del commands[command.number]
            command.close()


def read_first(fd):
    """The first frame, before the loop runs."""
    def exactly(count):
        got = b""
        while len(got) < count:
            part = os.read(fd, count - len(got))
            if not part:
                os._exit(0)
            got += part
        return got
    text, content = struct.unpack("!II", exactly(8))
    return json.loads(exactly(text + content)[:text])


def main():
    global sandbox, worker
    sandbox = read_first(3)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    must(libc.prctl(4, 0, 0, 0, 0), "not dumpable")  # no program of this user may look into this process
    if sandbox["network"] == "route":
        bring_up_loopback()
    must(libc.sethostname(b"sandbox", 7), "sethostname")
    route = sandbox["route"]
    if route:
        route["folder"] = os.open(route["folder"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own_root(sandbox)
    os.chdir("/")
    os.umask(0o022)
    if sandbox["limits"]["cpus"]:
        here = sorted(os.sched_getaffinity(0))
        first = int.from_bytes(os.urandom(2), "big")
        os.sched_setaffinity(0, {here[(first + i) % len(here)] for i in range(min(sandbox["limits"]["cpus"], len(here)))})
    set_capabilities(KEPT)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    woken, wake = pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    loop.wait_for(woken, READ, lambda events: os.read(woken, 4096))
    port = open_route(route) if route else None
    worker = Worker(3)
    worker.tell({"ready": True, "port": port})
    os.dup2(null, 2)
    ends_at = time.monotonic() + sandbox["limits"]["seconds"]
    watched_at, processes = 0, {}
    while True:
        now = time.monotonic()
        soon = min([command.drained_at or command.ends_at for command in commands.values()], default=now + 3600)
        loop.run_once(max(0.005, min(ends_at - now, soon - now, WATCH_S if commands or processes else 3600)))
        reap()
        now = time.monotonic()
        if now >= ends_at:
            os._exit(0)
        if now >= watched_at + WATCH_S:
            watched_at, processes = now, processes_here()
            watch_memory(processes)
        look_around(now)


sandbox, worker = None, None
commands, routes, listeners = {}, set(), []
main()
