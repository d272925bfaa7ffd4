"""O5 Suppliers: who carries messages, with how many sessions, and what went wrong; paused and resumed here."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.overview.installation import now
from heliograph.overview.installation.now import Supplier
from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import CARRIAGE_CHANGE
from heliograph.sms.dispatch import routing, suppliers

HERE = "/console/suppliers"


async def show(request: Request) -> Answer:
    """All of them."""
    async with request.reading() as conn:
        seen = {"suppliers": await now.suppliers(conn)}
    return Shown(
        template="engine/suppliers_live.html" if request.is_fragment else "engine/suppliers.html", values={"now": seen}
    )


async def show_one(request: Request) -> Answer:
    """One of them, with its settings."""
    id = request.id()
    async with request.reading() as conn:
        one = await _known(conn, id)
        row = next((known for known in await routing.load(conn) if known.id == id), None)
    if row is None:
        raise NotFound
    values = {"one": one, "row": row, "may_change": request.may(permission=CARRIAGE_CHANGE)}
    return Shown(template="engine/supplier.html", values=values)


async def pause(request: Request) -> Answer:
    """Nothing is handed to it any more; what it was to carry goes by others, or waits."""
    return await _set(request, "paused", request.text("It is paused: workers leave it within a second."))


async def resume(request: Request) -> Answer:
    """It carries again."""
    return await _set(request, "active", request.text("It carries again: workers return within a second."))


async def _set(request: Request, state: str, said: str) -> Answer:
    id = request.id()
    async with request.writing() as conn:
        await suppliers.set_state(conn, supplier=str(id), state=state, by=request.who)
    return Elsewhere(location=f"{HERE}/{id}", notice=said)


async def _known(conn: Connection, id: UUID) -> Supplier:
    found = next((one for one in await now.suppliers(conn) if one.id == id), None)
    if found is None:
        raise NotFound
    return found
