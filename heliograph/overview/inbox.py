"""The inbox: conversations of both channels in one list, and a single one with its messages in both directions.

Below pages and API; above the channels, which do not know about each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base import naming, phones
from heliograph.base.actor import Actor
from heliograph.base.database.bounded_scan import PAGE_LOOK
from heliograph.base.database.pool import Connection
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.contacts import suggesting
from heliograph.inbox import threads
from heliograph.inbox.threads import Thread
from heliograph.sms import messages as sms
from heliograph.sms.accepting import sender_choice
from heliograph.sms.received import inbound
from heliograph.whatsapp import messages as whatsapp
from heliograph.whatsapp import reads, rendering
from heliograph.why.words import Kind

#: Characters of the last message shown in the list.
SHOWN_WORDS = 90
#: Threads scanned for a page of a search: 25 ms if none of these users is a contact, since their names are in messages.
SEARCHED = 500
#: Messages of each list scanned for a page of a thread; SMS have no index by recipient.
LOOK = PAGE_LOOK


class Window(msgspec.Struct, frozen=True):
    """The time during which free-form replies are allowed on WhatsApp."""

    expires_at: datetime | None
    is_open: bool


class InboxLine(msgspec.Struct, frozen=True):
    """A thread in the list."""

    thread: Thread
    #: The author's number; if none is known, what they wrote from.
    address: str
    #: The contact's name, or the user's own profile name; empty: not known.
    name: str
    #: Text of the last message; empty: it had none, or it was deleted.
    words: str
    #: Type of the last message if it was not text, such as "image".
    type: str
    keyword: str | None
    #: None also if the person opted out: they cannot be answered.
    window: Window | None


class Bubble(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a thread."""

    id: UUID
    direction: str
    at: datetime
    text: str
    #: "text", "template", "image", "reaction_removed", "blank" …
    type: str
    is_erased: bool
    #: A template whose text was edited after it was sent.
    is_outdated: bool = False
    status: str
    failure_code: str | None = None
    failure_kind: Kind = "sms_failure"
    template: str | None = None
    keyword: str | None = None
    #: Number of parts of an SMS that never arrived.
    missing: int = 0
    #: The message that it answers.
    quoted: UUID | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with its messages, oldest first."""

    thread: Thread
    #: As in the list.
    address: str
    name: str
    is_contact: bool
    #: Our sender ID or number in it.
    line: str
    #: True if it can send now.
    is_line_usable: bool
    window: Window | None
    opt_out: OptOut | None
    bubbles: list[Bubble]
    #: The oldest message shown, if there are older ones.
    older: UUID | None

    @property
    def barrier(self) -> Literal["no_number", "opted_out", "line", "window"] | None:
        """Why no text can be sent now: the author of an SMS is a name, a short code or a number of unknown country, the
        person opted out, our line cannot send, or the window is closed."""
        if self.thread.channel == "sms" and phones.parse(self.thread.peer) != self.thread.peer:
            return "no_number"
        if self.opt_out is not None:
            return "opted_out"
        if not self.is_line_usable:
            return "line"
        return "window" if self.thread.channel == "whatsapp" and not (self.window and self.window.is_open) else None


async def list_page(
    conn: Connection, actor: Actor, *, state: str = "open", after: UUID | None = None, limit: int = 50
) -> tuple[list[InboxLine], UUID | None]:
    """Threads, most recently active first: up to `limit`, and where the next page begins."""
    found, seen = await threads.list_page(conn, actor, state=state, after=after, limit=limit)
    more = found[limit - 1].message_id if len(found) > limit else seen
    return await _lines(conn, actor, found[:limit], await _people(conn, actor, found[:limit])), more


async def search(
    conn: Connection, actor: Actor, *, text: str, state: str = "open", after: UUID | None = None, limit: int = 50
) -> tuple[list[InboxLine], UUID | None]:
    """Like `list_page`, those of people with `text` in their name, as the list shows it, or its digits in their number,
    which may be written as at home. Scans at most SEARCHED threads, so there may be fewer than `limit` although there
    are more."""
    found, seen = await threads.list_page(conn, actor, state=state, after=after, limit=SEARCHED, look=SEARCHED)
    people = await _people(conn, actor, found)
    wanted = naming.sought(text).casefold()
    digits, numbers = await _numbers(conn, actor, wanted)
    nameless = [one for one in found if not people[one.id].name]
    written = {one.id: one for one in await whatsapp.by_ids(conn, actor, ids=_last(nameless, "whatsapp"))}

    def fits(one: Thread) -> bool:
        who = people[one.id]
        name = who.name or _own_name(written.get(one.message_id))
        if who.address in numbers or wanted == one.peer.casefold():
            return True
        return wanted in naming.sought(name).casefold() or (digits is not None and digits in who.address)

    fitting = [one for one in found if fits(one)]
    if len(fitting) > limit:
        fitting, seen = fitting[:limit], fitting[limit - 1].message_id
    return await _lines(conn, actor, fitting, people), seen


class _Person(msgspec.Struct, frozen=True):
    """The author of a thread."""

    address: str
    #: Of the contact; empty: they are none.
    name: str


async def _people(conn: Connection, actor: Actor, found: Sequence[Thread]) -> dict[UUID, _Person]:
    """The authors of threads. Whoever hides their number now may be known by it, and be a contact."""
    hidden = [one.id for one in found if one.channel == "whatsapp" and not one.peer.startswith("+")]
    places = await reads.conversations_of(conn, actor, ids=hidden)
    addresses = {one.id: places[one.id].recipient if one.id in places else one.peer for one in found}
    names = await suggesting.names(conn, actor, phones=set(addresses.values()))
    return {id: _Person(address, names.get(address, "")) for id, address in addresses.items()}


async def _numbers(conn: Connection, actor: Actor, text: str) -> tuple[str | None, list[str]]:
    """(digits that a number may contain, spellings of the number that it is); None and no spellings for other text"""
    digits = phones.part(text)
    if digits is None:
        return None, []
    home = (await organizations.get(conn, id=actor.organization_id)).country
    number = phones.read(text, region=home) or phones.parse(text)
    return digits, [] if number is None else phones.spellings(number)


async def _lines(
    conn: Connection, actor: Actor, found: Sequence[Thread], people: Mapping[UUID, _Person]
) -> list[InboxLine]:
    last = {one.id: one for one in await inbound.by_ids(conn, actor, ids=_last(found, "sms"))}
    written = {one.id: one for one in await whatsapp.by_ids(conn, actor, ids=_last(found, "whatsapp"))}
    users = [one for one in found if one.channel == "whatsapp"]
    places = await reads.conversations_of(conn, actor, ids=[one.id for one in users])
    silent = await optouts.current(conn, {(actor.organization_id, one.peer) for one in users})
    lines, shown = [], set()
    for one in found:
        who = people[one.id]
        if one.channel == "sms":
            received = last.get(one.message_id)
            words = (received.body or "") if received else ""
            type = "blank" if received and received.body is not None and not words.strip() else "text"
            keyword = received.keyword if received else None
            line = InboxLine(one, who.address, who.name, _cut(words), type, keyword, None)
        else:
            place, message = places.get(one.id), written.get(one.message_id)
            if place is not None and place.id in shown:
                continue  # two threads that turned out to be the same person's
            shown.add(place.id if place else one.id)
            words = rendering.plain_text((message.content if message else None) or {})
            line = InboxLine(
                one,
                who.address,
                who.name or _own_name(message),
                _cut(words),
                rendering.content_type(message, words) if message else "text",
                None,
                None if (actor.organization_id, one.peer) in silent else _window(place),
            )
        lines.append(line)
    return lines


async def get(conn: Connection, actor: Actor, *, id: UUID, before: UUID | None = None, limit: int = 50) -> Conversation:
    """A thread with its newest messages, or those older than `before`. Raises NotFound."""
    thread = await threads.get(conn, actor, id=id)
    who = (await _people(conn, actor, [thread]))[id]
    window, profile = None, ""
    if thread.channel == "sms":
        bubbles, seen = await _sms(conn, actor, thread, before, limit)
        sender = await sender_choice.identified(conn, actor, id=thread.line_id)
        line, is_usable = (sender.value if sender else ""), bool(sender and sender.status == "approved")
    else:
        place = (await reads.conversations_of(conn, actor, ids=[id])).get(id)
        window = _window(place)
        bubbles, seen, profile = await _whatsapp(conn, actor, thread, place, before, limit)
        numbers = {one.id: one for one in await reads.phone_numbers(conn, actor)}
        number = numbers.get(thread.line_id)
        line, is_usable = (number.display_phone_number if number else ""), number is not None
    bubbles.sort(key=lambda one: one.id, reverse=True)
    if seen is not None:
        bubbles = [one for one in bubbles if one.id >= seen]
    older = bubbles[limit - 1].id if len(bubbles) > limit else seen
    return Conversation(
        thread=thread,
        address=who.address,
        name=who.name or profile,
        is_contact=bool(who.name),
        line=line,
        is_line_usable=is_usable,
        window=window,
        opt_out=await optouts.of_recipient(conn, actor, recipient=thread.peer),
        bubbles=bubbles[:limit][::-1],
        older=older,
    )


async def spread(conn: Connection, actor: Actor, *, thread: Thread) -> None:
    """Give a thread's marks to those of merged conversations: the list shows one of them, and the others must not come
    up once that one is closed."""
    others = await reads.merged_with(conn, actor, id=thread.id) if thread.channel == "whatsapp" else []
    if others:
        await threads.spread(conn, actor, id=thread.id, others=others)


async def of_received(conn: Connection, actor: Actor, *, id: UUID) -> UUID | None:
    """The conversation that a received SMS belongs to; None: there is no such SMS. Test mode receives none."""
    found = await inbound.by_ids(conn, actor, ids=[id]) if actor.mode == "live" else []
    return threads.id_of(found[0].sender_id, found[0].sender) if found else None


async def _sms(
    conn: Connection, actor: Actor, thread: Thread, before: UUID | None, limit: int
) -> tuple[list[Bubble], UUID | None]:
    came = await inbound.list_page(
        conn, actor, senders=[thread.peer], sender_id=thread.line_id, after=before, limit=limit, look=LOOK
    )
    went = await sms.list_page(
        conn, actor, filters=sms.Filters(recipient=thread.peer), after=before, limit=limit, look=LOOK
    )
    sent = [one for one in went.messages if one.sender_id == thread.line_id]
    texts = await sms.texts(conn, actor, ids=[one.id for one in sent])
    bubbles = [
        Bubble(
            id=one.id,
            direction="inbound",
            at=one.received_at,
            text=one.body or "",
            type="text" if (one.body or "").strip() else "blank",
            is_erased=one.body is None,
            status="received",
            keyword=one.keyword,
            missing=one.missing,
        )
        for one in came.messages
    ]
    bubbles += [
        Bubble(
            id=one.id,
            direction="outbound",
            at=one.accepted_at,
            text=texts.get(one.id, ""),
            type="text",
            is_erased=one.id not in texts,
            status=one.status,
            failure_code=one.failure_code,
        )
        for one in sent
    ]
    return bubbles, _ended(came.seen, went.seen, went.messages[-1].id if len(went.messages) > limit else None)


async def _whatsapp(
    conn: Connection, actor: Actor, thread: Thread, place: reads.Conversation | None, before: UUID | None, limit: int
) -> tuple[list[Bubble], UUID | None, str]:
    filters = whatsapp.Filters(recipient=thread.peer)
    found = await whatsapp.list_page(conn, actor, filters=filters, after=before, limit=limit, look=LOOK)
    # Their number may have been somebody else's, whose messages are none of theirs.
    mine = [
        one
        for one in found.messages
        if one.number_id == thread.line_id and (place is None or one.conversation_id == place.id)
    ]
    texts = await rendering.rendered(conn, actor, messages=mine)
    bubbles = [
        Bubble(
            id=one.id,
            direction=one.direction,
            at=(one.delivered_at if one.direction == "inbound" else None) or one.accepted_at,
            text=texts[one.id].text,
            is_outdated=texts[one.id].is_outdated,
            type=rendering.content_type(one, texts[one.id].text),
            is_erased=one.content is None,
            status="received" if one.direction == "inbound" else one.status,
            failure_code=one.failure_code,
            failure_kind="whatsapp_failure",
            template=one.template_name,
            quoted=one.context.message_id if one.context else None,
        )
        for one in mine
    ]
    profile = next(filter(None, map(_own_name, mine)), "")
    return bubbles, _ended(found.seen, found.messages[-1].id if len(found.messages) > limit else None), profile


def _ended(*seen: UUID | None) -> UUID | None:
    """Where the shortest of several scans ended."""
    return max((one for one in seen if one is not None), default=None)


def _own_name(message: whatsapp.Message | None) -> str:
    """What a user calls themselves; empty: not known, or nothing in it can be seen, so that their number says more."""
    name = (message.profile_name if message else None) or ""
    return name if naming.is_readable(name) else ""


def _window(place: reads.Conversation | None) -> Window | None:
    return Window(place.expires_at, place.is_open) if place else Window(None, False)


def _last(found: Sequence[Thread], channel: str) -> list[UUID]:
    return [one.message_id for one in found if one.channel == channel]


def _cut(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= SHOWN_WORDS else words[: SHOWN_WORDS - 1] + "…"
