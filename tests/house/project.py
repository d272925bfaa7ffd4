"""The project's files: where they are, their syntax trees, and the blocks of a Markdown document."""

from __future__ import annotations

import ast
import gc
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Everything that is ours, without environments, caches and measurements.
_FOLDERS = ("heliograph", "tests", "bench", "release", "docs", ".ci")
_FILES = ("Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", "pyproject.toml")
#: Vendored files, kept as published.
VENDORED = ROOT / "heliograph" / "api" / "document" / "viewer"
VENDORS = (VENDORED, ROOT / "heliograph" / "pages" / "static" / "vendor", ROOT / "tests" / "browser" / "vendor")
_LEFT_OUT = frozenset({"__pycache__", "results", ".hypothesis", ".pytest_cache"})
#: For tests that read the trees of the whole package. Parsing takes 3 s of processor time and 200 MB, and walking
#: through them as much again: one worker runs all of these tests.
reads_trees = pytest.mark.xdist_group("trees")


class Block(msgspec.Struct, frozen=True):
    """A fenced block. `words`: its info string, such as ["sh", "run"]; `after`: the text up to the next block."""

    words: list[str]
    text: str
    after: str
    line: int


def files(suffix: str = "") -> Iterator[Path]:
    """The project's files, including uncommitted ones."""
    for name in _FILES:
        if name.endswith(suffix):
            yield ROOT / name
    for path in ROOT.glob("requirements*"):
        if path.name.endswith(suffix):
            yield path
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if path.is_file() and not _LEFT_OUT & set(path.relative_to(ROOT).parts):
                yield path


def tree(path: Path) -> ast.Module:
    """A file's syntax tree, for tests that only read it. Those of the package are cached: many tests read them."""
    return _kept(path) if path.is_relative_to(ROOT / "heliograph") else _read(path)


def _read(path: Path) -> ast.Module:
    # All of it stays for now: a garbage collection would take as long as parsing.
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


_kept = cache(_read)


def name_of(path: Path) -> str:
    """A path as shown in a failure."""
    return str(path.relative_to(ROOT))


def documents() -> list[Path]:
    """README, changelog and all of docs."""
    return [path for path in files(".md") if path.parent == ROOT or path.is_relative_to(DOCS)]


_BLOCK = re.compile(r"^(?P<indent> *)```(?P<words>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


def blocks(path: Path) -> list[Block]:
    """A document's fenced blocks, in order, including those in lists."""
    text = path.read_text()
    found = list(_BLOCK.finditer(text))
    made = []
    for match, following in zip_longest(found, found[1:]):
        after = text[match.end() : following.start() if following else len(text)]
        line = text.count("\n", 0, match.start()) + 1
        made.append(Block(match["words"].split(), textwrap.dedent(match["text"]), after, line))
    return made


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return _BLOCK.sub("", path.read_text())


def table(path: Path, head: str) -> list[list[str]]:
    """The cells of the table whose first column is headed `head`, without code marks."""
    lines = prose(path).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows
