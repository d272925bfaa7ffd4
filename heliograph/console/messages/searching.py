"""Messages: finds one by its id, ours or the supplier's; several by number, by the customer's reference, or by the
id of the request that sent them.

The rule nobody may break: a search is bounded, and the page says how far it got. Ids contain their time, so a request
is searched for in its minutes; without an organization, everything else is searched for among the latest of all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base import phones
from heliograph.base.database.bounded_scan import PAGE_LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import time_of, uuid_in
from heliograph.console import typed as form_input
from heliograph.console.acting import acting_for
from heliograph.console.messages.looking import HERE
from heliograph.overview import messages
from heliograph.overview.searching import everywhere, finding
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.requests import reading as requests
from heliograph.sending.listing import MessagePage

#: Messages per list, and maximum characters of a search.
LISTED, LONGEST = 50, 200
FIELDS = ("id", "organization", "recipient", "reference", "request_id", "channel")


async def find(request: Request) -> Answer:
    """Search by id; or for messages to a number, with a reference, or of a request."""
    typed = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS}
    values: dict[str, Any] = {**typed, "found": None, "asked": None, "one": None, "knowing": None, "further": ""}
    values["read"] = None
    if typed["id"]:
        async with request.reading() as conn:
            # Some suppliers' ids are UUIDs, too.
            id = await finding.by_foreign_id(conn, id=typed["id"]) or uuid_in(typed["id"])
        if id is not None:
            return Redirect(location=f"{HERE}/{id}")
        wrong = Invalid(("id", "unknown", "No message has this id, neither here nor at a supplier or Meta."))
        return refused("messages/find.html", wrong, values)
    if not any(typed[name] for name in ("organization", "recipient", "reference", "request_id")):
        return Page(template="messages/find.html", values=values)
    try:
        async with request.reading() as conn:
            one = await _organization(conn, typed)
            number = _number(typed["recipient"], one)
            values["read"] = number if not phones.is_international(typed["recipient"]) else None
            filters = messages.Filters(
                channel=typed["channel"] if typed["channel"] in messages.CHANNELS else None,
                recipient=number,
                client_reference=typed["reference"] or None,
                request_id=typed["request_id"] or None,
            )
            if one is None:
                values |= await _everywhere(conn, request, filters)
            else:
                values |= await _listed(conn, request, one, filters)
    except Invalid as refusal:
        return refused("messages/find.html", refusal, values)
    return Page(template="messages/find.html", values=values)


def _number(text: str, one: Organization | None) -> str | None:
    """The number typed: without + it is one of the organization's country, if there is such a number. Raises
    Invalid."""
    home = [] if one is None or one.country is None else phones.readings(text, region=one.country)
    number = home[0] if home and not phones.is_international(text) else phones.parse(text) or phones.normalize(text)
    if text and number is None:
        raise Invalid(("recipient", "format", "Enter a phone number with its country code, such as +258841234567."))
    return number


async def _organization(conn: Connection, typed: dict[str, str]) -> Organization | None:
    """The named organization, the request's owner, or the only one there is; None: any. Raises Invalid."""
    if typed["organization"]:
        return await form_input.organization(conn, typed["organization"])
    if finding.made_at(typed["request_id"]) is not None:
        owner = await finding.owner_of_request(conn, request_id=typed["request_id"])
        if owner is not None:
            return await organizations.get(conn, id=owner)
    known = await organizations.list_all(conn, limit=2)
    return known[0] if len(known) == 1 else None


async def _everywhere(conn: Connection, request: Request, filters: messages.Filters) -> dict[str, Any]:
    """The latest matches of all organizations, and who knows the number."""
    after = uuid_in(request.query.get("after", ""))
    wanted = everywhere.MessageQuery(
        recipient=filters.recipient,
        client_reference=filters.client_reference,
        request_id=filters.request_id,
        channel=filters.channel,
    )
    found = await everywhere.search(conn, wanted, after=after, limit=LISTED, most=PAGE_LOOK, rows=PAGE_LOOK)
    knowing = None if filters.recipient is None else await everywhere.knowing(conn, number=filters.recipient)
    rows = found.messages[:LISTED]
    last = rows[-1].id if len(found.messages) > LISTED else found.seen
    return {
        "found": rows,
        "knowing": knowing,
        "looked_until": None if found.seen is None else time_of(found.seen),
        "further": "" if last is None else request.again(after=last),
    }


async def _listed(conn: Connection, request: Request, one: Organization, filters: messages.Filters) -> dict[str, Any]:
    """The latest matches of an organization, and the request searched for, if it is in the log."""
    actor = acting_for(request, one)
    after = uuid_in(request.query.get("after", ""))
    made_at = finding.made_at(filters.request_id or "")
    found = MessagePage[messages.Message]([], None)
    if made_at is not None and after is None:
        when = {"date_from": made_at - finding.EARLIER, "date_to": made_at + finding.ACCEPTED}
        found = await messages.list_page(conn, actor, filters=msgspec.structs.replace(filters, **when), limit=LISTED)
    # A program may have chosen an id whose time is not the request's.
    if not found.messages:
        found = await messages.list_page(conn, actor, filters=filters, after=after, limit=LISTED, look=PAGE_LOOK)
    rows = found.messages[:LISTED]
    last = rows[-1].id if len(found.messages) > LISTED else found.seen
    asked = filters.request_id and await requests.by_request_id(conn, actor, request_id=filters.request_id)
    return {
        "one": one,
        "found": rows,
        "asked": asked or None,
        "looked_until": None if found.seen is None else time_of(found.seen),
        "further": "" if last is None else request.again(after=last),
    }
