"""Every check that the console shows has a section in the runbook, and every section that is named exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from heliograph.api.document.guide import Guide
from heliograph.console.engine.runbook import PAGE, SECTIONS

ROOT = Path(__file__).parents[2]
#: Where checks are defined that the console shows; those of a command are on its own screen.
CHECKED = (
    "doctor.py",
    "health/backups.py",
    "health/keys.py",
    "health/snapshots.py",
    "health/vacuum.py",
    "sms/checks.py",
    "sms/reports/remedies.py",
    "whatsapp/checks.py",
    "webhooks/checks.py",
    "mail/checks.py",
    "people/operators/checks.py",
)


def names(path: Path) -> Iterator[str]:
    """The names of checks: the first argument, or the sentence assigned to it before."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                given |= {getattr(one, "id", ""): value for one, value in zip(targets, values, strict=False)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check":
                first = node.args[0]
                said = given[first.id] if isinstance(first, ast.Name) else first
                assert isinstance(said, ast.Call), ast.unparse(node)
                assert isinstance(said.args[0], ast.Constant), ast.unparse(said)
                yield said.args[0].value


def test_every_check_has_its_section_in_the_runbook() -> None:
    made = {name for one in CHECKED for name in names(ROOT / "heliograph" / one)}
    assert len(made) > 25
    assert made == SECTIONS.keys()


def test_every_section_is_there() -> None:
    page = Guide().page(PAGE)
    anchors = set(re.findall(r'<h2 id="([^"]+)"', page))
    assert set(SECTIONS.values()) - anchors == set()
    written = {one for one in anchors if one.startswith("check-")}
    assert written - set(SECTIONS.values()) == set(), "nothing leads there"
