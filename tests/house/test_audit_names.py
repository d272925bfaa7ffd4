"""Every value that the audit log records has a name for its readers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from heliograph.accounts.installation import Installation
from heliograph.accounts.organizations import Organization
from heliograph.accounts.rate_limits import RateLimits
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.classes import kinds
from heliograph.contacts.undoing import Undone
from heliograph.pages.lists.field_names import FIELDS
from heliograph.privacy.erasure import ErasureReceipt
from heliograph.senders.book import NumberRule, SenderRule
from heliograph.sms import refunds
from heliograph.webhooks.endpoints import Endpoint
from tests.house.project import ROOT, reads_trees

pytestmark = reads_trees

#: Structures that are recorded as a whole, and names that are made from others.
STRUCTS = (Organization, SendDefaults, Undone, ErasureReceipt, Endpoint, Installation, SenderRule, NumberRule)
MADE = {f"rate_{bucket}" for bucket in RateLimits.__struct_fields__} | set(kinds.NAMES) | set(refunds.REASONS)
#: Arguments of functions that record; their dictionaries hold what is recorded.
SIDES = ("before", "after")
#: A supplier's settings keep their names.
RAW = "settings."


def _recorded(tree: ast.Module) -> Iterator[str]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given: dict[str, list[ast.AST]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            given.setdefault(name.id, []).append(node.value)
        if function.name == "_audit_values":
            yield from _keys(function, given)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("audit.record", "audit.Entry", "_record"):
                for argument in node.keywords:
                    if argument.arg in SIDES:
                        yield from _keys(argument.value, given)


def _keys(value: ast.AST, given: dict[str, list[ast.AST]]) -> Iterator[str]:
    """Literal keys of the dictionaries in an expression, and in what its names stand for."""
    sources = [value]
    for name in ast.walk(value):
        if isinstance(name, ast.Name):
            sources += given.get(name.id, [])
    for source in sources:
        for node in ast.walk(source):
            keys: list[ast.expr | None] = []
            match node:
                case ast.Dict():
                    keys = node.keys
                case ast.DictComp(generators=[ast.comprehension(iter=ast.Tuple(elts=names))]):
                    keys = [*names]
                case ast.DictComp(
                    generators=[ast.comprehension(iter=ast.Call(func=ast.Attribute(value=ast.Name(id=id))))]
                ):
                    sources += [one for one in given.get(id, []) if one not in sources]
            yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def test_every_recorded_value_has_a_name() -> None:
    found: dict[str, Any] = dict.fromkeys(
        [*MADE, *(name for one in STRUCTS for name in one.__struct_fields__)], "struct"
    )
    for path in (ROOT / "heliograph").rglob("*.py"):
        for name in _recorded(ast.parse(path.read_text())):
            found.setdefault(name, path.name)
    assert len(found) > 120
    assert {name: place for name, place in found.items() if name not in FIELDS and not name.startswith(RAW)} == {}
