"""Messages: one list of both channels, filtered by the address, and its export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from heliograph.base import phones
from heliograph.base.database.bounded_scan import LOOK, PAGE_LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of
from heliograph.dashboard import exporting, listing, visibility
from heliograph.dashboard.messaging import finding, marked, message, summing
from heliograph.dashboard.messaging.finding import Wanted
from heliograph.overview import messages
from heliograph.overview.exports.kinds import Messages
from heliograph.overview.messages import Message
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.sending.listing import MessagePage
from heliograph.sms import messages as sms
from heliograph.whatsapp.money.rates import CATEGORIES

#: Characters of a text shown in a list.
EXCERPT = 60
#: Queries that "Search further back" makes at a time.
LOOKS = 10
#: Campaign names suggested.
SUGGESTED = 50


async def show_list(request: Request) -> Answer:
    """The list, filtered by the address."""
    size = pagination.size(request)
    after, top = pagination.after(request), pagination.top(request)
    async with request.reading() as conn:
        wanted = await finding.find(conn, request)
        if wanted.id is not None:
            return Redirect(location=request.to(f"/messages/{wanted.id}"))
        newer = await _newer(conn, request, wanted, top) if top is not None else 0
        found = await _look(conn, request, wanted, after=pagination.start(request), size=size)
        rows = found.messages[:size]
        readable = {one.id for one in rows if visibility.is_whole(request, one.person_id)}
        texts = await _texts(conn, request, [one for one in rows if one.id in readable])
        key_names = await visibility.key_names(conn, request, [wanted.filters.key_id, *(one.key_id for one in rows)])
        senders = [wanted.filters.person_id, *(one.person_id for one in rows)]
        person_names = await visibility.names(conn, request, senders)
        campaign_names = await visibility.campaigns(conn, request, [one.campaign_id for one in rows])
        numbers = await messages.numbers(conn, request.actor, listed=rows)
        columns = listing.columns(request, "messages")
        is_priced = any(one.name == "price" for one in columns.chosen)
        prices = await messages.prices(conn, request.actor, listed=rows) if is_priced else {}
        # The self-refreshing fragment has no filter form.
        suggested = [] if request.is_fragment else await finding.campaigns(conn, request, limit=SUGGESTED)
        keys = key_names.items() if request.is_fragment else await visibility.keys(conn, request, wanted.filters.key_id)
        people = [] if request.is_fragment else await visibility.people(conn, request)
        # The self-refreshing fragment has no head, and later pages need not repeat it.
        head, latest = None, None
        if not request.is_fragment and after is None:
            head = await summing.head(conn, request, wanted)
            if head is None or head.reasons is None:
                latest = await summing.latest(conn, request, wanted)
    last = rows[-1].id if len(found.messages) > size else found.seen
    values: dict[str, Any] = {
        "wanted": wanted,
        "typed": wanted.typed,
        "problems": wanted.problems,
        "meant": [(one, request.locale.country(phones.country(one))) for one in wanted.numbers],
        "range": wanted.range,
        "statuses": messages.STATUSES,
        "reasons": finding.reasons(wanted.filters.channel),
        "categories": [(one, words.BILLING_CATEGORIES[one]) for one in CATEGORIES],
        "is_filtered": wanted.is_filtered,
        "readable": readable,
        "rows": rows,
        "head": head,
        "latest": latest,
        "campaigns": [one.name for one in suggested],
        "texts": texts,
        "keys": [(str(id), name) for id, name in keys],
        "key_names": key_names,
        "people": people,
        "person_names": person_names,
        "campaign_names": campaign_names,
        "numbers": numbers,
        "newer": newer,
        "columns": columns,
        "prices": prices,
        "pages": pagination.pages(request, last),
        "is_first": after is None,
        "looked_until": None if found.seen is None else time_of(found.seen),
        "further": request.again(after=None if last is None else _following(request, last), far="1", top=""),
        "may_send": request.may("sms:send"),
        "may_cancel_all": marked.may_cancel(request, wanted),
        "panel": None,
    }
    if (opened := pagination.opened(request)) is not None:
        values |= await message.panel(request, opened)
    return Page(
        template="messaging/messages_rows.html" if request.is_fragment else "messaging/messages.html", values=values
    )


async def export(request: Request) -> Answer:
    """Export all matching messages, or the selected ones."""
    async with request.reading() as conn:
        wanted = await finding.find(conn, request)
    ids = tuple(marked.read(request))
    if not ids and (back := marked.back(request, wanted)) is not None:
        return back
    kind: Literal["csv", "jsonl"] = "jsonl" if request.form.get("format") == "jsonl" else "csv"
    sees: Literal["all", "own", "none"] = visibility.whose(request)
    filters = Messages(
        form=kind,
        delimiter=exporting.separator(request),
        filters=wanted.filters,
        sees=sees,
        ids=ids,
    )
    return await exporting.ask(request, request.actor, filters)


async def _look(
    conn: Connection, request: Request, wanted: Wanted, *, after: UUID | None, size: int
) -> MessagePage[Message]:
    """A page; with `far` in the address, searched for with up to LOOKS queries."""
    looks, look = (LOOKS, LOOK) if request.query.get("far") else (1, PAGE_LOOK)
    found: list[Message] = []
    seen: UUID | None = after
    for _ in range(looks):
        looked = await messages.list_page(
            conn, request.actor, filters=wanted.filters, after=seen, limit=size - len(found), look=look
        )
        found += looked.messages
        seen = looked.seen
        if seen is None or len(found) > size:
            break
    return MessagePage(found, seen)


async def _newer(conn: Connection, request: Request, wanted: Wanted, top: UUID) -> int:
    """How many new messages would be listed above the first one shown."""
    found = await messages.list_page(
        conn, request.actor, filters=wanted.filters, limit=pagination.MOST_NEWER, look=1_000
    )
    return pagination.newer([one.id for one in found.messages], top)


async def _texts(conn: Connection, request: Request, rows: Sequence[Message]) -> dict[UUID, str]:
    """The messages' texts, shortened."""
    ids = [one.id for one in rows if one.channel == "sms"]
    found = await sms.texts(conn, request.actor, ids=ids, most=EXCERPT + 1) if ids else {}
    found |= {one.id: one.said for one in rows if one.said}
    return {id: f"{text[:EXCERPT]}…" if len(text) > EXCERPT else text for id, text in found.items()}


def _following(request: Request, last: UUID) -> str:
    trail = [one for one in request.query.get("after", "").split(".") if one]
    return ".".join([*trail, last.hex][-pagination.MOST_BACK :])
