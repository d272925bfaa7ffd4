"""View as an organization: its own dashboard, read-only, for a reason recorded in both audit logs."""

from __future__ import annotations

from typing import Any

from heliograph.accounts.organizations import Organization
from heliograph.base.errors import Invalid
from heliograph.console.acting import organization
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.requests import Request
from heliograph.people.operators import viewing


async def show(request: Request) -> Answer:
    """The form for the reason."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    return Page(template="organizations/view.html", values=_values(request, one))


async def begin(request: Request) -> Answer:
    """Create a link to the organization's dashboard, valid for two minutes and one use."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    try:
        async with request.writing() as conn:
            token = await viewing.begin(
                conn, request.principal, organization_id=one.id, reason=request.form.get("reason", "")
            )
    except Invalid as refusal:
        return refused("organizations/view.html", refusal, _values(request, one))
    base = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    values = _values(request, one) | {"link": viewing.address(base, token)}
    return Page(template="organizations/view.html", values=values)


def _values(request: Request, one: Organization) -> dict[str, Any]:
    return {"one": one, "reason": request.form.get("reason", ""), "link": ""}
