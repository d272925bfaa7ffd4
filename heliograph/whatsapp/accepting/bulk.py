"""Accepting messages of one campaign by the thousand, in the caller's transaction.

One call of `whatsapp_accept_bulk` (bulk.sql) stores what `Acceptor` would store for each of them. The caller advances
its cursor in the same transaction, so that a message exists exactly if the cursor has passed its recipient.

The rule nobody may break: every recipient was checked first (number, template and its values, country, rate, opt-out,
organization), and the wallet covers all of them or none is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.queue.leases import BULK
from heliograph.sealing.text_keys import Sealing
from heliograph.whatsapp.accepting.accept import TABLE, TemplateSend, content_of
from heliograph.whatsapp.accepting.lifetimes import lifetime


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """Template sends that are accepted together: the lists have an entry for each, in the order of their ids."""

    organization_id: UUID
    #: "live" or "test"; test messages cost nothing.
    mode: str
    campaign_id: UUID
    number_id: UUID
    template_id: UUID
    template_name: str
    template_language: str
    category: str
    ttl_seconds: int | None
    #: Currency of the number's account; a wallet in another currency covers nothing.
    currency: str
    request_id: str
    ids: Sequence[UUID]
    #: E.164 with `+`.
    recipients: Sequence[str]
    #: Values of the template's parameters.
    parameters: Sequence[tuple[str, ...]]
    #: List prices, in millionths.
    prices: Sequence[int]
    #: ISO regions of the recipients' calling codes.
    countries: Sequence[str]
    #: When each is due; empty: at once.
    due: Sequence[datetime]


ACCEPT = """
SELECT whatsapp_accept_bulk($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
"""


async def accept_bulk(conn: Connection, bulk: Bulk, *, at: datetime, sealing: Sealing) -> int | None:
    """Store them; returns the wallet's available balance afterwards, in millionths, or None if it does not cover all of
    them (nothing is stored then).

    `at`: when they are accepted, by the database's clock. The call fails if another transaction holds a lock for over
    2 s. Raises Unavailable if they must be sealed and cannot be.
    """
    name, language, category = bulk.template_name, bulk.template_language, bulk.category
    left: int | None = await conn.fetchval(
        ACCEPT,
        at,
        bulk.organization_id,
        bulk.mode == "live",
        bulk.number_id,
        bulk.campaign_id,
        bulk.template_id,
        name,
        language,
        category,
        bulk.currency,
        lifetime(category, bulk.ttl_seconds),
        bulk.request_id,
        BULK,
        bulk.ids,
        bulk.recipients,
        [uuid7() for _ in bulk.ids],
        [
            sealing.sealed(bulk.organization_id, TABLE, id, content_of(TemplateSend(name, language, category, values)))
            for id, values in zip(bulk.ids, bulk.parameters, strict=True)
        ],
        bulk.prices,
        bulk.countries,
        bulk.due,
    )
    return left
