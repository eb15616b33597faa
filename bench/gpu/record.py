"""
Stands in for the Python of a torch trainer: does what it is asked, and keeps every request with its files and its answer, so that play.py can repeat them
elsewhere. RATCHET_RECORD names the folder. bench/record-torch.ts starts it.
"""

import hashlib
import json
import os
import shutil
import sys
import time

from ratchet_torch import launcher, server

root = os.environ["RATCHET_RECORD"]
adapter_config = "adapter_config.json"


def sha_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep(path):
    digest = sha_of(path)
    target = os.path.join(root, "blobs", digest)
    if not os.path.exists(target):
        shutil.copyfile(path, f"{target}.{os.getpid()}")
        os.replace(f"{target}.{os.getpid()}", target)
    return digest


def key_of(folder):
    """Names a folder by its weights, or by all files where it has none."""
    names = sorted(os.listdir(folder))
    told = [name for name in names if name.endswith(".safetensors")] or names
    return hashlib.sha256("\n".join(f"{name} {sha_of(os.path.join(folder, name))}" for name in told).encode()).hexdigest()


def keep_folder(folder):
    kept = {"key": key_of(folder), "files": {name: keep(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}}
    if adapter_config in kept["files"]:
        with open(os.path.join(folder, adapter_config)) as file:
            kept["base"] = keep_folder(os.path.normpath(os.path.join(folder, json.load(file)["base_model_name_or_path"])))
    return kept


def inputs_of(op, args):
    kept = dict(args)
    for name in ("folder", "reference"):
        is_input = name == "reference" or op in ("open", "restore_optimizer")
        if isinstance(kept.get(name), str) and is_input and os.path.isdir(kept[name]):
            kept[name] = keep_folder(kept[name])
    if "parts" in kept:
        kept["parts"] = [{"sha256": part["sha256"], "blob": keep(part["path"])} for part in kept["parts"]]
    return kept


def outputs_of(op, args):
    made = {name: keep(args[name]) for name in ("target", "scores") if args.get(name) and os.path.exists(args[name])}
    if op in ("export", "save_optimizer") and os.path.isdir(args["folder"]):
        made["key"] = key_of(args["folder"])
    return made


def recorded(answered):
    def answer(trainer, request):
        op, args = request["op"], request.get("args", {})
        at, inputs = time.time_ns(), inputs_of(op, args)
        said = answered(trainer, request)
        line = {"at": at, "options": trainer.options, "op": op, "args": inputs, "answer": said, "made": outputs_of(op, args)}
        with open(os.path.join(root, f"group-{os.getpid()}.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\n")
        return said

    return answer


os.makedirs(os.path.join(root, "blobs"), exist_ok=True)
server.answered = recorded(server.answered)
sys.exit(launcher.main(sys.argv[1:]))
