"""The inbox: processing of stored messages from handsets, in order of arrival.

One transaction per batch, and one worker at a time, because order matters: STOP followed by START is not START followed
by STOP, and parts held by two workers would never meet. In that transaction a message gets its text, its organization,
its event, and the effect of its keyword: an opt-out or its end, and a reply. A worker that is killed halfway leaves
nothing of a batch behind.

The rule nobody may break: a message stops being due only in the commit that contains its consequences.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.process.crash import crash_point
from heliograph.consent import keywords
from heliograph.inbox import threads
from heliograph.inbox.threads import InboundMessage
from heliograph.queue import timers
from heliograph.sealing.text_keys import Sealing
from heliograph.senders import owners as numbers
from heliograph.sms.received import at_rest, earlier, handsets, keyword_effects, replies
from heliograph.sms.received.assembly import Group, Row, assemble, text_of
from heliograph.sms.received.message import Message, Owner
from heliograph.suppliers.smpp.receipts import is_whole
from heliograph.webhooks.recording import events

log = structlog.get_logger()

#: The worker that holds this timer's row processes the inbox.
TIMER = "inbound"
#: Wait of a message that cannot be stored because its organization's text key cannot be opened.
LOCKED_PAUSE = timedelta(minutes=1)


class BatchResult(msgspec.Struct, frozen=True):
    """The result of a batch."""

    #: Rows processed; 0: nothing was due, or another worker is processing the inbox.
    rows: int = 0
    #: Webhook deliveries, and replies, queued.
    deliveries: int = 0
    replies: int = 0


#: How rows of a batch are processed; see `process`.
Process = Callable[[Connection, Sequence[Row], datetime], Awaitable[BatchResult]]

ANY_DUE = "EXISTS (SELECT FROM inbound_messages WHERE due_at <= now())"
DUE = """
WITH due AS MATERIALIZED (SELECT id FROM inbound_messages WHERE due_at <= now() AND sender <> ALL ($2)
                           ORDER BY due_at, id LIMIT $1)
SELECT id, supplier_id, sender, recipient, form, body, concatenation, received_at, state, message_id, sender_ton,
       recipient_ton, organization_id, sealed, asked, now() AS at
  FROM inbound_messages WHERE id = ANY (ARRAY(SELECT id FROM due)) ORDER BY id FOR UPDATE
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

# A message shown with missing parts is completed by its late parts. Of one with very many, not all may be known now.
RECEIVE = """
INSERT INTO received_messages AS known (organization_id, id, supplier_id, sender, recipient, sender_id, segments,
                                        missing, keyword, received_at, body)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::smallint[],
                     $8::smallint[], $9::text[], $10::timestamptz[], $11::text[])
ON CONFLICT (organization_id, id) DO UPDATE
   SET missing = excluded.missing, keyword = excluded.keyword, body = coalesce(excluded.body, known.body)
 WHERE excluded.missing <= known.missing
"""
SETTLE = """
UPDATE inbound_messages SET state = v.state, due_at = v.due_at, message_id = v.message_id,
                            organization_id = v.organization_id
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::uuid[], $5::uuid[])
       AS v (id, state, due_at, message_id, organization_id)
 WHERE inbound_messages.id = v.id
"""


async def process_due(
    conn: Connection, *, limit: int = 500, processed: Process | None = None, besides: Collection[str] = ()
) -> BatchResult:
    """Process one batch, in its own transaction, by `processed` or `process`. `besides`: senders that have to wait."""
    async with conn.transaction():
        rows = await conn.fetch(DUE, limit, list(besides)) if await timers.hold(conn, TIMER) else ()
        if not rows:
            return BatchResult()
        done = await (processed or process)(conn, [at_rest.row_of(row) for row in rows], rows[0]["at"])
        crash_point("inbound.before_commit")
    crash_point("inbound.after_commit")
    return done


class _Batch(msgspec.Struct, frozen=True):
    """A batch as assembled: messages that can be shown, messages that wait for missing parts, and repetitions."""

    at: datetime
    ready: list[Group]
    waiting: list[Group]
    repeated: list[Row]
    #: By the id of a first part or a repetition: the owners of the number that it was sent to.
    holders: Mapping[UUID, list[Owner]]
    suppliers: Mapping[UUID, asyncpg.Record]
    sealing: Sealing

    def sole_owner(self, first: Row) -> UUID | None:
        """The organization of a number that belongs to one alone."""
        owners = self.holders[first.id]
        return owners[0].organization_id if len(owners) == 1 else None

    def sealed_for(self, row: Row, owner: UUID | None) -> UUID | None:
        """The organization whose key seals a part that does not yet belong to a message."""
        if row.is_locked or owner is None or not self.sealing.seals(owner) or self.sealing.is_locked(owner):
            return row.organization_id
        return owner


async def process(conn: Connection, due: Sequence[Row], at: datetime) -> BatchResult:
    """Process rows that are locked, in the caller's transaction. `at`: its time."""
    batch = await _assembled(conn, await at_rest.opened(conn, due), at)
    sealing = batch.sealing
    # Messages that cannot be read or stored for lack of a key stay as they are until it is available.
    stuck = {group.id for group in batch.ready if any(row.is_locked for row in group.parts.values())}
    messages = [
        _message(group, owner, batch)
        for group in batch.ready
        if group.id not in stuck
        for owner in batch.holders[group.first.id]
    ]
    await keyword_effects.find(conn, messages)
    messages = [one for one in messages if one.is_assignable]
    deliveries, wanted = await keyword_effects.obey(conn, messages, at)
    messages = [one for one in messages if one.is_assignable]  # YES is a keyword only from somebody who had opted out
    # A keyword takes effect whether or not its text can be stored: STOP does not wait for an operator.
    stuck |= {one.group.id for one in messages if one.keyword is None and sealing.is_locked(one.owner.organization_id)}
    messages = [one for one in messages if one.group.id not in stuck]
    await _receive(conn, messages, sealing)
    deliveries += await events.record(conn, [_event(one, at) for one in messages if not one.quiet])
    queued = await replies.want(conn, wanted)
    # A receipt that its supplier did not mark as such says nothing about who has the number.
    written = [one for one in messages if not is_whole(one.text or "")]
    await numbers.note(conn, {(one.owner.sender, one.group.first.supplier_id) for one in written})
    await _settle(conn, batch, taken={one.group.id for one in messages}, stuck=stuck)
    return BatchResult(len(due), deliveries, queued)


async def _assembled(conn: Connection, due: Sequence[Row], at: datetime) -> _Batch:
    new = [row for row in due if row.state == "new"]
    again = await earlier.repeated(conn, [row for row in new if row.concatenation is None])
    known = await earlier.parts(conn, [row for row in due if row.concatenation is not None])
    groups, repeated = assemble(known, [row for row in new if row.id not in again])
    repeated += [msgspec.structs.replace(row, message_id=again[row.id]) for row in new if row.id in again]
    waiting = [group for group in groups if group.missing and group.until > at and not group.shown]
    held = {group.id for group in waiting}
    ready = [group for group in groups if (group.changed or not group.shown) and group.id not in held]

    firsts = [*(group.first for group in [*waiting, *ready]), *repeated]
    ids = list({row.supplier_id for row in firsts})
    suppliers = {row["id"]: row for row in await conn.fetch(handsets.SUPPLIERS, ids)}
    called = {
        one.id: handsets.called(one.recipient, one.recipient_ton, suppliers.get(one.supplier_id)) for one in firsts
    }
    owners = await _owners(conn, {name for names in called.values() for name in names})
    holders = {id: _each_once(owners, names) for id, names in called.items()}
    sealing = await Sealing.of(conn, {one.organization_id for some in holders.values() for one in some})
    return _Batch(at, ready, waiting, repeated, holders, suppliers, sealing)


async def _settle(conn: Connection, batch: _Batch, *, taken: Collection[UUID], stuck: Collection[UUID]) -> None:
    """Store what has become of the rows. `taken`: the messages that organizations got; `stuck`: those that wait for a
    key."""
    settled: list[tuple[UUID, str, datetime | None, UUID | None, UUID | None]] = []
    kept: list[tuple[Row, UUID | None]] = []
    for row in batch.repeated:
        owner = batch.sole_owner(row)
        kept.append((row, owner))
        # Its text goes with that of its message, when that is erased.
        settled.append((row.id, "duplicate", None, row.message_id, batch.sealed_for(row, owner)))
    for group in batch.waiting:
        for row in group.parts.values():
            owner = batch.sealed_for(row, batch.sole_owner(group.first))
            kept.append((row, owner))
            settled.append((row.id, "waiting", group.until, group.id, owner))
    for group in batch.ready:
        if group.id in stuck:
            later = batch.at + LOCKED_PAUSE
            settled += [
                (row.id, row.state, later, row.message_id, row.organization_id)
                for row in group.parts.values()
                if row.state in ("new", "waiting")
            ]
            continue
        state = "received" if group.id in taken else "unassigned"
        owner = batch.sole_owner(group.first) if group.id in taken else None
        kept += [(row, owner) for row in group.parts.values()]
        settled += [(row.id, state, None, group.id, owner) for row in group.parts.values()]
    await at_rest.keep(conn, kept, batch.sealing)
    await conn.execute(SETTLE, *(list(column) for column in zip(*settled, strict=True)))
    if unassigned := len(batch.ready) - len(taken) - len(stuck):
        log.warning("inbound messages unassigned", count=unassigned)


async def _owners(conn: Connection, numbers: Iterable[str]) -> Mapping[str, list[Owner]]:
    """The owners of these numbers. Numbers without an owner are absent."""
    found: dict[str, list[Owner]] = {}
    for value, organization_id, sender_id, sender, words, country in await conn.fetch(OWNERS, list(numbers)):
        owner = Owner(organization_id, sender_id, sender, frozenset(map(keywords.fold, words)), country)
        found.setdefault(value, []).append(owner)
    return found


def _each_once(owners: Mapping[str, list[Owner]], names: Sequence[str]) -> list[Owner]:
    """Each organization that has a number in any of its forms, with the first of these forms."""
    found = {one.organization_id: one for name in reversed(names) for one in owners.get(name, ())}
    return [found[id] for id in sorted(found)]


def _message(group: Group, owner: Owner, batch: _Batch) -> Message:
    first, supplier = group.first, batch.suppliers.get(group.first.supplier_id)
    return Message(
        group,
        owner,
        text_of(group, handsets.reading(supplier)),
        handsets.sender_of(first.sender, first.sender_ton, supplier),
        quiet=group.shown and group.missing > 0,
        answered=first.asked is not None or (supplier is not None and supplier["answers"]),
        shared=len(batch.holders[first.id]) > 1,
    )


async def _receive(conn: Connection, messages: Sequence[Message], sealing: Sealing) -> None:
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


def _stored(one: Message, sealing: Sealing) -> str | None:
    """Its text as stored; None: it has none, or it is a keyword whose text cannot be sealed now."""
    whose = one.owner.organization_id
    if one.text is None or sealing.is_locked(whose):
        return None
    return sealing.sealed(whose, "received_messages", one.group.id, one.text)


def _event(one: Message, at: datetime) -> events.Event:
    data = {
        "message": {
            "id": one.group.id,
            "channel": "sms",
            "from": one.phone or one.group.first.sender,
            "to": one.owner.sender,
            "text": one.text and one.text[: events.SHOWN_TEXT],
            "truncated": len(one.text or "") > events.SHOWN_TEXT,
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
