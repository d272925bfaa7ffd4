"""What is wrong with a supplier's reports, and the setting that fixes it, for every kind of supplier.

`diagnosis.py` finds ids in another number base, `words.py` unknown states; this module finds receipts whose recipient
does not match, receipts that are not marked as such, suppliers that report nothing, unreadable answers, and implausible
receipts (`traffic/credibility.py`).
The rule nobody may break: like those, it changes nothing, and costs a bounded number of look-ups and sums.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, Sentence, said
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports.diagnosis import MINUTES, SAMPLE
from heliograph.sms.reports.keys import id_bounds
from heliograph.suppliers import kinds
from heliograph.suppliers.message_ids import id_key
from heliograph.suppliers.smpp import bases
from heliograph.suppliers.smpp.receipts import is_whole, scan
from heliograph.traffic import credibility, reconciliation
from heliograph.traffic.credibility import ImplausiblyPerfect, RarelyConfirmed
from heliograph.traffic.reconciliation import Line, Query

#: A supplier is judged by at least this many messages: of the last day, without the last hour, whose receipts may still
#: arrive; sums are hourly, so one more hour is left out.
ENOUGH, DAY, YOUNG = 20, timedelta(hours=24), timedelta(hours=1)
#: How many of the newest messages from handsets are searched for receipts.
SCANNED = 1000
#: A supplier whose receipts mostly (PROMPT) arrive within YOUNG has stopped reporting if the messages of LATELY have
#: none: the sums of the day would show it a day later.
LATELY, PROMPT = timedelta(hours=4), 0.9
#: Share of unreadable answers above which it is not a coincidence.
UNREAD = 0.5

# Unmatched receipts, and whether their id alone matches: among attempts or parts of the days in which receipts are
# searched for. $2 to $5 as in `receipts.FIND`.
BY_ID = f"""
SELECT count(*)::int AS looked, count(*) FILTER (WHERE known.found)::int AS fitting
  FROM (SELECT keys FROM receipts
         WHERE supplier_id = $1 AND message_id IS NULL AND received_at > now() - interval '{MINUTES} minutes'
           AND received_at < now() - interval '2 seconds' AND cardinality(keys) > 0 AND recipient <> ''
         ORDER BY received_at DESC LIMIT {SAMPLE}) one
 CROSS JOIN LATERAL (
       SELECT EXISTS (SELECT FROM attempts WHERE supplier_message_id = one.keys[1] AND target_id = $1
                         AND message_id >= $2 AND message_id < $3)
           OR EXISTS (SELECT FROM sms_parts WHERE id_key = one.keys[1] AND supplier_id = $1
                         AND answered_on >= $4 AND answered_on < $5) AS found) known
"""


class MatchCount(msgspec.Struct, frozen=True):
    """How many receipts were examined, and how many of them match a message by their id alone."""

    looked: int
    fitting: int


async def by_id_alone(conn: Connection, supplier_id: UUID) -> MatchCount:
    """Whether unmatched receipts name known ids, so that only their recipient does not match."""
    row = await conn.fetchrow(BY_ID, supplier_id, *id_bounds(clock.now()))
    return MatchCount(row["looked"], row["fitting"]) if row is not None else MatchCount(0, 0)


IDS = """
SELECT item.id_key FROM unnest($6::text[]) AS item (id_key)
 WHERE EXISTS (SELECT FROM attempts WHERE supplier_message_id = item.id_key AND target_id = $1
                  AND message_id >= $2 AND message_id < $3)
    OR EXISTS (SELECT FROM sms_parts WHERE id_key = item.id_key AND supplier_id = $1
                  AND answered_on >= $4 AND answered_on < $5)
"""


async def known_ids(conn: Connection, supplier_id: UUID, ids: Sequence[str]) -> set[str]:
    """Which of these ids the supplier assigned to a message of the days in which receipts are searched for."""
    wanted = list(filter(None, ids))
    return {key for (key,) in await conn.fetch(IDS, supplier_id, *id_bounds(clock.now()), wanted)} if wanted else set()


# Sealed texts are left closed.
LOOK_ALIKES = f"""
SELECT supplier_id, body FROM (
       SELECT supplier_id, body, sealed FROM inbound_messages
        WHERE id >= $2 AND concatenation IS NULL ORDER BY id DESC LIMIT {SCANNED}) newest
 WHERE supplier_id = ANY ($1) AND NOT sealed
"""


async def unmarked(conn: Connection, suppliers: Iterable[Supplier]) -> dict[UUID, int]:
    """For each SMPP account, how many of the last day's messages from handsets are receipts that it did not mark as
    such: they have all the fields, and name an id that it assigned, which a handset cannot know."""
    asked = {one.id: one for one in suppliers if one.kind == kinds.SMPP and not one.settings.get("dlr_sniff")}
    named: dict[UUID, list[set[str]]] = {}
    for id, body in await conn.fetch(LOOK_ALIKES, list(asked), uuid7_floor(clock.now() - DAY)) if asked else []:
        text = body.decode("utf-8", "replace")
        if is_whole(text):
            now, *others = bases.ways(asked[id].settings)
            key = id_key(scan(text)["id"], now["dlr_id_base"])
            named.setdefault(id, []).append({key}.union(*(bases.stored([key], now, way) for way in others)))
    found: dict[UUID, int] = {}
    for id, some in named.items():
        known = await known_ids(conn, id, sorted(set().union(*some)))
        if count := sum(not keys.isdisjoint(known) for keys in some):
            found[id] = count
    return found


async def check(conn: Connection, settings: Settings, suppliers: list[Supplier]) -> list[Check]:
    """Advice about each active supplier whose reports do not match, or do not arrive."""
    now = clock.now()
    sums = {
        one.supplier_id: one
        for one in await reconciliation.read(conn, Query(date_from=now - DAY, date_to=now - 2 * YOUNG, by=()))
    }
    recent = {
        one.supplier_id: one
        for one in await reconciliation.read(conn, Query(date_from=now - YOUNG, date_to=now + YOUNG, by=()))
    }
    lately = {
        one.supplier_id: one
        for one in await reconciliation.read(conn, Query(date_from=now - LATELY, date_to=now - 2 * YOUNG, by=()))
    }
    by_country = await reconciliation.read(conn, Query(date_from=now - DAY, date_to=now - 2 * YOUNG, by=("country",)))
    perfect = credibility.too_perfect(by_country)
    read_as_messages = await unmarked(conn, suppliers)
    checks: list[Check] = []
    for one in suppliers:
        if one.state != "active":
            continue
        checks += _unbelievable(one, sums.get(one.id), perfect.get(one.id))
        fitting = await by_id_alone(conn, one.id)
        if one.id in read_as_messages:
            checks.append(_unmarked(one, read_as_messages[one.id]))
        elif fitting.fitting * 2 >= max(fitting.looked, 1):
            checks.append(_recipients(one, fitting))
        elif not fitting.looked and _is_silent(sums.get(one.id)):
            checks.append(_silent(one, sums[one.id], settings))
        elif not fitting.looked and _is_silent(lately.get(one.id)) and _is_prompt(sums.get(one.id)):
            checks.append(_stopped(one, lately[one.id]))
        if _is_unread(recent.get(one.id)):
            checks.append(_unread(one, recent[one.id]))
    return checks


async def compare(conn: Connection, suppliers: list[Supplier]) -> list[Check]:
    """The active suppliers whose delivered codes are rarely entered. Reads up to 50,000 messages, so frequent checks
    should call it rarely."""
    found = await credibility.unheard(conn, at=clock.now())
    return [
        _unheard(one, found[one.id])
        for one in suppliers
        if one.state == "active" and not one.simulated and one.id in found
    ]


def change(supplier: Supplier, *pairs: str) -> str:
    """The command that changes these settings."""
    return f"`heliograph supplier set {shlex.quote(supplier.name)} {' '.join(pairs)}`"


def _is_silent(line: Line | None) -> bool:
    return line is not None and line["accepted"] >= ENOUGH and not line.matched and not line["orphaned"]


def _is_prompt(line: Line | None) -> bool:
    usual = None if line is None else line.seconds(PROMPT)
    return usual is not None and usual <= YOUNG.total_seconds()


def _is_unread(line: Line | None) -> bool:
    return line is not None and line["unknown"] >= ENOUGH and line["unknown"] >= UNREAD * line.submitted


def _unbelievable(one: Supplier, line: Line | None, perfect: ImplausiblyPerfect | None) -> Iterable[Check]:
    """Receipts that may not come from handsets. Simulators are excluded: theirs never do."""
    if one.simulated:
        return
    if line is not None and (share := credibility.too_fast(line)) is not None:
        detail = said(
            "%(share)s of %(count)s came within a second, faster than handsets answer",
            share=f"{share:.0%}",
            count=sum(line.to_receipt),
        )
        yield _suspect(one, detail)
    if perfect is not None:
        detail = said(
            "%(share)s to %(country)s are reported as delivered, of the other suppliers' %(others)s",
            share=f"{perfect.share:.1%}",
            country=perfect.country,
            others=f"{perfect.others:.1%}",
        )
        yield _suspect(one, detail)


def _unheard(one: Supplier, found: RarelyConfirmed) -> Check:
    detail = said(
        "of %(count)s codes to %(country)s that it reports as delivered, %(share)s were entered; of those of others, "
        "%(others)s",
        count=found.count,
        country=found.country,
        share=f"{found.share:.0%}",
        others=f"{found.others:.0%}",
    )
    return _suspect(one, detail)


def _suspect(one: Supplier, detail: Sentence) -> Check:
    remedy = said(
        "They may not come from handsets. Send to your own phones and to an unassigned number, and compare; "
        "`heliograph supplier pause %(name)s` stops it meanwhile.",
        name=shlex.quote(one.name),
    )
    return Check(said("receipts of %(name)s", name=one.name), "warning", detail, remedy)


def _recipients(one: Supplier, found: MatchCount) -> Check:
    detail = said(
        "%(fitting)s of %(looked)s receipts that match nothing name a known id and another recipient",
        fitting=found.fitting,
        looked=found.looked,
    )
    if one.kind == kinds.GENERIC:
        remedy = said("Match them by the id alone: %(command)s.", command=change(one, "receipt_recipient_at="))
    else:
        remedy = said(
            "The supplier rewrites numbers in receipts, or reuses ids: ask it to report the number as it was sent."
        )
    return Check(said("receipts of %(name)s", name=one.name), "failed", detail, remedy)


def _unmarked(one: Supplier, count: int) -> Check:
    detail = said(
        "%(count)s messages of the last day are receipts that it does not mark as such, so they arrive as messages from"
        " handsets",
        count=count,
    )
    remedy = said("Have them recognized by their text: %(command)s.", command=change(one, "dlr_sniff=true"))
    return Check(said("receipts of %(name)s", name=one.name), "failed", detail, remedy)


def _silent(one: Supplier, line: Line, settings: Settings) -> Check:
    detail = said("none for any of %(count)s messages of the last day", count=line["accepted"])
    return Check(said("receipts of %(name)s", name=one.name), "warning", detail, _cure_of_silence(one, settings))


def _stopped(one: Supplier, line: Line) -> Check:
    detail = said(
        "they have stopped: none for any of %(count)s messages of the last hours; before, most came within an hour",
        count=line["accepted"],
    )
    remedy = said(
        "Ask the supplier. `heliograph supplier watch %(name)s` shows what arrives from it, and `supplier test` what"
        " becomes of a message.",
        name=shlex.quote(one.name),
    )
    return Check(said("receipts of %(name)s", name=one.name), "failed", detail, remedy)


def _cure_of_silence(one: Supplier, settings: Settings) -> Sentence:
    if one.kind == kinds.SMPP:
        if one.settings.get("registered_delivery", 1) == 0:
            return said("They are not requested: %(command)s.", command=change(one, "registered_delivery=1"))
        return said(
            "Ask the supplier to enable them; if it sends them to receivers only: %(command)s.",
            command=change(one, "bind=pair"),
        )
    if not settings.public_url:
        return said("Set HELIOGRAPH_PUBLIC_URL, so that the supplier knows where to report.")
    if one.kind == kinds.GENERIC and not one.settings.get("receipt_state_at"):
        return said(
            "Say where a receipt has its state: %(command)s, for instance.",
            command=change(one, "receipt_state_at=/status"),
        )
    address = f"{addresses.PREFIX}{one.id}/…/{addresses.RECEIPTS}"
    return said(
        "Give the supplier the address of `heliograph supplier show %(name)s` (%(address)s), and check "
        "that it can reach it; the log names callbacks that hold nothing known.",
        name=shlex.quote(one.name),
        address=address,
    )


def _unread(one: Supplier, line: Line) -> Check:
    detail = said(
        "%(unknown)s of %(all)s answers of the last hour did not arrive, or could not be read",
        unknown=line["unknown"],
        all=line.submitted,
    )
    name = shlex.quote(one.name)
    if one.kind == kinds.GENERIC:
        remedy = said(
            "`heliograph supplier test %(name)s --to NUMBER` shows an answer: correct code_at, id_at and codes.",
            name=name,
        )
    else:
        remedy = said(
            "`heliograph supplier test %(name)s --to NUMBER` shows an answer; if it is only slow: %(command)s.",
            name=name,
            command=change(one, "response_seconds=60"),
        )
    return Check(said("answers of %(name)s", name=one.name), "failed", detail, remedy)
