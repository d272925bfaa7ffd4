"""The bell: what is not well, and what waits for a decision, as long as it is so."""

from __future__ import annotations

from heliograph.console.engine import runbook
from heliograph.console.engine.desk import SHARED, desk, rings_for_approvals
from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.requests import Request
from heliograph.people.operators import accounts

HERE = "/console/notices"


async def show(request: Request) -> Answer:
    """All of it; what is new to the reader is marked."""
    known = desk(request)
    await known.refresh(request, fresh=SHARED)
    async with request.reading() as conn:
        await known.ask(conn)
    values = {
        "troubles": known.rung(request.operator),
        "waits": known.waits if rings_for_approvals(request.operator) else None,
        "told": request.operator.told_at,
        "unread": known.unread(request.operator),
        "runbook": runbook.address,
    }
    return Shown(template="engine/notices.html", values=values)


async def read(request: Request) -> Answer:
    """The reader has seen what is known until now."""
    async with request.writing() as conn:
        await accounts.told(conn, user_id=request.operator.user_id)
    request.services.sessions.forget(request.token)
    return Elsewhere(location=HERE)
