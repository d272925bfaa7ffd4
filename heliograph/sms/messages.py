"""An organization's messages: listed, read with their history, and canceled while no supplier has them.

The rule nobody may break: what is returned here is for customers. It contains no supplier's name, id, code or text;
those are in `timeline`, for operators. A key sees only messages of its own mode, so that a test key can neither read
nor cancel messages that go to people.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan, clock
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Refusal
from heliograph.base.money import Charge, charge_of
from heliograph.queue import backlog, leases
from heliograph.queue.holds import AlreadyAttempted
from heliograph.sealing import text_keys
from heliograph.sending import listing
from heliograph.sending import timeline as timelines
from heliograph.sending.listing import MessagePage, shown_among, shown_status
from heliograph.sms import network_reports, timeline
from heliograph.sms.accepting import withdrawal
from heliograph.sms.accepting.withdrawal import Unsent
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.sms.network_reports import Report
from heliograph.sms.status import STATUSES
from heliograph.webhooks import timeline as webhook_timeline


class MessageNotCancelable(Refusal):
    """This message can no longer be canceled: a supplier has it or is about to get it, or its status is final."""

    code, status = "message_not_cancelable", 409


class Message(msgspec.Struct, frozen=True):
    """A message as its organization sees it."""

    id: UUID
    status: str
    mode: str
    recipient: str
    sender: str
    sender_id: UUID
    client_reference: str | None
    campaign_id: UUID | None
    #: The key of the request that sent it; None: it was sent by a campaign, a person or the command line.
    key_id: UUID | None
    #: The person who sent it from the dashboard.
    person_id: UUID | None
    request_id: str
    country: str
    encoding: str
    segments: int
    traffic_class: str
    guarantee: str
    accepted_at: datetime
    send_at: datetime | None
    expires_at: datetime
    #: The end of the recipient's quiet hours, if it waits or waited for that.
    quiet_until: datetime | None
    sent_at: datetime | None
    delivered_at: datetime | None
    failed_at: datetime | None
    #: When it became canceled or unknown.
    ended_at: datetime | None
    failure_code: str | None
    #: True if the send named no sender and got the default; None: it named one, or a campaign sent it.
    sender_defaulted: bool | None = None


class Filters(listing.Filters, frozen=True, kw_only=True):
    """Filters; None: no filter."""

    #: In addition to `statuses`.
    status: str | None = None
    mode: str | None = None
    #: The sender's value.
    sender: str | None = None


class Step(msgspec.Struct, frozen=True):
    """Something that happened to a message: it reached a status, or an event about it was posted to an endpoint; also,
    shown only to people: a report from a network, and that an event was recorded."""

    at: datetime
    status: str | None = None
    failure_code: str | None = None
    delivery: Delivery | None = None
    #: It was deferred until then because of the recipient's quiet hours.
    quiet_until: datetime | None = None
    report: Report | None = None
    #: The kind of the event that was recorded.
    event: str | None = None


class Delivery(msgspec.Struct, frozen=True):
    """A webhook attempt. `status`: that of the HTTP response, if there was one."""

    event_id: UUID
    kind: str
    endpoint_id: UUID
    attempt: int
    result: str
    status: int | None
    duration_ms: int


class MessageDetail(msgspec.Struct, frozen=True):
    """A message, its text (None once erased), and what happened to it, in chronological order."""

    message: Message
    text: str | None
    steps: list[Step]
    #: The events raised by it.
    events: list[UUID] = []
    #: Steps shown only to people, unordered.
    behind: list[Step] = []


#: The public status while suppliers are tried; the row still says `accepted`.
SENDING = "sending"
#: All public statuses.
SHOWN_STATUSES = ("accepted", SENDING, *(name for name in STATUSES if name != "accepted"))
_STORED = (
    "mode, recipient, sender, sender_id, client_reference, campaign_id, key_id, person_id, request_id, country,"
    " encoding, segments, class, guarantee, accepted_at, send_at, expires_at, quiet_since, quiet_until,"
    " sent_at, delivered_at, failed_at, ended_at, failure_code, sender_defaulted"
)
_COLUMNS = f"id, {{status}} AS status, {_STORED}"
# The queue is consulted last, for returned rows only: most scanned rows are not returned.
LIST = bounded_scan.statement(
    "messages m",
    f"id, status, {_STORED}",
    fits=f"""
           mode = ANY ($7)
           AND ($8::text[] IS NULL OR recipient = ANY ($8)) AND ($9::text IS NULL OR client_reference = $9)
           AND ($10::uuid IS NULL OR coalesce(campaign_id = $10, false))
           AND ($11::timestamptz IS NULL OR accepted_at >= $11)
           AND ($12::timestamptz IS NULL OR accepted_at < $12)
           AND ($14::text IS NULL OR lower(sender) = lower($14))
           AND ($15::text IS NULL OR country = $15) AND ($16::text IS NULL OR coalesce(failure_code = $16, false))
           AND ($17::uuid IS NULL OR coalesce(key_id = $17, false)) AND ($18::text IS NULL OR request_id = $18)
           AND (NOT $19 OR key_id IS NOT NULL) AND ($20::uuid IS NULL OR coalesce(person_id = $20, false))
           AND {shown_among("looked_at", SENDING, "$6::text[]")}
           AND {shown_among("looked_at", SENDING, "$13::text[]")}""",
    returned=_COLUMNS.format(status=shown_status("looked_at", SENDING)),
)


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> MessagePage[Message]:
    """Messages older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more.

    Scans at most `look` messages. A scan that ends there returns in `seen` where the next one continues, even if it
    found fewer, or none.
    """
    modes = [mode for mode in actor.modes if filters.mode in (None, mode)]
    if not modes:
        return MessagePage([], None)
    bounds = bounded_scan.bounds(after, date_from=filters.date_from, date_to=filters.date_to)
    rows = await conn.fetch(
        LIST,
        actor.organization_id,
        *bounds,
        limit + 1,
        look,
        None if filters.status is None else [filters.status],
        modes,
        # As it was sent to, which is how clients have it: people who look for it may write it in another way.
        None if filters.recipient is None else phones.spellings(filters.recipient),
        filters.client_reference,
        filters.campaign_id,
        filters.date_from,
        filters.date_to,
        filters.statuses,
        filters.sender,
        filters.country,
        filters.failure_code,
        filters.key_id,
        filters.request_id,
        filters.is_requested,
        filters.person_id,
    )
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return MessagePage([_message(row) for row in found], seen)


# A sealed text is truncated after it is opened.
TEXTS = f"""
SELECT id, CASE WHEN $4::integer IS NULL OR body LIKE '{text_keys.MARK}%' THEN body ELSE left(body, $4) END AS body
  FROM messages
 WHERE organization_id = $1 AND id = ANY ($2) AND mode = ANY ($3) AND body IS NOT NULL
"""


async def texts(conn: Connection, actor: Actor, *, ids: Collection[UUID], most: int | None = None) -> dict[UUID, str]:
    """The texts of messages, except erased ones; at most the first `most` characters of each."""
    rows = await conn.fetch(TEXTS, actor.organization_id, list(ids), list(actor.modes), most) if ids else []
    found = await text_keys.opened_of(
        conn, actor.organization_id, "messages", [(row["id"], row["body"]) for row in rows]
    )
    return {id: text[:most] for id, text in found.items() if text is not None}


SELECT = f"""
SELECT {_COLUMNS.format(status=shown_status("m", SENDING))}, body, event_id FROM messages m
 WHERE organization_id = $1 AND id = $2
"""
FIRST_ATTEMPT = """
SELECT least((SELECT min(started_at) FROM attempts WHERE organization_id = $1 AND message_id = $2),
             (SELECT begun_at FROM queue WHERE id = $2 AND kind || '' = 'sms' AND begun_at IS NOT NULL LIMIT 1))
"""


async def get(conn: Connection, actor: Actor, *, id: UUID) -> MessageDetail:
    """A message with its text and what happened to it. Raises NotFound."""
    row = await _row(conn, actor, id)
    begun = await conn.fetchval(FIRST_ATTEMPT, actor.organization_id, id)
    raised = await timelines.raised(conn, timeline.SOURCE, actor.organization_id, row)
    tried = await webhook_timeline.tried(conn, actor.organization_id, raised)
    kinds = {one["id"]: one["kind"] for one in raised}
    steps = [*_steps(row, begun), *(delivery(one, kinds[one["event_id"]]) for one in tried)]
    came = await network_reports.reports(conn, actor.organization_id, id=id, accepted_at=row["accepted_at"])
    behind = [*(Step(one.at, report=one) for one in came), *(recorded(one) for one in raised)]
    text = (await text_keys.opened_of(conn, actor.organization_id, "messages", [(id, row["body"])]))[id]
    return MessageDetail(_message(row), text, sorted(steps, key=lambda step: step.at), list(kinds), behind)


WAITING = f"""
SELECT due_at, tries, lease_until IS NOT NULL AND lease_until > now() AS is_begun, due_at > now() AS is_later,
       {backlog.HELD} AS is_held,
       line IS NOT DISTINCT FROM '{leases.GUARDED}' AS is_suspicious
  FROM queue WHERE id = $2 AND organization_id = $1 AND kind || '' = 'sms' LIMIT 1
"""


class Waiting(msgspec.Struct, frozen=True):
    """Why a message has not been sent yet."""

    due_at: datetime
    #: How often it was tried.
    tries: int
    #: It is being handed over, is due later, is held by an operator, or is held by the guard.
    is_begun: bool
    is_later: bool
    is_held: bool
    is_suspicious: bool


async def waiting(conn: Connection, actor: Actor, *, id: UUID) -> Waiting | None:
    """Why a message waits; None: it does not wait to be sent."""
    row = await conn.fetchrow(WAITING, actor.organization_id, id)
    return None if row is None else Waiting(*row)


BY_IDS = f"""
SELECT {_COLUMNS.format(status=shown_status("m", SENDING))} FROM messages m
 WHERE organization_id = $1 AND id = ANY ($2) AND mode = ANY ($3)
"""


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Message]:
    """The messages with these ids, as far as they exist."""
    rows = await conn.fetch(BY_IDS, actor.organization_id, list(ids), list(actor.modes)) if ids else []
    return [_message(row) for row in rows]


PRICES = """
SELECT id, price, price_currency, price_due FROM messages
 WHERE organization_id = $1 AND id = ANY ($2) AND mode = 'live' AND price IS NOT NULL
"""


async def prices(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, Charge]:
    """Prices of these messages, due or not; test messages, and those without a price, are left out."""
    rows = await conn.fetch(PRICES, actor.organization_id, list(ids)) if ids else []
    found = {row["id"]: charge_of(row["price"], row["price_currency"], row["price_due"]) for row in rows}
    return {id: charge for id, charge in found.items() if charge is not None}


#: How often a batch is tried if one of its messages is moved concurrently.
TRIES = 3
STATES = """
SELECT id, status, segments FROM messages
 WHERE organization_id = $1 AND id = ANY ($2) AND mode = ANY ($3) ORDER BY id
"""


async def cancel_many(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, bool]:
    """Of these messages, cancel and refund those that no supplier has yet; returns for each existing one whether it is
    now canceled. Idempotent.

    Their queue rows are deleted first, after waiting for any claim that is being committed: from then on no worker can
    claim them.
    """
    rows, taken = await _cancel(conn, actor, ids)
    return {row["id"]: row["id"] in taken or row["status"] == "canceled" for row in rows}


async def _cancel(conn: Connection, actor: Actor, ids: Collection[UUID]) -> tuple[list[asyncpg.Record], set[UUID]]:
    """(the messages as they were, the ids of those that were canceled just now)"""
    for _ in range(TRIES):
        rows = await conn.fetch(STATES, actor.organization_id, list(ids), list(actor.modes))
        unsent = [
            Unsent(actor.organization_id, row["id"], row["segments"]) for row in rows if row["status"] == "accepted"
        ]
        taken: set[UUID] = set()
        if unsent:
            try:
                async with conn.transaction():
                    taken = await withdrawal.withdraw(conn, unsent, at=clock.now(), reason="canceled")
            except AlreadyAttempted:
                continue
        return rows, taken
    return rows, set()


async def cancel(conn: Connection, actor: Actor, *, id: UUID) -> Message:
    """Cancel and refund a message that no supplier has yet, like `cancel_many`. Raises NotFound, and
    MessageNotCancelable once it is on its way or has ended."""
    return (await cancel_now(conn, actor, id=id))[0]


async def cancel_now(conn: Connection, actor: Actor, *, id: UUID) -> tuple[Message, bool]:
    """Like `cancel`; also whether it was canceled just now, and not before by somebody else."""
    _, taken = await _cancel(conn, actor, [id])
    row = await _row(conn, actor, id)
    if row["status"] != "canceled":
        # One that is still `accepted` is being handed over by a worker.
        raise MessageNotCancelable(status=SENDING if row["status"] == "accepted" else row["status"])
    return _message(row), id in taken


async def _row(conn: Connection, actor: Actor, id: UUID) -> asyncpg.Record:
    row = await conn.fetchrow(SELECT, actor.organization_id, id)
    if row is None or row["mode"] not in actor.modes:
        raise NotFound(resource="message", id=str(id))
    return row


def _message(row: asyncpg.Record) -> Message:
    values = {name: row[name] for name in Message.__struct_fields__ if name != "traffic_class"}
    values |= {"traffic_class": row["class"], "expires_at": deadline(row["accepted_at"], row["expires_at"])}
    return Message(**values)


def _steps(row: asyncpg.Record, begun: datetime | None) -> Iterable[Step]:
    yield Step(row["accepted_at"], "accepted")
    if row["quiet_since"]:
        yield Step(row["quiet_since"], "accepted", quiet_until=row["quiet_until"])
    if begun:
        yield Step(begun, SENDING)
    if row["sent_at"]:
        yield Step(row["sent_at"], "sent")
    if row["delivered_at"]:
        yield Step(row["delivered_at"], "delivered")
    if row["failed_at"]:
        yield Step(row["failed_at"], row["status"], row["failure_code"])
    if row["ended_at"]:
        yield Step(row["ended_at"], row["status"], row["failure_code"])


def recorded(row: asyncpg.Record) -> Step:
    """The step for an event, from a row of `sending.timeline.raised`."""
    return Step(row["created_at"], event=row["kind"])


def delivery(row: asyncpg.Record, kind: str) -> Step:
    """The step for a webhook attempt, from a row of `webhooks.timeline.tried`."""
    return Step(
        row["started_at"],
        delivery=Delivery(
            event_id=row["event_id"],
            kind=kind,
            endpoint_id=row["endpoint_id"],
            attempt=row["attempt"],
            result=row["result"],
            status=row["status"],
            duration_ms=row["duration_ms"],
        ),
    )
