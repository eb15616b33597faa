"""Feeds one W&B run. Started by Ratchet; JSON lines on stdin and stdout.

in   {"init": {"id", "project", "entity", "name", "group", "tags", "mode", "folder", "config", "cursor"}}
     {"rows": [[number, {"step": 3, "train/reward": 0.5, …}], …]}
out  {"ready": {"next": number, "mode": "online" | "offline", "place": url or folder, "note": text or null}}
     {"sent": number}     rows up to this one were handed to W&B
     {"failed": reason}   and the process ends

A row's number is W&B's own step (`_step`), so that W&B itself says which rows it has: the server when a run is resumed, the
files of earlier sessions when offline. Whatever was killed, a row is neither missing nor there twice. What is drawn is drawn
over `step`, the run's optimizer step, which may go back after a rewind.
"""

import contextlib
import fcntl
import glob
import json
import netrc
import os
import shutil
import struct
import sys
import time
from urllib.parse import urlparse

BLOCK = 32768  # W&B's transaction log is a LevelDB log of protocol buffers behind a header of 7 bytes
HEADER = 7


def records(path):
    """Complete records of a .wandb file; a record torn by a kill ends them."""
    with open(path, "rb") as file:
        data = file.read()
    at, parts = HEADER, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0 or at + 7 + length > len(data):
            return
        part = data[at + 7 : at + 7 + length]
        at += 7 + length
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts


def last_number(path):
    """Greatest number of a row in a .wandb file; -1 without any."""
    from wandb.proto import wandb_internal_pb2 as pb

    last = -1
    for data in records(path):
        record = pb.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            last = max(last, record.history.step.num)
    return last


def wait_until_still(files):
    """Waits, since W&B's own process may outlive ours by a moment, and still write."""
    sizes = None
    while True:
        found = [(f, os.path.getsize(f)) for f in files]
        if found == sizes:
            return
        sizes = found
        time.sleep(0.5)


def earlier_sessions(folder, run_id):
    """Number of the next row according to the files of earlier offline sessions, or None; removes empty files."""
    files = sorted(glob.glob(os.path.join(folder, "wandb", f"offline-run-*-{run_id}", f"run-{run_id}.wandb")))
    if not files:
        return None
    wait_until_still(files)
    last = -1
    for file in files:
        found = last_number(file)
        if found < 0:
            shutil.rmtree(os.path.dirname(file), ignore_errors=True)
        last = max(last, found)
    return last + 1


def has_key():
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False


def main():
    say_to = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever W&B prints goes to the log

    def say(message):
        say_to.write(json.dumps(message) + "\n")
        say_to.flush()

    try:
        feed(say)
    except BrokenPipeError:
        pass  # nobody listens any more; W&B has what it was given
    except Exception as error:  # told to who started us: it tries again later
        with contextlib.suppress(BrokenPipeError):
            say({"failed": f"{type(error).__name__}: {error}"[:500]})
        sys.exit(1)


def feed(say):
    first = sys.stdin.readline()
    if first == "":
        return
    asked = json.loads(first)["init"]
    folder = asked["folder"]
    os.makedirs(folder, exist_ok=True)
    lock = open(os.path.join(folder, "ratchet.lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # one that was left behind ends first

    import wandb

    mode = asked["mode"] or ("online" if has_key() else "offline")
    note = None
    if mode == "online" and not has_key():
        mode, note = "offline", "there is no WANDB_API_KEY where the processes start"
    following = earlier_sessions(folder, asked["id"]) if mode == "offline" else None
    run = wandb.init(
        id=asked["id"],
        resume="allow",
        project=asked["project"],
        entity=asked["entity"],
        name=asked["name"],
        group=asked["group"],
        tags=asked["tags"],
        config=asked["config"],
        mode=mode,
        dir=folder,
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
        ),
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    if mode == "online":
        following = run.step  # what the server has
    elif following is None:
        following = asked["cursor"]
    place = run.url if mode == "online" else os.path.dirname(run.dir)
    say({"ready": {"next": following, "mode": mode, "place": place, "note": note}})
    for line in sys.stdin:
        rows = json.loads(line)["rows"]
        for number, data in rows:
            run.log(data, step=number)
        say({"sent": rows[-1][0]})
    run.finish()


main()
