"""
Repeats the requests that record.py kept, on another device, with Python alone: figures and log probabilities must be those of the record, refusals must have
its codes, and versions that were equal there must be equal here.

    python play.py --cases FOLDER --device cuda
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))

import torch
from safetensors.torch import load_file

from ratchet_torch import server
from ratchet_torch.ranks import Ranks
from ratchet_torch.trainer import Trainer

# Tolerances between two devices in float32: a figure's relative and absolute difference, and that of a log probability.
relative, absolute, nats = 2e-2, 1e-3, 1e-3


class Player:
    def __init__(self, cases, ranks, device):
        self.cases, self.ranks, self.device = cases, ranks, device
        self.work = tempfile.mkdtemp(prefix="ratchet-play-")
        self.trainers, self.made, self.digests, self.wrong = {}, {}, {}, []
        self.count = 0

    def play(self, group, line):
        self.count += 1
        op, told = line["op"], line["answer"]
        trainer = self.trainers.get(group)
        if trainer is None:
            trainer = self.trainers[group] = Trainer({**line["options"], "device": self.device}, self.ranks)
        args = self.inputs(line["args"])
        for name in ("target", "scores"):
            if args.get(name):
                args[name] = self.room()
        if op in ("export", "save_optimizer"):
            args["folder"] = self.room(is_folder=True)
        said = server.answered(trainer, {"id": 0, "op": op, "args": args})
        self.compare(f"{group} #{self.count} {op}", said, told)
        if "key" in line["made"]:
            self.made[line["made"]["key"]] = args["folder"]
        for name in ("target", "scores"):
            if name in line["made"] and args.get(name) and os.path.exists(args[name]):
                self.compare_tensors(f"{group} #{self.count} {op}", args[name], self.blob(line["made"][name]))

    def inputs(self, args):
        args = dict(args)
        for name in ("folder", "reference"):
            if isinstance(args.get(name), dict):
                args[name] = self.folder(args[name])
        if "parts" in args:
            args["parts"] = [{"path": self.blob(part["blob"]), "sha256": part["sha256"]} for part in args["parts"]]
        return args

    def folder(self, kept):
        """A version made here stands for the version made there."""
        if kept["key"] not in self.made:
            folder = self.room(is_folder=True)
            for name, digest in kept["files"].items():
                shutil.copyfile(self.blob(digest), os.path.join(folder, name))
            self.made[kept["key"]] = folder
        folder = self.made[kept["key"]]
        if "base" in kept:
            self.rebase(folder, self.folder(kept["base"]))
        return folder

    @staticmethod
    def rebase(folder, base):
        path = os.path.join(folder, "adapter_config.json")
        with open(path) as file:
            config = json.load(file)
        with open(path, "w") as file:
            json.dump({**config, "base_model_name_or_path": os.path.relpath(base, folder)}, file)

    def room(self, is_folder=False):
        path = tempfile.mkdtemp(dir=self.work)
        return path if is_folder else os.path.join(path, "out.safetensors")

    def blob(self, digest):
        return os.path.join(self.cases, "blobs", digest)

    def compare(self, where, said, told):
        if ("error" in said) != ("error" in told) or said.get("error", {}).get("code") != told.get("error", {}).get("code"):
            return self.wrong.append(f"{where}: {said.get('error', 'done')}, recorded {told.get('error', 'done')}")
        mine, theirs = said.get("result"), told.get("result")
        if isinstance(theirs, str):
            self.same_digest(where, mine, theirs)
        elif isinstance(theirs, dict):
            if "digest" in theirs:
                self.same_digest(where, mine["digest"], theirs["digest"])
            for name in ("applied", "packs"):
                if mine.get(name) != theirs.get(name):
                    self.wrong.append(f"{where}: {name} {mine.get(name)}, recorded {theirs.get(name)}")
            for name, value in theirs.get("metrics", {}).items():
                own = mine["metrics"].get(name)
                if isinstance(value, str) or isinstance(own, str):
                    is_same = value == own
                else:
                    is_same = own is not None and math.isclose(own, value, rel_tol=relative, abs_tol=absolute)
                if not is_same:
                    self.wrong.append(f"{where}: {name} is {own}, recorded {value}")

    def same_digest(self, where, mine, theirs):
        known = self.digests.setdefault(theirs, mine)
        if known != mine:
            self.wrong.append(f"{where}: versions that are equal in the record are not equal here")
        if sum(1 for one in self.digests.values() if one == mine) > 1:
            self.wrong.append(f"{where}: versions that differ in the record are equal here")

    def compare_tensors(self, where, mine, theirs):
        own, recorded = load_file(mine), load_file(theirs)
        for name, tensor in recorded.items():
            off = float((own[name] - tensor).abs().max()) if tensor.numel() else 0.0
            if not off <= nats:
                self.wrong.append(f"{where}: {name} are {off} apart")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--cases", required=True)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = options.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    lines = []
    for name in sorted(os.listdir(asked.cases)):
        if name.endswith(".jsonl"):
            with open(os.path.join(asked.cases, name)) as file:
                lines += [(name.removesuffix(".jsonl"), json.loads(line)) for line in file]
    lines = [pair for pair in lines if pair[1]["options"].get("ranks", 1) == 1]
    lines.sort(key=lambda pair: pair[1]["at"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks({"ranks": 1, "device": asked.device, "folder": folder}, None)
        player = Player(asked.cases, ranks, asked.device)
        for group, line in lines:
            player.play(group, line)
        ranks.close()
    shutil.rmtree(player.work)
    print(json.dumps({"device": asked.device, "requests": player.count, "groups": len(player.trainers), "wrong": len(player.wrong), "first": player.wrong[:20]}, indent=2))
    return 1 if player.wrong or player.count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
