"""Digest of a package's code at its import, with which a process started later is compared."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path


def code_digest(module: str) -> str | None:
    """Hex digest of the names and bytes of the module's Python files; None if it has none on disk."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        roots = [Path(root) for root in spec.submodule_search_locations]
        files = sorted((file, str(file.relative_to(root))) for root in roots for file in root.rglob("*.py"))
    elif spec.origin and Path(spec.origin).is_file():
        files = [(Path(spec.origin), Path(spec.origin).name)]
    else:
        return None
    digest = hashlib.sha256()
    for file, name in files:
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
