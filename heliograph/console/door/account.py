"""S5 My account, of an operator: who they are, and the browsers in which they are signed in."""

from __future__ import annotations

from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.requests import Request
from heliograph.people import factors
from heliograph.people.operators import sessions

HERE = "/console/account"


async def show(request: Request) -> Answer:
    """Name, role, factor and sessions."""
    operator = request.operator
    if operator.lacks_factor:
        return Elsewhere(location=request.realm.factor)
    async with request.reading() as conn:
        listed = await sessions.list_all(conn, user_id=operator.user_id)
        left = await factors.codes_left(conn, user_id=operator.user_id)
    return Shown(template="door/account.html", values={"sessions": listed, "codes_left": left})


async def end_session(request: Request) -> Answer:
    """End one session of the operator's."""
    async with request.writing() as conn:
        await sessions.end(conn, request.who, user_id=request.operator.user_id, id=request.id())
    return Elsewhere(location=HERE, notice=request.text("The session was ended."))


async def end_others(request: Request) -> Answer:
    """End all sessions but this one."""
    operator = request.operator
    async with request.writing() as conn:
        await sessions.end_all(conn, request.who, user_id=operator.user_id, keep=operator.id)
    return Elsewhere(location=HERE, notice=request.text("All other sessions were ended."))
