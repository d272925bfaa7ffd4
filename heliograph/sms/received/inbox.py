"""The inbox: processing of stored messages from handsets, in order of arrival.

One transaction per batch, and one worker at a time, because order matters: STOP followed by START is not START followed
by STOP, and parts held by two workers would never meet. In that transaction a message gets its text, its organization,
its event, and the effect of its keyword: an opt-out or its end, and a reply. A worker that is killed halfway leaves
nothing of a batch behind.

The rule nobody may break: a message stops being due only in the commit that contains its consequences.

It has over 400 lines because they are the steps of one transaction, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base import phones
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.process.crash import crash_point
from heliograph.consent import keywords, names, optouts
from heliograph.consent.history import Statement
from heliograph.consent.optouts import OptOut, Pair
from heliograph.inbox import threads
from heliograph.inbox.threads import InboundMessage
from heliograph.queue import timers
from heliograph.sealing.text_keys import Sealing
from heliograph.senders import owners as numbers
from heliograph.sms.received import at_rest, handsets, replies
from heliograph.sms.received.assembly import AGAIN, LATEST, Group, Row, assemble, text_of
from heliograph.sms.received.handsets import Numbering
from heliograph.sms.received.replies import KeywordReply
from heliograph.suppliers import kinds
from heliograph.webhooks.recording import events

log = structlog.get_logger()

#: The worker that holds this timer's row processes the inbox.
TIMER = "inbound"
#: Maximum length of a text in an event: even with all characters escaped, its body stays below 20 kB.
SHOWN_TEXT = 3000
#: A reply to an older message would surprise rather than inform: workers were down, or the number had no owner.
REPLY_WITHIN = timedelta(hours=1)
#: How many parts under one reference are examined: two messages with the maximum number of parts. How many for a batch,
#: divided among its references.
MOST_PARTS, MOST_OF_ALL = 510, 20_000
#: How many earlier messages are compared with one, if they have to be opened for that.
MOST_SAME = 100
#: How many messages are searched for a batch, divided among those that they are searched for: half a second. They are
#: what organizations sent, and earlier messages and parts from a handset: one that floods a number must not keep
#: everybody's STOP waiting.
MOST_LOOKED = 20 * LOOK
#: Wait of a message that cannot be stored because its organization's text key cannot be opened.
LOCKED_PAUSE = timedelta(minutes=1)


class BatchResult(msgspec.Struct, frozen=True):
    """The result of a batch."""

    #: Rows processed; 0: nothing was due, or another worker is processing the inbox.
    rows: int = 0
    #: Webhook deliveries, and replies, queued.
    deliveries: int = 0
    replies: int = 0


class _Owner(msgspec.Struct, frozen=True, gc=False):
    """The organization that a number belongs to."""

    organization_id: UUID
    sender_id: UUID
    sender: str
    #: Its own words for STOP, folded.
    words: frozenset[str]
    country: str | None


class _Message(msgspec.Struct, gc=False):
    """A complete message, and its owner."""

    group: Group
    owner: _Owner
    text: str | None
    #: E.164; None: not a number in the supplier's format.
    phone: str | None
    #: It was shown before and is still incomplete: its text is extended, and nobody is notified.
    quiet: bool
    #: The supplier answers keywords itself.
    answered: bool
    #: Other organizations have this number too.
    shared: bool
    keyword: str | None = None
    word: str = ""

    @property
    def pair(self) -> Pair:
        assert self.phone is not None
        return self.owner.organization_id, self.phone

    @property
    def is_assignable(self) -> bool:
        """False for a message without a keyword to a number of several organizations: it could belong to any."""
        return self.keyword is not None or not self.shared

    @property
    def person(self) -> Pair:
        """The organization, and the number in the form shared by all its spellings."""
        organization_id, phone = self.pair
        return organization_id, phones.person(phone)


ANY_DUE = "EXISTS (SELECT FROM inbound_messages WHERE due_at <= now())"
DUE = """
WITH due AS MATERIALIZED (SELECT id FROM inbound_messages WHERE due_at <= now() ORDER BY due_at, id LIMIT $1)
SELECT id, supplier_id, sender, recipient, form, body, concatenation, received_at, state, message_id, sender_ton,
       recipient_ton, organization_id, sealed, now() AS at
  FROM inbound_messages WHERE id = ANY (ARRAY(SELECT id FROM due)) ORDER BY id FOR UPDATE
"""

# Earlier messages to which our answer may not have got through: an identical one, and those that must be opened to be
# compared.
SAME = """
SELECT item.id, earlier.* FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[],
                                      $7::timestamptz[], $8::timestamptz[])
       AS item (id, supplier_id, sender, recipient, form, body, after, until) CROSS JOIN LATERAL (
       SELECT id AS earlier_id, organization_id, CASE WHEN sealed THEN body END AS body FROM (
              SELECT * FROM inbound_messages
               WHERE sender = item.sender AND recipient = item.recipient
                 AND received_at BETWEEN item.after AND item.until AND concatenation IS NULL AND NOT acknowledged
               ORDER BY received_at DESC LIMIT $10) recent
        WHERE id < item.id AND supplier_id = item.supplier_id AND form = item.form
          AND (sealed AND body <> '' OR body = item.body)
        ORDER BY received_at DESC LIMIT $9) earlier
"""

# A part may belong to the newest message under its reference.
PARTS = """
SELECT part.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::timestamptz[])
       AS item (supplier_id, sender, recipient, reference, total, after) CROSS JOIN LATERAL (
       SELECT id, supplier_id, sender, recipient, form, body, concatenation, received_at, state, message_id,
              sender_ton, recipient_ton, organization_id, sealed
         FROM (SELECT * FROM inbound_messages
                WHERE sender = item.sender AND recipient = item.recipient AND concatenation[1] = item.reference
                  AND received_at > item.after AND concatenation IS NOT NULL
                ORDER BY received_at DESC LIMIT $8) recent
        WHERE supplier_id = item.supplier_id AND concatenation[2] = item.total
          AND state IN ('waiting', 'received', 'unassigned')
        ORDER BY received_at DESC LIMIT $7) part
"""

# A word such as STOP applies to all organizations that share a number.
OWNERS = """
SELECT item.value, owner.* FROM unnest($1::text[]) AS item (value) CROSS JOIN LATERAL (
       SELECT s.organization_id, s.id, s.value AS sender, o.opt_out_words, o.country
         FROM sender_ids s CROSS JOIN LATERAL (
              SELECT opt_out_words, country FROM organizations WHERE id = s.organization_id AND state <> 'closed') o
        WHERE lower(s.value) = item.value AND s.status = 'approved' LIMIT 1000) owner
 ORDER BY owner.organization_id
"""

SUPPLIERS = """
SELECT id, kind, settings::text AS settings, coalesce((settings->>'handles_stop')::boolean, false) AS answers,
       coalesce(settings->>'country', '') AS country, coalesce(settings->>'inbound_strip', '') AS strip,
       coalesce(settings->>'inbound_prepend', '') AS prepend
  FROM suppliers WHERE id = ANY ($1)
"""

# Messages have no index by recipient: an organization's newest ones are searched, once for everybody who wrote to it:
# five hundred searches took longer than a statement may. This is done only for words that may be an answer, or if
# several organizations share the number. `IS TRUE` makes the IN a look-up in a hash table rather than a join.
LAST = """
SELECT DISTINCT ON (organization_id, person) organization_id, person, campaign_id IS NOT NULL AS campaign
  FROM unnest($1::uuid[]) AS one (organization_id) CROSS JOIN LATERAL (
       SELECT id, person_of(recipient) AS person, campaign_id FROM messages
        WHERE organization_id = one.organization_id ORDER BY id DESC LIMIT $3) recent
 WHERE (person IN (SELECT unnest($2::text[]))) IS TRUE
 ORDER BY organization_id, person, id DESC
"""

# A message shown with missing parts is completed by its late parts.
RECEIVE = """
INSERT INTO received_messages AS known (organization_id, id, supplier_id, sender, recipient, sender_id, segments,
                                        missing, keyword, received_at, body)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::smallint[],
                     $8::smallint[], $9::text[], $10::timestamptz[], $11::text[])
ON CONFLICT (organization_id, id) DO UPDATE
   SET missing = excluded.missing, keyword = excluded.keyword, body = coalesce(excluded.body, known.body)
"""
SETTLE = """
UPDATE inbound_messages SET state = v.state, due_at = v.due_at, message_id = v.message_id,
                            organization_id = v.organization_id
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::uuid[], $5::uuid[])
       AS v (id, state, due_at, message_id, organization_id)
 WHERE inbound_messages.id = v.id
"""


async def process_due(conn: Connection, *, limit: int = 500) -> BatchResult:
    """Process one batch, in its own transaction."""
    async with conn.transaction():
        if not await timers.hold(conn, TIMER):
            return BatchResult()
        rows = await conn.fetch(DUE, limit)
        if not rows:
            return BatchResult()
        done = await _process(conn, [row_of(row) for row in rows], rows[0]["at"])
        crash_point("inbound.before_commit")
    crash_point("inbound.after_commit")
    return done


async def _process(conn: Connection, due: list[Row], at: datetime) -> BatchResult:
    due = await at_rest.opened(conn, due)
    new = [row for row in due if row.state == "new"]
    again = await _repeated(conn, [row for row in new if row.concatenation is None])
    known = await _parts(conn, [row for row in due if row.concatenation is not None])
    groups, repeated = assemble(known, [row for row in new if row.id not in again])
    repeated += [row for row in new if row.id in again]

    waiting = [group for group in groups if group.missing and group.until > at and not group.shown]
    ready = [group for group in groups if group.changed or not group.shown]
    ready = [group for group in ready if group not in waiting]
    firsts = [*(group.first for group in [*waiting, *ready]), *repeated]
    suppliers = {row["id"]: row for row in await conn.fetch(SUPPLIERS, list({row.supplier_id for row in firsts}))}
    called_by = {row.id: called(row.recipient, row.recipient_ton, suppliers.get(row.supplier_id)) for row in firsts}
    owners = await _owners(conn, {name for names in called_by.values() for name in names})
    holders = {id: next((owners[name] for name in names if name in owners), []) for id, names in called_by.items()}
    sealing = await Sealing.of(conn, {one.organization_id for some in holders.values() for one in some})
    # Messages that cannot be read or stored for lack of a key stay as they are until it is available.
    stuck = {group.id for group in ready if any(row.is_locked for row in group.parts.values())}
    messages = []
    for group in ready:
        mine = [] if group.id in stuck else holders[group.first.id]
        supplier = suppliers.get(group.first.supplier_id)
        messages += [_message(group, owner, supplier, shared=len(mine) > 1) for owner in mine]
    await _find_words(conn, messages)
    messages = [one for one in messages if one.is_assignable]

    deliveries, wanted = await _obey(conn, messages, at)
    messages = [one for one in messages if one.is_assignable]  # YES is a keyword only from somebody who had opted out
    # A keyword takes effect whether or not its text can be stored: STOP does not wait for an operator.
    stuck |= {one.group.id for one in messages if one.keyword is None and sealing.is_locked(one.owner.organization_id)}
    messages = [one for one in messages if one.group.id not in stuck]
    await _receive(conn, messages, sealing)
    deliveries += await events.record(conn, [_event(one, at) for one in messages if not one.quiet])
    queued = await replies.want(conn, wanted)
    await numbers.note(conn, {(one.owner.sender, one.group.first.supplier_id) for one in messages})

    taken = {message.group.id for message in messages}
    settled: list[tuple[UUID, str, datetime | None, UUID | None, UUID | None]] = []
    kept: list[tuple[Row, UUID | None]] = []

    def whose(first: Row) -> UUID | None:
        mine = holders[first.id]
        return mine[0].organization_id if len(mine) == 1 else None

    def sealed_for(row: Row, owner: UUID | None) -> UUID | None:
        """The organization whose key seals a part that does not yet belong to a message."""
        if row.is_locked or owner is None or not sealing.seals(owner) or sealing.is_locked(owner):
            return row.organization_id
        return owner

    for row in repeated:
        kept.append((row, whose(row)))
        settled.append((row.id, "duplicate", None, None, sealed_for(row, whose(row))))
    for group in waiting:
        for row in group.parts.values():
            owner = sealed_for(row, whose(group.first))
            kept.append((row, owner))
            settled.append((row.id, "waiting", group.until, group.id, owner))
    for group in ready:
        if group.id in stuck:
            later = at + LOCKED_PAUSE
            settled += [
                (row.id, row.state, later, row.message_id, row.organization_id)
                for row in group.parts.values()
                if row.state in ("new", "waiting")
            ]
            continue
        state = "received" if group.id in taken else "unassigned"
        owner = whose(group.first) if group.id in taken else None
        kept += [(row, owner) for row in group.parts.values()]
        settled += [(row.id, state, None, group.id, owner) for row in group.parts.values()]
    await at_rest.keep(conn, kept, sealing)
    await conn.execute(SETTLE, *(list(column) for column in zip(*settled, strict=True)))
    unassigned = len(ready) - len(taken) - len(stuck)
    if unassigned:
        log.warning("inbound messages unassigned", count=unassigned)
    return BatchResult(len(due), deliveries, queued)


async def _repeated(conn: Connection, rows: Sequence[Row]) -> set[UUID]:
    """The messages that a supplier repeated because our answer was lost."""
    if not rows:
        return set()
    found = await conn.fetch(
        SAME,
        [row.id for row in rows],
        [row.supplier_id for row in rows],
        [row.sender for row in rows],
        [row.recipient for row in rows],
        [row.form for row in rows],
        [row.body for row in rows],
        [row.received_at - AGAIN for row in rows],
        [row.received_at for row in rows],
        MOST_SAME,
        MOST_LOOKED // len(rows),
    )
    equal = {row["id"] for row in found if row["body"] is None}
    sealed = [row for row in found if row["body"] is not None and row["id"] not in equal]
    if sealed:
        bodies = {row.id: row.body for row in rows}
        said = await at_rest.bodies(conn, [(row["organization_id"], row["earlier_id"], row["body"]) for row in sealed])
        equal |= {row["id"] for row, body in zip(sealed, said, strict=True) if body == bodies[row["id"]]}
    return equal


async def _parts(conn: Connection, rows: Sequence[Row]) -> list[Row]:
    """The known parts of these parts' messages, in order of arrival."""
    oldest: dict[tuple[UUID, str, str, int, int], datetime] = {}
    for row in rows:
        assert row.concatenation is not None
        key = (row.supplier_id, row.sender, row.recipient, *row.concatenation[:2])
        oldest[key] = min(row.received_at, oldest.get(key, row.received_at))
    if not oldest:
        return []
    columns = [list(column) for column in zip(*oldest, strict=True)]
    most = min(MOST_PARTS, MOST_OF_ALL // len(oldest))
    after = [at - LATEST for at in oldest.values()]
    found = await conn.fetch(PARTS, *columns, after, most, MOST_LOOKED // len(oldest))
    parts = await at_rest.opened(conn, list(map(row_of, found)))
    # This includes those whose time is up, however much has arrived since.
    known = {row.id: row for row in [*parts, *(row for row in rows if row.state == "waiting")]}
    return [known[id] for id in sorted(known)]


async def _owners(conn: Connection, numbers: Iterable[str]) -> Mapping[str, list[_Owner]]:
    """The owners of these numbers. Numbers without an owner are absent."""
    found: dict[str, list[_Owner]] = {}
    for value, organization_id, sender_id, sender, words, country in await conn.fetch(OWNERS, list(numbers)):
        owner = _Owner(organization_id, sender_id, sender, frozenset(map(keywords.fold, words)), country)
        found.setdefault(value, []).append(owner)
    return found


def _numbering(supplier: asyncpg.Record | None) -> Numbering:
    return Numbering(supplier["country"], supplier["strip"], supplier["prepend"]) if supplier else Numbering()


def called(recipient: str, ton: int, supplier: asyncpg.Record | None) -> list[str]:
    """The forms that our number may have as a sender ID: as written by the supplier (a row of SUPPLIERS), and in
    full."""
    whole = handsets.e164(recipient, ton, _numbering(supplier))
    return [_number(recipient), *([whole[1:]] if whole else [])]


def reading(supplier: asyncpg.Record | None) -> Callable[[bytes, str], str | None]:
    """The function that decodes octets from a supplier (a row of SUPPLIERS). One that no longer exists is assumed to
    have used SMPP, if the octets have a form."""
    if supplier is None:
        return partial(kinds.read, kinds.SMPP, {})
    return partial(kinds.read, supplier["kind"], msgspec.json.decode(supplier["settings"]))


def _message(group: Group, owner: _Owner, supplier: asyncpg.Record | None, *, shared: bool) -> _Message:
    return _Message(
        group,
        owner,
        text_of(group, reading(supplier)),
        handsets.e164(group.first.sender, group.first.sender_ton, _numbering(supplier)),
        quiet=group.shown and group.missing > 0,
        answered=supplier is not None and supplier["answers"],
        shared=shared,
    )


async def _find_words(conn: Connection, messages: Sequence[_Message]) -> None:
    """Set the keyword of each message that is one."""
    whole = [(one, one.text) for one in messages if one.text is not None and not one.group.missing]
    known = await names.of(conn, [(one.owner.organization_id, text) for one, text in whole])
    sharing: dict[UUID, set[str]] = {}
    for one, _ in whole:
        sharing.setdefault(one.group.id, set()).update(known.get(one.owner.organization_id, ()))
    for one, text in whole:
        owner = one.owner
        countries = [phones.country(one.phone) if one.phone else "", owner.country or ""]
        mine = known.get(owner.organization_id, frozenset())
        others = sharing[one.group.id]
        found = keywords.find(text, additions=owner.words, countries=countries, names=mine, others=others)
        if found is not None and one.phone is None:
            log.warning("keyword from an invalid phone number", message_id=str(one.group.id), keyword=found[0])
        elif found is not None:
            one.keyword, one.word = found


async def _obey(conn: Connection, messages: Sequence[_Message], at: datetime) -> tuple[int, list[KeywordReply]]:
    """Act on keywords. Returns webhook deliveries queued, and the replies that follow."""
    saying = [message for message in messages if message.keyword is not None]
    campaign = await _last(conn, [one for one in saying if one.shared or one.keyword == "doubtful"])
    for one in saying:
        if one.keyword == "doubtful":
            # Either the answer to a campaign, or a word that needs clarification: HELP says what to write.
            one.keyword = "stop" if campaign.get(one.person) else "help"
    opted_out = await optouts.current(conn, {message.person for message in saying})
    deliveries = 0
    wanted: list[KeywordReply] = []
    for turn in _turns(saying):
        out, back = [], []
        for one in turn:
            if one.keyword == "start" and one.person not in opted_out:
                # There is nothing to confirm, and YES is an answer to something else.
                one.keyword = None if one.word in keywords.ONLY_OPTED_OUT else one.keyword
                continue
            if one.keyword == "stop":
                since = one.group.first.received_at
                out.append(OptOut(*one.pair, since, optouts.KEYWORD, one.word, one.group.id))
            elif one.keyword == "start":
                said_at = one.group.first.received_at
                back.append(Statement(*one.pair, said_at, optouts.KEYWORD, one.word, one.group.id))
            # If organizations share a number, only those that have written to the person reply.
            silent = one.answered or (one.shared and one.person not in campaign)
            if not silent and at - one.group.first.received_at < REPLY_WITHIN:
                wanted.append(KeywordReply(*one.pair, one.keyword or "", one.owner.sender_id, at))
        deliveries += await optouts.suppress(conn, out)
        opted_out |= {one.person for one in turn if one.keyword == "stop"}
        await optouts.lift(conn, back)
        opted_out -= {one.person for one in turn if one.keyword == "start"}
    return deliveries, wanted


async def _last(conn: Connection, messages: Sequence[_Message]) -> dict[Pair, bool]:
    """For people to whom the organization has recently written: whether the last message was a campaign's."""
    if not messages:
        return {}
    organizations = sorted({one.owner.organization_id for one in messages})
    people = sorted({person for _, person in (one.person for one in messages)})
    look = min(LOOK, MOST_LOOKED // len(organizations))
    rows = await conn.fetch(LAST, organizations, people, look)
    return {(row["organization_id"], row["person"]): row["campaign"] for row in rows}


def _turns(messages: Sequence[_Message]) -> list[list[_Message]]:
    """Messages in order of arrival, each number at most once per turn."""
    turns: list[list[_Message]] = []
    said: dict[Pair, int] = {}
    for message in messages:
        turn = said[message.person] = said.get(message.person, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(message)
    return turns


async def _receive(conn: Connection, messages: Sequence[_Message], sealing: Sealing) -> None:
    await conn.execute(
        RECEIVE,
        [one.owner.organization_id for one in messages],
        [one.group.id for one in messages],
        [one.group.first.supplier_id for one in messages],
        [one.phone or one.group.first.sender for one in messages],
        [one.owner.sender for one in messages],
        [one.owner.sender_id for one in messages],
        [one.group.total for one in messages],
        [one.group.missing for one in messages],
        [one.keyword for one in messages],
        [one.group.first.received_at for one in messages],
        [_stored(one, sealing) for one in messages],
    )
    await threads.note(
        conn,
        [
            InboundMessage(
                one.owner.organization_id,
                "sms",
                one.owner.sender_id,
                one.phone or one.group.first.sender,
                one.group.id,
                one.group.first.received_at,
            )
            for one in messages
        ],
    )


def _stored(one: _Message, sealing: Sealing) -> str | None:
    """Its text as stored; None: it has none, or it is a keyword whose text cannot be sealed now."""
    whose = one.owner.organization_id
    if one.text is None or sealing.is_locked(whose):
        return None
    return sealing.sealed(whose, "received_messages", one.group.id, one.text)


def _event(one: _Message, at: datetime) -> events.Event:
    data = {
        "message": {
            "id": one.group.id,
            "channel": "sms",
            "from": one.phone or one.group.first.sender,
            "to": one.owner.sender,
            "text": one.text and one.text[:SHOWN_TEXT],
            "truncated": len(one.text or "") > SHOWN_TEXT,
            "segments": one.group.total,
            "missingSegments": one.group.missing,
            "keyword": one.keyword,
            "receivedAt": iso(one.group.first.received_at),
        }
    }
    return events.Event(
        organization_id=one.owner.organization_id,
        id=uuid7(),
        kind="message.received",
        request_id=str(one.group.id),
        data=msgspec.json.encode(data).decode(),
        created_at=at,
        message_id=one.group.id,
    )


def _number(address: str) -> str:
    """An address normalized for comparison: without an international prefix."""
    return address.lower().removeprefix("+").removeprefix("00")


def row_of(row: Any) -> Row:
    """A row of `inbound_messages`, not yet opened (`at_rest`)."""
    parts = row["concatenation"]
    return Row(
        row["id"],
        row["supplier_id"],
        row["sender"],
        row["recipient"],
        row["form"],
        row["body"],
        (parts[0], parts[1], parts[2]) if parts else None,
        row["received_at"],
        row["state"],
        row["message_id"],
        row["sender_ton"],
        row["recipient_ton"],
        row["organization_id"],
        row["sealed"],
    )
