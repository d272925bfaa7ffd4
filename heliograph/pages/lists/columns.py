"""Columns of a list: which of them a person wants to see, and in which order; remembered with the person.

A list names its columns in a table (`Column`), its template has a cell for each of them. The first cell of a row leads
to what the row is about and always stands. The rule nobody may break: a name that a list does not know, or that is new
to whoever chose earlier, changes nothing: what was chosen is a wish, not a shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from heliograph.base.errors import NotFound
from heliograph.pages.answers import Answer, Elsewhere, own_address
from heliograph.pages.requests import Request
from heliograph.people import users

#: In the address: the menu is open, as somebody is still moving columns in it.
OPEN = "columns"
_read = msgspec.json.Decoder(dict[str, list[str]]).decode


class Column(msgspec.Struct, frozen=True):
    """A column that may be chosen. `label`: its heading in English."""

    name: str
    label: str
    #: It stands there for whoever chose nothing.
    is_usual: bool = True
    #: Figures and times: they stand at the end of their cell.
    is_end: bool = False


class Columns(msgspec.Struct, frozen=True):
    """The columns of a list as a person has them, for `kit.columns`."""

    list: str
    chosen: Sequence[Column]
    #: Those that are left out, in the list's own order.
    others: Sequence[Column]
    #: The person chose them.
    is_chosen: bool
    is_open: bool


def read(request: Request, list: str, offered: Sequence[Column]) -> Columns:
    """The columns of this list, as the person chose them."""
    known = {one.name: one for one in offered}
    kept = _read(request.person.columns).get(list, [])
    wanted = [known[name] for name in kept if name in known]
    shown = wanted or [one for one in offered if one.is_usual]
    others = [one for one in offered if one not in shown]
    return Columns(list, shown, others, bool(wanted), request.query.get(OPEN) == "open")


def keeper(lists: Mapping[str, Sequence[Column]]) -> Callable[[Request], Awaitable[Answer]]:
    """The screen that keeps what was chosen: the boxes that are ticked, in the order in which they stand; with `up` or
    `down`, one of them has changed places with its neighbour; with `usual`, nothing is chosen any more."""

    async def keep(request: Request) -> Answer:
        name, form = request.parameters["list"], request.form
        if name not in lists:
            raise NotFound
        known = {one.name for one in lists[name]}
        wanted = [one for one in dict.fromkeys(form.get("column", "").split(",")) if one in known]
        moved = form.get("up") or form.get("down") or ""
        if moved in wanted:
            at = wanted.index(moved)
            to = min(max(at + (1 if form.get("down") else -1), 0), len(wanted) - 1)
            wanted.insert(to, wanted.pop(at))
        async with request.writing() as conn:
            await users.choose_columns(conn, id=request.user_id, list=name, columns=[] if form.get("usual") else wanted)
        request.services.sessions.forget(request.token)
        back = own_address(form.get("next", request.realm.front))
        if moved:
            back += ("&" if "?" in back else "?") + f"{OPEN}=open"
        return Elsewhere(location=back)

    return keep
