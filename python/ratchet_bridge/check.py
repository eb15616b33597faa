"""Facts about an environment's package without a rollout: its exports, its arguments, methods that do not fit.

As a program, `python -P check.py probe MODULE v0|v1`, it says as one line of JSON whether a package is an environment.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from typing import Any

#: Methods of verifiers that environments override, and whose parameters have changed between its versions.
OVERRIDDEN = ("is_completed", "update_tool_args", "env_response", "setup_state")


def check(env: Any, module: str) -> dict[str, Any]:
    """Report on a loaded v0 environment: {arguments: […], doc, findings: [{severity, place, says, fix}]}."""
    fits = [finding for leaf in leaves(env) for finding in findings(leaf)]
    return {**declared(module), "findings": [*requirement_findings(module), *fits]}


def requirement_findings(module: str) -> list[dict[str, Any]]:
    """
    Requirements of a package that its Python does not meet: pip replaces versions that another package had pinned, with only
    a passing message.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = importlib.metadata.distribution(module).requires or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for text in wanted:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            says = f"it asks for {requirement.name}{requirement.specifier}, and its Python has {version or 'none'}"
            fix = "another environment here has replaced it: install this one again, in a set of its own (npx ratchet-rl env install … --set NAME)"
            found.append({"severity": "error", "place": None, "says": says, "fix": fix})
    return found


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def leaves(env: Any) -> Iterator[Any]:
    """Environments that generate: a group's members."""
    children = getattr(env, "envs", None) if hasattr(env, "env_map") else None
    if not children:
        yield env
        return
    for child in children:
        yield from leaves(child)


def declared(module: str) -> dict[str, Any]:
    """Declared parameters of `load_environment`."""
    load = getattr(importlib.import_module(module), "load_environment", None)
    if load is None:
        return {"arguments": [], "doc": None}
    arguments = [
        {
            "name": name,
            "default": None if parameter.default is parameter.empty else shown(parameter.default),
            "annotation": None if parameter.annotation is parameter.empty else annotation(parameter.annotation),
        }
        for name, parameter in inspect.signature(load).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return {"arguments": arguments, "doc": inspect.getdoc(load)}


def shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def annotation(value: Any) -> str:
    return value if isinstance(value, str) else inspect.formatannotation(value)


# --- methods that do not fit


def findings(env: Any) -> Iterator[dict[str, Any]]:
    kinds = type(env).__mro__
    for position, kind in enumerate(kinds):
        if is_verifiers(kind):
            continue
        for name in OVERRIDDEN:
            method = vars(kind).get(name)
            if inspect.isfunction(method):
                parent = next((vars(above)[name] for above in kinds[position + 1 :] if name in vars(above)), None)
                yield from compare(kind, name, method, parent)


def is_verifiers(kind: type) -> bool:
    return kind is object or kind.__module__.split(".")[0] == "verifiers"


def compare(kind: type, name: str, method: Any, parent: Any) -> Iterator[dict[str, Any]]:
    def finding(severity: str, says: str, fix: str) -> dict[str, Any]:
        return {"severity": severity, "place": place_of(method), "says": f"{kind.__name__}.{name} {says}", "fix": fix}

    if parent is None:
        base = next((above.__name__ for above in kind.__mro__[1:] if is_verifiers(above)), "its parent")
        yield finding("warning", f"is never called: {base} has no {name}", parentless_fix(name, base))
        return
    wanted = f"`{'async ' if inspect.iscoroutinefunction(parent) else ''}def {name}{signature_of(parent)}`"
    for severity, problem in mismatches(method, parent):
        fix = f"declare it as its parent does: {wanted}"
        if name == "is_completed":
            fix = "remove it, and write the condition as a method with @vf.stop: async def done(self, state) -> bool"
        yield finding(severity, problem, fix)
    if name == "is_completed":
        yield finding(
            "warning",
            "takes the place of verifiers' own, which asks all stop conditions (max_turns, errors, too long a prompt)",
            "write the condition as a method with @vf.stop: `@vf.stop` over `async def done(self, state) -> bool`",
        )
    if name == "env_response" and returns_two(method):
        yield finding(
            "error",
            "returns messages and state; verifiers takes messages alone",
            "change the state in place, and return the messages",
        )


def parentless_fix(name: str, base: str) -> str:
    if name == "update_tool_args":
        return f"derive from vf.StatefulToolEnv, not {base}, or remove it"
    if name in ("env_response", "setup_state"):
        return f"derive from vf.MultiTurnEnv, not {base}, or remove it"
    return "remove it"


def mismatches(method: Any, parent: Any) -> Iterator[tuple[str, str]]:
    """Why a call that fits the parent's method would not fit this one, or may not in future."""
    if inspect.iscoroutinefunction(parent) and not inspect.iscoroutinefunction(method):
        yield "error", "is a plain function where its parent's is async: verifiers awaits what it returns"
    if inspect.iscoroutinefunction(method) and not inspect.iscoroutinefunction(parent):
        yield "error", "is async where its parent's is a plain function: verifiers does not await it"
    ours, theirs = parameters_of(method), parameters_of(parent)
    ours_by_position = positional(ours)
    takes_more = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in ours)
    takes_named = any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours)
    expected = [parameter.name for parameter in positional(theirs)]
    given = [parameter.name for parameter in ours_by_position]
    if given[: len(expected)] != expected and not (takes_more and expected[: len(given)] == given):
        yield "error", f"takes ({', '.join(given)}) where verifiers gives ({', '.join(expected)})"
        return
    required = [parameter.name for parameter in ours_by_position[len(expected) :] if parameter.default is parameter.empty]
    required += [p.name for p in ours if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required:
        yield "error", f"needs {', '.join(required)}, which verifiers does not give"
    if not takes_named and any(parameter.kind is parameter.VAR_KEYWORD for parameter in theirs):
        yield "warning", "does not take **kwargs, which its parent does"


def parameters_of(method: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())[1:]


def positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]


def signature_of(method: Any) -> str:
    """Shortened to readable names, without modules."""
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in inspect.signature(method).parameters.values()]
    return str(inspect.Signature(parameters))


def returns_two(method: Any) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError, TypeError):
        return False
    return any(isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) for node in ast.walk(tree))


def place_of(thing: Any) -> str | None:
    try:
        file = inspect.getsourcefile(thing)
        return f"{file}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return None


# --- whether a package is an environment


def probe(module: str, api: str) -> dict[str, Any]:
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        return {"ok": False, "error": failure(error, module)}
    found = {"ok": True, "file": getattr(imported, "__file__", None)}
    return {**found, "load_environment": callable(getattr(imported, "load_environment", None)), "taskset": taskset(imported, api)}


def taskset(imported: Any, api: str) -> str | None:
    """Name of the Taskset that a v1 package exports."""
    if api != "v1":
        return None
    import verifiers.v1 as vf

    names = getattr(imported, "__all__", None) or dir(imported)
    things = ((name, getattr(imported, name, None)) for name in names)
    return next((n for n, t in things if isinstance(t, type) and issubclass(t, vf.Taskset) and not is_verifiers(t)), None)


def failure(error: BaseException, module: str) -> dict[str, Any]:
    """`missing`: the module that the package imports and its Python lacks; `own`: it is the package itself."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    else:
        inside = [frame for frame in traceback.extract_tb(error.__traceback__) if is_within(frame.filename, module)]
        place = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else None
    text = "".join(traceback.format_exception(error.with_traceback(outside_importlib(error.__traceback__))))[-4000:]
    return {"type": type(error).__name__, "message": str(error), "traceback": text, "missing": missing, "own": missing == module, "place": place}


def outside_importlib(trace: Any) -> Any:
    """A traceback from the first frame that is neither the import machinery's nor this file's."""
    first = trace
    while first is not None and (first.tb_frame.f_code.co_filename == __file__ or "importlib" in first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or trace


def is_within(file: str, module: str) -> bool:
    """Whether a file is one of the package's own."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return False
    return file == spec.origin or (bool(spec.submodule_search_locations) and file.startswith(os.path.dirname(spec.origin) + os.sep))


def main() -> None:
    # The package's output goes to stderr: stdout has only the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    op, module, api = sys.argv[1:4]
    if op != "probe":
        raise SystemExit(f"check.py: unknown operation {op!r}")
    print(json.dumps(probe(module, api)), file=answer, flush=True)
    os._exit(0)  # threads that the package started keep nobody waiting


if __name__ == "__main__":
    main()
