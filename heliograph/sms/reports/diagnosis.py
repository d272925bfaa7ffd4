"""Diagnosis of receipts that are not understood, for operators: unknown states, and ids in another number base.

A supplier may write an id in hex in its answer and in decimal in the receipt. Nothing is ever matched by guessing,
since decimal 10 is not hexadecimal 10; but where unmatched receipts would match in another base, that is reported, with
the setting that fixes it.

The rule nobody may break: diagnosis changes nothing, and costs a bounded number of look-ups by key.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports.keys import look, suffix
from heliograph.suppliers.smpp import bases

log = structlog.get_logger()

#: How many receipts of a supplier are examined: the newest ones of this many minutes.
SAMPLE, MINUTES = 200, 15
#: How many receipts are reparsed after a change: the newest ones of this many days.
WAITING_MOST, DAYS = 20_000, 4
#: How many distinct words are kept per supplier, and in memory before they are stored.
WORDS, PENDING = 100, 1000
#: Settings that say what states mean, of accounts over SMPP and of those over HTTP that are configuration alone.
STATES = ("final_states", "receipt_states")


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


class Word(msgspec.Struct, frozen=True):
    """Unknown states in a supplier's receipts."""

    word: str
    count: int
    first_at: datetime
    last_at: datetime


UNMATCHED = f"""
SELECT keys, recipient, sender FROM receipts
 WHERE supplier_id = $1 AND message_id IS NULL AND received_at > now() - interval '{MINUTES} minutes'
   AND received_at < now() - interval '2 seconds' AND cardinality(keys) > 0
 ORDER BY received_at DESC LIMIT {SAMPLE}
"""
KNOWN = """
SELECT item.n FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS item (id_key, one, other, n)
 WHERE EXISTS (SELECT FROM attempts WHERE target_id = $1 AND supplier_message_id = item.id_key AND message_id >= $5
                  AND message_id < $6
                  AND recipient_suffix IN (item.one, item.other))
    OR EXISTS (SELECT FROM sms_parts WHERE supplier_id = $1 AND id_key = item.id_key AND answered_on >= $7
                  AND answered_on < $8
                  AND recipient_suffix IN (item.one, item.other))
"""


async def advise(conn: Connection) -> list[Advice]:
    """For each supplier with unmatched receipts: the settings with which at least half of them would match."""
    found = []
    for supplier in await routing.load(conn):
        if supplier.kind == "smpp":
            advice = await _advise(conn, supplier)
            if advice is not None:
                found.append(advice)
    return found


WAITING = f"""
SELECT received_on, fingerprint, keys FROM receipts
 WHERE supplier_id = $1 AND message_id IS NULL AND received_at > now() - interval '{DAYS} days'
   AND cardinality(keys) > 0
 ORDER BY received_at DESC LIMIT {WAITING_MOST}
"""
# They are checked again at once, and after that as often as new ones.
RENAME = """
UPDATE receipts SET keys = string_to_array(v.keys, chr(31)), next_try_at = now(), tries = 0
  FROM unnest($2::date[], $3::uuid[], $4::text[]) AS v (received_on, fingerprint, keys)
 WHERE receipts.received_on = v.received_on AND receipts.supplier_id = $1 AND receipts.fingerprint = v.fingerprint
   AND receipts.message_id IS NULL
"""


async def reread(conn: Connection, before: Supplier, after: Supplier) -> int:
    """Reparse the ids of unmatched receipts by the changed settings, and have them checked again.

    They are for messages sent before, whose ids are stored in the old base. Returns their number.
    """
    old, new = bases.ways(before.settings)[0], bases.ways(after.settings)[0]
    if before.kind != "smpp" or old == new:
        return 0
    rows = await conn.fetch(WAITING, before.id)
    named = [(row, bases.stored(row["keys"], old, old | {name: new.get(name, "text") for name in old})) for row in rows]
    renamed = [(row["received_on"], row["fingerprint"], "\x1f".join(keys)) for row, keys in named if keys]
    if renamed:
        await conn.execute(RENAME, before.id, *(list(column) for column in zip(*renamed, strict=True)))
    return len(renamed)


class Adviser:
    """Logs what `advise` finds: at once when it is new, and then every ten minutes while it persists."""

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


async def _advise(conn: Connection, supplier: Supplier) -> Advice | None:
    rows = await conn.fetch(UNMATCHED, supplier.id)
    now, *others = bases.ways(supplier.settings)
    # Which ways, and which receipts, a key with these two ends of addresses speaks for.
    wanted: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        for number, way in enumerate(others):
            for key in bases.stored(row["keys"], now, way):
                ends = key, suffix(row["recipient"]), suffix(row["sender"])
                wanted.setdefault(ends, []).append((number, place))
    if not wanted:
        return None
    claims = list(wanted.values())
    fitting: dict[int, set[int]] = {}
    columns = [list(column) for column in zip(*wanted, strict=True)]
    for (n,) in await conn.fetch(KNOWN, supplier.id, *columns, *look(clock.now())):
        for number, place in claims[n - 1]:
            fitting.setdefault(number, set()).add(place)
    if not fitting:
        return None
    best = max(fitting, key=lambda number: (len(fitting[number]), -number))
    if len(fitting[best]) * 2 < len(rows):
        return None
    changed = {name: base for name, base in others[best].items() if base != now[name]}
    return Advice(supplier.id, supplier.name, changed, len(rows), len(fitting[best]))


# -- words -------------------------------------------------------------------------------------------------------------

COUNT = f"""
INSERT INTO receipt_words AS known (supplier_id, word, count, first_at, last_at)
SELECT supplier_id, word, seen, now(), now()
  FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS item (supplier_id, word, seen)
 WHERE EXISTS (SELECT FROM suppliers WHERE id = item.supplier_id)
   AND ((SELECT count(*) FROM receipt_words WHERE supplier_id = item.supplier_id) < {WORDS}
        OR EXISTS (SELECT FROM receipt_words WHERE supplier_id = item.supplier_id AND word = item.word))
 ORDER BY supplier_id, word
ON CONFLICT (supplier_id, word) DO UPDATE SET count = known.count + excluded.count, last_at = excluded.last_at
"""
LISTED = """
SELECT supplier_id, word, count, first_at, last_at FROM receipt_words
 WHERE last_at > now() - interval '7 days' ORDER BY supplier_id, count DESC, word
"""


class Words:
    """Counts unknown words in memory, so that no receipt waits for a row that another worker holds."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[UUID, str]] = Counter()
        self._said: set[tuple[UUID, str]] = set()

    def add(self, supplier_id: UUID, word: str) -> None:
        """Count one occurrence."""
        key = supplier_id, word
        if key not in self._said:
            if len(self._said) >= PENDING:
                return
            self._said.add(key)
            log.warning("unknown state in a receipt", supplier_id=str(supplier_id), word=word)
        self._counts[key] += 1

    async def store(self, conn: Connection) -> None:
        """Store what was counted since the last time."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            await conn.execute(
                COUNT, [supplier for supplier, _ in counts], [word for _, word in counts], list(counts.values())
            )
        except Exception:
            self._counts += counts
            raise


async def words(conn: Connection) -> dict[UUID, list[Word]]:
    """Words of the last seven days by supplier, most frequent first, except those that its settings explain."""
    explained = {
        one.id: {word.casefold() for name in STATES for word in one.settings.get(name, ())}
        for one in await routing.load(conn)
    }
    found: dict[UUID, list[Word]] = {}
    for row in await conn.fetch(LISTED):
        if row["word"].casefold() not in explained.get(row["supplier_id"], ()):
            found.setdefault(row["supplier_id"], []).append(
                Word(row["word"], row["count"], row["first_at"], row["last_at"])
            )
    return found
