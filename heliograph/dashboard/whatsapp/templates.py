"""Templates: the list, the status of each with its reason, and its appearance."""

from __future__ import annotations

from heliograph.dashboard import listing
from heliograph.dashboard.sending import code, template
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.whatsapp import library, number_states, reads
from heliograph.whatsapp.accepting.accept import Send, TemplateSend
from heliograph.whatsapp.mirror import qualities
from heliograph.whatsapp.reads import TemplateFilters


async def show_list(request: Request) -> Answer:
    """Templates, newest first, filtered by status, category and name."""
    query = request.query
    kept = {name: query.get(name, "") for name in ("status", "category", "name")}
    size = pagination.size(request)
    filters = TemplateFilters(
        status=kept["status"] if kept["status"] in words.TEMPLATE_STATUSES else None,
        category=kept["category"] if kept["category"] in words.CATEGORIES else None,
        name=kept["name"].strip()[:512] or None,
    )
    async with request.reading() as conn:
        found, seen = await reads.templates(
            conn, request.actor, filters=filters, after=pagination.after(request), limit=size
        )
        uses = await library.uses(conn, request.actor)
    last = found[size - 1].id if len(found) > size else seen
    return Page(
        template="whatsapp/templates.html",
        values={
            "listed": found[:size],
            "columns": listing.columns(request, "templates"),
            "uses": uses,
            "look": library.LOOK,
            "kept": kept,
            "is_filtered": any(kept.values()),
            "pages": pagination.pages(request, last),
            "statuses": list(words.TEMPLATE_STATUSES),
            "categories": list(words.CATEGORIES),
        },
    )


async def show(request: Request) -> Answer:
    """One template."""
    async with request.reading() as conn:
        entry = await library.get(conn, request.actor, id=request.id())
        numbers = await number_states.list_all(conn, request.actor)
        uses = await library.uses(conn, request.actor)
        trend = await qualities.trends(conn, request.actor, ids=[entry.template.id])
    slots = library.slots(entry.layout)
    found = entry.template
    snippets = []
    if found.sendable and numbers:
        values = tuple(name or kind for kind, name in slots)
        content = TemplateSend(found.name, found.language, found.category, values)
        sent = Send(actor=request.actor, to="+258841234567", number_id=numbers[0].number.id, content=content)
        snippets = code.of_whatsapp(request, sent)
    return Page(
        template="whatsapp/template.html",
        values={
            "entry": entry,
            "use": uses.get(entry.template.id),
            "look": library.LOOK,
            "trend": trend.get(entry.template.id, []),
            "slots": slots,
            "shown": template.filled(entry, ()),
            "seen": template.Seen(snippets=snippets),
        },
    )
