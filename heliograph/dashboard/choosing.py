"""The choice of a WhatsApp template. The newest are offered; any other one is meant by its name and language as well as
by its id, since an account may have thousands."""

from __future__ import annotations

import re

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid_in
from heliograph.pages.requests import Request
from heliograph.whatsapp import reads
from heliograph.whatsapp.reads import Template, TemplateFilters

#: Templates offered.
OFFERED = 200
#: A name, and its language in brackets.
_CALLED = re.compile(r"(\S+)(?:\s+\((\S+)\))?")


async def offered(
    conn: Connection,
    request: Request,
    *,
    category: str | None = None,
    chosen: Template | None,
) -> list[tuple[str, str]]:
    """(id, what it is called) of the newest templates that can be sent, and of the one that is `chosen`, by name."""
    filters = TemplateFilters(status="approved", category=category)
    listed, _ = await reads.templates(conn, request.actor, filters=filters, limit=OFFERED)
    found = {one.id: one for one in listed[:OFFERED] if one.sendable}
    if chosen is not None:
        found[chosen.id] = chosen
    return [
        (str(one.id), f"{one.name} ({one.language})")
        for one in sorted(found.values(), key=lambda one: (one.name, one.language))
    ]


async def meant(conn: Connection, request: Request, text: str) -> str:
    """The id of the template that is meant by its id, its name and language, or by a name that it alone has; the text
    as it is if there is none."""
    called = _CALLED.fullmatch(text.strip())
    if called is None or uuid_in(text) is not None:
        return text
    filters = TemplateFilters(status="approved", name=called[1])
    listed, _ = await reads.templates(conn, request.actor, filters=filters, limit=OFFERED)
    found = [one for one in listed if called[2] in (None, one.language)]
    return str(found[0].id) if len(found) == 1 or (found and called[2]) else text
