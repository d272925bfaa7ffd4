"""O3: what ending a key or suspending a sender ID does to an organization, before it is done."""

from __future__ import annotations

from heliograph.accounts import api_keys
from heliograph.base.errors import NotFound
from heliograph.console.acting import acting_for, organization
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request
from heliograph.sms.accepting import sender_ids


async def show_revoke(request: Request) -> Answer:
    """When and for what the key was used last: whoever uses it stops."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        key = await api_keys.get(conn, acting_for(request, one), id=request.id("key"))
    if key.status == "revoked":
        raise NotFound
    return Shown(template="credentials/key_revoke.html", values={"one": one, "key": key})


async def show_suspend(request: Request) -> Answer:
    """What stops with the sender ID."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        sender = await sender_ids.find(conn, acting_for(request, one), which=str(request.id("sender")))
    return Shown(template="credentials/sender_suspend.html", values={"one": one, "sender": sender})
