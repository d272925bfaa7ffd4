"""Finding messages: what the filters of an address mean, and where something that was pasted leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid_in
from heliograph.campaigns import record
from heliograph.campaigns.record import Named
from heliograph.consent import optouts
from heliograph.contacts import suggesting
from heliograph.dashboard.conversations import inbox
from heliograph.overview import finding, messages, requests
from heliograph.overview.messages import Filters
from heliograph.pages.answers import Answer, Elsewhere
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.requests import Request
from heliograph.people.roles import DEVELOP, TEAM
from heliograph.whatsapp.money.rates import CATEGORIES
from heliograph.why.words import Kind, entries

#: An id in any of its spellings has so many hexadecimal digits.
ID_DIGITS = 32
#: Longest text that is looked for, and campaigns that are offered where several fit.
LONGEST, CHOICES = 200, 8
#: Of no campaign: what was typed is not known, and nothing fits it.
NOWHERE = UUID(int=0)
#: Fields of the address beside the range.
FIELDS = (
    "q",
    "channel",
    "status",
    "sender",
    "country",
    "reason",
    "key",
    "by",
    "campaign",
    "template",
    "category",
    "direction",
)
#: Reasons for which a message may have failed, by channel.
FAILURES: Mapping[str, Kind] = {"sms": "sms_failure", "whatsapp": "whatsapp_failure"}
REASONS = tuple(dict.fromkeys(code for kind in FAILURES.values() for code in entries()[kind]))


#: Where things are that have a page, and who sees it: (path, scope, permission). Of an event, its message.
THINGS: dict[str, tuple[str, str | None, str | None]] = {
    "campaign": ("/campaigns/{id}", "campaigns:read", None),
    "endpoint": ("/webhooks/{id}", "webhooks:read", None),
    "event": ("/messages/{id}", "webhooks:read", DEVELOP),
    "contact": ("/contacts/{id}", "contacts:read", None),
    "import": ("/contacts/imports/{id}", "contacts:write", None),
    "template": ("/templates/{id}", "whatsapp:read", None),
    "key": ("/keys", "api_keys:read", None),
    "sender": ("/senders", "sender_ids:read", None),
    "person": ("/team", None, TEAM),
}


class Wanted(msgspec.Struct, frozen=True):
    """What an address asks for."""

    filters: Filters
    range: Range
    #: What was typed, by field; and what of it could not be understood.
    typed: dict[str, str]
    problems: dict[str, str]
    #: The one message that was named by its id.
    id: UUID | None
    #: What the field for the campaign holds, and the campaigns of which several have what was typed in their names.
    campaign: str = ""
    choices: Sequence[Named] = ()
    #: Numbers that what was typed may mean, the one that is looked for first.
    numbers: Sequence[str] = ()

    @property
    def statuses(self) -> list[str]:
        """Those that were chosen."""
        return list(self.filters.statuses or ())

    @property
    def is_filtered(self) -> bool:
        """Anything was asked for."""
        return any(self.typed.values()) or bool(self.range.name)


def reasons(channel: str | None) -> list[tuple[str, Kind]]:
    """All reasons, each with the kind that its words are of: that of the channel, where both know it."""
    kinds = sorted(FAILURES.values(), key=lambda kind: kind != FAILURES.get(channel or ""))
    return [(code, next(kind for kind in kinds if code in entries()[kind])) for code in REASONS]


async def find(conn: Connection, request: Request) -> Wanted:
    """What the address of a list asks for."""
    wanted = _read(request, await _numbers(conn, request, request.query.get("q", "").strip()[:LONGEST]))
    text = wanted.typed["campaign"]
    if not text:
        return wanted
    latest = await campaigns(conn, request)
    if (id := _id(text)) is not None:
        return msgspec.structs.replace(wanted, campaign=_shown(id, latest))
    exact = [one for one in latest if one.name.casefold() == text.casefold()]
    found = exact or [one for one in latest if text.casefold() in one.name.casefold()]
    if len(found) == 1:
        filters = msgspec.structs.replace(wanted.filters, campaign_id=found[0].id)
        typed = wanted.typed | {"campaign": str(found[0].id)}  # so links stay right when another gets the name
        return msgspec.structs.replace(wanted, filters=filters, typed=typed, campaign=_shown(found[0].id, latest))
    said = (
        request.text("Several campaigns have this in their name. Choose one:")
        if found
        else request.text("None of your latest campaigns is called so.")
    )
    return msgspec.structs.replace(
        wanted,
        filters=msgspec.structs.replace(wanted.filters, campaign_id=NOWHERE),
        problems=wanted.problems | {"campaign": said},
        campaign=text,
        choices=found[:CHOICES],
    )


async def campaigns(conn: Connection, request: Request, *, limit: int = record.LOOKED) -> list[Named]:
    """The latest campaigns, for who may know them."""
    return await record.latest(conn, request.actor, limit=limit) if request.may("campaigns:read") else []


def _shown(id: UUID, latest: Sequence[Named]) -> str:
    """The name of a campaign if it leads back to it, else its id."""
    name = next((one.name for one in latest if one.id == id), None)
    same = [one for one in latest if name is not None and one.name.casefold() == name.casefold()]
    return str(id) if name is None or len(same) > 1 or _id(name) is not None else name


def _read(request: Request, numbers: Sequence[str]) -> Wanted:
    typed = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS}
    range = ranges.read(request)
    problems: dict[str, str] = {}
    chosen = [one for one in typed["status"].split(",") if one in messages.STATUSES]
    number, reference, id = _searched(request, typed["q"], numbers, problems)
    ids = {}
    for name in ("key", "by", "campaign"):
        ids[name] = _id(typed[name])
        if typed[name] and ids[name] is None and name != "campaign":
            problems[name] = request.text("This is not an id.")
    country = typed["country"].upper()
    filters = Filters(
        channel=typed["channel"] if typed["channel"] in messages.CHANNELS else None,
        statuses=chosen or None,
        recipient=number,
        client_reference=reference,
        campaign_id=ids["campaign"],
        key_id=ids["key"],
        person_id=ids["by"],
        sender=typed["sender"] or None,
        template=typed["template"] or None,
        category=typed["category"] if typed["category"] in CATEGORIES else None,
        direction=typed["direction"] if typed["direction"] in messages.DIRECTIONS else None,
        country=country or None,
        failure_code=typed["reason"] if typed["reason"] in REASONS else None,
        date_from=range.since,
        date_to=range.until,
    )
    return Wanted(filters, range, typed, problems, id, numbers=numbers)


async def _numbers(conn: Connection, request: Request, text: str) -> list[str]:
    """The numbers that a text may mean, as people of the organization's country write them, the likeliest first; an id
    is none."""
    if not text or _id(text) is not None:
        return []
    home = (await organizations.get(conn, id=request.actor.organization_id)).country
    return phones.readings(text.replace("/", " "), region=home)


def _searched(
    request: Request, text: str, numbers: Sequence[str], problems: dict[str, str]
) -> tuple[str | None, str | None, UUID | None]:
    """(number, reference, id) that somebody looks for. `numbers`: those that the text may mean."""
    if not text:
        return None, None, None
    if (id := _id(text)) is not None:
        return None, None, id
    if numbers:
        return numbers[0], None, None
    if text.startswith("+"):
        problems["q"] = request.text("This is not a phone number with a country code, such as +258841234567.")
        return None, None, None
    return None, text, None


async def go(request: Request) -> Answer:
    """What somebody pasted: an id of any kind, the name of something, both ends of a key, an e-mail address, a
    phone number, a reference, an error's code."""
    text = (request.parameters.get("anything", "").strip() or request.query.get("q", "").strip())[:LONGEST]
    id = _id(text)
    asked = request.mode
    async with request.reading() as conn:
        numbers = await _numbers(conn, request, text)
    for mode in (asked, "test" if asked == "live" else "live"):
        request.mode = mode
        if not request.may("sms:read"):
            continue
        async with request.reading() as conn:
            path = await _place(conn, request, id, "" if numbers else text)
            received = None if id is None or path is not None else await inbox.place_of(conn, request, id)
        if path is not None:
            return Elsewhere(location=request.to(path))
        if received is not None:
            return Elsewhere(location=received)
    if id is not None:
        raise NotFound
    request.mode = asked
    for number in numbers:
        if (person := await _person(request, number)) is not None:
            return Elsewhere(location=person)
    if text in entries()["error"]:
        return Elsewhere(location=f"/docs/errors/{text}")
    return Elsewhere(location=request.to("/messages", q=text))


async def _person(request: Request, number: str) -> str | None:
    """Where the contact with a number is, whose page has messages and consent too; else where its opt-out is."""
    if not request.may("contacts:read"):
        return None
    async with request.reading() as conn:
        contact = await suggesting.by_number(conn, request.actor, phones=phones.spellings(number))
        if contact is not None:
            return request.to(f"/contacts/{contact[0]}")
        if not request.may("contacts:read", mode="live"):
            return None
        opt_out = await optouts.find(conn, request.acting("live"), phone=number)
    return None if opt_out is None else request.to("/contacts/opt-outs", q=number)


async def _place(conn: Connection, request: Request, id: UUID | None, text: str) -> str | None:
    """Where a message, a thing or a request of the mode is; `text`: its name, empty for what is a number."""
    if id is not None:
        try:
            await messages.get(conn, request.actor, id=id)
            return f"/messages/{id}"
        except NotFound:
            pass
    if not text:
        return None
    if id is None and text in entries()["error"]:
        return None
    kinds = [kind for kind, (_, scope, permission) in THINGS.items() if request.may(scope, permission)]
    if id is not None:
        thing = await finding.by_id(conn, request.actor, id=id, kinds=kinds)
    else:
        thing = await finding.by_name(conn, request.actor, name=text, kinds=kinds)
    if thing is not None:
        return THINGS[thing.kind][0].format(id=thing.id)
    if not request.may("webhooks:read", DEVELOP):
        return None
    asked = await requests.find(conn, request.actor, request_id=text)
    if asked is None:
        return None
    return f"/messages/{asked.message_id}" if asked.message_id else f"/requests/{asked.id}"


def _id(text: str) -> UUID | None:
    if len(text.replace("-", "")) != ID_DIGITS:
        return None
    return uuid_in(text)
