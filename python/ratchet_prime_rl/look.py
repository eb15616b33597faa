"""
Says what an installation of prime-rl is made of, as one line of JSON: the fields of its transport's structs and of its settings, and the files by which its
broadcasts say that they are whole. Its sources are read and not imported, which takes a moment and needs no GPU.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import sys

sources = {
    "structs": ("transports/rollouts/types.py", "transport/types.py"),
    "broadcast": ("transports/weights/filesystem.py", "trainer/rl/broadcast/filesystem.py"),
    "settings": ("configs/trainer.py", "trainer/rl/config.py"),
    "more_settings": ("configs/shared.py", "trainer/config.py"),
}
program = ("trainer/rl/train.py",)


def main():
    found = importlib.util.find_spec("prime_rl")
    roots = list(found.submodule_search_locations or []) if found else []
    for name in () if found is None else ("prime_rl.configs",):
        try:
            part = importlib.util.find_spec(name)
        except ImportError:
            part = None
        if part is not None:
            roots += [os.path.dirname(path) for path in part.submodule_search_locations or []]
    missing = [name for name in ("torch", "msgspec", "prime_rl") if importlib.util.find_spec(name) is None]
    trees = {name: parsed(roots, files) for name, files in sources.items()}
    if "prime_rl" not in missing and parsed(roots, program) is None:
        missing.append("prime_rl.trainer.rl.train")
    print(
        json.dumps(
            {
                "version": version(),
                "missing": missing,
                "structs": fields(trees["structs"]),
                "markers": markers(trees["broadcast"]),
                "settings": {**fields(trees["more_settings"]), **fields(trees["settings"])},
            }
        )
    )


def version():
    try:
        return importlib.metadata.version("prime-rl")
    except importlib.metadata.PackageNotFoundError:
        return None


def parsed(roots, files):
    for root in roots:
        for file in files:
            path = os.path.join(root, file)
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as source:
                    return ast.parse(source.read())
    return None


def fields(tree):
    """Fields of each class, in their order; those of a base in the same file come first."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} if tree else {}

    def of(name):
        node = classes[name]
        inherited = [each for base in node.bases if isinstance(base, ast.Name) and base.id in classes for each in of(base.id)]
        own = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
        return [each for each in inherited if each not in own] + own

    return {name: of(name) for name in classes}


def markers(tree):
    """Names of files that a broadcast makes: what stands behind a slash."""
    if tree is None:
        return []
    divisions = (node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
    return sorted({node.right.value for node in divisions if isinstance(node.right, ast.Constant) and isinstance(node.right.value, str)})


if __name__ == "__main__":
    sys.exit(main())
