"""An account's app secret and verify token, changed here after they were changed at Meta."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import Invalid
from heliograph.console.acting import organization
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.whatsapp.mirror import apps, onboarding

TEMPLATE = "whatsapp/app.html"


async def show(request: Request) -> Answer:
    """The form. Stored values are not shown."""
    return Page(template=TEMPLATE, values=await _values(request))


async def change(request: Request) -> Answer:
    """Save the given values; callbacks signed with the former secret are accepted for seven more days."""
    values = await _values(request)
    secret, verify_token = (request.form.get(name, "").strip() or None for name in ("app_secret", "verify_token"))
    key = apps.seal_key(request.services.settings)
    try:
        async with request.writing() as conn:
            await apps.change_app(
                conn, key, app_id=values["app_id"], app_secret=secret, verify_token=verify_token, by=request.principal
            )
    except Invalid as refusal:
        return refused(TEMPLATE, refusal, values)
    return Redirect(location=values["here"], notice=request.text("Saved: it takes effect within a second."))


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        of = await organization(conn, request)
        one = await onboarding.find_account(conn, of.id, str(request.id()))
        app_id, _ = await apps.shown(conn, apps.seal_key(request.services.settings), one.app)
    here = f"/console/whatsapp/accounts/{of.id}/{one.id}"
    return {"of": of, "one": one, "app_id": app_id, "here": here}
