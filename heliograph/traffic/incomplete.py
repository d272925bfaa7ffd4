"""Segments that a supplier accepted of a message that it did not get whole: it charges for them all the same.

They are counted once the message has left it for good: when another attempt carries the whole message, or when it ended
without any supplier having all of it. The rule nobody may break: segments of a series that was completed are part of
the message, and are not counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Counted, Sums


class PartlyAccepted(Protocol):
    """A live message with several segments that has just moved."""

    @property
    def organization_id(self) -> UUID: ...
    @property
    def id(self) -> UUID: ...
    @property
    def country(self) -> str: ...
    @property
    def network(self) -> str | None: ...


# Parts are stored under the first attempt of their series, whose cost is that of the whole message. Without a series,
# all that were not completed.
BEGUN = """
SELECT item.n, begun.supplier_id, begun.at, begun.taken, begun.parts, a.cost, a.cost_currency, a.cost_due
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) WITH ORDINALITY AS item (organization_id, message_id, series, n)
       CROSS JOIN LATERAL (
       SELECT supplier_id, attempt, min(created_at) AS at, count(DISTINCT part) AS taken, max(parts) AS parts
         FROM sms_parts WHERE message_id = item.message_id AND parts > 1
        GROUP BY supplier_id, attempt) begun
       CROSS JOIN LATERAL (
       SELECT cost, cost_currency, cost_due FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.message_id AND attempt = begun.attempt
        LIMIT 1) a
 WHERE begun.attempt = item.series OR item.series IS NULL AND NOT EXISTS (
       SELECT FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.message_id AND state = 'accepted'
          AND coalesce(continues, attempt) = begun.attempt)
"""


async def count(conn: Connection, left: Iterable[PartlyAccepted]) -> None:
    """Count these messages' accepted segments with the suppliers that have only some of them, each with its share of
    the charge, in the hour in which they were accepted. Runs in the transaction that moves the messages."""
    await _count(conn, [(one, None) for one in left], sign=1)


async def take_back(conn: Connection, found: Iterable[tuple[PartlyAccepted, int]]) -> None:
    """Subtract what `count` added for series, each named by its first attempt, that turn out to have been completed
    after their message had left them. To be called before the last segments' ids are stored: the stored parts must be
    those that were counted."""
    await _count(conn, list(found), sign=-1)


async def _count(conn: Connection, items: Sequence[tuple[PartlyAccepted, int | None]], *, sign: int) -> None:
    if not items:
        return
    messages = [one for one, _ in items]
    ids = [one.organization_id for one in messages], [one.id for one in messages]
    rows = await conn.fetch(BEGUN, *ids, [series for _, series in items])
    sums: Sums = {}
    for n, supplier_id, at, taken, parts, cost, currency, due in rows:
        one = messages[n - 1]
        hour, network = reconciliation.hour_of(at), one.network or ""
        key = Counted(supplier_id, hour, one.country, "doubled", network, currency or "")
        charged = cost * taken // parts if cost and due == "submit" else 0
        reconciliation.add(sums, key, 0, sign * taken, sign * charged)
    await reconciliation.append(conn, sums)
