"""Deliveries in memory: the events and endpoints of claimed rows, and the results of attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.process.spans import Context, Span
from heliograph.queue.leases import Lease
from heliograph.webhooks.recording import texts
from heliograph.webhooks.recording.texts import Stored

#: The kind of test events. An example of another kind has that kind after a colon, so that no subscription, replay or
#: filter mistakes it for a real event.
TEST = "webhook.test"
_EXAMPLE = f"{TEST}:"

#: Results of attempts besides the kinds of `http.answers.Failure`.
DELIVERED, REFUSED, GONE = "delivered", "refused", "gone"
#: The result of an attempt that could not be signed.
UNSIGNED = "secret"

#: Pause before an event whose text cannot be decrypted is tried again, seconds.
LOCKED_PAUSE = 60.0
#: Characters kept of an unsuccessful answer.
DETAIL = 200


class Delivery(msgspec.Struct, gc=False):
    """An event on its way to an endpoint. The body is built once: every attempt under this claim sends the same."""

    lease: Lease
    event_id: str
    request_id: str
    body: bytes
    #: Unique in this worker: a row that is claimed again is another delivery.
    number: int = 0
    #: On the loop's clock.
    claimed_at: float = 0.0
    #: It was handed over without a claim.
    handed: bool = False
    #: Its lease was lost: another worker may hold the row.
    lost: bool = False
    #: Its result waits for a locked row.
    is_aside: bool = False
    #: It is a test event or an example: somebody requested it and will look at the answer.
    is_test: bool = False
    #: The trace, once looked up, of a traced message; and the span of the attempt in progress.
    trace: Context | None = None
    span: Span | None = None


class Destination(msgspec.Struct, frozen=True):
    """An active endpoint. `sealed`: its secrets, newest first, two or more while one is being replaced; each opens with
    `endpoints.open_secret`."""

    url: str
    sealed: list[bytes]
    consecutive_failures: int
    last_success_at: datetime | None
    #: Its events are stored here (`catching.py`), and no connection is made.
    is_catcher: bool = False


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """Data of an attempt, kept for investigation: its URL, the identifying and signing headers, head and body of the
    answer, the address connected to, and the duration of each step, seconds."""

    url: str
    sent: str
    head: bytes
    body: bytes
    address: str | None
    dns: float | None
    connect: float | None
    tls: float | None
    first_byte: float | None


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt. `status`: of the HTTP answer, if there was one. `detail`: for operators, as returned by `detail`."""

    started_at: datetime
    duration: float
    status: int | None
    result: str
    detail: str
    evidence: Evidence | None = None
    #: Where the receiver said that it is gone; "" for other results.
    gone_from: str = ""


def detail(text: str) -> str:
    """Text from outside, made storable: short, without NUL and lone surrogates."""
    return text[:DETAIL].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The result of a claimed row: done (`pause` None) or due again in `pause` seconds. `attempt` None: nothing was
    sent."""

    lease: Lease
    pause: float | None
    attempt: Attempt | None
    #: The delivery's number; 0: there is no delivery.
    number: int = 0


LOAD = """
SELECT e.kind, e.request_id, e.data, e.created_at
  FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS item (organization_id, id, n)
  LEFT JOIN LATERAL (SELECT kind, request_id, data, created_at FROM events
                      WHERE organization_id = item.organization_id AND id = item.id) e ON true
 ORDER BY item.n
"""


async def load(conn: Connection, claimed: Sequence[Lease]) -> list[Delivery | Ended]:
    """The deliveries of claimed rows, in order. Rows that cannot be delivered have ended: permanently if retention
    deleted the event, temporarily if its text cannot be decrypted."""
    rows = await conn.fetch(LOAD, [lease.organization_id for lease in claimed], [lease.id for lease in claimed])
    stored = [
        Stored(lease.organization_id, lease.id, row["kind"] or "", row["data"] or "")
        for lease, row in zip(claimed, rows, strict=True)
    ]
    data, locked = await texts.read(conn, stored)
    found: list[Delivery | Ended] = []
    for lease, (kind, request_id, _, created_at), said in zip(claimed, rows, data, strict=True):
        if kind is None:
            found.append(Ended(lease, None, None))
        elif lease.id in locked:
            found.append(Ended(lease, LOCKED_PAUSE, None))
        else:
            found.append(delivery(lease, kind, request_id, said, created_at))
    return found


def type_of(kind: str) -> str:
    """The name of a kind in bodies: for an example (`webhook.test:message.read`), the kind that it represents."""
    return kind[len(TEST) + 1 :] if kind.startswith(_EXAMPLE) else kind


def delivery(lease: Lease, kind: str, request_id: str, data: str, created_at: datetime) -> Delivery:
    """The delivery of an event, whose body is the same at every attempt."""
    event_id = str(lease.id)
    body = body_of(event_id, kind, request_id, data, created_at)
    return Delivery(lease, event_id, request_id, body.encode(), is_test=kind.startswith(TEST))


def body_of(event_id: str, kind: str, request_id: str, data: str, created_at: datetime) -> str:
    """The body that is posted."""
    return (
        f'{{"id":"{event_id}","type":"{type_of(kind)}","timestamp":"{clock.iso(created_at)}",'
        f'"requestId":{_encode(request_id).decode()},"apiVersion":"v1","data":{data}}}'
    )


_encode = msgspec.json.Encoder().encode

DESTINATIONS = """
SELECT item.organization_id, item.id, e.url,
       ARRAY[e.secret] || ARRAY(SELECT old.sealed FROM unnest(e.old_secrets, e.old_secrets_until) AS old (sealed, until)
                                 WHERE old.until > now()),
       e.consecutive_failures, e.last_success_at, e.catches_until IS NOT NULL
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
       CROSS JOIN LATERAL (SELECT * FROM webhook_endpoints
                            WHERE organization_id = item.organization_id AND id = item.id AND status = 'active'
                            OFFSET 0) e  -- otherwise all endpoints might be scanned
"""


async def destinations(conn: Connection, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Destination]:
    """The active ones among endpoints given as (organization, id)."""
    rows = await conn.fetch(DESTINATIONS, [key[0] for key in keys], [key[1] for key in keys])
    return {(row[0], row[1]): Destination(*row[2:]) for row in rows}
