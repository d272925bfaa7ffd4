"""The guide: the project's own `docs/` and README as a site, with navigation, tables of contents and search.

Its files are those of the repository; a wheel includes them. There is no build step: a page is rendered from Markdown
when it is first requested.
"""

from __future__ import annotations

import html
import posixpath
import sysconfig
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from heliograph.api.document import markdown
from heliograph.api.document.error_pages import error_pages
from heliograph.api.document.markdown import Heading, Section
from heliograph.api.shapes.envelope import ERRORS

PATH = "/guide"
SEARCH = f"{PATH}/search"

_HERE = Path(__file__)
#: The guide's folder and the README: in a checkout, and where a wheel puts them (`pyproject.toml`).
_FOLDERS = (
    (_HERE.parents[3] / "docs", _HERE.parents[3] / "README.md"),
    (
        Path(sysconfig.get_path("data")) / "share" / "heliograph" / "docs",
        Path(sysconfig.get_path("data")) / "share" / "heliograph" / "README.md",
    ),
)
#: Files by heading, in this order. A file that is not listed goes under the last heading.
SECTIONS: dict[str, Sequence[str]] = {
    "Send and receive": ("api", "webhooks", "errors", "whatsapp", "cli"),
    "Suppliers and routing": (
        *("adding-a-supplier", "moving", "routing", "senders", "prices", "guard"),
        *("suppliers", "whatsapp-accounts"),
    ),
    "Operations": (
        *("operations", "installing", "database", "backup", "monitoring", "runbook"),
        *("people", "organizations", "privacy"),
        *("settings", "sizing", "proxies"),
    ),
    "Internals": ("life-of-a-message", "development", "locks"),
}
DECISIONS = "decisions"
#: The longest query, and the maximum number of results.
LONGEST, MOST = 100, 20
#: Characters of a result's excerpt around the first match.
AROUND = 180


class Entry(msgspec.Struct, frozen=True):
    """A page: its address, title and text, and the file that its links are relative to ("" for error pages)."""

    address: str
    title: str
    text: str
    file: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A section that contains all words of a query. `excerpt`: HTML with the words marked."""

    address: str
    page: str
    heading: str
    excerpt: str


class Guide:
    """All its pages. `entries`: by address, in reading order."""

    def __init__(self) -> None:
        folder, readme = next((one for one in _FOLDERS if one[0].is_dir()), (None, None))
        self.entries: dict[str, Entry] = {}
        self.pictures: dict[str, Path] = {}
        self.sections: dict[str, list[Entry]] = {}
        if folder is not None and readme is not None:
            self._gather(folder, readme)
        for address, (title, text) in error_pages(f"{PATH}/errors").items():
            self.entries[address] = Entry(address, title, text)

    def _gather(self, folder: Path, readme: Path) -> None:
        if readme.is_file():
            self._enter("Start", PATH, "Getting started", readme, "README.md")
        placed = {name: section for section, names in SECTIONS.items() for name in names}
        last = list(SECTIONS)[-1]
        order = [*placed, *(one.stem for one in sorted(folder.glob("*.md")) if one.stem not in placed)]
        for name in order:
            path = folder / f"{name}.md"
            if path.is_file():
                self._enter(placed.get(name, last), f"{PATH}/{name}", None, path, f"docs/{name}.md")
        for path in sorted(folder.joinpath(DECISIONS).glob("*.md")):
            address = f"{PATH}/{DECISIONS}/{path.stem}"
            self._enter("Decisions", address, None, path, f"docs/{DECISIONS}/{path.name}")
        for path in sorted(folder.joinpath("pictures").glob("*.png")):
            self.pictures[f"{PATH}/pictures/{path.name}"] = path

    def _enter(self, section: str, address: str, title: str | None, path: Path, file: str) -> None:
        text = path.read_text("utf-8")
        entry = Entry(address, title or text.partition("\n")[0].removeprefix("# ").replace("`", ""), text, file)
        self.entries[address] = entry
        self.sections.setdefault(section, []).append(entry)

    @cached_property
    def _addresses(self) -> dict[str, str]:
        known = {entry.file: entry.address for entry in self.entries.values() if entry.file}
        return known | {f"docs/pictures/{Path(one).name}": one for one in self.pictures}

    def page(self, address: str) -> str:
        """A complete page; `{pages.css}` is a placeholder for the address of its stylesheet."""
        entry = self.entries[address]

        def linked(target: str) -> str | None:
            path, mark, anchor = target.partition("#")
            if not path or ":" in path or path.startswith("/"):
                return target
            place = self._addresses.get(posixpath.normpath(posixpath.join(posixpath.dirname(entry.file), path)))
            return None if place is None else place + mark + anchor

        body, headings = markdown.html(entry.text, linked)
        return self._shell(entry.title, body + self._beside(entry), address, headings)

    def found(self, question: str) -> str:
        """The page of search results."""
        question = question.strip()[:LONGEST]
        answers = self.search(question)
        if not question:
            said = "<p>Type one or more words. Results contain all of them.</p>"
        elif not answers:
            said = f"<p>No section contains all of “{html.escape(question)}”. Try fewer words.</p>"
        else:
            said = '<ol class="found">' + "".join(map(_item, answers)) + "</ol>"
        return self._shell("Search", f"<h1>Search</h1>{said}", SEARCH, [], question)

    def search(self, question: str) -> list[Answer]:
        """The sections that contain all words of `question`, those with matching headings first; at most MOST."""
        words = _folded(question[:LONGEST]).split()
        if not words:
            return []
        weighed = [(_weight(one, words), one) for one in self._index]
        best = sorted(((weight, one) for weight, one in weighed if weight), key=lambda pair: -pair[0])
        return [
            Answer(one.address, one.page, one.heading, _excerpt(one.text, one.folded, words)) for _, one in best[:MOST]
        ]

    @cached_property
    def _index(self) -> list[_Indexed]:
        return [
            _Indexed(
                address=entry.address if section.heading.level == 1 else f"{entry.address}#{section.heading.anchor}",
                page=entry.title,
                heading=section.heading.text,
                text=section.words,
                folded=_folded(section.words),
                heading_folded=_folded(section.heading.text),
                page_folded=_folded(entry.title),
                is_guide=bool(entry.file) and f"/{DECISIONS}/" not in entry.address,
            )
            for entry in self.entries.values()
            if entry.address != ERRORS
            for section in _sections(entry)
        ]

    def _shell(self, title: str, body: str, here: str, headings: list[Heading], question: str = "") -> str:
        inside = [one for one in headings if one.level in (2, 3)]
        contents = "".join(
            f'<li class="l{one.level}"><a href="#{html.escape(one.anchor)}">{html.escape(one.text)}</a></li>'
            for one in inside
        )
        aside = f'<nav class="contents" aria-label="On this page"><p>On this page</p><ul>{contents}</ul></nav>'
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)} · Heliograph</title>\n"
            '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{pages.css}">\n</head>\n<body>\n'
            '<a class="skip" href="#main">Skip to the text</a>\n<header><a class="name" href="/">Heliograph</a> '
            f'<a href="{PATH}">Guide</a> <a href="/docs">API reference</a> <a href="{ERRORS}">Errors</a>'
            f'<form role="search" action="{SEARCH}"><input type="search" name="q" maxlength="{LONGEST}" '
            f'aria-label="Search the guide" placeholder="Search" value="{html.escape(question)}"> '
            "<button>Search</button></form></header>\n"
            f'<div class="page"><nav class="places" aria-label="Guide">{self._places(here)}</nav>\n'
            f'<main id="main" tabindex="-1">\n{body}</main>\n{aside if inside else ""}</div>\n</body>\n</html>\n'
        )

    def _places(self, here: str) -> str:
        parts = []
        for name, entries in self.sections.items():
            is_open = name != "Decisions" or f"/{DECISIONS}/" in here
            links = "".join(_place(one, here) for one in entries)
            parts.append(f"<details{' open' if is_open else ''}><summary>{name}</summary><ul>{links}</ul></details>")
        return "".join(parts)

    def _beside(self, entry: Entry) -> str:
        """Links to the previous and next pages of the guide."""
        read = [one for entries in self.sections.values() for one in entries]
        if entry not in read:
            return ""
        at = read.index(entry)
        before = f'<a rel="prev" href="{read[at - 1].address}">← {html.escape(read[at - 1].title)}</a>' if at else ""
        after = (
            f'<a rel="next" href="{read[at + 1].address}">{html.escape(read[at + 1].title)} →</a>'
            if at + 1 < len(read)
            else ""
        )
        return f'<nav class="beside" aria-label="Before and after">{before}{after}</nav>'


def _sections(entry: Entry) -> list[Section]:
    """The units of search: each section of the guide, but each error page as a whole."""
    found = markdown.sections(entry.text)
    return found if entry.file else [Section(found[0].heading, " ".join(one.words for one in found))]


class _Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """A section prepared for search; folded text is lower case, without accents."""

    address: str
    page: str
    heading: str
    text: str
    folded: str
    heading_folded: str
    page_folded: str
    is_guide: bool


def _weight(one: _Indexed, words: list[str]) -> float:
    """How well a section matches; 0: a word is missing. A match must be at the beginning of a word, and counts most in
    the heading; adjacent words add one more."""
    weight = 0.0
    for word in words:
        headed, titled, said = (
            _begins(one.heading_folded, word),
            _begins(one.page_folded, word),
            _begins(one.folded, word),
        )
        if not headed and not titled and not said:
            return 0.0
        weight += 10 * headed + 4 * titled + (min(one.folded.count(word), 3) if said else 0)
    if len(words) > 1 and " ".join(words) in one.folded:
        weight += 8
    # Decisions and error pages rank below pages on usage.
    return weight if one.is_guide else weight / 4


def _begins(text: str, word: str) -> bool:
    at = text.find(word)
    while at > 0 and text[at - 1].isalnum():
        at = text.find(word, at + 1)
    return at >= 0


def _folded(text: str) -> str:
    """Lower case, without accents, and of the same length, so that positions in both texts correspond."""
    if text.isascii():
        return text.lower()
    return "".join(unicodedata.normalize("NFD", one)[0].lower()[:1] or one for one in text)


def _excerpt(text: str, folded: str, words: list[str]) -> str:
    together = folded.find(" ".join(words))
    first = together if together >= 0 else min((at for at in map(folded.find, words) if at >= 0), default=0)
    begin = max(first - AROUND // 3, 0)
    end = min(begin + AROUND, len(text))
    marks = sorted({(at, at + len(word)) for word in words for at in _places_of(folded, word, begin, end)})
    parts, at = ["…" if begin else ""], begin
    for start, stop in marks:
        if start >= at:
            parts.append(f"{html.escape(text[at:start])}<mark>{html.escape(text[start:stop])}</mark>")
            at = stop
    return "".join([*parts, html.escape(text[at:end]), "…" if end < len(text) else ""])


def _places_of(folded: str, word: str, begin: int, end: int) -> list[int]:
    found, at = [], folded.find(word, begin, end)
    while at >= 0:
        found.append(at)
        at = folded.find(word, at + len(word), end)
    return found


def _place(entry: Entry, here: str) -> str:
    current = ' aria-current="page"' if entry.address == here else ""
    return f'<li><a href="{entry.address}"{current}>{html.escape(entry.title)}</a></li>'


def _item(one: Answer) -> str:
    where = html.escape(one.page if one.heading == one.page else f"{one.page}: {one.heading}")
    return f'<li><a href="{html.escape(one.address)}">{where}</a><p>{one.excerpt}</p></li>'
