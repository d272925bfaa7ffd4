"""Finding messages: interprets the filters of an address, and finds the page for something pasted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base import naming, phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid_in
from heliograph.campaigns import record
from heliograph.campaigns.record import CampaignName
from heliograph.consent import optouts
from heliograph.contacts import suggesting
from heliograph.dashboard import listing, places, visibility
from heliograph.dashboard.conversations import inbox
from heliograph.overview import finding, messages, requests
from heliograph.overview.messages import Filters
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.pieces import places as pieces
from heliograph.pages.requests import Request
from heliograph.people.roles import DEVELOP, TEAM
from heliograph.whatsapp.money.rates import CATEGORIES
from heliograph.why.words import Kind, entries

#: Hexadecimal digits of an id, in any of its spellings.
ID_DIGITS = 32
#: Maximum characters of a search, and campaigns offered when several match.
LONGEST, CHOICES = 200, 8
#: The id of no campaign: for an unknown name, which nothing may match.
NOWHERE = UUID(int=0)
#: Fields of the address apart from the range.
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
#: The kind of failure reasons, by channel.
FAILURES: Mapping[str, Kind] = {"sms": "sms_failure", "whatsapp": "whatsapp_failure"}
REASONS = tuple(dict.fromkeys(code for kind in FAILURES.values() for code in entries()[kind]))
#: What is chosen from a list, `status` several at once.
OFFERED: Mapping[str, Collection[str]] = {
    "status": messages.STATUSES,
    "channel": messages.CHANNELS,
    "category": CATEGORIES,
    "direction": messages.DIRECTIONS,
    "reason": REASONS,
    "range": (ranges.CUSTOM, *ranges.LENGTHS),
}


#: Pages of objects, and who may see them: (path, scope, permission). For an event, the page of its message.
THINGS: dict[str, tuple[str, str | None, str | None]] = {
    "campaign": ("/campaigns/{id}", "campaigns:read", None),
    "endpoint": ("/webhooks/{id}", "webhooks:read", None),
    "event": ("/messages/{id}", "webhooks:read", DEVELOP),
    "contact": ("/contacts/{id}", "contacts:read", None),
    "import": ("/contacts/imports/{id}", "contacts:write", None),
    "listed_import": ("/contacts/imports", "contacts:write", None),
    "number": ("/numbers", "whatsapp:read", None),
    "template": ("/templates/{id}", "whatsapp:read", None),
    "key": ("/keys", "api_keys:read", None),
    "sender": ("/senders", "sender_ids:read", None),
    "person": ("/team", None, TEAM),
}


class Wanted(msgspec.Struct, frozen=True):
    """The filters in an address."""

    filters: Filters
    range: Range
    #: Typed values by field; and problems by field.
    typed: dict[str, str]
    problems: dict[str, str]
    #: The single message searched for by id.
    id: UUID | None
    #: The content of the field for who sent it.
    person: str = ""
    #: The content of the campaign field, and the campaigns to choose from if several names match it.
    campaign: str = ""
    choices: Sequence[CampaignName] = ()
    #: Numbers that the typed text could mean; the first one is searched for.
    numbers: Sequence[str] = ()

    @property
    def statuses(self) -> list[str]:
        """The chosen statuses."""
        return list(self.filters.statuses or ())

    @property
    def is_filtered(self) -> bool:
        """Whether any filter is set."""
        return any(self.typed.values()) or bool(self.range.name)


def reasons(channel: str | None) -> list[tuple[str, Kind]]:
    """All reasons, each with the kind that explains it: the channel's own, if both kinds have it."""
    kinds = sorted(FAILURES.values(), key=lambda kind: kind != FAILURES.get(channel or ""))
    return [(code, next(kind for kind in kinds if code in entries()[kind])) for code in REASONS]


async def find(conn: Connection, request: Request) -> Wanted:
    """The filters in a list's address."""
    wanted = _read(request, await _numbers(conn, request, request.query.get("q", "").strip()[:LONGEST]))
    if wanted.typed["by"]:
        wanted = await _sent_by(conn, request, wanted)
    text = naming.sought(wanted.typed["campaign"])
    if not text:
        return wanted
    latest = await campaigns(conn, request)
    if (id := _id(text)) is not None:
        return msgspec.structs.replace(wanted, campaign=_shown(id, latest))
    exact = [one for one in latest if one.name.casefold() == text.casefold()]
    found = exact or [one for one in latest if text.casefold() in one.name.casefold()]
    if len(found) == 1:
        filters = msgspec.structs.replace(wanted.filters, campaign_id=found[0].id)
        typed = wanted.typed | {"campaign": str(found[0].id)}  # links stay valid if another campaign gets the name
        return msgspec.structs.replace(wanted, filters=filters, typed=typed, campaign=_shown(found[0].id, latest))
    said = (
        request.text("Several campaigns have this in their name. Choose one:")
        if found
        else request.text("None of your latest campaigns has this name.")
    )
    return msgspec.structs.replace(
        wanted,
        filters=msgspec.structs.replace(wanted.filters, campaign_id=NOWHERE),
        problems=wanted.problems | {"campaign": said},
        campaign=text,
        choices=found[:CHOICES],
    )


async def _sent_by(conn: Connection, request: Request, wanted: Wanted) -> Wanted:
    """What was sent by the person who is meant by an id, a name or an e-mail address."""
    text, id = wanted.typed["by"], wanted.filters.person_id
    found = [id] if id is not None else await visibility.people_called(conn, request, text)
    if len(found) == 1:
        filters = msgspec.structs.replace(wanted.filters, person_id=found[0])
        typed = wanted.typed | {"by": str(found[0])}
        person = await visibility.called(conn, request, found[0]) or text
        return msgspec.structs.replace(wanted, filters=filters, typed=typed, person=person)
    said = (
        request.text("Several people have this name: give the e-mail address.")
        if found
        else request.text("Nobody on the team has this name or e-mail address.")
    )
    filters = msgspec.structs.replace(wanted.filters, person_id=NOWHERE)
    return msgspec.structs.replace(wanted, filters=filters, problems=wanted.problems | {"by": said}, person=text)


async def campaigns(conn: Connection, request: Request, *, limit: int = record.LOOKED) -> list[CampaignName]:
    """The latest campaigns, for readers who may see them."""
    return await record.latest(conn, request.actor, limit=limit) if request.may("campaigns:read") else []


def _shown(id: UUID, latest: Sequence[CampaignName]) -> str:
    """The name of a campaign if it identifies it, otherwise its id."""
    name = next((one.name for one in latest if one.id == id), None)
    same = [one for one in latest if name is not None and one.name.casefold() == name.casefold()]
    return str(id) if name is None or len(same) > 1 or _id(name) is not None else name


def _read(request: Request, numbers: Sequence[str]) -> Wanted:
    typed = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS}
    range = ranges.read(request)
    problems: dict[str, str] = {}
    given = {name: [request.query.get(name, "").strip()] for name in OFFERED}
    given["status"] = given["status"][0].split(",")
    chosen = [one for one in given["status"] if one in messages.STATUSES]
    number, reference, id = _searched(request, typed["q"], numbers, problems)
    ids = {}
    for name in ("key", "by", "campaign"):
        ids[name] = _id(typed[name])
        if typed[name] and ids[name] is None and name == "key":
            problems[name] = request.text("This is not an id.")
    problems |= listing.not_offered(request, given, OFFERED)
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
    """The numbers that a text could mean as written in the organization's country, most likely first; none for an
    id."""
    if not text or _id(text) is not None:
        return []
    home = (await organizations.get(conn, id=request.actor.organization_id)).country
    return phones.readings(text.replace("/", " "), region=home)


def _searched(
    request: Request, text: str, numbers: Sequence[str], problems: dict[str, str]
) -> tuple[str | None, str | None, UUID | None]:
    """The (number, reference, id) searched for. `numbers`: those that the text could mean."""
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
    """Go to the page for something pasted: an id of any kind, a name, both ends of a key, an e-mail address, a phone
    number, a reference, an error code; or to a page by its own name."""
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
            return Redirect(location=request.to(path))
        if received is not None:
            return Redirect(location=received)
    if id is not None:
        raise NotFound
    request.mode = asked
    for number in numbers:
        if (person := await _person(request, number)) is not None:
            return Redirect(location=person)
    if text in entries()["error"]:
        return Redirect(location=f"/docs/errors/{text}")
    place = pieces.named(request, places.GROUPS, places.ACTIONS, text)
    return Redirect(location=place or request.to("/messages", q=text))


async def _person(request: Request, number: str) -> str | None:
    """The page of the contact with a number, which also has messages and consent; otherwise that of its opt-out."""
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
    """The page of a message, another object or a request in this mode. `text`: its name; empty for a phone number."""
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
