"""Inbound: unassigned messages from handsets, and assigning them to an organization; keywords, floods, and the
latest messages of all."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.audit import reasons
from heliograph.base.errors import Invalid, NotFound
from heliograph.console import typed
from heliograph.console.acting import acting_for
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE, LOOK, TRAFFIC_CHANGE
from heliograph.sms.received import inbound, newest, unassigned
from heliograph.sms.received.unassigned import RawPart

HERE = "/console/inbound"


async def show(request: Request) -> Answer:
    """Unassigned numbers first, then floods, keywords and messages."""
    return await _page(request)


async def reveal(request: Request) -> Answer:
    """Show the texts, for a reason that is recorded in the audit log."""
    reason = reasons.normalized(request.form.get("reason", ""))
    if reason is None:
        return await _page(
            request,
            Invalid(("reason", "length", "Give a reason of at most 500 characters: it is kept in the audit log.")),
        )
    async with request.writing() as conn:
        words = await unassigned.words(conn, by=msgspec.structs.replace(request.principal, reason=reason))
    return await _page(request, words=words)


async def assign(request: Request) -> Answer:
    """Assign the number to an organization from now on."""
    form = request.form
    try:
        async with request.writing() as conn:
            one = await typed.organization(conn, form.get("organization", "").strip())
            count = await unassigned.assign(conn, acting_for(request, one), recipient=form.get("recipient", ""))
    except Invalid as refusal:
        return await _page(request, refusal)
    except NotFound as refusal:
        return await _page(request, Invalid(("organization", "unknown", refusal.message)))
    if count is None:
        said = request.text("You approved the number for them. It is theirs once another operator does so too.")
        return Redirect(location=HERE, notice=said)
    said = request.locale.count(
        "It is theirs; %(num)s message is checked again.",
        "It is theirs; %(num)s messages are checked again.",
        count,
    )
    return Redirect(location=HERE, notice=said)


async def retry(request: Request) -> Answer:
    """Check all unassigned messages again."""
    async with request.writing() as conn:
        count = await inbound.retry(conn)
    said = request.locale.count("%(num)s message is checked again.", "%(num)s messages are checked again.", count)
    return Redirect(location=HERE, notice=said)


async def _page(request: Request, problem: Invalid | None = None, words: list[RawPart] | None = None) -> Page:
    size = pagination.size(request)
    async with request.reading() as conn:
        values: dict[str, Any] = {
            "rows": await unassigned.listed(conn),
            "floods": await unassigned.floods(conn),
            "said": await unassigned.keywords(conn),
            "most_said": unassigned.KEYWORDS,
        }
        heard = await newest.list_parts(conn, after=pagination.after(request), limit=size + 1)
    values |= {
        "words": words,
        "heard": heard[:size],
        "pages": pagination.pages(request, heard[size - 1].id if len(heard) > size else None),
        "reason": request.form.get("reason", ""),
        "recipient": request.form.get("recipient", ""),
        "organization": request.form.get("organization", ""),
        "often": unassigned.OFTEN,
        "may_look": request.may(permission=LOOK),
        "may_assign": request.may(permission=APPROVE),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    template = "inbound/inbound_live.html" if request.is_fragment else "inbound/inbound.html"
    return Page(template=template, values=values, status=422 if problem else 200, refusal=problem)
