"""The page about the order of locks names statements and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.project import DOCS, ROOT, reads_trees, tree

PAGE = (DOCS / "locks.md").read_text()
#: `queue.leases.CLAIM`, `sms.received.inbox.process_due`, `contacts.importing`; and `sms/accepting/accept.sql`.
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+|[a-z_/]+\.sql)`", PAGE)))


def found(name: str) -> bool:
    """Whether there is a SQL file, a module, or something in a module, with this name."""
    package = ROOT / "heliograph"
    if name.endswith(".sql"):
        return (package / name).is_file()
    path = package / name.replace(".", "/")
    if path.with_suffix(".py").is_file():
        return True
    module, _, member = name.rpartition(".")
    return member in defined((package / module.replace(".", "/")).with_suffix(".py"))


def defined(path: Path) -> set[str]:
    """The names that a module defines at its top level."""
    names: set[str] = set()
    for node in tree(path).body if path.is_file() else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
    return names


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_exists(name: str) -> None:
    assert found(name), f"docs/locks.md names {name}: has its lock moved?"


@reads_trees
def test_every_statement_that_waits_for_rows_in_an_order_is_on_the_page() -> None:
    """A statement with a documented lock order has it because another one might lock the rows in another order."""
    missing = []
    for path in sorted((ROOT / "heliograph").rglob("*.py")):
        if "simulators" in path.parts:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
                text = ast.unparse(node.value)
                if re.search(
                    r"ORDER BY [\w., ]+ FOR (NO KEY )?UPDATE(?! SKIP| OF \w+ SKIP)", re.sub(r"\\n|\s+", " ", text)
                ):
                    name = ".".join(path.relative_to(ROOT / "heliograph").with_suffix("").parts) + f".{target.id}"
                    missing += [name] if name not in NAMED else []
    assert missing == [], "say in docs/locks.md where it stands in the order"
