"""Diagnosis of unmatched receipts, for operators: ids in another number base.

A supplier may write an id in hex in its answer and in decimal in the receipt. Nothing is ever matched by guessing,
since decimal 10 is not hexadecimal 10; but where unmatched receipts would match in another base, that is reported, with
the setting that fixes it.

The rule nobody may break: diagnosis changes nothing, and costs a bounded number of look-ups by key.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports import waiting
from heliograph.sms.reports.keys import id_bounds, same_end, suffix
from heliograph.suppliers.smpp import bases

log = structlog.get_logger()

#: How many receipts of a supplier are examined: the newest ones of this many minutes.
SAMPLE, MINUTES = 200, 15
#: How many receipts are reparsed after a change: the newest ones of this many days.
WAITING_MOST, DAYS = 20_000, 4


class Advice(msgspec.Struct, frozen=True):
    """Settings with which unmatched receipts would have matched."""

    supplier_id: UUID
    supplier: str
    settings: Mapping[str, str]
    #: Receipts examined, and how many of them would match.
    looked: int
    fitting: int

    @property
    def command(self) -> str:
        """The command to run."""
        pairs = " ".join(f"{name}={base}" for name, base in self.settings.items())
        return f"heliograph supplier set {shlex.quote(self.supplier)} {pairs}"


UNMATCHED = f"""
SELECT supplier.id, newest.* FROM unnest($1::uuid[]) AS supplier (id) CROSS JOIN LATERAL (
       SELECT keys, recipient, sender FROM receipts
        WHERE supplier_id = supplier.id AND message_id IS NULL AND received_at > now() - interval '{MINUTES} minutes'
          AND received_at < now() - interval '2 seconds' AND cardinality(keys) > 0
        ORDER BY received_at DESC LIMIT {SAMPLE}) newest
"""
#: How many messages with one id are examined for each receipt: some suppliers give all messages the same.
MOST_ALIKE = 100
FITS = f"({same_end('recipient_suffix', 'item.one')} OR recipient_suffix = item.other)"
KNOWN = f"""
SELECT item.n FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS item (id_key, one, other, n)
 WHERE EXISTS (SELECT FROM (
               SELECT recipient_suffix FROM attempts
                WHERE target_id = $1 AND supplier_message_id = item.id_key AND message_id >= $5 AND message_id < $6
                LIMIT {MOST_ALIKE}) alike WHERE {FITS})
    OR EXISTS (SELECT FROM (
               SELECT recipient_suffix FROM sms_parts
                WHERE supplier_id = $1 AND id_key = item.id_key AND answered_on >= $7 AND answered_on < $8
                LIMIT {MOST_ALIKE}) alike WHERE {FITS})
"""


async def advise(conn: Connection) -> list[Advice]:
    """For each supplier with unmatched receipts: the settings with which at least half of them would match."""
    known = {one.id: one for one in await routing.load(conn) if one.kind == "smpp"}
    unmatched: dict[UUID, list[asyncpg.Record]] = {}
    for row in await conn.fetch(UNMATCHED, list(known)):
        unmatched.setdefault(row["id"], []).append(row)
    found = [await _advise(conn, known[id], unmatched[id]) for id in known if id in unmatched]
    return [advice for advice in found if advice is not None]


WAITING = f"""
SELECT received_on, fingerprint, keys, supplier_id, recipient, received_at, next_try_at FROM receipts
 WHERE supplier_id = $1 AND message_id IS NULL AND received_at > now() - interval '{DAYS} days'
   AND cardinality(keys) > 0
 ORDER BY received_at DESC LIMIT {WAITING_MOST}
"""
# They are checked again at once, and from then on like new ones.
RENAME = """
UPDATE receipts SET keys = string_to_array(v.keys, chr(31)), next_try_at = now(), tries = 0
  FROM unnest($2::date[], $3::uuid[], $4::text[]) AS v (received_on, fingerprint, keys)
 WHERE receipts.received_on = v.received_on AND receipts.supplier_id = $1 AND receipts.fingerprint = v.fingerprint
   AND receipts.message_id IS NULL
"""


async def reread(conn: Connection, before: Supplier, after: Supplier) -> int:
    """Reparse the ids of unmatched receipts by the changed settings, and have them checked again.

    They belong to messages sent before the change, whose ids are stored in the old base. Returns their number.
    """
    old, new = bases.ways(before.settings)[0], bases.ways(after.settings)[0]
    if before.kind != "smpp" or old == new:
        return 0
    rows = await conn.fetch(WAITING, before.id)
    named = [(row, bases.stored(row["keys"], old, old | {name: new.get(name, "text") for name in old})) for row in rows]
    renamed = [(row["received_on"], row["fingerprint"], "\x1f".join(keys)) for row, keys in named if keys]
    if renamed:
        await conn.execute(RENAME, before.id, *(list(column) for column in zip(*renamed, strict=True)))
        # A receipt whose checks start over is counted again if it is given up again.
        await waiting.no_orphans(conn, [row for row, keys in named if keys])
    return len(renamed)


async def cure(
    conn: Connection, key: Key, *, supplier: str, settings: Mapping[str, str], by: Principal = SYSTEM
) -> int:
    """Change how a supplier's ids are read, as suggested by `advise` and `cures`, and have waiting receipts checked
    again at once. Returns their number. Raises NotFound, Invalid (settings)."""
    async with conn.transaction():
        before = await suppliers.lock(conn, supplier=supplier)
        _, *others = bases.ways(before.settings) if before.kind == "smpp" else [{}]
        if not any(settings.items() <= way.items() for way in others if settings):
            raise Invalid(("settings", "enum", "These settings do not say in which base ids are written."))
        after = msgspec.structs.replace(before, settings={**before.settings, **settings})
        await suppliers.change(conn, key, after, before=before, by=by)
        return await reread(conn, before, after)


class Adviser:
    """Logs the results of `advise`: at once when they are new, and then every ten minutes while they persist."""

    AGAIN = 600.0

    def __init__(self) -> None:
        self._said: dict[UUID, tuple[Mapping[str, str], float]] = {}

    async def look(self, conn: Connection) -> None:
        """Called every few seconds."""
        at = time.monotonic()
        found = await advise(conn)
        for one in found:
            settings, said_at = self._said.get(one.supplier_id, ({}, 0.0))
            if settings != one.settings or at - said_at >= self.AGAIN:
                self._said[one.supplier_id] = one.settings, at
                log.warning(
                    "receipts match nothing, but would in another number base",
                    supplier=one.supplier,
                    receipts=one.looked,
                    fitting=one.fitting,
                    cure=one.command,
                )
        for id in self._said.keys() - {one.supplier_id for one in found}:
            del self._said[id]


async def _advise(conn: Connection, supplier: Supplier, rows: Sequence[asyncpg.Record]) -> Advice | None:
    now, *others = bases.ways(supplier.settings)
    fitting = await _in_other_bases(conn, supplier, rows)
    if not fitting:
        return None
    best = max(fitting, key=lambda number: (len(fitting[number]), -number))
    if len(fitting[best]) * 2 < len(rows):
        return None
    changed = {name: base for name, base in others[best].items() if base != now[name]}
    return Advice(supplier.id, supplier.name, changed, len(rows), len(fitting[best]))


async def cures(conn: Connection, supplier: Supplier, rows: Sequence[asyncpg.Record]) -> dict[int, dict[str, str]]:
    """For each of these unmatched receipts (keys, recipient, sender) that would match in another number base, by its
    position: the settings that achieve this with the fewest changes."""
    if supplier.kind != "smpp":
        return {}
    now, *others = bases.ways(supplier.settings)
    found: dict[int, dict[str, str]] = {}
    for number, places in sorted((await _in_other_bases(conn, supplier, rows)).items()):
        for place in places - found.keys():
            found[place] = {name: base for name, base in others[number].items() if base != now[name]}
    return found


async def _in_other_bases(conn: Connection, supplier: Supplier, rows: Sequence[asyncpg.Record]) -> dict[int, set[int]]:
    """Which of these receipts would match with which other settings, by the positions of both."""
    now, *others = bases.ways(supplier.settings)
    # Which settings, and which receipts, a key with these two address suffixes stands for.
    wanted: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        for number, way in enumerate(others):
            # An id that reads the same in both is no reason: the receipt only waits for its next check.
            for key in set(bases.stored(row["keys"], now, way)) - set(row["keys"]):
                ends = key, suffix(row["recipient"]), suffix(row["sender"])
                wanted.setdefault(ends, []).append((number, place))
    if not wanted:
        return {}
    claims = list(wanted.values())
    fitting: dict[int, set[int]] = {}
    columns = [list(column) for column in zip(*wanted, strict=True)]
    for (n,) in await conn.fetch(KNOWN, supplier.id, *columns, *id_bounds(clock.now())):
        for number, place in claims[n - 1]:
            fitting.setdefault(number, set()).add(place)
    return fitting
