"""Pages besides the viewer: one for each error, and the guide, which is the project's own
`docs/`. Rendered from Markdown, under the same policy as the viewer: no scripts, nothing from other hosts.
"""

from __future__ import annotations

import html
import re
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from heliograph.api.shapes.envelope import ERRORS
from heliograph.base.errors import Refusal

GUIDE = "/docs/guide"

_HERE = Path(__file__)
#: In a checkout, and where a wheel puts it (`pyproject.toml`).
_GUIDES = (_HERE.parents[3] / "docs", Path(sysconfig.get_path("data")) / "share" / "heliograph" / "docs")
#: Of the guide, for those who send and receive, and for those who run it.
_FIRST = (
    "api.md",
    "webhooks.md",
    "errors.md",
    "whatsapp.md",
    "operations.md",
    "guard.md",
    "settings.md",
    "adding-a-supplier.md",
    "routing.md",
    "senders.md",
)


class Error(msgspec.Struct, frozen=True):
    """Documentation of an error code, from `errors.toml`, from which `docs/errors.md` is also generated."""

    code: str
    status: int
    #: When it comes.
    cause: str
    #: What to do.
    remedy: str
    #: Fields of `error.details` and what they hold; "" where the name says it.
    details: dict[str, str] = {}


@cache
def errors() -> tuple[Error, ...]:
    """Every error, by status and then in the order of the file."""
    listed = tomllib.loads((_HERE.with_name("errors.toml")).read_text())
    found = [msgspec.convert({"code": code} | one, Error) for code, one in listed.items()]
    return tuple(sorted(found, key=lambda one: one.status))


def address(code: str) -> str:
    """Path of an error's page, below the service's public address."""
    return f"{ERRORS}/{code}"


@cache
def error_pages() -> Mapping[str, str]:
    """The pages of all errors, and their index, by path."""
    meanings = {one.code: _first_paragraph(one) for one in _below(Refusal)}
    rows = "\n".join(f"| [`{one.code}`]({address(one.code)}) | {one.status} | {one.cause} |" for one in errors())
    told = (
        "# Errors\n\nBase decisions on `error.code`. Quote `error.requestId` when you ask for help; "
        f"`error.docsUrl` links to the page for the code. [More about errors]({GUIDE}/errors.md).\n\n"
    )
    pages = {ERRORS: _page("Errors", f"{told}| Code | HTTP | When |\n| --- | --- | --- |\n{rows}\n")}
    for one in errors():
        pages[address(one.code)] = _page(one.code, _error(one, meanings.get(one.code, "")))
    return pages


def _error(one: Error, meaning: str) -> str:
    parts = [f"# `{one.code}`", f"HTTP {one.status}. {meaning}".strip(), f"## When\n\n{one.cause}"]
    parts.append(f"## What to do\n\n{one.remedy}")
    if one.details:
        rows = "\n".join(f"| `{name}` | {text} |" for name, text in one.details.items())
        parts.append(f"## `error.details`\n\n| Field | Holds |\n| --- | --- |\n{rows}")
    parts.append(f"[All errors]({ERRORS})")
    return "\n\n".join(parts)


@cache
def guide() -> dict[str, Path]:
    """The pages of the guide, by path; empty if it is not installed."""
    folder = next((one for one in _GUIDES if one.is_dir()), None)
    if folder is None:
        return {}
    return {f"{GUIDE}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.md"))}


@cache
def guide_list() -> str:
    """The page that lists the guide."""
    paths = list(guide().values())
    known = {path.name: path for path in paths if path.parent.name != "decisions"}
    named = [known.pop(name) for name in _FIRST if name in known] + list(known.values())
    items = "\n".join(f"- [{_title(path)}]({GUIDE}/{path.name})" for path in named)
    decisions = "\n".join(
        f"- [{_title(path)}]({GUIDE}/decisions/{path.name})" for path in paths if path.parent.name == "decisions"
    )
    return _page("Guide", f"# Guide\n\n{items}\n\n## Decisions\n\n{decisions}\n")


def guide_page(path: Path) -> str:
    """Render a file of the guide. Links to files outside the guide, such as source code, become plain text."""
    known = set(guide().values())

    def linked(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        inside = not target or ":" in target or (path.parent / target).resolve() in known
        return match[0] if inside else match[1]

    return _page(_title(path), re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", linked, path.read_text()))


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


def _below(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _first_paragraph(kind: type[Refusal]) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


def _page(title: str, text: str) -> str:
    """A complete page; `{pages.css}` in it stands for the path of its stylesheet."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title.replace('`', ''))} · Heliograph</title>\n"
        '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{pages.css}">\n</head>\n<body>\n'
        f'<nav><a href="/">Heliograph</a> <a href="/docs">API</a> <a href="{GUIDE}">Guide</a> '
        f'<a href="{ERRORS}">Errors</a></nav>\n<main>\n{_markdown().render(text)}</main>\n</body>\n</html>\n'
    )


@cache
def _markdown() -> MarkdownIt:
    """Markdown with GitHub's tables and heading anchors. HTML is passed through: the text is our own."""
    made = MarkdownIt("commonmark", {"html": True}).enable("table")
    made.add_render_rule("heading_open", _with_anchor)
    made.add_render_rule("th_open", _without_style)
    made.add_render_rule("td_open", _without_style)
    return made


def _with_anchor(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    text = re.sub(r"[^\w -]", "", tokens[at + 1].content.lower()).replace(" ", "-")
    tokens[at].attrSet("id", text)
    return self.renderToken(tokens, at, options, env)


def _without_style(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    tokens[at].attrs.pop("style", None)  # the policy of these pages forbids it
    return self.renderToken(tokens, at, options, env)
