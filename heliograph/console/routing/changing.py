"""Pausing, resuming and removing a route, and restoring an earlier state; the shift of traffic is shown first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from heliograph.audit.reading import AuditEntry
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.engine.console_cache import cache_of
from heliograph.console.routing import descriptions
from heliograph.console.routing.listing import HERE, Row
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.routes import rules
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import routing
from heliograph.sms.management import current_shares, rerouting

#: Entries shown of the history of all routes.
LISTED = 50


async def show_history(request: Request) -> Answer:
    """The history of all routes, including removed ones."""
    async with request.reading() as conn:
        entries = await rerouting.history(conn, limit=LISTED)
        names = await supplier_names(conn)
        there = {str(one.route.id) for one in await rules.load(conn)}
    values = {
        "history": [descriptions.entry(request, one, names) for one in entries],
        "there": there,
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="routing/history.html", values=values)


async def show_pause(request: Request) -> Answer:
    """What pausing it would shift."""
    return await _ask(request, "paused")


async def show_resume(request: Request) -> Answer:
    """What resuming it would shift."""
    return await _ask(request, "active")


async def pause(request: Request) -> Answer:
    """Pause it: the next matching route decides."""
    return await _set(request, "paused", request.text("It is paused: the next matching route decides within a second."))


async def resume(request: Request) -> Answer:
    """Let it decide again."""
    return await _set(request, "active", request.text("It decides again within a second."))


async def show_remove(request: Request) -> Answer:
    """What removing it would shift."""
    return Page(template="routing/remove.html", values=await _removing(request))


async def remove(request: Request) -> Answer:
    """Remove it, once its name is typed to confirm. Its history stays, and it can be restored from that."""
    id = request.id()
    async with request.reading() as conn:
        one = await rules.find(conn, route=str(id))
    try:
        confirming.check(request, one.route.name)
    except Invalid as refusal:
        return refused("routing/remove.html", refusal, await _removing(request))
    async with request.writing() as conn, conn.transaction():
        await rules.remove(conn, await rules.lock(conn, route=str(id)), by=request.principal)
        entry = (await rerouting.history(conn, route_id=id, limit=1))[0]
    said = request.text("%(name)s is removed: the next matching route decides.", name=one.route.name)
    return Redirect(location=HERE, notice=said, undo=f"{HERE}/{id}/undo/{entry.id}")


async def show_undo(request: Request) -> Answer:
    """What restoring the earlier state would change and shift."""
    async with request.writing() as conn:
        entry = await rerouting.entry_of(conn, route_id=request.id(), entry_id=request.id("entry"))
        return await _show_undo(request, conn, entry)


async def undo(request: Request) -> Answer:
    """Restore it."""
    form = request.form
    async with request.writing() as conn:
        entry = await rerouting.entry_of(conn, route_id=request.id(), entry_id=request.id("entry"))
        try:
            id = await rerouting.take_back(conn, entry, seen=form.get("seen"), by=request.principal)
        except (Invalid, NotFound):
            return await _show_undo(request, conn, entry)
    said = request.text("It is restored: workers apply it within a second.")
    return Redirect(location=f"{HERE}/{id}", notice=said)


async def supplier_names(conn: Connection) -> dict[UUID, str]:
    """Names of suppliers that have not been removed."""
    return {one.id: one.name for one in await routing.load(conn)}


async def previewed(
    request: Request, conn: Connection, work: Callable[[Connection], Awaitable[UUID]], before: StoredRoute | None
) -> dict[str, Any]:
    """The effect of a change, for its page; `work` returns the route's id. Raises what `work` raises."""

    async def done(conn: Connection) -> StoredRoute:
        return await rules.find(conn, route=str(await work(conn)))

    after, moved = await rerouting.tried(conn, done)
    names = await supplier_names(conn)
    now = await current_shares.of_routes(conn, [after], cache_of(request).rates)
    return {
        "differences": descriptions.differences(request, before, after, names),
        "row": Row(after, now.of(after)),
        "seen": "" if before is None else rerouting.mark(before),
        **descriptions.preview(moved, names),
    }


async def _ask(request: Request, state: str) -> Answer:
    async with request.writing() as conn:
        one = await rules.find(conn, route=str(request.id()))

        async def work(conn: Connection) -> UUID:
            await rules.set_state(conn, await rules.lock(conn, route=str(one.route.id)), state, by=request.principal)
            return one.route.id

        values = await previewed(request, conn, work, one)
    return Page(template="routing/state.html", values={"one": one, "state": state, **values})


async def _set(request: Request, state: str, said: str) -> Answer:
    id = request.id()
    async with request.writing() as conn, conn.transaction():
        before = await rules.lock(conn, route=str(id))
        await rules.set_state(conn, before, state, by=request.principal)
        entry = (await rerouting.history(conn, route_id=id, limit=1))[0]
    # If it was in that state already, the last change is another one, and perhaps somebody else's.
    undo = f"{HERE}/{id}/undo/{entry.id}" if before.state != state else ""
    return Redirect(location=f"{HERE}/{id}", notice=said, undo=undo)


async def _removing(request: Request) -> dict[str, Any]:
    async with request.writing() as conn:
        one = await rules.find(conn, route=str(request.id()))

        async def work(conn: Connection) -> None:
            await rules.remove(conn, await rules.lock(conn, route=str(one.route.id)), by=request.principal)

        _, moved = await rerouting.tried(conn, work)
        names = await supplier_names(conn)
    return {"one": one, **descriptions.preview(moved, names)}


async def _show_undo(request: Request, conn: Connection, entry: AuditEntry) -> Answer:
    values: dict[str, Any] = {"entry": entry, "action": request.path}
    try:
        before = None
        if entry.action != "route.removed":
            before = await rules.find(conn, route=entry.object_id)

        async def work(conn: Connection) -> UUID:
            return await rerouting.take_back(conn, entry, by=request.principal)

        values |= await previewed(request, conn, work, before)
    except (Invalid, NotFound) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid(("name", "gone", refusal.message))
        return refused("routing/undo.html", wrong, values | {"differences": None, "seen": ""})
    if request.method == "POST":
        wrong = Invalid(
            ("name", "moved", "Somebody has changed this route in the meantime. Review the difference again.")
        )
        return refused("routing/undo.html", wrong, values)
    return Page(template="routing/undo.html", values=values)
