"""Names such as `module.Name` in docstrings and comments exist, so that a rename includes its references."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.project import ROOT, name_of, reads_trees, tree

FILES = sorted((ROOT / "heliograph").rglob("*.py"))
#: Not part of a longer path, an address or a setting.
REFERENCE = re.compile(r"(?<![\w./:@-])([a-z]\w*)\.([A-Za-z_]\w*)\b")
#: A docstring or a comment; the text before a string distinguishes a docstring from SQL.
PROSE = re.compile(r'^ *"""(?P<docstring>.*?)"""|""".*?"""|(?:^ *|  )#(?P<comment>:? [^\n]*)', re.M | re.S | re.A)
IMPORT = re.compile(r"^from (heliograph[\w.]*) import (\([^)]*\)|.*)$", re.M)


@reads_trees
def test_what_a_docstring_names_in_a_module_exists() -> None:
    dangling = [
        f"{name_of(path)}: {module}.{name}"
        for path in FILES
        for text in written(path)
        for module, name in REFERENCE.findall(text)
        if (found := modules_meant(path, module, name)) and not any(name in names_of(one) for one in found)
    ]
    assert not dangling, dangling


def modules_meant(path: Path, module: str, name: str) -> list[Path]:
    """The modules that a reference may mean. A lower-case name may as well be an event, a column or a file, unless the
    module is imported under its own name."""
    is_certain = name != name.lower() or (module in imports(path) and name not in ("py", "sql", "toml"))
    return modules().get(module, []) if is_certain else []


def written(path: Path) -> Iterator[str]:
    """A module's docstrings and comments."""
    for match in PROSE.finditer(path.read_text()):
        yield match["docstring"] or match["comment"] or ""


@cache
def modules() -> dict[str, list[Path]]:
    """Modules and packages by the last part of their names."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in FILES:
        found[path.parent.name if path.name == "__init__.py" else path.stem].append(path)
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """What a module imports of the product."""
    return frozenset(
        name for _, names in IMPORT.findall(path.read_text()) for name in re.findall(r"(\w+)(?=[,)\s]|$)", names)
    )


@cache
def names_of(path: Path) -> frozenset[str]:
    """What a module defines or imports, and the modules of a package."""
    found = {one.stem for one in path.parent.iterdir()} if path.name == "__init__.py" else set()
    # Functions are left out: their local names are their own.
    nodes: list[ast.AST] = [*tree(path).body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        nodes += ast.iter_child_nodes(node)
    return frozenset(found)
