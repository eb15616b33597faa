"""Runs cells of Python that a model wrote, one after another in one namespace, and prints what the last of them printed.

Given as JSON on file descriptor 0: cells, limits, isolate, user (a number to become; null where that cannot be done). Tells on descriptor 3, one byte each: "s" when the sandbox stands,
"c" when the cells before the last have run. What is wrong with the sandbox itself is told on descriptor 2, before "s".
"""
import _socket, ast, builtins, ctypes, json, os, platform, random, resource, signal, struct, sys, traceback

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
# Numbers of system calls, by architecture: those used here, and those refused afterwards.
# - They make processes and namespaces or reach far into the kernel: fork, vfork, unshare, setns, mount, umount2, pivot_root, ptrace, bpf,
#   add_key, request_key, keyctl, perf_event_open, userfaultfd, io_uring_setup, and the newer calls that mount.
# - They leave the group of processes that is killed at the end of a call: setsid, setpgid.
# - Their memory is no part of the address space, which is what is limited: shmget, shmat, shmctl, semget, msgget, mq_open, memfd_create,
#   memfd_secret. Neither is that of sockets in transit through another socket: sendmsg, sendmmsg.
CALLS = {
    "x86_64": {"arch": 0xC000003E, "pivot_root": 155, "clone": 56, "clone3": 435, "prctl": 157, "socket": 41, "socketpair": 53, "setsockopt": 54, "fcntl": 72,
               "refused": [57, 58, 272, 308, 165, 166, 155, 101, 321, 248, 249, 250, 298, 323, 425, *range(428, 434), 442,
                           112, 109, 29, 30, 31, 64, 68, 240, 319, 447, 46, 307]},
    "aarch64": {"arch": 0xC00000B7, "pivot_root": 41, "clone": 220, "clone3": 435, "prctl": 167, "socket": 198, "socketpair": 199, "setsockopt": 208, "fcntl": 25,
                "refused": [97, 268, 40, 39, 41, 117, 280, 217, 218, 219, 241, 282, 425, *range(428, 434), 442,
                            157, 154, 194, 196, 195, 190, 186, 180, 279, 447, 211, 269]},
}
# The families of sockets that there are, and no others: AF_UNIX, AF_INET, AF_INET6. They end at this namespace of networks. AF_VSOCK
# does not: it reaches the host of a virtual machine.
FAMILIES = [1, 2, 10]
# Options that would enlarge buffers of sockets and pipes. Buffers are not part of the limited address space, so they keep the system's
# sizes, about 200 kB and 64 kB. SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE; F_SETPIPE_SZ.
SOCKET_SIZES, PIPE_SIZE = [7, 8, 32, 33], 1031
# If the system's default buffers are larger than this, no sockets are allowed.
SOCKET_BYTES_MAX = 512 * 1024
# Everything comes from the program that is there, read-only; no file of a user's is among it.
SYSTEM = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
          "/etc/localtime", "/etc/alternatives", "/nix/store", "/dev/null", "/dev/zero", "/dev/urandom"]
# Exists everywhere, and nothing in it is wanted inside: where the new root is put together.
STAGE = "/sys"

libc = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags, options=None):
    encode = lambda text: None if text is None else text.encode()
    must(libc.mount(encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(options)), f"mount {target}")


def new_root(disk_bytes, user):
    """A root of its own: the system read-only, an empty /work that may be written, nothing else."""
    calls = CALLS[platform.machine()]
    mount("none", STAGE, "tmpfs", MS_NOSUID, "size=1m,mode=755")
    own = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    for path in SYSTEM + sorted(own):
        if not os.path.exists(path) or any(is_below(path, place) for place in SYSTEM if place != path):
            continue
        if os.path.islink(path) and path not in own:
            os.makedirs(STAGE + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), STAGE + path)
            continue
        if os.path.isdir(path):
            os.makedirs(STAGE + path, exist_ok=True)
        else:
            os.makedirs(STAGE + os.path.dirname(path), exist_ok=True)
            open(STAGE + path, "w").close()
        mount(path, STAGE + path, None, MS_BIND | MS_REC)
        remount_read_only(STAGE + path)
    for folder in ("/work", "/tmp", "/old"):
        os.mkdir(STAGE + folder)
    mount("none", STAGE + "/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk_bytes},nr_inodes=4096,mode=700,uid={user},gid={user}")
    mount(STAGE + "/work", STAGE + "/tmp", None, MS_BIND)
    must(libc.syscall(calls["pivot_root"], STAGE.encode(), (STAGE + "/old").encode()), "pivot_root")
    os.chdir("/")
    must(libc.umount2(b"/old", 2), "umount /old")
    os.rmdir("/old")
    mount("none", "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    os.chdir("/work")


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


def limit(limits):
    for kind, value in (
        (resource.RLIMIT_AS, limits["memoryBytes"]),
        (resource.RLIMIT_FSIZE, limits["fileBytes"]),
        (resource.RLIMIT_CPU, limits["cpuS"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


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
    header, nothing = struct.pack("II", 0x20080522, 0), bytes(24)
    must(libc.capset(header, nothing), "capset")


def families():
    probe = _socket.socket(1, 1)
    held = probe.getsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF)
    probe.close()
    return FAMILIES if held <= SOCKET_BYTES_MAX else []


def forbid_calls():
    """No new process or namespace, whatever asks for one, and none of CALLS' refused ones: threads may be begun, clone3 is said not to exist
    so that libc uses clone."""
    calls = CALLS[platform.machine()]
    load, equal, has, give = 0x20, 0x15, 0x45, 0x06
    allow, refuse, absent, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000  # EPERM, ENOSYS
    clone_thread = 0x10000
    program = [(load, 0, 0, 4), (equal, 1, 0, calls["arch"]), (give, 0, 0, kill), (load, 0, 0, 0)]
    for number in calls["refused"]:
        program += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    program += [(equal, 0, 1, calls["clone3"]), (give, 0, 0, absent)]
    # A call that is given: its first argument is looked at in the lines that follow, which end with what becomes of it.
    first_argument = (load, 0, 0, 16)
    program += [(equal, 0, 3, calls["clone"]), first_argument, (has, 1, 0, clone_thread), (give, 0, 0, refuse), (load, 0, 0, 0)]
    # PR_SET_PDEATHSIG: who clears it outlives the process that it belongs to.
    program += [(equal, 0, 3, calls["prctl"]), first_argument, (equal, 0, 1, 1), (give, 0, 0, refuse), (load, 0, 0, 0)]
    allowed = families()
    for number in (calls["socket"], calls["socketpair"]):
        program += [(equal, 0, len(allowed) + 2, number), first_argument]
        program += [(equal, len(allowed) - i, 0, family) for i, family in enumerate(allowed)]
        program += [(give, 0, 0, refuse), (load, 0, 0, 0)]
    # Refuses these calls if the named argument, the third or the second, has one of these values.
    for number, place, values in ((calls["setsockopt"], 32, SOCKET_SIZES), (calls["fcntl"], 24, [PIPE_SIZE])):
        program += [(equal, 0, 2 * len(values) + 1, number), (load, 0, 0, place)]
        for value in values:
            program += [(equal, 0, 1, value), (give, 0, 0, refuse)]
        program += [(load, 0, 0, 0)]
    if calls["arch"] == 0xC000003E:  # the 32-bit numbers of x32
        program += [(load, 0, 0, 0), (0x35, 0, 1, 0x40000000), (give, 0, 0, kill)]
    program += [(give, 0, 0, allow)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    filled = Program(len(program), ctypes.addressof(buffer))
    must(libc.prctl(22, 2, ctypes.byref(filled), 0, 0), "seccomp")


class OutOfTime(BaseException):
    pass


def out_of_time(*_):
    raise OutOfTime()


def run_cell(source, scope, seconds, is_last):
    """As a notebook does: prints the value of an expression that stands last."""
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        tree = ast.parse(source, "<cell>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), scope)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
            if value is not None and is_last:
                print(repr(value))
    except OutOfTime:
        print(f"Error: the code ran longer than {seconds:g} s and was stopped.")
    except SystemExit:
        pass
    except BaseException as error:
        if is_last:
            print_error(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            sys.stdout.flush()
        except BaseException:
            pass


def print_error(error):
    """The traceback without the lines of this file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != main.__code__.co_filename]
    lines = ["Traceback (most recent call last):\n"] if frames else []
    lines += traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    sys.stdout.write("".join(lines))


def main():
    del sys.path[0]  # where this file lies
    given = json.load(os.fdopen(0, closefd=False))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if given["isolate"]:
        user = given["user"] or 0
        new_root(given["limits"]["diskBytes"], user)
        drop_privileges(user)
    limit(given["limits"])
    if given["isolate"]:
        forbid_calls()
    os.write(3, b"s")
    answer = os.dup(1)
    os.dup2(null, 1)
    os.dup2(null, 2)
    random.seed(0)
    scope = {"__name__": "__main__", "__builtins__": builtins}
    *before, last = given["cells"]
    for cell in before:
        run_cell(cell, scope, given["limits"]["cellS"], False)
    os.write(3, b"c")
    os.close(3)
    os.dup2(answer, 1)
    os.dup2(answer, 2)
    run_cell(last, scope, given["limits"]["cellS"], True)
    # Threads that the code began are not waited for.
    os._exit(33)


main()
