"""API keys and sender IDs of all organizations, as in `heliograph key list` and `sender list`."""

from __future__ import annotations

from uuid import UUID

from heliograph.accounts.api_keys import issued
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console import typed
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.requests import Request
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import STATUSES

#: Lines per page.
LISTED = 200


async def show_keys(request: Request) -> Answer:
    """Keys, newest first; by organization, and by the beginning of the name or the key's last four characters."""
    query = request.query
    given = {name: query.get(name, "").strip() for name in ("organization", "search", "revoked")}
    try:
        async with request.reading() as conn:
            found = await issued.list_everywhere(
                conn,
                organization_id=await _organization(conn, given["organization"]),
                revoked=given["revoked"] == "yes",
                search=given["search"] or None,
                limit=LISTED + 1,
            )
            owners = await issued.owners(conn, ids=[key.id for _, key in found])
    except Invalid as refusal:
        return refused("credentials/all_keys.html", refusal, given | {"rows": [], "is_cut": False})
    rows = [(name, owners[key.id], key) for name, key in found[:LISTED]]
    return Page(template="credentials/all_keys.html", values=given | {"rows": rows, "is_cut": len(found) > LISTED})


async def show_senders(request: Request) -> Answer:
    """Sender IDs, newest first; by organization, status, and the beginning of the value."""
    query = request.query
    given = {name: query.get(name, "").strip() for name in ("organization", "search", "status")}
    values = given | {"statuses": STATUSES}
    try:
        async with request.reading() as conn:
            found = await sender_ids.list_everywhere(
                conn,
                organization_id=await _organization(conn, given["organization"]),
                status=given["status"] if given["status"] in STATUSES else None,
                search=given["search"] or None,
                limit=LISTED + 1,
            )
    except Invalid as refusal:
        return refused("credentials/all_senders.html", refusal, values | {"rows": [], "is_cut": False})
    rows = [(name, owner, sender) for owner, name, sender in found[:LISTED]]
    return Page(template="credentials/all_senders.html", values=values | {"rows": rows, "is_cut": len(found) > LISTED})


async def _organization(conn: Connection, text: str) -> UUID | None:
    return (await typed.organization(conn, text)).id if text else None
