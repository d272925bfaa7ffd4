"""Markdown to HTML with GitHub's tables and heading anchors, for a Content-Security-Policy without inline styles.

HTML in it is passed through: all of the text is our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from heliograph.base.sentences import OPTION


class Heading(msgspec.Struct, frozen=True):
    """One heading: `level` 1 to 6, its text without markup, and its anchor."""

    level: int
    text: str
    anchor: str


class Section(msgspec.Struct, frozen=True):
    """A heading with the text below it, up to the next one."""

    heading: Heading
    words: str


def html(text: str, linked: Callable[[str], str | None]) -> tuple[str, list[Heading]]:
    """A text as HTML, and its headings. `linked` resolves the target of a link or picture; None: it becomes plain
    text."""
    tokens = _parser().parse(text)
    headings = [one.heading for one in _sections(tokens)]
    anchors = iter(headings)
    for token in tokens:
        if token.type == "heading_open":
            token.attrSet("id", next(anchors).anchor)
        elif token.type == "inline":
            _relink(token, linked)
        elif token.type in ("html_block", "html_inline"):
            token.content = _relinked_html(token.content, linked)
    return _parser().renderer.render(tokens, _parser().options, {}), headings


def sections(text: str) -> list[Section]:
    """The plain text by section, for search."""
    return _sections(_parser().parse(text))


def _sections(tokens: Sequence[Token]) -> list[Section]:
    found: list[tuple[Heading, list[str]]] = []
    seen: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            text = _plain(tokens[at + 1])
            anchor = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
            # As GitHub does: a repeated heading gets a number.
            times = seen[anchor] = seen.get(anchor, -1) + 1
            found.append((Heading(int(token.tag[1]), text, f"{anchor}-{times}" if times else anchor), []))
        elif found and (token.type == "fence" or (token.type == "inline" and tokens[at - 1].type != "heading_open")):
            found[-1][1].append(token.content if token.type == "fence" else _plain(token))
    return [Section(heading, " ".join(" ".join(words).split())) for heading, words in found]


def _plain(inline: Token) -> str:
    """An inline token's text, without markup, links and HTML."""
    kinds = ("text", "code_inline", "softbreak", "hardbreak")
    return "".join(one.content or " " for one in inline.children or () if one.type in kinds)


def _relink(inline: Token, linked: Callable[[str], str | None]) -> None:
    kept: list[Token] = []
    is_dropped = False
    for one in inline.children or ():
        if one.type == "link_open":
            target = linked(str(one.attrGet("href")))
            is_dropped = target is None
            if target is None:
                continue
            one.attrSet("href", target)
        elif one.type == "link_close" and is_dropped:
            is_dropped = False
            continue
        elif one.type == "html_inline":
            one.content = _relinked_html(one.content, linked)
        kept.append(one)
    inline.children = kept


def _relinked_html(text: str, linked: Callable[[str], str | None]) -> str:
    return re.sub(r'\b(src|srcset)="([^"]+)"', lambda match: f'{match[1]}="{linked(match[2]) or ""}"', text)


@cache
def _parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": True}).enable("table")
    made.add_render_rule("th_open", _without_style)
    made.add_render_rule("td_open", _without_style)
    made.add_render_rule("code_inline", _code)
    return made


def _without_style(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    tokens[at].attrs.pop("style", None)  # the policy of these pages forbids it
    return self.renderToken(tokens, at, options, env)


def _code(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Lines do not end within an option, such as behind one of its hyphens."""
    return "<code>" + OPTION.sub(r"<span>\1</span>", escapeHtml(tokens[at].content)) + "</code>"
