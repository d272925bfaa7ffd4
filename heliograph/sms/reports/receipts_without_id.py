"""Receipts for messages whose submit was answered without an id: empty, absent, or a NUL.

They are matched by account, recipient, sender, time, and our reference if the supplier echoes it. The rule nobody may
break: a receipt that could be for several messages is assigned to none. A waiting receipt is checked again, and matches
once the other messages have theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.sms.reports.keys import id_bounds, weak_key

#: A receipt is for a message sent at most this long before it; our clock may be behind by the second value.
SINCE, AHEAD = "4 days", "2 minutes"
#: How many receipts of one key are matched at once: more are for several messages, or repeated. Each of them reads all
#: attempts of its key, which a number that gets thousands of messages makes many.
MOST_ALIKE = 20


class ReceiptWithoutId(msgspec.Struct, frozen=True, gc=False):
    """A stored receipt that matches no id. One of `keys` stands for the id of a message to its recipient that has
    none."""

    supplier_id: UUID
    keys: Sequence[str]
    #: The suffix of its sender, which has to be that of the message's; "": it names none.
    sender: str
    #: The id that it names, which no answer did; "": none.
    id: str
    reference: int | None
    received_on: date
    received_at: datetime
    fingerprint: UUID


# For each message the parts without a receipt, in order: the first that no other receipt takes. A single-part message
# has its state in `messages`. Each key is an item of its own, as in FIND of `receipts.py`. The suffix in it is compared
# as well: where nearly all ids are equal, the index would not be used for the id alone.
CANDIDATES = f"""
SELECT item.n, part.organization_id, part.message_id, part.attempt, part.part, part.parts
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::timestamptz[], $6::integer[])
       AS item (supplier_id, key, sender, reference, received_at, n)
       CROSS JOIN LATERAL (
       SELECT * FROM (
           SELECT organization_id, message_id, attempt, 1::smallint AS part, 1::smallint AS parts, ended_at AS at
             FROM attempts
            WHERE supplier_message_id = item.key AND recipient_suffix = substr(item.key, 4)
              AND target_id = item.supplier_id AND message_id >= $7 AND message_id < $8
           UNION ALL
           SELECT organization_id, message_id, attempt, part, parts, created_at FROM sms_parts
            WHERE id_key = item.key AND recipient_suffix = substr(item.key, 4) AND supplier_id = item.supplier_id
              AND answered_on >= $9 AND answered_on < $10 AND state IS NULL) either
        WHERE at BETWEEN item.received_at - interval '{SINCE}' AND item.received_at + interval '{AHEAD}'
        ORDER BY at DESC LIMIT 50) part
       CROSS JOIN LATERAL (
       SELECT FROM messages
        WHERE organization_id = part.organization_id AND id = part.message_id
          AND status IN ('accepted', 'sent', 'unknown', 'expired')
          AND (item.sender = '' OR lower(right(sender, length(item.sender))) = lower(item.sender)) LIMIT 1) message
 WHERE item.reference IS NULL OR NOT EXISTS (
       SELECT FROM attempts
        WHERE organization_id = part.organization_id AND message_id = part.message_id AND attempt = part.attempt
          AND reference <> item.reference)
 ORDER BY item.n, part.message_id, part.part
"""
# A receipt for a part may be followed by another one with the same id: a repetition, or a late delivery.
SAME_ID = """
SELECT item.n, r.organization_id, r.message_id, r.attempt, r.part, item.parts
  FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::smallint[]) AS item (n, message_id, id, parts)
       CROSS JOIN LATERAL (
       SELECT organization_id, message_id, attempt, part FROM receipts
        WHERE message_id = item.message_id AND keys[1] = item.id ORDER BY received_at LIMIT 1) r
"""
# A concurrent check, or a repetition of the receipt, may have come first.
CLAIM = """
UPDATE receipts SET organization_id = v.organization_id, message_id = v.message_id, attempt = v.attempt, part = v.part,
       next_try_at = NULL
  FROM unnest($1::date[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::smallint[], $7::smallint[])
       AS v (received_on, supplier_id, fingerprint, organization_id, message_id, attempt, part)
 WHERE receipts.received_on = v.received_on AND receipts.supplier_id = v.supplier_id
   AND receipts.fingerprint = v.fingerprint AND receipts.message_id IS NULL
RETURNING receipts.fingerprint
"""


async def match(conn: Connection, receipts: Sequence[ReceiptWithoutId]) -> dict[UUID, asyncpg.Record]:
    """Assign each receipt to its message, if there is exactly one candidate.

    Returns, by fingerprint, organization_id, message_id, attempt, part and parts of the assigned ones.
    """
    first, last = min(one.received_at for one in receipts), max(one.received_at for one in receipts)
    alike: Counter[tuple[UUID, str]] = Counter()
    items: list[tuple[int, str]] = []
    for n, one in enumerate(receipts):
        alike.update((one.supplier_id, key) for key in one.keys)
        if all(alike[one.supplier_id, key] <= MOST_ALIKE for key in one.keys):
            items += [(n, key) for key in one.keys]
    asked = [receipts[n] for n, _ in items]
    rows = await conn.fetch(
        CANDIDATES,
        [one.supplier_id for one in asked],
        [key for _, key in items],
        [one.sender for one in asked],
        [one.reference for one in asked],
        [one.received_at for one in asked],
        [n for n, _ in items],
        id_bounds(first)[0],
        id_bounds(last)[1],
        id_bounds(first)[2],
        id_bounds(last)[3],
    )
    fitting: dict[int, list[asyncpg.Record]] = {}
    for row in rows:
        fitting.setdefault(row["n"], []).append(row)
    fitting = {n: some for n, some in fitting.items() if len({row["message_id"] for row in some}) == 1}
    given = await _of_same_id(conn, receipts, fitting)
    taken: set[tuple[UUID, int, int]] = set()
    named: dict[tuple[UUID, str], asyncpg.Record] = {}
    for n, candidates in fitting.items():
        same = candidates[0]["message_id"], receipts[n].id
        if n in given:
            continue
        if same in named:
            given[n] = named[same]
            continue
        for row in candidates:
            part = (row["message_id"], row["attempt"], row["part"])
            if part not in taken:
                taken.add(part)
                given[n] = row
                if same[1]:
                    named[same] = row
                break
    if not given:
        return {}
    claimed = await conn.fetch(
        CLAIM,
        [receipts[n].received_on for n in given],
        [receipts[n].supplier_id for n in given],
        [receipts[n].fingerprint for n in given],
        [row["organization_id"] for row in given.values()],
        [row["message_id"] for row in given.values()],
        [row["attempt"] for row in given.values()],
        [row["part"] for row in given.values()],
    )
    mine = {row["fingerprint"] for row in claimed}
    return {receipts[n].fingerprint: row for n, row in given.items() if receipts[n].fingerprint in mine}


async def _of_same_id(
    conn: Connection, receipts: Sequence[ReceiptWithoutId], fitting: Mapping[int, Sequence[asyncpg.Record]]
) -> dict[int, asyncpg.Record]:
    """The receipts of which another one with the same id was assigned to a part of the same message: that part."""
    asked = [n for n, some in fitting.items() if receipts[n].id and some[0]["parts"] > 1]
    if not asked:
        return {}
    firsts = [fitting[n][0] for n in asked]
    rows = await conn.fetch(
        SAME_ID,
        asked,
        [row["message_id"] for row in firsts],
        [receipts[n].id for n in asked],
        [row["parts"] for row in firsts],
    )
    return {row["n"]: row for row in rows}


async def awaiting(conn: Connection, places: Sequence[tuple[UUID, str, int | None]]) -> list[int]:
    """How many parts that were answered without an id still wait for a receipt, for each supplier, recipient and
    reference (None: any)."""
    if not places:
        return []
    at = now()
    rows = await conn.fetch(
        CANDIDATES,
        [supplier_id for supplier_id, _, _ in places],
        [weak_key(recipient) for _, recipient, _ in places],
        [""] * len(places),
        [reference for _, _, reference in places],
        [at] * len(places),
        list(range(len(places))),
        *id_bounds(at),
    )
    counts = Counter(row["n"] for row in rows)
    return [counts[n] for n in range(len(places))]
