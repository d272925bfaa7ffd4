"""The bell: checks that are not ok, and what awaits a decision, for as long as this is so."""

from __future__ import annotations

from heliograph.console.engine import runbook
from heliograph.console.engine.console_cache import SHARED, cache_of, rings_for_approvals
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.operators import accounts

HERE = "/console/notices"


async def show(request: Request) -> Answer:
    """All items; those that are new to the reader are marked."""
    known = cache_of(request)
    await known.refresh(request, fresh=SHARED)
    async with request.reading() as conn:
        await known.ask(conn)
    values = {
        "problems": known.rung(request.operator),
        "waits": known.waits if rings_for_approvals(request.operator) else None,
        "told": request.operator.told_at,
        "unread": known.unread(request.operator),
        "runbook": runbook.address,
    }
    return Page(template="engine/notices.html", values=values)


async def read(request: Request) -> Answer:
    """Mark everything known until now as read."""
    async with request.writing() as conn:
        await accounts.mark_notices_seen(conn, user_id=request.operator.user_id)
    request.services.sessions.forget(request.token)
    return Redirect(location=HERE)
