"""Lists of commands that were cut say so, on stderr: a script that takes them for complete would miss the rest."""

from __future__ import annotations

import ast

import pytest

from heliograph.cli.terminal.printing import show
from tests.house.project import ROOT

ROWS = [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("limit", "said"), [(2, "2 are shown, which is the limit; there may be more (--limit).\n"), (3, ""), (None, "")]
)
def test_a_list_that_was_cut_says_so(limit: int | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, True, ("id",), limit=limit)
    out, err = capsys.readouterr()
    assert (out.count("id"), err) == (2, said)


def test_every_list_with_a_limit_says_so() -> None:
    limited, silent = [], []
    for file in sorted((ROOT / "heliograph/cli").rglob("*.py")):
        for one in ast.walk(ast.parse(file.read_text())):
            if not isinstance(one, ast.FunctionDef):
                continue
            taken = [arg for arg in one.args.args if arg.arg == "limit" and "Maximum number" in ast.unparse(arg)]
            if not taken:
                continue
            limited.append(one.name)
            calls = [call for call in ast.walk(one) if isinstance(call, ast.Call) and ast.unparse(call.func) == "show"]
            if not any("limit" in [word.arg for word in call.keywords] for call in calls):
                silent.append(f"{file.name}: {one.name}")
    assert len(limited) > 20
    assert silent == []
