"""The SMS part of the operators' timeline (`sending/timeline.py`): parts, receipts, submissions, and suppliers'
names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.base.money import decimal
from heliograph.base.sentences import joined, kept
from heliograph.guard.windows import RULES
from heliograph.queue import leases
from heliograph.sealing import text_keys
from heliograph.sending import attempts, timeline
from heliograph.sending.timeline import Source, Timeline
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.sms.submitting import rebuilding
from heliograph.webhooks.timeline import Entry, known

#: Maximum number of raw receipts shown for a message, and of octets of each.
WRITTEN_MOST, OCTETS = 20, 1000
#: Columns of its row that hold amounts of money.
AMOUNTS = ("price", "cost")
#: Receipts' bytes are stored in the commit of the receipt, and thus close to its time.
NEAR = timedelta(seconds=10)

ATTEMPTS = f"""
SELECT a.attempt, a.state, a.reference, a.started_at, a.ended_at, a.code, a.detail, a.cost, a.cost_currency,
       a.sent_as,
       coalesce(s.name, CASE WHEN a.target_id = '{test_mode.SUPPLIER}' THEN 'test' ELSE a.target_id::text END)
           AS supplier, d.said AS because
  FROM ({attempts.OF_MESSAGE}) a LEFT JOIN suppliers s ON s.id = a.target_id
       LEFT JOIN route_decisions d ON d.id = a.decision
"""
PARTS = """
SELECT p.attempt, p.part, p.parts, p.id_key, p.state, p.created_at, s.name FROM (
       SELECT target_id AS supplier_id, attempt, 1 AS part, 1 AS parts, supplier_message_id AS id_key,
              NULL AS state, ended_at AS created_at
         FROM attempts WHERE organization_id = $1 AND message_id = $2 AND supplier_message_id IS NOT NULL
       UNION ALL
       SELECT supplier_id, attempt, part, parts, id_key, state, created_at FROM sms_parts WHERE message_id = $2) p
  LEFT JOIN suppliers s ON s.id = p.supplier_id
 ORDER BY p.attempt, p.part
"""
RECEIPTS = """
SELECT r.attempt, r.part, r.state, r.error, r.keys, r.received_at, s.name FROM (
       SELECT a.target_id AS supplier_id, m.receipt_attempt AS attempt, 1 AS part, m.receipt_state AS state,
              m.receipt_error AS error, ARRAY[a.supplier_message_id] AS keys, m.receipt_at AS received_at
         FROM messages m CROSS JOIN LATERAL (
              SELECT target_id, supplier_message_id FROM attempts
               WHERE organization_id = $1 AND message_id = $2 AND attempt = m.receipt_attempt LIMIT 1) a
        WHERE m.organization_id = $1 AND m.id = $2 AND m.receipt IS NOT NULL
       UNION ALL
       SELECT supplier_id, attempt, part, state, error, keys, received_at FROM receipts
        WHERE message_id = $2 AND received_on >= $3) r
  LEFT JOIN suppliers s ON s.id = r.supplier_id
"""
RECEIVED = """
SELECT receipt AS fingerprint, receipt_at AS received_at FROM messages
 WHERE organization_id = $1 AND id = $2 AND receipt IS NOT NULL
UNION ALL
(SELECT fingerprint, received_at FROM receipts WHERE message_id = $2 AND received_on >= $3
  ORDER BY received_at LIMIT $4)
"""
# Bytes have no index by receipt: those of its day are searched around its time, by their ids. Without OFFSET 0 a
# generic plan would scan the whole day.
WRITTEN = """
SELECT r.fingerprint, r.received_at, b.raw[array_position(b.fingerprints, r.fingerprint)] AS raw
  FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::uuid[]) AS r (fingerprint, received_at, first, last)
       CROSS JOIN LATERAL (
       SELECT fingerprints, raw FROM receipt_bytes
        WHERE received_on = (r.received_at AT TIME ZONE 'UTC')::date AND id BETWEEN r.first AND r.last
        ORDER BY id OFFSET 0) b
 WHERE r.fingerprint = ANY (b.fingerprints)
"""
QUEUE = f"""
SELECT q.kind, q.due_at, q.tries, q.attempt, q.lane, q.lease_until, holder.name AS worker, q.begun_at,
       s.name AS supplier, e.url
  FROM queue q {leases.HOLDER}
       LEFT JOIN suppliers s ON s.id = q.line
       LEFT JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = q.line
 WHERE q.id = ANY ($2) ORDER BY q.due_at
"""


async def of_message(conn: Connection, *, id: UUID, with_text: bool = False, by: Principal = SYSTEM) -> Timeline:
    """The timeline of a message. Raises NotFound.

    `with_text`: include its raw receipts, which may quote the text, and what suppliers were sent, octet by octet.
    """
    async with timeline.snapshot(conn):
        found = await timeline.of_message(conn, SOURCE, id=id, with_text=with_text, by=by)
        whose = found.message["organization_id"]
        text = (await text_keys.opened_of(conn, whose, "messages", [(id, found.text)]))[id]
        came = await rebuilding.of_message(conn, whose, id, whole=with_text)
        if with_text:
            came += await _written(conn, whose, id, found.message["accepted_at"] - timedelta(days=1))
    amounts = {name: decimal(amount) for name in AMOUNTS if (amount := found.message[name]) is not None}
    message = found.message | amounts
    message.update(expires_at=deadline(message["accepted_at"], message["expires_at"]))
    return msgspec.structs.replace(
        found,
        text=text,
        message=message,
        entries=sorted([*found.entries, *came], key=lambda entry: entry.at),
    )


async def _written(conn: Connection, organization_id: UUID, id: UUID, since: datetime) -> list[Entry]:
    """The raw bytes of its receipts. The first receipt is not found if it arrived before its message was known."""
    rows = await conn.fetch(RECEIVED, organization_id, id, since.date(), WRITTEN_MOST)
    found = await written(conn, [(row["fingerprint"], row["received_at"]) for row in rows])
    return [_as_received(at, raw) for _, at, raw in found]


async def written(conn: Connection, came: Sequence[tuple[UUID, datetime]]) -> list[tuple[UUID, datetime, bytes]]:
    """The bytes of receipts, given by their fingerprints and times of arrival, of those that are kept: empty once
    erased."""
    times = [at for _, at in came]
    rows = await conn.fetch(
        WRITTEN,
        [fingerprint for fingerprint, _ in came],
        times,
        [uuid7_floor(at - NEAR) for at in times],
        [uuid7_floor(at + NEAR) for at in times],
    )
    return [(row["fingerprint"], row["received_at"], row["raw"]) for row in rows]


def _as_received(at: datetime, raw: bytes) -> Entry:
    some = raw[:OCTETS]
    text = "".join(one if one.isprintable() else "·" for one in some.decode("utf-8", "replace"))
    return Entry(at, "receipt as received", {"written": text, "octets": some.hex(" ")})


# `rules`: those that together caused the hold (docs/guard.md).
HELD = """
SELECT d.held_at, d.released_at, h.id, h.range, h.kind, h.rules
  FROM guard_held d JOIN guard_holds h ON h.organization_id = d.organization_id AND h.id = d.hold_id
 WHERE d.organization_id = $1 AND d.message_id = $2
"""


async def _evidence(conn: Connection, row: asyncpg.Record, tried: Sequence[asyncpg.Record]) -> Iterable[Entry]:
    organization_id, id, since = row["organization_id"], row["id"], row["accepted_at"] - timedelta(days=1)
    parts = await conn.fetch(PARTS, organization_id, id)
    received = await conn.fetch(RECEIPTS, organization_id, id, since.date())
    held = [entry for one in await conn.fetch(HELD, organization_id, id) for entry in _held(one)]
    return [*_quiet(row), *(_part(one) for one in parts), *_doubled(parts), *(_receipt(one) for one in received), *held]


def _quiet(row: asyncpg.Record) -> Iterable[Entry]:
    if row["quiet_since"]:
        yield Entry(row["quiet_since"], "waits for the end of quiet hours", {"until": row["quiet_until"]})


def _held(row: asyncpg.Record) -> Iterable[Entry]:
    """The guard's verdict on the message."""
    only_noted = row["released_at"] == row["held_at"]
    values = {"hold": str(row["id"]), "because": joined([kept(RULES[rule]) for rule in row["rules"]], "; ")}
    if row["kind"] != "number":
        values["range"] = row["range"]
    yield Entry(row["held_at"], "suspicious" if only_noted else "held", values)
    if row["released_at"] is not None and not only_noted:
        yield Entry(row["released_at"], "released", {"hold": str(row["id"])})


def _part(row: asyncpg.Record) -> Entry:
    values = {"attempt": row["attempt"], "part": f"{row['part']}/{row['parts']}", "supplier_message_id": row["id_key"]}
    return Entry(row["created_at"], "part", known(values | {"supplier": row["name"], "state": row["state"]}))


def _doubled(rows: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    """Parts that suppliers accepted in two attempts, and thus were sent twice: a worker was stopped for longer than its
    lease."""
    first: dict[int, asyncpg.Record] = {}
    for row in sorted(rows, key=lambda row: row["created_at"]):
        known_as = first.setdefault(row["part"], row)
        if known_as["attempt"] != row["attempt"]:
            both = [known_as["attempt"], row["attempt"]]
            yield Entry(row["created_at"], "sent twice", {"part": f"{row['part']}/{row['parts']}", "attempts": both})


def _receipt(row: asyncpg.Record) -> Entry:
    values = {"state": row["state"], "err": row["error"], "supplier": row["name"], "ids": list(row["keys"])}
    return Entry(row["received_at"], "receipt", known(values | {"attempt": row["attempt"], "part": row["part"]}))


#: A move's event is created in its commit. The contract event is named in the message's row.
SOURCE = Source(
    message=timeline.by_id("messages"),
    text="body",
    states=(("sent_at", "sent"), ("delivered_at", "delivered"), ("failed_at", None), ("ended_at", None)),
    told_at=("sent_at",),
    around=(timedelta(milliseconds=100), timedelta(seconds=2)),
    queue=QUEUE,
    evidence=_evidence,
    failures="sms_failure",
    under_way="sending",
    attempts=ATTEMPTS,
)


# A row may contain receipts of several organizations; those of the others stay.
ERASE_WRITTEN = """
WITH places AS MATERIALIZED (
    SELECT b.received_on, b.id, array_agg(came.fingerprint) AS theirs
      FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::uuid[]) AS came (fingerprint, at, first, last)
           CROSS JOIN LATERAL (
           SELECT received_on, id, fingerprints FROM receipt_bytes
            WHERE received_on = (came.at AT TIME ZONE 'UTC')::date AND id BETWEEN came.first AND came.last
            ORDER BY id OFFSET 0) b
     WHERE came.fingerprint = ANY (b.fingerprints)
     GROUP BY b.received_on, b.id
)
UPDATE receipt_bytes
   SET raw = ARRAY(SELECT CASE WHEN one.fingerprint = ANY (places.theirs) THEN '' ELSE one.raw END
                     FROM unnest(fingerprints, raw) WITH ORDINALITY AS one (fingerprint, raw, n) ORDER BY n)
  FROM places
 WHERE receipt_bytes.received_on = places.received_on AND receipt_bytes.id = places.id
   AND EXISTS (SELECT FROM unnest(fingerprints, raw) AS one (fingerprint, raw)
                WHERE one.fingerprint = ANY (places.theirs) AND one.raw <> '')
"""


async def erase_written(conn: Connection, came: Sequence[tuple[UUID, datetime]]) -> int:
    """Empty the bytes of receipts, each given by its fingerprint and time of arrival; returns how many rows, each of
    receipts committed together, were rewritten."""
    if not came:
        return 0
    done = await conn.execute(
        ERASE_WRITTEN,
        [fingerprint for fingerprint, _ in came],
        [at for _, at in came],
        [uuid7_floor(at - NEAR) for _, at in came],
        [uuid7_floor(at + NEAR) for _, at in came],
    )
    return int(done.rpartition(" ")[2])
