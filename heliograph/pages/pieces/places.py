"""Navigation available on every screen: the rail, the command palette, and keyboard shortcuts; per app, by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from heliograph import __version__
from heliograph.pages import cookies, languages
from heliograph.pages.requests import Request


class Place(msgspec.Struct, frozen=True):
    """An entry in the rail, for roles that hold its scope and permission."""

    path: str
    label: str
    icon: str
    scope: str | None = None
    permission: str | None = None
    #: The letter that goes there after `g`.
    key: str = ""


class Mark(msgspec.Struct, frozen=True):
    """What needs attention at a place: the number, and a description in the reader's language."""

    path: str
    count: int
    said: str


class Action(msgspec.Struct, frozen=True):
    """A palette command in addition to the places, for roles that hold scope and permission. `mode`: in which the scope
    is checked; None: that of the page."""

    label: str
    path: str
    scope: str | None = None
    permission: str | None = None
    mode: Literal["live", "test"] | None = None


class Choice(msgspec.Struct, frozen=True):
    """A line in the palette, in the reader's language. `post`: the fields of a form to submit there; None: it is a
    link."""

    label: str
    path: str
    post: dict[str, str] | None = None


#: Groups of the rail with their headings.
Groups = tuple[tuple[str, tuple[Place, ...]], ...]
#: A key, and what it does.
Key = tuple[str, str]

#: Keys of every list and page of both apps.
KEYS: tuple[Key, ...] = (
    ("Ctrl K", "Find a page or a record"),
    ("/", "To the list's search field"),
    ("j k", "Down and up in a list"),
    ("Enter", "Open"),
    ("Space", "Select the row"),
    ("[ ]", "Newer and older"),
    (".", "Load new entries"),
    ("t ← →", "The previous and the next period"),
    ("t a", "Keep these times"),
    ("n", "New, on this page"),
    ("e", "Export"),
    ("r", "Refresh the page"),
    ("y", "Copy the address"),
    ("c", "Copy the id"),
    ("Esc", "Close"),
    ("?", "This list"),
)


def frame(
    request: Request,
    groups: Groups,
    actions: Sequence[Action],
    keys: Sequence[Key],
    *,
    source: str = "",
    has_search: bool = True,
) -> dict[str, Any]:
    """Values for `shell.html`: the places, actions and keys available to the reader. `source`: where the palette gets
    more; `has_search`: the reader may search, also without scripts."""
    rail = [(heading, [one for one in places if request.may(one.scope, one.permission)]) for heading, places in groups]
    places = [one for _, listed in rail for one in listed]
    keep = f"{request.realm.prefix}/preferences"
    choices = [
        *links(request, groups, actions),
        Choice(request.text("Light theme"), keep, {"theme": "light"}),
        Choice(request.text("Dark theme"), keep, {"theme": "dark"}),
        Choice(request.text("System theme"), keep, {"theme": "system"}),
        Choice(request.text("Compact lists"), keep, {"density": "compact"}),
        Choice(request.text("Comfortable lists"), keep, {"density": "comfortable"}),
        *(Choice(name, keep, {"language": code}) for code, name in languages.LANGUAGES.items()),
    ]
    return {
        "rail": [(heading, listed) for heading, listed in rail if listed],
        "palette": msgspec.to_builtins(choices),
        "palette_source": source,
        "has_search": has_search,
        "key_help": [*KEYS[:-2], *keys, *((f"g {one.key}", one.label) for one in places if one.key), *KEYS[-2:]],
        "shortcuts": "off" if request.cookies.get(cookies.KEYS) == "off" else "on",
        "is_folded": request.cookies.get(cookies.RAIL) == "folded",
        "version": __version__,
    }


def links(request: Request, groups: Groups, actions: Sequence[Action]) -> list[Choice]:
    """The places and actions available to the reader, in the mode of the page unless they name another."""
    places = [one for _, listed in groups for one in listed if request.may(one.scope, one.permission)]
    offered = [one for one in actions if request.may(one.scope, one.permission, mode=one.mode)]
    return [
        *(Choice(request.text(one.label), request.to(one.path)) for one in places),
        *(Choice(request.text(one.label), one.path if "?" in one.path else request.to(one.path)) for one in offered),
    ]


def named(request: Request, groups: Groups, actions: Sequence[Action], name: str) -> str | None:
    """The address of the place or action with this name, however its case and accents are typed; None: there is none.
    Scripts find them in the palette."""
    wanted = languages.alphabetical(name)[0]
    return next(
        (one.path for one in links(request, groups, actions) if languages.alphabetical(one.label)[0] == wanted), None
    )
