"""Which functions of the project a function refers to, as far as its source tells: by name, through imports, and
through callbacks. Classes count with all their methods."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.house.project import ROOT, tree

PACKAGE = ROOT / "heliograph"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def trees() -> dict[str, ast.Module]:
    """The modules by name, without the simulators, which represent other systems."""
    return {module_of(path): tree(path) for path in sorted(PACKAGE.rglob("*.py")) if "simulators" not in path.parts}


@cache
def definitions() -> dict[str, ast.stmt]:
    """Functions, classes and constants at the top level, by module and name."""
    found: dict[str, ast.stmt] = {}
    for module, found_in in trees().items():
        for node in found_in.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found[f"{module}.{name}"] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    found[f"{module}.{name}"] = node
    return found


@cache
def imports(module: str) -> dict[str, str]:
    """What the names imported by a module refer to."""
    found = {}
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


@cache
def references(name: str) -> set[str]:
    """What a definition refers to, as names in `definitions`."""
    module = name.rpartition(".")[0]
    known = imports(module)
    found = set()
    for node in ast.walk(definitions()[name]):
        match node:
            case ast.Attribute(value=ast.Name(id=first), attr=last):
                found.add(f"{known.get(first, '')}.{last}")
            case ast.Name(id=plain):
                found |= {known.get(plain, ""), f"{module}.{plain}"}
    return found & definitions().keys()


def reached(names: Iterable[str]) -> set[str]:
    """These definitions, and everything that they refer to, directly or indirectly."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += references(name)
    return seen


def texts(names: Iterable[str]) -> set[str]:
    """The string constants in these definitions."""
    return {text for name in names for text in _texts(name)}


@cache
def _texts(name: str) -> frozenset[str]:
    """The same for one definition: hundreds of tests reach most of the project, each from elsewhere."""
    return frozenset(
        node.value
        for node in ast.walk(definitions()[name])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
