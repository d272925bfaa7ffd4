"""Columns of a list: which ones a person wants to see, and in which order; stored with the person.

A list declares its columns in a table (`Column`), and its template has a cell for each. The first cell of a row links
to the row's object and is always shown. The rule nobody may break: unknown names, and columns added since the person
chose, cause no error: a choice is a preference, not a schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from heliograph.base.errors import NotFound
from heliograph.pages.answers import Answer, Redirect, own_address
from heliograph.pages.requests import Request
from heliograph.people import users

#: Query parameter: the menu is open, because somebody is still moving columns; its value is the button that they
#: pressed, such as `up.status`, which keeps the focus.
OPEN = "columns"
_read = msgspec.json.Decoder(dict[str, list[str]]).decode


class Column(msgspec.Struct, frozen=True):
    """A column that can be chosen. `label`: its heading in English."""

    name: str
    label: str
    #: It is shown by default.
    is_usual: bool = True
    #: Figures and times: aligned to the end of the cell.
    is_end: bool = False


class Columns(msgspec.Struct, frozen=True):
    """The columns of a list for one person, for `kit.columns`."""

    list: str
    chosen: Sequence[Column]
    #: Hidden columns, in the list's own order.
    others: Sequence[Column]
    #: True if the person chose them.
    is_chosen: bool
    #: The button with which one was just moved; empty: the menu is closed.
    moved: str


def read(request: Request, list: str, offered: Sequence[Column]) -> Columns:
    """The columns of this list as chosen by the person."""
    known = {one.name: one for one in offered}
    kept = _read(request.person.columns).get(list, [])
    wanted = [known[name] for name in kept if name in known]
    shown = wanted or [one for one in offered if one.is_usual]
    others = [one for one in offered if one not in shown]
    return Columns(list, shown, others, bool(wanted), request.query.get(OPEN, ""))


def keeper(lists: Mapping[str, Sequence[Column]]) -> Callable[[Request], Awaitable[Answer]]:
    """The screen that stores a choice: the checked boxes, in their order; with `up` or `down`, one of them swaps places
    with its neighbour; with `usual`, the choice is reset."""

    async def keep(request: Request) -> Answer:
        name, form = request.parameters["list"], request.form
        if name not in lists:
            raise NotFound
        known = {one.name for one in lists[name]}
        wanted = [one for one in dict.fromkeys(form.get("column", "").split(",")) if one in known]
        way = "down" if form.get("down") else "up"
        moved = form.get(way, "")
        if moved in wanted:
            at = wanted.index(moved)
            to = min(max(at + (1 if way == "down" else -1), 0), len(wanted) - 1)
            wanted.insert(to, wanted.pop(at))
        async with request.writing() as conn:
            await users.choose_columns(conn, id=request.user_id, list=name, columns=[] if form.get("usual") else wanted)
        request.services.sessions.forget(request.token)
        back = own_address(form.get("next", request.realm.home))
        if moved in known:
            back += ("&" if "?" in back else "?") + f"{OPEN}={way}.{moved}"
        return Redirect(location=back)

    return keep
