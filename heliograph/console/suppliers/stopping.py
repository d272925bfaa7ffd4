"""Pausing, draining, resuming and removing a supplier, and having it tried again; the pages first show where its
traffic would go instead."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.suppliers.listing import HERE, find
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import shifts


class Reroute(msgspec.Struct, frozen=True):
    """Where part of its traffic of yesterday would go. `target` is empty if there is no other supplier for it: it would
    wait, or fail."""

    target: str
    messages: int


async def show_pause(request: Request) -> Answer:
    """Pause or drain, with the effect of each."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
        values = {"one": one, **await _instead(conn, one)}
    return Page(template="suppliers/supplier_pause.html", values=values)


async def pause(request: Request) -> Answer:
    """Hand it nothing more; its messages go through others, or wait."""
    return await _set(request, "paused", request.text("It is paused: workers disconnect within a second."))


async def drain(request: Request) -> Answer:
    """Like pausing, but its sessions stay open for responses and receipts."""
    said = request.text("It is draining: nothing more is handed to it, and its receipts still arrive.")
    return await _set(request, "draining", said)


async def resume(request: Request) -> Answer:
    """Let it carry messages again."""
    return await _set(request, "active", request.text("It carries messages again: workers reconnect within a second."))


async def reset_circuit(request: Request) -> Answer:
    """Have workers forget its failures and try it again."""
    id = request.id()
    async with request.writing() as conn:
        await suppliers.reset_circuit(conn, supplier=str(id), by=request.principal)
    said = request.text("Workers try it again within a second. They avoid it again if it still fails.")
    return Redirect(location=f"{HERE}/{id}", notice=said)


async def show_remove(request: Request) -> Answer:
    """What removing it would lose."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
        values = {"one": one, **await _instead(conn, one, removed=True)}
    return Page(template="suppliers/supplier_remove.html", values=values)


async def remove(request: Request) -> Answer:
    """Remove it with its password, once its name is typed to confirm."""
    id = request.id()
    async with request.reading() as conn:
        one = await find(conn, id)
        values = {"one": one, **await _instead(conn, one, removed=True)}
    try:
        confirming.check(request, one.name)
    except Invalid as refusal:
        return refused("suppliers/supplier_remove.html", refusal, values)
    async with request.writing() as conn:
        await suppliers.set_state(conn, supplier=str(id), state="removed", by=request.principal)
    return Redirect(location=HERE, notice=request.text("%(name)s is removed.", name=one.name))


async def _set(request: Request, state: str, said: str) -> Answer:
    id = request.id()
    async with request.writing() as conn:
        await suppliers.set_state(conn, supplier=str(id), state=state, by=request.principal)
    return Redirect(location=f"{HERE}/{id}", notice=said)


async def _instead(conn: Connection, one: Supplier, *, removed: bool = False) -> dict[str, Any]:
    """Yesterday's traffic that the current rules give to it, and who would get it instead."""
    configuration = await shifts.current(conn)
    configuration = msgspec.structs.replace(configuration, paused=configuration.paused - {one.id})
    found = await shifts.compare(
        conn, configuration, configuration.without(one.id) if removed else configuration.pausing(one.id)
    )
    names = {two.id: two.name for two in configuration.suppliers}
    goes = [
        Reroute(names.get(flow.target, "") if flow.target else "", round(flow.messages))
        for flow in found.flows
        if flow.source == one.id and round(flow.messages)
    ]
    return {"goes": goes, "carried": sum(flow.messages for flow in goes), "yesterday": found.messages}
