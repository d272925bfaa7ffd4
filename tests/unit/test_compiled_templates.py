"""Templates are compiled once, whatever happens to the cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment

from heliograph.console import places as console
from heliograph.dashboard import places as dashboard
from heliograph.pages.serving.rendering import kit
from heliograph.pages.templates import FOLDER, Compiled, environment, render

NAME = "greeting.html"


@pytest.fixture(autouse=True)
def _writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With whatever options Python was started."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def folder(place: Path, text: str) -> Path:
    (place / NAME).write_text(text)
    return place


async def greeting(place: Path) -> str:
    """The template's output in a process that starts now."""
    return await render(made(place), NAME, {"name": "<Ana>"})


def made(place: Path) -> Environment:
    return environment([place], kit(())[0])


def is_kept(place: Path, text: str) -> bool:
    return Compiled().get_bucket(made(place), NAME, str(place / NAME), text).code is not None


def kept(place: Path) -> Path:
    (found,) = (place / "__pycache__").iterdir()
    return found


async def test_what_was_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    folder(tmp_path, "Hello, {{ name }}")
    assert await greeting(tmp_path) == "Hello, &lt;Ana&gt;"
    assert is_kept(tmp_path, "Hello, {{ name }}")
    before = kept(tmp_path).stat()
    assert await greeting(tmp_path) == "Hello, &lt;Ana&gt;"
    assert kept(tmp_path).stat().st_ino == before.st_ino


async def test_a_template_that_has_changed_is(tmp_path: Path) -> None:
    folder(tmp_path, "Hello, {{ name }}")
    await greeting(tmp_path)
    folder(tmp_path, "Olá, {{ name }}")
    assert await greeting(tmp_path) == "Olá, &lt;Ana&gt;"
    assert not is_kept(tmp_path, "Hello, {{ name }}")


@pytest.mark.parametrize("length", [0, 10, 30, 60, 150])
async def test_so_is_one_of_which_half_was_written(tmp_path: Path, length: int) -> None:
    folder(tmp_path, "Hello, {{ name }}")
    await greeting(tmp_path)
    whole = kept(tmp_path).read_bytes()
    kept(tmp_path).write_bytes(whole[:length])
    assert await greeting(tmp_path) == "Hello, &lt;Ana&gt;"
    assert kept(tmp_path).read_bytes() == whole


async def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    folder(tmp_path, "Hello, {{ name }}")
    (tmp_path / "__pycache__").write_text("no directory")
    assert await greeting(tmp_path) == "Hello, &lt;Ana&gt;"


async def test_python_may_be_told_to_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert await greeting(folder(tmp_path, "Hello, {{ name }}")) == "Hello, &lt;Ana&gt;"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("app", [dashboard.TEMPLATES, console.TEMPLATES], ids=["dashboard", "console"])
def test_every_template_of_the_product_is_one(app: Path) -> None:
    """A process does not load all of them before it is ready: an error in one is found here."""
    _, templates = kit((app,))
    names = {file.relative_to(folder).as_posix() for folder in (app, FOLDER) for file in folder.rglob("*.html")}
    assert {templates.get_template(name).name for name in names} == names


def test_none_is_loaded_before_somebody_asks_for_it(tmp_path: Path) -> None:
    kept_before = folder(tmp_path, "Hello, {{ name }}")
    for name in ("first.html", "second.html"):
        (kept_before / name).write_text("{{ name }}")
    environment([tmp_path], kit(())[0])  # compiles
    later = environment([tmp_path], kit(())[0])
    assert later.cache == {}
    later.get_template("first.html")
    assert [template.name for template in (later.cache or {}).values()] == ["first.html"]
