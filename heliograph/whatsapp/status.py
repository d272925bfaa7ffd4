"""The states of a WhatsApp message, and their effects on charges and events.

    accepted (→ queued) → sent → delivered → read
    accepted → canceled      accepted, sent → failed

`queued` (an attempt has begun) is shown but not stored (`messages.QUEUED`). A message is in the state of the highest
rank ever reported for it, in any order: `delivered` and `read` rank above `failed`, since Meta may give up on one
device and reach another. Times are the earliest reported, and a later state implies the earlier ones. So duplicates and
different orders of the same statuses produce the same row.

The rule nobody may break: a message raises `message.failed` and `message.delivered` at most once each, the first only
if nothing was raised before, and its charge changes with its state, in one transaction.

It has over 400 lines because the ranks of statuses and the charges that follow from them are one rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from heliograph import traces, traffic
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.webhooks.recording import events
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.rates import RateBook, load
from heliograph.whatsapp.money.wallet import Movement
from heliograph.why import words

#: A message's columns.
Row: TypeAlias = asyncpg.Record | Mapping[str, Any]

#: The status with the higher rank prevails.
RANK = {"accepted": 0, "sent": 1, "canceled": 2, "failed": 3, "delivered": 4, "read": 5}
#: States in which the user has the message.
ARRIVED = ("delivered", "read")

#: Texts for customers about a failure, by code. Never Meta's text.
FAILURES = words.customer_texts("whatsapp_failure")


class Pricing(msgspec.Struct, frozen=True, gc=False):
    """Meta's pricing: type `regular`, `free_customer_service`, `free_entry_point` …, and category."""

    type: str
    category: str

    @property
    def text(self) -> str:
        return f"{self.type}/{self.category}"


class Move(msgspec.Struct, frozen=True, gc=False):
    """A message, and a status that it may move to."""

    organization_id: UUID
    message_id: UUID
    status: str
    at: datetime
    failure_code: str | None = None
    #: Meta's code, for a status that reports a failure.
    failure_evidence: str | None = None
    pricing: Pricing | None = None
    #: Apply only if Meta has not accepted it: a decision about one attempt does not apply to another that was answered.
    unsent: bool = False


def pricing_of(text: str | None) -> Pricing | None:
    """The inverse of `Pricing.text`."""
    if not text:
        return None
    type, _, category = text.partition("/")
    return Pricing(type, category)


class _News(msgspec.Struct, gc=False):
    """All reports on one message in a batch."""

    organization_id: UUID
    message_id: UUID
    unsent: bool
    status: str = "accepted"
    sent_at: datetime | None = None
    delivered_at: datetime | None = None
    read_at: datetime | None = None
    failed_at: datetime | None = None
    canceled_at: datetime | None = None
    failure_code: str | None = None
    failure_evidence: str | None = None
    pricing: Pricing | None = None
    priced_by: str | None = None


# Locked in one order, so that two transactions cannot deadlock. A decision made here about a message (`unsent`) applies
# only if no attempt of it was accepted; it is canceled only if none may have been.
LOCK = """
SELECT m.*, (SELECT currency FROM wallets WHERE organization_id = m.organization_id) AS currency,
       CASE WHEN news.unsent THEN EXISTS (
           SELECT FROM attempts a
            WHERE a.organization_id = news.organization_id AND a.message_id = news.id
              AND (a.state = 'accepted' OR (news.canceled AND a.state = 'unknown'))) ELSE false END AS taken
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::boolean[]) AS news (organization_id, id, unsent, canceled)
       CROSS JOIN LATERAL (
       SELECT organization_id, id, mode, status, recipient, number_id, client_reference, request_id, billing_category,
              country, accepted_at, sent_at, delivered_at, read_at, failed_at, canceled_at, failure_code,
              failure_evidence, event_id, delivered_event, pricing, priced_by, charge, reserved, consumed
         FROM whatsapp_messages WHERE organization_id = news.organization_id AND id = news.id
          FOR NO KEY UPDATE) m
"""

UPDATE = """
UPDATE whatsapp_messages m
   SET status = v.status, sent_at = v.sent_at, delivered_at = v.delivered_at, read_at = v.read_at,
       failed_at = v.failed_at, failure_code = v.failure_code, failure_evidence = v.failure_evidence,
       event_id = v.event_id, delivered_event = v.delivered_event, pricing = v.pricing, priced_by = v.priced_by,
       canceled_at = v.canceled_at,
       charge = v.charge, reserved = v.reserved, consumed = v.consumed,
       deadline_at = CASE v.status WHEN 'canceled' THEN NULL ELSE m.deadline_at END
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[],
              $7::timestamptz[], $8::text[], $9::text[], $10::uuid[], $11::boolean[], $12::text[], $13::text[],
              $14::timestamptz[], $15::text[], $16::bigint[], $17::bigint[])
       AS v (organization_id, id, status, sent_at, delivered_at, read_at, failed_at, failure_code, failure_evidence,
             event_id, delivered_event, pricing, priced_by, canceled_at, charge, reserved, consumed)
 WHERE m.organization_id = v.organization_id AND m.id = v.id
"""
COLUMNS = (
    "organization_id", "id", "status", "sent_at", "delivered_at", "read_at", "failed_at", "failure_code",
    "failure_evidence", "event_id", "delivered_event", "pricing", "priced_by", "canceled_at",
)  # fmt: skip

# The original reservation, for messages whose reservation is gone and whose price Meta never reported.
LISTED = """
SELECT item.id, booked.amount FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT -available AS amount FROM wallet_movements
        WHERE organization_id = item.organization_id AND message_id = item.id
          AND movement = 'reserve' LIMIT 1) booked
"""


async def move_many(
    conn: Connection,
    moves: Sequence[Move],
    *,
    rates: RateBook | None,
    announce: Mapping[str, events.Wanting] | None = None,
    handover: events.Leasing | None = None,
) -> tuple[set[UUID], int]:
    """Move messages as far as their ranks allow, with their charges and events, in the caller's transaction.

    `rates`: None if no move carries a price; rates are then loaded if Meta reported one before. `announce`: by kind
    (`message.sent`, `message.read`), the organizations that want it for every message. `handover`: from a worker that
    delivers its own events. Returns the ids of messages whose status changed, and the number of webhook deliveries that
    are due.
    """
    if not moves:
        return set(), 0
    news = _gather(moves)
    began = spans.moment() if spans.on() else 0
    rows = await conn.fetch(
        LOCK,
        [one.organization_id for one in news.values()],
        list(news),
        [one.unsent for one in news.values()],
        [one.status == "canceled" for one in news.values()],
    )
    wanted = announce or {}
    at = clock.now()
    moved: set[UUID] = set()
    changed: list[dict[str, Any]] = []
    raised: list[events.Event] = []
    charged: list[tuple[asyncpg.Record, dict[str, Any]]] = []
    counted: list[traffic.Change] = []
    for row in rows:
        one = news[row["id"]]
        new = None if row["taken"] else merge(row, one)
        if new is None:
            continue
        raised += _events(row, new, wanted, at)
        changed.append(new)
        counted.append(_change(row, new))
        if new["status"] != row["status"]:
            moved.add(row["id"])
        if row["charge"] != "none":
            charged.append((row, new))
    movements = await _movements(conn, charged, rates)
    settled = await wallet.judge(conn, movements, rows)
    if changed:
        # The charge is written together with the status: one new version of the row, not two.
        charges = zip(*(settled.charges[new["organization_id"], new["id"]] for new in changed), strict=True)
        await conn.execute(UPDATE, *([new[name] for new in changed] for name in COLUMNS), *map(list, charges))
        await traffic.record(conn, counted)
    deliveries = await events.record(conn, raised, handover=handover)
    await wallet.book(conn, settled)
    if began:
        await _trace(conn, began, changed, news)
    return moved, deliveries


def _change(row: asyncpg.Record, new: dict[str, Any]) -> traffic.Change:
    """The traffic deltas of a changed row."""

    def took(column: str) -> float | None:
        happened = row[column] is None and new[column] is not None
        return (new[column] - row["accepted_at"]).total_seconds() if happened else None

    return traffic.Change(
        organization_id=row["organization_id"],
        channel="whatsapp",
        mode=row["mode"],
        country=row["country"] or "001",
        sender=str(row["number_id"]),
        segments=0,
        accepted_at=row["accepted_at"],
        old_status=row["status"],
        new_status=new["status"],
        sent=took("sent_at"),
        delivered=took("delivered_at"),
        old_reason=row["failure_code"] or "",
        new_reason=new["failure_code"] or "",
    )


def merge(row: Row, news: _News) -> dict[str, Any] | None:
    """The row's columns after the reports; None: nothing changes. Pure, and independent of the order of Meta's
    statuses."""
    status = row["status"]
    if news.unsent and status != "accepted":
        return None  # Meta reported on it, perhaps while this waited for the row lock, after `taken` was read
    if RANK[news.status] > RANK[status] and (news.status != "canceled" or status == "accepted"):
        status = news.status
    known = {name: row[name] for name in COLUMNS}
    new = known.copy()
    new["status"] = status
    # Meta's timestamps are whole seconds, which may be before the acceptance.
    first = row["accepted_at"]
    for column in ("sent_at", "delivered_at", "read_at"):
        new[column] = _earlier(row[column], getattr(news, column), first)
    if status == "failed" and row["status"] != "failed":
        new["failed_at"], new["failure_code"] = _earlier(None, news.failed_at, first), news.failure_code
        new["failure_evidence"] = news.failure_evidence
    elif status in ARRIVED:
        new["failed_at"] = new["failure_code"] = new["failure_evidence"] = None
    new["canceled_at"] = _earlier(row["canceled_at"], news.canceled_at, first) if status == "canceled" else None
    if news.pricing is not None and _outranks(news.priced_by, row["priced_by"]):
        new["pricing"], new["priced_by"] = news.pricing.text, news.priced_by
    return None if new == known else new


_encode = msgspec.json.Encoder().encode


def message_data(row: Row, new: Mapping[str, Any], status: str) -> str:
    """The `data` of a message's event, as JSON. Contains nothing from Meta. `new`: what changes, as `merge` returns
    it."""
    code = new["failure_code"]
    return _encode(
        {
            "message": {
                "id": row["id"],
                "clientReference": row["client_reference"],
                "channel": "whatsapp",
                "to": row["recipient"],
                "status": status,
                "segments": None,
                "acceptedAt": iso(row["accepted_at"]),
                "sentAt": _iso(new["sent_at"]),
                "deliveredAt": _iso(new["delivered_at"]),
                "readAt": _iso(new["read_at"]),
                "failedAt": _iso(new["failed_at"]),
                "failure": {"code": code, "message": FAILURES[code]} if code else None,
            }
        }
    ).decode()


def _gather(moves: Iterable[Move]) -> dict[UUID, _News]:
    """One for each message, in order of (organization, id). Meta's reports override local decisions."""
    news: dict[UUID, _News] = {}
    for move in sorted(moves, key=lambda move: (move.organization_id.int, move.message_id.int, move.unsent)):
        local = move.unsent or move.status == "canceled"
        one = news.get(move.message_id)
        if one is None:
            one = news[move.message_id] = _News(move.organization_id, move.message_id, local)
        elif local and not one.unsent:
            continue
        elif one.unsent and not local:
            one = news[move.message_id] = _News(move.organization_id, move.message_id, False)
        if RANK[move.status] > RANK[one.status]:
            one.status = move.status
        match move.status:
            case "failed":
                if one.failed_at is None or move.at < one.failed_at:
                    one.failed_at, one.failure_code = move.at, move.failure_code or "unknown"
                    one.failure_evidence = move.failure_evidence
            case "canceled":
                one.canceled_at = _earlier(one.canceled_at, move.at)
            case "sent" | "delivered" | "read":
                one.sent_at = _earlier(one.sent_at, move.at)
                if move.status != "sent":
                    one.delivered_at = _earlier(one.delivered_at, move.at)
                if move.status == "read":
                    one.read_at = _earlier(one.read_at, move.at)
        if move.pricing is not None and _outranks(move.status, one.priced_by):
            one.pricing, one.priced_by = move.pricing, move.status
    return news


def _outranks(status: str | None, other: str | None) -> bool:
    return other is None or RANK[status or "accepted"] > RANK[other]


def _earlier(known: datetime | None, said: datetime | None, first: datetime | None = None) -> datetime | None:
    if said is None:
        return known
    if first is not None and said < first:
        said = first
    return said if known is None or said < known else known


async def _trace(conn: Connection, began: int, changed: Sequence[dict[str, Any]], news: Mapping[UUID, _News]) -> None:
    """Record a trace step for each traced message that was moved."""
    steps = [
        (one["organization_id"], one["id"], "whatsapp decision" if said.unsent else "whatsapp status", one["status"])
        for one in changed
        if spans.is_marked(one["id"]) and (said := news[one["id"]])
    ]
    if steps:
        await traces.moved(conn, began, steps)


def _events(row: Row, new: dict[str, Any], wanted: Mapping[str, events.Wanting], at: datetime) -> list[events.Event]:
    """The events of a change; records in `new` that they were raised."""
    raised: list[events.Event] = []

    def add(kind: str, status: str) -> UUID:
        id = spans.like(row["id"], uuid7())
        raised.append(
            events.Event(
                organization_id=row["organization_id"],
                id=id,
                kind=kind,
                request_id=row["request_id"],
                data=message_data(row, new, status),
                created_at=at,
                message_id=row["id"],
                mode=row["mode"],
            )
        )
        return id

    who = (row["organization_id"], row["mode"])
    # Whichever status arrives first shows that Meta has it: `sent` may arrive last, or never.
    is_first = row["sent_at"] is None and new["sent_at"] is not None and row["status"] != "failed"
    if is_first and who in wanted.get("message.sent", ()):
        add("message.sent", "sent")
    if new["status"] in ARRIVED and not row["delivered_event"]:
        id = add("message.delivered", "delivered")
        new["event_id"], new["delivered_event"] = row["event_id"] or id, True
    elif new["status"] == "failed" and row["status"] != "failed" and row["event_id"] is None:
        new["event_id"] = add("message.failed", "failed")
    if new["read_at"] and not row["read_at"] and who in wanted.get("message.read", ()):
        add("message.read", "read")
    return raised


async def _movements(
    conn: Connection, charged: Sequence[tuple[asyncpg.Record, dict[str, Any]]], rates: RateBook | None
) -> list[Movement]:
    """The effects of changes on wallets:

    arrived      consume once, at Meta's pricing; without it, the reserved amount, or the original one if released
    failed       release
    still open   a price that Meta declares free lowers the reservation
    later        a price that differs from the one consumed: reprice
    """
    movements: list[Movement] = []
    unpriced: list[asyncpg.Record] = []
    for row, new in charged:
        charge, who = row["charge"], (row["organization_id"], row["id"])
        pricing = pricing_of(new["pricing"])
        if new["status"] in ARRIVED and charge != "consumed":
            price = await _price(conn, rates, row, pricing)
            if price is None and pricing is None and charge == "reserved":
                price = row["reserved"]
            if price is None:
                unpriced.append(row)
            else:
                movements.append(Movement(*who, "consume", price, ""))
        elif charge == "reserved" and new["status"] in ("failed", "canceled"):
            movements.append(Movement(*who, "release", 0, ""))
        elif new["pricing"] != row["pricing"]:
            price = await _price(conn, rates, row, pricing)
            key = f"{new['priced_by']}:{new['pricing']}"
            if charge == "consumed" and price is not None and price != row["consumed"]:
                movements.append(Movement(*who, "reprice", price, key))
            elif charge == "reserved" and price == 0 and row["reserved"]:
                movements.append(Movement(*who, "lower", 0, key))
    if unpriced:
        listed = await conn.fetch(LISTED, [row["organization_id"] for row in unpriced], [row["id"] for row in unpriced])
        amounts = {row["id"]: row["amount"] for row in listed}
        movements += [
            Movement(row["organization_id"], row["id"], "consume", amounts.get(row["id"], row["reserved"]), "")
            for row in unpriced
        ]
    return movements


async def _price(conn: Connection, rates: RateBook | None, row: Row, pricing: Pricing | None) -> int | None:
    """Our price for Meta's pricing, at the rates valid at acceptance; None: unknown."""
    if pricing is None:
        return None
    if pricing.type.startswith("free"):
        return 0
    category = pricing.category.replace("_", "-") or row["billing_category"]
    known = await (load(conn, row["currency"]) if rates is None else rates.within(conn, row["currency"]))
    return known.price(category, row["country"], row["accepted_at"])


def _iso(at: datetime | None) -> str | None:
    return iso(at) if at else None
