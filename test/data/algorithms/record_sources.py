"""Records the advantages of two sources that have algorithms of their own, by prime-rl's own classes: sources.json, which test/core/rl/own-advantage.test.ts compares with ours.

    python record_sources.py --prime-rl GIT > sources.json        (torch)
"""

import argparse
import ast
import asyncio
import json
import subprocess
import sys
import types

import torch

GROUPS = {"grpo": [1.0, 0.0, 0.25, 0.5], "max_rl": [1.0, 0.0, 0.0, 1.0, 0.0], "max_rl of nothing": [0.0, 0.0, 0.0]}
FILES = {"grpo": ("grpo", "GRPOAlgorithm"), "max_rl": ("max_rl", "MaxRLAlgorithm")}


def show(git, path):
    return subprocess.run(["git", "-C", git, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True).stdout


def class_of(git, file, name):
    """The class as it stands in its file; what it imports is stood in for."""
    given = {}
    scope = {
        "torch": torch, "vf": types.SimpleNamespace(Episode=object), "Algorithm": object, "GRPOAlgoConfig": object,
        "MaxRLAlgoConfig": object, "InferencePool": object,
        "iter_trainable_traces": lambda episodes: ((episode, trace) for episode in episodes for trace in episode.traces),
        "assign_advantages": lambda trace, advantage: given.__setitem__(id(trace), advantage),
    }
    for node in ast.parse(show(git, f"src/prime_rl/orchestrator/algo/{file}.py")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            exec(compile(ast.Module([node], []), name, "exec"), scope)
    return scope[name], given


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prime-rl", required=True)
    git = parser.parse_args().prime_rl
    cases = []
    for name, rewards in GROUPS.items():
        kind, given = class_of(git, *FILES[name.split()[0]])
        algorithm = kind.__new__(kind)
        algorithm.length_penalty = None
        traces = [types.SimpleNamespace(reward=reward) for reward in rewards]
        asyncio.run(algorithm.score_group([types.SimpleNamespace(traces=[trace]) for trace in traces]))
        cases.append({"algorithm": name.split()[0], "rewards": rewards, "advantages": [given.get(id(trace), 0.0) for trace in traces]})
    commit = subprocess.run(["git", "-C", git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    json.dump({"versions": {"prime-rl": commit, "torch": torch.__version__}, "cases": cases}, sys.stdout, indent=1)
    sys.stdout.write("\n")


main()
