"""Calls a function of the user's that scores a rollout. Python 3.8 and newer, nothing but the standard library.

    python3 ratchet_score.py FILE NAME     a line of JSON in: the rollout; a line of JSON out: {"value": …}

What the function prints goes to stderr, so that the line that answers is alone on stdout.
"""
import importlib.util
import json
import os
import sys


def main() -> None:
    file, name = sys.argv[1:3]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.path.dirname(file))
    spec = importlib.util.spec_from_file_location("ratchet_user_score", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    score = getattr(module, name, None)
    if not callable(score):
        raise SystemExit(f"{file} has no function {name}")
    value = score(json.load(sys.stdin))
    if hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    print(json.dumps({"value": value}), file=out, flush=True)


if __name__ == "__main__":
    main()
