"""Operators' notes about an organization, and the erasure of a person there."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog

from heliograph.audit import reasons
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.errors import Invalid, Problems
from heliograph.console.acting import acting_for, organization
from heliograph.overview.installation import notes
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE
from heliograph.privacy import erasure
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id

log = structlog.get_logger()

#: Running erasures: an unreferenced task could be garbage-collected.
_RUNNING: set[asyncio.Task[None]] = set()


async def show(request: Request) -> Answer:
    """The notes."""
    return Page(template="organizations/notes.html", values=await _values(request))


async def add(request: Request) -> Answer:
    """Add a note."""
    try:
        async with request.writing() as conn:
            one = await organization(conn, request, "id")
            await notes.add(conn, organization_id=one.id, body=request.form.get("body", ""), by=request.principal)
    except Invalid as refusal:
        return refused("organizations/notes.html", refusal, await _values(request))
    return Redirect(location=f"/console/organizations/{one.id}/notes", notice=request.text("Saved."))


async def remove(request: Request) -> Answer:
    """Remove a note."""
    async with request.writing() as conn:
        one = await organization(conn, request, "id")
        await notes.remove(conn, organization_id=one.id, id=request.id("note"), by=request.principal)
    return Redirect(location=f"/console/organizations/{one.id}/notes", notice=request.text("The note is removed."))


async def show_erase(request: Request) -> Answer:
    """What an erasure will do, before it does."""
    return Page(template="organizations/erase.html", values=await _erasing(request))


async def erase(request: Request) -> Answer:
    """Erase a person, for a reason. It searches all messages, so it continues after the response; its receipt is in the
    audit log."""
    values = await _erasing(request)
    one, reason, wrong = values["one"], reasons.normalized(values["reason"]), Problems()
    typed = values["address"].strip().replace(" ", "")
    address = typed if is_user_id(typed) else phones.read(typed, region=one.country)
    if address is None:
        wrong.add("address", "format", "Enter a phone number with + and country code, or a WhatsApp user id.")
    if reason is None:
        wrong.add("reason", "length", "Give a reason of at most 500 characters: the organization can read it.")
    with wrong.gathering():
        confirming.check(request, request.text("erase"))
    if wrong or address is None:
        return refused("organizations/erase.html", wrong.refusal(), values)
    by = msgspec.structs.replace(request.principal, reason=reason)
    actor = msgspec.structs.replace(acting_for(request, one), by=by)
    task = asyncio.create_task(_erase(request, actor, address))
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    said = request.text("The erasure has begun. Its receipt will appear in the history below.")
    return Redirect(location=f"/console/organizations/{one.id}", notice=said)


async def _erase(request: Request, actor: Actor, address: str) -> None:
    try:
        async with request.services.pool.acquire() as conn:
            await erasure.erase(conn, actor, address=address)
    except Exception:
        # The audit log then has its beginning but no receipt, which shows that it has to be started again.
        log.exception("erasure interrupted", organization_id=str(actor.organization_id))


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        listed = await notes.listed(conn, organization_id=one.id)
    return {
        "one": one,
        "notes": listed,
        "body": request.form.get("body", ""),
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
    }


async def _erasing(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    form = request.form
    return {"one": one, "address": form.get("address", ""), "reason": form.get("reason", "")}
