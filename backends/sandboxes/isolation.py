"""What keeps a program inside, on Linux: a root of its own, no privileges, a filter of system calls. For processes that `unshare` put into new namespaces.

Imported by backends/environments/python/sandbox.py, which runs cells of Python in one process, and by backends/sandboxes/namespace/supervisor.py,
which runs any program.
"""
import _socket, ctypes, os, platform, signal, struct, sys

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
# Numbers of system calls, by architecture: those used here, and those refused afterwards.
# - `kernel`: they make namespaces or reach far into the kernel: unshare, setns, mount, umount2, pivot_root, ptrace, bpf, add_key, request_key,
#   keyctl, perf_event_open, userfaultfd, io_uring_setup, and the newer calls that mount.
# - `memory`: their memory belongs to no process, and processes are what is limited: shmget, shmat, shmctl, semget, msgget, mq_open, memfd_create,
#   memfd_secret.
# - `fork`: fork, vfork. `groups`, which leave the group of processes that is killed at the end: setsid, setpgid.
# - `transit`: sendmsg, sendmmsg, with which sockets travel through sockets. `affinity`: sched_setaffinity.
CALLS = {
    "x86_64": {"arch": 0xC000003E, "pivot_root": 155, "clone": 56, "clone3": 435, "prctl": 157, "socket": 41, "socketpair": 53, "setsockopt": 54, "fcntl": 72,
               "kernel": [272, 308, 165, 166, 155, 101, 321, 248, 249, 250, 298, 323, 425, *range(428, 434), 442],
               "memory": [29, 30, 31, 64, 68, 240, 319, 447], "fork": [57, 58], "groups": [112, 109], "transit": [46, 307], "affinity": [203]},
    "aarch64": {"arch": 0xC00000B7, "pivot_root": 41, "clone": 220, "clone3": 435, "prctl": 167, "socket": 198, "socketpair": 199, "setsockopt": 208, "fcntl": 25,
                "kernel": [97, 268, 40, 39, 41, 117, 280, 217, 218, 219, 241, 282, 425, *range(428, 434), 442],
                "memory": [194, 196, 195, 190, 186, 180, 279, 447], "fork": [], "groups": [157, 154], "transit": [211, 269], "affinity": [122]},
}
# The families of sockets that there are, and no others: AF_UNIX, AF_INET, AF_INET6. They end at this namespace of networks. AF_VSOCK
# does not: it reaches the host of a virtual machine.
FAMILIES = [1, 2, 10]
# Options that would enlarge buffers of sockets and pipes. Buffers belong to no process's memory, so they keep the system's
# sizes, about 200 kB and 64 kB. SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE; F_SETPIPE_SZ.
SOCKET_SIZES, PIPE_SIZE = [7, 8, 32, 33], 1031
# If the system's default buffers are larger than this, no sockets are allowed.
SOCKET_BYTES_MAX = 512 * 1024
# Everything comes from the programs that are there, read-only; no file of a user's is among it.
SYSTEM = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
          "/etc/localtime", "/etc/alternatives", "/nix/store", "/dev/null", "/dev/zero", "/dev/urandom"]
# Exists everywhere, and nothing in it is wanted inside: where the new root is put together.
STAGE = "/sys"
# Flags of clone(2): a thread, and any new namespace (time, mount, cgroup, uts, ipc, user, pid, network).
CLONE_THREAD, CLONE_NEW = 0x10000, 0x80 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags, options=None):
    encode = lambda text: None if text is None else text.encode()
    must(libc.mount(encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(options)), f"mount {target}")


def new_root(shown, finish):
    """A root of its own: the system and the shown paths, read-only. `finish` adds what else there is, below the folder that it is given."""
    mount("none", STAGE, "tmpfs", MS_NOSUID, "size=1m,mode=755")
    own = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    everything = SYSTEM + sorted({*own, *shown}, key=lambda path: (len(path), path))
    for i, path in enumerate(everything):
        if not os.path.exists(path) or any(path == place or is_below(path, place) for place in everything[:i]):
            continue
        if os.path.islink(path) and path in SYSTEM:
            os.makedirs(STAGE + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), STAGE + path)
        else:
            show(path)
    os.mkdir(STAGE + "/old")
    finish(STAGE)
    must(libc.syscall(CALLS[platform.machine()]["pivot_root"], STAGE.encode(), (STAGE + "/old").encode()), "pivot_root")
    os.chdir("/")
    must(libc.umount2(b"/old", 2), "umount /old")
    os.rmdir("/old")
    mount("none", "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def show(path):
    """A file or folder at the same path inside, read-only."""
    if os.path.isdir(path):
        os.makedirs(STAGE + path, exist_ok=True)
    else:
        os.makedirs(STAGE + os.path.dirname(path), exist_ok=True)
        open(STAGE + path, "w").close()
    mount(path, STAGE + path, None, MS_BIND | MS_REC)
    remount_read_only(STAGE + path)


def is_below(path, place):
    return path.startswith(place + "/")


def remount_read_only(path):
    """Also what is mounted below it. Flags that the mount has from outside stay: they cannot be taken off."""
    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]
    attributes = Attributes(set=1 | 2)  # MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID
    at_recursive = 0x8000
    result = libc.syscall(442, -100, path.encode(), at_recursive, ctypes.byref(attributes), ctypes.sizeof(attributes))
    must(result, f"mount_setattr {path}")


def drop_privileges(user):
    must(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0) < 0:  # PR_CAPBSET_DROP
            break
    if user != 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        must(libc.prctl(1, signal.SIGKILL, 0, 0, 0), "pdeathsig")  # which another user does not keep
    set_capabilities(())


def set_capabilities(kept):
    """Those that this process has from now on, by number, as far as it has them now."""
    header, held = struct.pack("II", 0x20080522, 0), ctypes.create_string_buffer(24)
    must(libc.capget(header, held), "capget")
    permitted = struct.unpack("6I", held.raw)[1::3]
    words = [permitted[word] & sum(1 << number % 32 for number in kept if number // 32 == word) for word in (0, 1)]
    must(libc.capset(header, struct.pack("6I", words[0], words[0], 0, words[1], words[1], 0)), "capset")


def families():
    probe = _socket.socket(1, 1)
    held = probe.getsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF)
    probe.close()
    return FAMILIES if held <= SOCKET_BYTES_MAX else []


class Filter:
    """A filter of system calls. Each rule ends with what becomes of the call, or goes on to the next."""
    LOAD, EQUAL, HAS, GIVE = 0x20, 0x15, 0x45, 0x06
    ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000  # EPERM, ENOSYS

    def __init__(self):
        self.calls = CALLS[platform.machine()]
        self.program = [(self.LOAD, 0, 0, 4), (self.EQUAL, 1, 0, self.calls["arch"]), (self.GIVE, 0, 0, self.KILL), (self.LOAD, 0, 0, 0)]

    def refuse(self, *groups):
        for group in groups:
            for number in self.calls[group]:
                self.program += [(self.EQUAL, 0, 1, number), (self.GIVE, 0, 0, self.REFUSE)]
        return self

    def no_clone3(self):
        """Its flags are in memory, where no filter looks: it is said not to exist, so that libc uses clone."""
        self.program += [(self.EQUAL, 0, 1, self.calls["clone3"]), (self.GIVE, 0, 0, self.ABSENT)]
        return self

    def threads_only(self):
        self.program += [(self.EQUAL, 0, 3, self.calls["clone"]), self.argument(0), (self.HAS, 1, 0, CLONE_THREAD), (self.GIVE, 0, 0, self.REFUSE), (self.LOAD, 0, 0, 0)]
        return self

    def no_namespaces(self):
        self.program += [(self.EQUAL, 0, 3, self.calls["clone"]), self.argument(0), (self.HAS, 0, 1, CLONE_NEW), (self.GIVE, 0, 0, self.REFUSE), (self.LOAD, 0, 0, 0)]
        return self

    def keeps_death_signal(self):
        """PR_SET_PDEATHSIG: who clears it outlives the process that it belongs to."""
        self.program += [(self.EQUAL, 0, 3, self.calls["prctl"]), self.argument(0), (self.EQUAL, 0, 1, 1), (self.GIVE, 0, 0, self.REFUSE), (self.LOAD, 0, 0, 0)]
        return self

    def sockets(self, allowed, route=False):
        """Families that there are. `route`: netlink's own family, too, for the list of interfaces alone (protocol 0)."""
        for name in ("socket", "socketpair"):
            rules = [(self.EQUAL, 0, 3, 16), self.argument(2), (self.EQUAL, len(allowed) + 2, 0, 0), self.argument(0)] if route and allowed else []
            rules += [(self.EQUAL, len(allowed) - i, 0, family) for i, family in enumerate(allowed)]
            rules += [(self.GIVE, 0, 0, self.REFUSE), (self.LOAD, 0, 0, 0)]
            self.program += [(self.EQUAL, 0, len(rules) + 1, self.calls[name]), self.argument(0), *rules]
        return self

    def buffers_stay_small(self):
        """Refuses these calls if the named argument, the third or the second, has one of these values."""
        for name, place, values in (("setsockopt", 2, SOCKET_SIZES), ("fcntl", 1, [PIPE_SIZE])):
            self.program += [(self.EQUAL, 0, 2 * len(values) + 2, self.calls[name]), self.argument(place)]
            for value in values:
                self.program += [(self.EQUAL, 0, 1, value), (self.GIVE, 0, 0, self.REFUSE)]
            self.program += [(self.LOAD, 0, 0, 0)]
        return self

    def argument(self, place):
        return (self.LOAD, 0, 0, 16 + 8 * place)

    def apply(self):
        """From now on, for this process and all that it begins."""
        if self.calls["arch"] == 0xC000003E:  # the 32-bit numbers of x32
            self.program += [(self.LOAD, 0, 0, 0), (0x35, 0, 1, 0x40000000), (self.GIVE, 0, 0, self.KILL)]
        self.program += [(self.GIVE, 0, 0, self.ALLOW)]
        buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in self.program))

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
        filled = Program(len(self.program), ctypes.addressof(buffer))
        must(libc.prctl(22, 2, ctypes.byref(filled), 0, 0), "seccomp")
