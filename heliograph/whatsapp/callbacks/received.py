"""Messages from users to an organization's numbers: stored once, recorded in the conversation, reported, and acted on.

The rule nobody may break: a message is identified by number and wamid, and takes effect in the commit that stores it;
so it may arrive any number of times, and late.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.consent import handing_on, keywords, names
from heliograph.consent.people import Link
from heliograph.inbox import threads
from heliograph.inbox.threads import InboundMessage, PeerMoved
from heliograph.sealing.text_keys import Sealing
from heliograph.suppliers.whatsapp_cloud.callbacks.items import MessageItem
from heliograph.webhooks.recording import events
from heliograph.whatsapp.accepting.accept import TABLE
from heliograph.whatsapp.callbacks import conversations, number_changes, opt_out_words
from heliograph.whatsapp.callbacks.conversations import Renamed, User, UserActivity
from heliograph.whatsapp.callbacks.matching import LIFE
from heliograph.whatsapp.callbacks.number_changes import Author, UserEvent
from heliograph.whatsapp.callbacks.opt_out_words import Said

#: Maximum characters kept of a user's profile name.
LONGEST_NAME = 200
#: Maximum parts into which a batch is divided: each takes about as long as a batch of its own, with the same locks.
MOST_PARTS = 20


class ReceivedItem(msgspec.Struct, frozen=True, gc=False):
    """A message, and the organization and number that received it."""

    organization_id: UUID
    number_id: UUID
    item: MessageItem
    #: When its callback arrived.
    at: datetime
    #: It is a word for STOP, which takes effect although its text cannot be sealed now and so is not kept.
    is_bare: bool = False


class _Message(msgspec.Struct, gc=False):
    """A new message."""

    id: UUID
    received: ReceivedItem
    user: User
    #: When it was written; not in the future.
    at: datetime
    conversation_id: UUID
    #: As in `Author`.
    moved_to: str | None = None
    hidden_as: str | None = None
    keyword: str | None = None
    word: str = ""


#: A new message's id, and the message.
_Fresh = tuple[UUID, ReceivedItem]

# Waits if another transaction is storing the same wamid.
NEW = """
INSERT INTO whatsapp_wamids (number_id, wamid, organization_id, message_id, born_on, created_at)
SELECT item.*, now() FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::date[])
       AS item (number_id, wamid, organization_id, message_id, born_on)
 ORDER BY number_id, wamid
ON CONFLICT DO NOTHING
RETURNING message_id
"""
STORE = """
INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id, conversation_id,
                               recipient, content, request_id, accepted_at, delivered_at)
SELECT organization_id, id, 'inbound', type, 'live', 'delivered', number_id, conversation_id, recipient, content,
       id::text, accepted_at, delivered_at
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::uuid[], $6::text[], $7::timestamptz[],
              $8::timestamptz[], $9::text[])
       AS item (organization_id, id, type, number_id, conversation_id, recipient, accepted_at, delivered_at, content)
"""

# Wamids are kept for two months; a reply to an older message is stored without a reference to it.
QUOTED = """
SELECT item.id, w.message_id
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[]) AS item (id, organization_id, number_id, wamid)
       CROSS JOIN LATERAL (
       SELECT organization_id, message_id FROM whatsapp_wamids
        WHERE number_id = item.number_id AND wamid = item.wamid AND born_on >= $5 LIMIT 1) w
 WHERE w.organization_id = item.organization_id
"""
DIGITS = """
SELECT n.id, n.digits FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT id, digits FROM whatsapp_numbers WHERE organization_id = item.organization_id AND id = item.id) n
"""


async def receive(conn: Connection, received: Sequence[ReceivedItem], *, sealing: Sealing) -> tuple[int, int]:
    """Store new messages, with all their effects, in the caller's transaction.

    Returns the number of new messages, and of webhook deliveries queued. Raises Unavailable if one must be sealed and
    cannot be.
    """
    if not received:
        return 0, 0
    # Ids, by which lists are sorted, follow the time of writing; within a second, the order of arrival.
    ordered = sorted(received, key=lambda one: one.item.at)
    ids = [uuid7() for _ in ordered]
    rows = await conn.fetch(
        NEW,
        [one.number_id for one in ordered],
        [one.item.wamid for one in ordered],
        [one.organization_id for one in ordered],
        ids,
        # By Meta's time, so that a repetition finds it under the same day.
        [one.item.at.astimezone(UTC).date() for one in ordered],
    )
    new = {row["message_id"] for row in rows}
    fresh = [(id, one) for id, one in zip(ids, ordered, strict=True) if id in new]
    return len(fresh), sum([await _take_in(conn, some, sealing) for some in _apart(fresh)])


def _apart(fresh: list[_Fresh]) -> list[list[_Fresh]]:
    """The messages, divided so that no notice of new names is among others of its user: what came before it counts
    first, and then the notice, as if each had come alone."""
    if not any(_is_notice(one.item) for _, one in fresh):
        return [fresh] if fresh else []
    parts: list[list[_Fresh]] = [[]]
    named: set[tuple[UUID, str]] = set()
    changed: set[tuple[UUID, str]] = set()
    for one in fresh:
        names, is_notice = _names(one[1]), _is_notice(one[1].item)
        if len(parts) < MOST_PARTS and not names.isdisjoint(named if is_notice else changed):
            parts.append([])
            named, changed = set(), set()
        parts[-1].append(one)
        named |= names
        if is_notice:
            changed |= names
    return parts


def _is_notice(item: MessageItem) -> bool:
    return item.new_sender is not None or item.new_user_id is not None


def _names(one: ReceivedItem) -> set[tuple[UUID, str]]:
    """All names of the user in a message, as keys."""
    item = one.item
    numbers = {phones.person(f"+{digits}") for digits in (item.sender, item.new_sender) if digits}
    names = numbers | {id for id in (item.user_id, item.new_user_id) if id}
    return {(one.organization_id, name) for name in names}


async def _take_in(conn: Connection, fresh: Sequence[_Fresh], sealing: Sealing) -> int:
    """Record new messages, given in chronological order; returns the number of webhook deliveries queued."""
    authors, handovers = await number_changes.authors(conn, [_written(one) for _, one in fresh])
    await conversations.link(conn, [link for author, (_, one) in zip(authors, fresh, strict=True)
                                    for link in _changed(author, one.item)])  # fmt: skip
    places = await conversations.of_users(conn, [one.user for one in authors])
    messages = [
        _Message(id, one, author.user, min(one.item.at, one.at), place, author.moved_to, author.hidden_as)
        for (id, one), author, place in zip(fresh, authors, places, strict=True)
    ]
    await _store(conn, messages, sealing)
    await conversations.open_windows(
        conn,
        [
            UserActivity(one.conversation_id, one.user, one.at, one.received.item.opens_window, _was_referred(one))
            for one in messages
        ],
    )
    renamed = _renamed(messages)
    await conversations.rename(conn, renamed)
    referred = [(one.received.organization_id, one.id) for one in messages if _was_referred(one)]
    await conversations.note_answers(conn, referred)
    await handing_on.hand_on(conn, handovers)
    deliveries = await _obey(conn, messages)
    await _note(conn, messages)
    await _move(conn, renamed)
    numbers = {one.received.number_id: one.received.organization_id for one in messages}
    digits = {row["id"]: row["digits"] for row in await conn.fetch(DIGITS, list(numbers.values()), list(numbers))}
    deliveries += await events.record(conn, [_event(one, digits[one.received.number_id]) for one in messages])
    return deliveries


def _written(one: ReceivedItem) -> UserEvent:
    user = User(one.organization_id, one.number_id, one.item.sender, one.item.user_id)
    moved_to = f"+{one.item.new_sender}" if one.item.new_sender else None
    is_hidden = one.item.sender is None and moved_to is None and one.item.new_user_id != one.item.user_id
    hidden_as = one.item.new_user_id if is_hidden else None
    return UserEvent(user, min(one.item.at, one.at), moved_to, hidden_as, one.item.new_user_id if moved_to else None)


def _was_referred(message: _Message) -> bool:
    return message.received.item.referral is not None


def _changed(author: Author, item: MessageItem) -> list[Link]:
    """Links between a user's old and new names."""
    user, names = author.user, (author.moved_to, item.new_user_id)
    return [(user.organization_id, user.recipient, name) for name in names if name and name != user.recipient]


async def _store(conn: Connection, messages: Sequence[_Message], sealing: Sealing) -> None:
    # Lists find times by id, so a message's acceptance time is that of its id, however long its callback waited.
    at = clock.now()
    quoted = await _quoted(conn, messages)
    await conn.execute(
        STORE,
        [one.received.organization_id for one in messages],
        [one.id for one in messages],
        [one.received.item.type[:50] for one in messages],
        [one.received.number_id for one in messages],
        [one.conversation_id for one in messages],
        [one.user.recipient for one in messages],
        [at] * len(messages),
        [one.at for one in messages],
        [
            None
            if one.received.is_bare
            else sealing.sealed(
                one.received.organization_id, TABLE, one.id, _content(one.received.item, quoted.get(one.id))
            )
            for one in messages
        ],
    )


async def stops(conn: Connection, received: Sequence[ReceivedItem]) -> list[bool]:
    """Whether each of these is a word for STOP, whatever preceded it."""
    whose = [User(one.organization_id, one.number_id, one.item.sender, one.item.user_id) for one in received]
    found = await _words(
        conn, [(one.organization_id, one.item, who.recipient) for one, who in zip(received, whose, strict=True)]
    )
    return [word is not None and word[0] == "stop" for word in found]


async def _words(
    conn: Connection, said: Sequence[tuple[UUID, MessageItem, str]]
) -> list[tuple[keywords.Keyword, str] | None]:
    """The keyword in each message, as `keywords.find` returns it. `said`: organization, message and user's address."""
    own = await opt_out_words.additions(conn, {organization_id for organization_id, _, _ in said})
    known = await names.of(conn, [(organization_id, item.text or "") for organization_id, item, _ in said])
    found: list[tuple[keywords.Keyword, str] | None] = []
    for organization_id, item, recipient in said:
        if item.type not in opt_out_words.SPOKEN or not item.text:
            found.append(None)
            continue
        additions, mine = (some.get(organization_id, frozenset()) for some in (own, known))
        found.append(keywords.find(item.text, additions=additions, countries=(phones.country(recipient),), names=mine))
    return found


async def _note(conn: Connection, messages: Sequence[_Message]) -> None:
    """Add them to the inbox. Messages of type `system` or in a group need no answer and are left out."""
    await threads.note(
        conn,
        [
            InboundMessage(
                one.received.organization_id,
                "whatsapp",
                one.received.number_id,
                one.user.recipient,
                one.id,
                one.at,
                one.conversation_id,
            )
            for one in messages
            if one.received.item.type != "system" and not one.received.item.group
        ],
    )


def _renamed(messages: Sequence[_Message]) -> list[Renamed]:
    """The notices among them that a user's names have changed, in order."""
    found = []
    for one in messages:
        told, new_user_id, digits, user = one.moved_to or one.hidden_as, one.received.item.new_user_id, None, one.user
        if told is None:
            digits = user.digits
        elif not told.startswith("+"):  # they hide their number, or have left the one that was told
            new_user_id = told
        else:
            digits = told.removeprefix("+")
            if one.hidden_as:  # since then their number has been told
                new_user_id = None
        if told or new_user_id:
            names = User(user.organization_id, user.number_id, digits, new_user_id)
            found.append(Renamed(one.conversation_id, names, one.at))
    return found


async def _move(conn: Connection, renamed: Sequence[Renamed]) -> None:
    """Address replies from the inbox to the user's new name, in the threads of merged conversations as well."""
    if not renamed:
        return
    last = {one.conversation_id: one for one in renamed}
    others = await conversations.merged(conn, [one.user.organization_id for one in last.values()], list(last))
    places = [(id, id) for id in last] + others
    await threads.move(
        conn, [PeerMoved(last[of].user.organization_id, id, last[of].user.recipient, last[of].at) for id, of in places]
    )


async def _quoted(conn: Connection, messages: Sequence[_Message]) -> dict[UUID, UUID]:
    """Our ids of the messages that some of these reply to, by the ids of the replies."""
    answers = [one for one in messages if one.received.item.quoted]
    if not answers:
        return {}
    rows = await conn.fetch(
        QUOTED,
        [one.id for one in answers],
        [one.received.organization_id for one in answers],
        [one.received.number_id for one in answers],
        [one.received.item.quoted for one in answers],
        (clock.now() - LIFE).date(),
    )
    return {row["id"]: row["message_id"] for row in rows}


async def _obey(conn: Connection, messages: Sequence[_Message]) -> int:
    """Act on keywords, and record in each message whether it was one."""
    spoken = [one for one in messages if one.received.item.type in opt_out_words.SPOKEN and one.received.item.text]
    if not spoken:
        return 0
    words = await _words(
        conn, [(one.received.organization_id, one.received.item, one.user.recipient) for one in spoken]
    )
    said: list[Said] = []
    spoken_words: list[_Message] = []
    for one, found in zip(spoken, words, strict=True):
        if found is None or found[0] == "help":
            continue
        one.keyword, one.word = found
        spoken_words.append(one)
    campaign = await opt_out_words.after_campaign(conn, [(one.received.organization_id, one.user.recipient)
                                                 for one in spoken_words if one.keyword == "doubtful"])  # fmt: skip
    for one in spoken_words:
        pair = (one.received.organization_id, one.user.recipient)
        if one.keyword == "doubtful":
            one.keyword = "stop" if pair in campaign else None
        if one.keyword is not None:
            said.append(Said(*pair, one.at, one.keyword, one.word, one.id))
    meant, deliveries = await opt_out_words.obey(conn, said)
    for one in spoken:
        if one.id not in meant:
            one.keyword = None
    return deliveries


def _content(item: MessageItem, quoted: UUID | None) -> str:
    """The content to store in the row, sealed or not, as read by `messages.read_content`; it is erased as a whole."""
    kept: dict[str, Any] = {"type": item.type, **item.content}
    if quoted is not None or item.is_forwarded:
        kept["context"] = {"messageId": quoted, "forwarded": item.is_forwarded}
    if item.referral is not None:
        kept["referral"] = item.referral
    if item.profile_name:
        kept["profileName"] = item.profile_name[:LONGEST_NAME]
    return msgspec.json.encode(kept).decode()


def _event(one: _Message, digits: str) -> events.Event:
    item = one.received.item
    text = item.text
    data: dict[str, Any] = {
        "message": {
            "id": one.id,
            "channel": "whatsapp",
            "type": item.type,
            "conversationId": one.conversation_id,
            "phoneNumberId": one.received.number_id,
            "from": one.user.recipient,
            "to": f"+{digits}",
            "text": text and text[: events.SHOWN_TEXT],
            "truncated": len(text or "") > events.SHOWN_TEXT,
            "segments": None,
            "missingSegments": None,
            "keyword": one.keyword,
            "receivedAt": iso(one.received.at),
        }
    }
    return events.Event(
        organization_id=one.received.organization_id,
        id=uuid7(),
        kind="message.received",
        request_id=str(one.id),
        data=msgspec.json.encode(data).decode(),
        created_at=one.received.at,
        message_id=one.id,
    )
