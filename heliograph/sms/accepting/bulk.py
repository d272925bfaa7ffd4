"""Accepting messages of a campaign by the thousand, in the caller's transaction.

One call of `sms_accept_bulk` (bulk.sql) stores what `Acceptor` would store for each of them. The caller advances its
cursor in the same transaction, so that a message exists if and only if the cursor has passed its recipient; this
replaces a single send's idempotency key.

The rule nobody may break: every recipient was checked first (number, country, opt-out, segments, sender, organization),
and either the quota covers all of them or none is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.money import Charge, columns
from heliograph.queue.leases import BULK


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are accepted together: each list has one entry per message, in the order of their ids."""

    organization_id: UUID
    #: "live" or "test"; test messages cost no quota.
    mode: str
    campaign_id: UUID
    sender_id: UUID
    sender: str
    request_id: str
    guarantee: str = "at_most_once"
    #: One of `TRAFFIC_CLASSES`.
    traffic_class: str = "marketing"
    #: How long each is worth delivering once it is due; None: the horizon of the retry schedule, from acceptance.
    validity: timedelta | None = None
    ids: Sequence[UUID]
    #: E.164 with `+`.
    recipients: Sequence[str]
    #: Empty: all of them have `text`.
    texts: Sequence[str]
    text: str
    #: The results of `encoding.count` for each text.
    encodings: Sequence[str]
    segments: Sequence[int]
    #: When each is due; empty: at once.
    due: Sequence[datetime]
    #: The organization's price for each; empty: there are no prices.
    prices: Sequence[Charge | None] = ()


ACCEPT = """
SELECT sms_accept_bulk($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    $19, $20, $21, $22)
"""


async def accept_bulk(conn: Connection, bulk: Bulk, *, at: datetime) -> int | None:
    """Store them; returns the remaining quota, or None if it does not cover all of them (nothing is stored then).

    `at`: the time of acceptance, by the database's clock. Fails if it has to wait for a lock for over 2 s.
    """
    left: int | None = await conn.fetchval(
        ACCEPT,
        at,
        bulk.organization_id,
        bulk.mode == "live",
        bulk.sender,
        bulk.sender_id,
        bulk.campaign_id,
        bulk.guarantee,
        bulk.request_id,
        BULK,
        bulk.text,
        bulk.ids,
        bulk.recipients,
        [phones.country(one) for one in bulk.recipients],
        bulk.texts,
        bulk.encodings,
        bulk.segments,
        bulk.due,
        bulk.traffic_class,
        bulk.validity,
        *columns(bulk.prices),
    )
    return left
