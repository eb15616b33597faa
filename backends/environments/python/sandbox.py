"""Runs cells of Python that a model wrote, one after another in one namespace, and prints what the last of them printed.

Given as JSON on file descriptor 0: cells, limits, isolate, user (a number to become; null where that cannot be done). Tells on descriptor 3, one byte each: "s" when the sandbox stands,
"c" when the cells before the last have run. What is wrong with the sandbox itself is told on descriptor 2, before "s".
"""
import ast, builtins, json, os, random, resource, signal, sys, traceback

# Beside this file's own folder, which is not wanted on the path of the code that runs here.
sys.path[0] = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../sandboxes"))
from isolation import MS_BIND, MS_NODEV, MS_NOSUID, Filter, drop_privileges, families, mount, new_root
del sys.path[0]


def own_root(disk_bytes, user):
    """The system read-only, an empty /work that may be written, nothing else."""
    def finish(stage):
        for folder in ("/work", "/tmp"):
            os.mkdir(stage + folder)
        mount("none", stage + "/work", "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk_bytes},nr_inodes=4096,mode=700,uid={user},gid={user}")
        mount(stage + "/work", stage + "/tmp", None, MS_BIND)
    new_root((), finish)
    os.chdir("/work")


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


def forbid_calls():
    """No new process or namespace, whatever asks for one: threads may be begun."""
    system_calls = Filter().refuse("fork", "kernel", "groups", "memory", "transit").no_clone3().threads_only()
    system_calls.keeps_death_signal().sockets(families()).buffers_stay_small().apply()


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
    given = json.load(os.fdopen(0, closefd=False))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if given["isolate"]:
        user = given["user"] or 0
        own_root(given["limits"]["diskBytes"], user)
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
