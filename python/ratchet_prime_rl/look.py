"""
Says what an installation of prime-rl is made of, as one line of JSON: the fields of its transport's structs and of its settings, and the files by which its
broadcasts say that they are whole. Its sources are read and not imported, which takes a moment and needs no GPU. Without arguments, the prime-rl of this Python
is looked for; arguments name the folders of its packages, and any Python will do.
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
    "broadcasts": ("transports/weights/base.py",),
    "settings": ("configs/trainer.py", "trainer/rl/config.py"),
    "more_settings": ("configs/shared.py", "trainer/config.py"),
}
program = ("trainer/rl/train.py",)


def main(folders):
    roots = folders or installed()
    missing = [] if folders else [name for name in ("torch", "msgspec", "prime_rl") if importlib.util.find_spec(name) is None]
    trees = {name: parsed(roots, files) for name, files in sources.items()}
    if "prime_rl" not in missing and parsed(roots, program) is None:
        missing.append("prime_rl.trainer.rl.train")
    settings = [tree for tree in (trees["more_settings"], trees["settings"]) if tree is not None]
    print(
        json.dumps(
            {
                "version": None if folders else version(),
                "missing": missing,
                "structs": fields(trees["structs"]),
                "markers": sorted({*markers(trees["broadcast"]), *markers(trees["broadcasts"])}),
                "settings": {**fields(trees["more_settings"]), **fields(trees["settings"])},
                "types": types(settings),
                "mentioned": mentioned(settings),
            }
        )
    )


def installed():
    """Folders of the packages of this Python's prime-rl."""
    found = importlib.util.find_spec("prime_rl")
    roots = list(found.submodule_search_locations or []) if found else []
    for name in () if found is None else ("prime_rl.configs",):
        try:
            part = importlib.util.find_spec(name)
        except ImportError:
            part = None
        if part is not None:
            roots += [os.path.dirname(path) for path in part.submodule_search_locations or []]
    return roots


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


# Bases that have no settings.
roots_of_classes = ("BaseConfig", "BaseModel", "BaseSettings")


def types(trees):
    """Of each class all of whose bases are known, its fields, each with the classes that its table may be; none where that is not known."""
    nodes = [node for tree in trees for node in tree.body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    aliases = {}
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and node.value is not None:
            aliases[target.id] = node.value

    def classes_in(expression, seen=()):
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        found = names & classes.keys()
        for name in (names & aliases.keys()) - set(seen):
            found |= classes_in(aliases[name], (*seen, name))
        return found

    def of(name):
        if name not in classes:
            return {} if name in roots_of_classes else None
        found = {}
        for base in classes[name].bases:
            inherited = of(base.id) if isinstance(base, ast.Name) else None
            if inherited is None:
                return None
            found.update(inherited)
        for item in classes[name].body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = sorted(classes_in(item.annotation))
        return found

    known = {name: of(name) for name in classes}
    return {name: found for name, found in known.items() if found is not None}


def mentioned(trees):
    """Words in texts of these sources: a name that is no field may be one that they still translate."""
    texts = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return sorted({text for text in texts if text.isidentifier()})


def markers(tree):
    """Names of files that a broadcast makes: what stands behind a slash, as a text or as the name of one."""
    if tree is None:
        return set()
    assigned = (node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    named = {target.id: node.value.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    behind = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    values = [node.value if isinstance(node, ast.Constant) else named.get(node.id) if isinstance(node, ast.Name) else None for node in behind]
    return {value for value in values if isinstance(value, str)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
