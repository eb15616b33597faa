"""Records the advantages of agents by role, by prime-rl's own classes: roles.json, which test/core/rl/agents.test.ts compares with ours.

    python record_roles.py --prime-rl GIT > roles.json
"""

import argparse
import ast
import asyncio
import json
import random
import subprocess
import sys
import types
from collections import defaultdict


def show(git, path):
    return subprocess.run(["git", "-C", git, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True).stdout


def run(git, path, names, scope):
    """Classes and functions of a file as they stand there, without annotations; what it imports is in the scope."""
    for node in ast.parse(show(git, path)).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
        if getattr(node, "name", None) in names:
            exec(compile(ast.Module([node], []), path, "exec"), scope)
    return scope


def algorithm(git, file, name, config):
    folder = "src/prime_rl/orchestrator/algo"
    scope = {"vf": types.SimpleNamespace(Episode=object, Trace=object), "defaultdict": defaultdict, "InferencePool": object}
    scope |= {"Algorithm": object, "RAEAlgoConfig": object, "HierarchicalGRPOAlgoConfig": object}
    run(git, f"{folder}/base.py", ["iter_trainable_traces"], scope)
    run(git, f"{folder}/routing.py", ["assign_advantages"], scope)
    kind = run(git, f"{folder}/{file}.py", [name], scope)[name]
    made = kind.__new__(kind)
    vars(made).update(config)
    return made


def node(count):
    return types.SimpleNamespace(token_ids=[0] * count, mask=[True] * count, advantages=None)


def trace(agent, reward, trainable=True):
    return types.SimpleNamespace(
        id="", agent=types.SimpleNamespace(name=agent, trainable=trainable), reward=reward, has_error=False, nodes=[node(2)]
    )


def scored(made, groups):
    """Group after group, by one algorithm: what each trace got; null where it got nothing."""
    told = []
    for group in groups:
        episodes = [
            types.SimpleNamespace(id=f"episode {i}", traces=[trace(*one) for one in episode]) for i, episode in enumerate(group)
        ]
        asyncio.run(made.score_group(episodes))
        told.append([[one.nodes[0].advantages and one.nodes[0].advantages[0] for one in episode.traces] for episode in episodes])
    return told


def poker(draw, groups=6, episodes=2):
    """Zero-sum, the second player's better; once a seat is not trained."""
    def hand(g, e):
        won = draw.choice([-2.0, -1.0, -1.0, 1.0])
        return [("player0", won, not (g == 3 and e == 0)), ("player1", -won, True)]

    return [[hand(g, e) for e in range(episodes)] for g in range(groups)]


def proposals(draw, groups=3, episodes=4, solvers=3):
    def episode():
        solved = [float(draw.random() < 0.5) for _ in range(solvers)]
        rate = sum(solved) / solvers
        return [("proposer", 4 * rate * (1 - rate), True), *[("solver", one, True) for one in solved]]

    return [[episode() for _ in range(episodes)] for _ in range(groups)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prime-rl", required=True)
    git = parser.parse_args().prime_rl
    cases = []
    for decay in (0.95, 0.5, 0.0):
        made = algorithm(git, "rae", "RAEAlgorithm", {"decay": decay, "baselines": defaultdict(float)})
        groups = poker(random.Random(11))
        advantages = scored(made, groups)
        cases.append({"advantage": {"type": "rae", "decay": decay}, "groups": groups, "advantages": advantages, "baselines": dict(made.baselines)})
    for agents in (["solver"], ["proposer", "solver"], ["judge"]):
        made = algorithm(git, "hierarchical_grpo", "HierarchicalGRPOAlgorithm", {"episode_agents": set(agents)})
        groups = proposals(random.Random(12))
        cases.append({"advantage": {"type": "hierarchical_grpo", "episodeAgents": agents}, "groups": groups, "advantages": scored(made, groups)})
    commit = subprocess.run(["git", "-C", git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    json.dump({"versions": {"prime-rl": commit}, "cases": cases}, sys.stdout)
    sys.stdout.write("\n")


main()
