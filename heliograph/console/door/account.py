"""An operator's account: profile, second factor, and sessions."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import Invalid
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import own_account, passkeys
from heliograph.pages.requests import Request
from heliograph.people import factors
from heliograph.people.operators import sessions
from heliograph.people.passkeys import keeping

HERE = "/console/account"


async def show(request: Request) -> Answer:
    """Name, role, factor and sessions."""
    if request.operator.lacks_factor:
        return Redirect(location=request.realm.factor)
    return Page(template="door/account.html", values=await _values(request))


async def change(request: Request) -> Answer:
    """Change name, language and time zone."""
    try:
        return await own_account.keep(request)
    except Invalid as refusal:
        values = await _values(request) | own_account.typed(request)
        return refused("door/account.html", refusal, values)


async def end_session(request: Request) -> Answer:
    """End one of the operator's sessions."""
    async with request.writing() as conn:
        await sessions.end(conn, request.principal, user_id=request.operator.user_id, id=request.id())
    return Redirect(location=HERE, notice=request.text("The session was ended."))


async def end_others(request: Request) -> Answer:
    """End all sessions but this one."""
    operator = request.operator
    async with request.writing() as conn:
        await sessions.end_all(conn, request.principal, user_id=operator.user_id, keep=operator.id)
    return Redirect(location=HERE, notice=request.text("All other sessions were ended."))


async def _values(request: Request) -> dict[str, Any]:
    operator = request.operator
    async with request.reading() as conn:
        return {
            "sessions": await sessions.list_all(conn, user_id=operator.user_id),
            "codes_left": await factors.codes_left(conn, user_id=operator.user_id),
            "passkeys": await keeping.list_all(conn, user_id=operator.user_id),
            "takes_passkeys": passkeys.site_of(request) is not None,
            "name": operator.name,
            "time_zone": operator.time_zone or "",
            "language": operator.language or "",
            "zones": own_account.zones(),
        }
