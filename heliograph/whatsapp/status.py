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
from copy import copy
from datetime import datetime
from operator import attrgetter
from uuid import UUID

import msgspec

from heliograph import traces, traffic
from heliograph.base.database import clock
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.webhooks.recording import events
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.rates import RateBook, load
from heliograph.whatsapp.money.wallet import Movement
from heliograph.why import words

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


class _Message(msgspec.Struct, gc=False):
    """A message before or after reports. Its fields are the first columns of LOCK; up to `canceled_at`, they are the
    first parameters of UPDATE."""

    organization_id: UUID
    id: UUID
    status: str
    sent_at: datetime | None
    delivered_at: datetime | None
    read_at: datetime | None
    failed_at: datetime | None
    failure_code: str | None
    failure_evidence: str | None
    event_id: UUID | None
    delivered_event: bool
    pricing: str | None
    priced_by: str | None
    canceled_at: datetime | None
    mode: str
    recipient: str
    number_id: UUID
    client_reference: str | None
    request_id: str
    billing_category: str | None
    country: str | None
    accepted_at: datetime
    charge: str
    reserved: int
    consumed: int
    currency: str


_written = attrgetter(*_Message.__struct_fields__[: _Message.__struct_fields__.index("canceled_at") + 1])

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
       SELECT organization_id, id, status, sent_at, delivered_at, read_at, failed_at, failure_code, failure_evidence,
              event_id, delivered_event, pricing, priced_by, canceled_at, mode, recipient, number_id, client_reference,
              request_id, billing_category, country, accepted_at, charge, reserved, consumed
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
  FROM (SELECT unnest($1::uuid[]) AS organization_id, unnest($2::uuid[]) AS id, unnest($3::text[]) AS status,
               unnest($4::timestamptz[]) AS sent_at, unnest($5::timestamptz[]) AS delivered_at,
               unnest($6::timestamptz[]) AS read_at, unnest($7::timestamptz[]) AS failed_at,
               unnest($8::text[]) AS failure_code, unnest($9::text[]) AS failure_evidence,
               unnest($10::uuid[]) AS event_id, unnest($11::boolean[]) AS delivered_event,
               unnest($12::text[]) AS pricing, unnest($13::text[]) AS priced_by,
               unnest($14::timestamptz[]) AS canceled_at, unnest($15::text[]) AS charge,
               unnest($16::bigint[]) AS reserved, unnest($17::bigint[]) AS consumed OFFSET 0) v
 WHERE m.organization_id = v.organization_id AND m.id = v.id
"""

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
    changed: list[tuple[_Message, _Message]] = []
    raised: list[events.Event] = []
    for *columns, taken in rows:
        known = _Message(*columns)
        new = None if taken else merge(known, news[known.id])
        if new is not None:
            raised += _events(known, new, wanted, at)
            changed.append((known, new))
    settled = await wallet.judge(conn, await _movements(conn, changed, rates), [known for known, _ in changed])
    if changed:
        # The charge is written together with the status: one new version of the row, not two.
        written = [(*_written(new), *settled.charges[new.organization_id, new.id]) for _, new in changed]
        await conn.execute(UPDATE, *zip(*written, strict=True))
        await traffic.record(conn, [_change(*one) for one in changed])
    deliveries = await events.record(conn, raised, handover=handover)
    await wallet.book(conn, settled)
    if began:
        await _trace(conn, began, [new for _, new in changed], news)
    return {new.id for known, new in changed if new.status != known.status}, deliveries


def _change(known: _Message, new: _Message) -> traffic.Change:
    """The traffic deltas of a changed message."""
    since = known.accepted_at
    return traffic.Change(
        organization_id=known.organization_id,
        channel="whatsapp",
        mode=known.mode,
        country=known.country or "001",
        sender=str(known.number_id),
        segments=0,
        accepted_at=since,
        old_status=known.status,
        new_status=new.status,
        sent=_took(known.sent_at, new.sent_at, since),
        delivered=_took(known.delivered_at, new.delivered_at, since),
        old_reason=known.failure_code or "",
        new_reason=new.failure_code or "",
    )


def _took(before: datetime | None, after: datetime | None, since: datetime) -> float | None:
    return (after - since).total_seconds() if before is None and after is not None else None


def merge(known: _Message, news: _News) -> _Message | None:
    """The message after the reports; None: nothing changes. Pure, and independent of the order of Meta's statuses."""
    status = known.status
    if news.unsent and status != "accepted":
        return None  # Meta reported on it, perhaps while this waited for the row lock, after `taken` was read
    if RANK[news.status] > RANK[status] and (news.status != "canceled" or status == "accepted"):
        status = news.status
    new = copy(known)
    new.status = status
    # Meta's timestamps are whole seconds, which may be before the acceptance.
    first = known.accepted_at
    new.sent_at = _earlier(known.sent_at, news.sent_at, first)
    new.delivered_at = _earlier(known.delivered_at, news.delivered_at, first)
    new.read_at = _earlier(known.read_at, news.read_at, first)
    if status == "failed" and known.status != "failed":
        new.failed_at, new.failure_code = _earlier(None, news.failed_at, first), news.failure_code
        new.failure_evidence = news.failure_evidence
    elif status in ARRIVED:
        new.failed_at = new.failure_code = new.failure_evidence = None
    new.canceled_at = _earlier(known.canceled_at, news.canceled_at, first) if status == "canceled" else None
    if news.pricing is not None and _outranks(news.priced_by, known.priced_by):
        new.pricing, new.priced_by = news.pricing.text, news.priced_by
    return None if new == known else new


_encode = msgspec.json.Encoder().encode


def message_data(one: _Message, status: str) -> str:
    """The `data` of a message's event, as JSON. Contains nothing from Meta."""
    code = one.failure_code
    return _encode(
        {
            "message": {
                "id": one.id,
                "clientReference": one.client_reference,
                "channel": "whatsapp",
                "to": one.recipient,
                "status": status,
                "segments": None,
                "acceptedAt": iso(one.accepted_at),
                "sentAt": iso_or_none(one.sent_at),
                "deliveredAt": iso_or_none(one.delivered_at),
                "readAt": iso_or_none(one.read_at),
                "failedAt": iso_or_none(one.failed_at),
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


async def _trace(conn: Connection, began: int, changed: Sequence[_Message], news: Mapping[UUID, _News]) -> None:
    """Record a trace step for each traced message that was moved."""
    steps = [
        (one.organization_id, one.id, "whatsapp decision" if said.unsent else "whatsapp status", one.status)
        for one in changed
        if spans.is_marked(one.id) and (said := news[one.id])
    ]
    if steps:
        await traces.moved(conn, began, steps)


def _events(known: _Message, new: _Message, wanted: Mapping[str, events.Wanting], at: datetime) -> list[events.Event]:
    """The events of a change; records in `new` that they were raised."""
    raised: list[events.Event] = []

    def add(kind: str, status: str) -> UUID:
        id = spans.like(new.id, uuid7())
        raised.append(
            events.Event(
                organization_id=new.organization_id,
                id=id,
                kind=kind,
                request_id=new.request_id,
                data=message_data(new, status),
                created_at=at,
                message_id=new.id,
                mode=new.mode,
            )
        )
        return id

    who = (new.organization_id, new.mode)
    # Whichever status arrives first shows that Meta has it: `sent` may arrive last, or never.
    is_first = known.sent_at is None and new.sent_at is not None and known.status != "failed"
    if is_first and who in wanted.get("message.sent", ()):
        add("message.sent", "sent")
    if new.status in ARRIVED and not known.delivered_event:
        id = add("message.delivered", "delivered")
        new.event_id, new.delivered_event = known.event_id or id, True
    elif new.status == "failed" and known.status != "failed" and known.event_id is None:
        new.event_id = add("message.failed", "failed")
    if new.read_at and not known.read_at and who in wanted.get("message.read", ()):
        add("message.read", "read")
    return raised


async def _movements(
    conn: Connection, changed: Sequence[tuple[_Message, _Message]], rates: RateBook | None
) -> list[Movement]:
    """The effects of changes on wallets:

    arrived      consume once, at Meta's pricing; without it, the reserved amount, or the original one if released
    failed       release
    still open   a price that Meta declares free lowers the reservation
    later        a price that differs from the one consumed: reprice; without a rate, the original amount
    """
    movements: list[Movement] = []
    #: With the key of the movement; "": it is consumed.
    unpriced: list[tuple[_Message, str]] = []
    for known, new in changed:
        charge, who = known.charge, (known.organization_id, known.id)
        if charge == "none":
            continue
        pricing = pricing_of(new.pricing)
        if new.status in ARRIVED and charge != "consumed":
            price = await _price(conn, rates, known, pricing)
            if price is None and pricing is None and charge == "reserved":
                price = known.reserved
            if price is None:
                unpriced.append((known, ""))
            else:
                movements.append(Movement(*who, "consume", price, ""))
        elif charge == "reserved" and new.status in ("failed", "canceled"):
            movements.append(Movement(*who, "release", 0, ""))
        elif new.pricing != known.pricing:
            price = await _price(conn, rates, known, pricing)
            key = f"{new.priced_by}:{new.pricing}"
            if charge == "consumed" and price is None:
                unpriced.append((known, key))
            elif charge == "consumed" and price is not None and price != known.consumed:
                movements.append(Movement(*who, "reprice", price, key))
            elif charge == "reserved" and price == 0 and known.reserved:
                movements.append(Movement(*who, "lower", 0, key))
    if unpriced:
        ids = [one.organization_id for one, _ in unpriced], [one.id for one, _ in unpriced]
        amounts = {row["id"]: row["amount"] for row in await conn.fetch(LISTED, *ids)}
        for one, key in unpriced:
            amount = amounts.get(one.id, one.reserved if one.charge != "consumed" else one.consumed)
            if one.charge != "consumed":
                movements.append(Movement(one.organization_id, one.id, "consume", amount, ""))
            elif amount != one.consumed:
                movements.append(Movement(one.organization_id, one.id, "reprice", amount, key))
    return movements


async def _price(conn: Connection, rates: RateBook | None, one: _Message, pricing: Pricing | None) -> int | None:
    """Our price for Meta's pricing, at the rates valid at acceptance; None: unknown."""
    if pricing is None:
        return None
    if pricing.type.startswith("free"):
        return 0
    category = pricing.category.replace("_", "-") or one.billing_category or ""
    known = await (load(conn, one.currency) if rates is None else rates.within(conn, one.currency))
    return known.price(category, one.country or "", one.accepted_at)
