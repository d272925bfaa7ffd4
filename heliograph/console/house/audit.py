"""O15 Audit log: who changed what, everywhere; of roles that may not see all of it, what one did oneself."""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import reading
from heliograph.audit.actions import ACTIONS
from heliograph.audit.reading import Filter
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import AUDIT

#: Entries of a page, and the longest that is looked for.
SIZE, LONGEST = 50, 200


async def show(request: Request) -> Answer:
    """A page of entries, newest first."""
    kept = {name: request.query.get(name, "").strip()[:LONGEST] for name in ("who", "action", "object")}
    is_own = not request.may(permission=AUDIT)
    try:
        after = UUID(request.query["after"]) if request.query.get("after") else None
    except ValueError:
        after = None
    wanted = Filter(
        who=str(request.operator.user_id) if is_own else kept["who"] or None,
        action=kept["action"] if kept["action"] in ACTIONS else None,
        object=kept["object"] or None,
    )
    async with request.reading() as conn:
        found = await reading.list_page(conn, wanted, after=after, limit=SIZE)
    values = {
        **kept,
        "is_own": is_own,
        "entries": found.entries,
        "actions": sorted(((name, request.text(label)) for name, label in ACTIONS.items()), key=lambda one: one[1]),
        "older": "" if found.seen is None else request.again(after=found.seen),
    }
    return Shown(template="house/audit.html", values=values)
