"""What the palette loads once it is open: campaigns to pause or resume, and what belongs to a number."""

from __future__ import annotations

import msgspec

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.campaigns import record
from heliograph.consent import optouts
from heliograph.contacts import suggesting
from heliograph.pages.answers import Answer, Download
from heliograph.pages.pieces.places import Choice
from heliograph.pages.requests import Request

#: Newest campaigns of each channel that are searched for those in progress.
LOOKED = 50
#: Maximum characters of a search.
LONGEST = 100
CHANNELS = ("sms", "whatsapp")


async def show(request: Request) -> Answer:
    """The choices as JSON; for a number (`q`), the pages of this mode that belong to it."""
    text = request.query.get("q", "").strip()[:LONGEST]
    async with request.reading() as conn:
        found = await _of_number(conn, request, text) if text else await _campaigns(conn, request)
    return Download(name="palette.json", kind="application/json", body=msgspec.json.encode(found))


async def _campaigns(conn: Connection, request: Request) -> list[Choice]:
    if not request.may("campaigns:write"):
        return []
    found = []
    for channel in CHANNELS:
        for one in await record.list_page(conn, request.actor, after=None, limit=LOOKED, channel=channel):
            if one.status == "running":
                label, act = request.text("Pause campaign “%(name)s”", name=one.name), "pause"
            elif one.status == "paused":
                label, act = request.text("Resume campaign “%(name)s”", name=one.name), "resume"
            else:
                continue
            found.append(Choice(label=label, path=request.to(f"/campaigns/{one.id}/{act}"), post={}))
    return found


async def _of_number(conn: Connection, request: Request, text: str) -> list[Choice]:
    home = (await organizations.get(conn, id=request.actor.organization_id)).country
    number = phones.read(text, region=home)
    if number is None:
        return []
    found = []
    if request.may("contacts:read"):
        contact = await suggesting.by_number(conn, request.actor, phones=phones.spellings(number))
        if contact is not None:
            id, name = contact
            found.append(Choice(request.text("Contact: %(name)s", name=name), request.to(f"/contacts/{id}")))
        elif request.may("contacts:write"):
            label = request.text("Add %(number)s to contacts", number=number)
            found.append(Choice(label, request.to("/contacts/new", phone=number)))
        if request.may("contacts:read", mode="live"):
            since = await optouts.find(conn, request.acting("live"), phone=number)
            if since is not None:
                label = request.text("Opted out since %(time)s", time=request.locale.moment(since.since))
                found.append(Choice(label, request.to("/contacts/opt-outs", q=number)))
    if request.may("sms:read"):
        label = request.text("Messages to %(number)s", number=number)
        found.append(Choice(label, request.to("/messages", q=number)))
    if request.may("sms:send"):
        found.append(Choice(request.text("Send to %(number)s", number=number), request.to("/send", to=number)))
    return found
