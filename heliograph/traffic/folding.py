"""Folding deltas into the roll-ups of traffic and usage, in steps, by whichever worker's turn it is.

The rule nobody may break: a delta is deleted in the same commit that adds it up, so it counts exactly once.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.queue import folding
from heliograph.traffic.deltas import NONE

#: Every ten seconds.
TIMER, EVERY = "traffic", 10.0
ANY = "EXISTS (SELECT FROM traffic_deltas)"

# In the order of the keys, so that two concurrent folds cannot deadlock. A message that moves between statuses adds and
# subtracts equally, so for usage only acceptances and refunds remain.
FOLD = """
WITH gone AS (
    DELETE FROM traffic_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM traffic_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), added AS (
    INSERT INTO traffic AS known (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,
                                  segments, to_sent, to_delivered)
    SELECT organization_id, hour, channel, mode, country, sender, supplier_id, status, sum(count)::bigint,
           sum(segments)::bigint, histogram_sum(to_sent), histogram_sum(to_delivered)
      FROM gone WHERE refunds = 0 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (organization_id, hour, channel, mode, country, sender, supplier_id, status) DO UPDATE
       SET count = known.count + excluded.count, segments = known.segments + excluded.segments,
           to_sent = histogram_add(known.to_sent, excluded.to_sent),
           to_delivered = histogram_add(known.to_delivered, excluded.to_delivered)
), by_day AS (
    INSERT INTO traffic_days AS known (organization_id, day, channel, mode, country, sender, status, count, segments,
                                       to_sent, to_delivered)
    SELECT organization_id, (hour AT TIME ZONE 'UTC')::date, channel, mode, country, sender, status,
           sum(count)::bigint, sum(segments)::bigint, histogram_sum(to_sent), histogram_sum(to_delivered)
      FROM gone WHERE refunds = 0 GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (organization_id, day, channel, mode, country, sender, status) DO UPDATE
       SET count = known.count + excluded.count, segments = known.segments + excluded.segments,
           to_sent = histogram_add(known.to_sent, excluded.to_sent),
           to_delivered = histogram_add(known.to_delivered, excluded.to_delivered)
), by_organization AS (
    INSERT INTO traffic_organizations AS known (organization_id, day, status, count)
    SELECT organization_id, (hour AT TIME ZONE 'UTC')::date, status, sum(count)::bigint
      FROM gone WHERE refunds = 0 AND mode = 'live' GROUP BY 1, 2, 3 HAVING sum(count) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (organization_id, day, status) DO UPDATE SET count = known.count + excluded.count
), failed AS (
    INSERT INTO failure_counts AS known (organization_id, hour, channel, mode, country, reason, count)
    SELECT organization_id, hour, channel, mode, country, reason, sum(count)::bigint
      FROM gone WHERE reason <> '' GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(count) <> 0 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (organization_id, hour, channel, mode, country, reason) DO UPDATE
       SET count = known.count + excluded.count
), used AS MATERIALIZED (
    SELECT organization_id, (hour AT TIME ZONE 'UTC')::date AS day, channel, country, sender,
           coalesce(campaign_id, $2) AS campaign_id, coalesce(key_id, $2) AS key_id, sum(count)::bigint AS messages,
           sum(segments)::bigint AS segments, sum(refunds)::bigint AS refunds, sum(refunded)::bigint AS refunded
      FROM gone WHERE mode = 'live' GROUP BY 1, 2, 3, 4, 5, 6, 7
    HAVING sum(count) <> 0 OR sum(segments) <> 0 OR sum(refunds) <> 0
), days AS (
    INSERT INTO usage_days AS known (organization_id, day, channel, country, sender, campaign_id, key_id, messages,
                                     segments, refunds, refunded)
    SELECT * FROM used ORDER BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (organization_id, day, channel, country, sender, campaign_id, key_id) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           refunds = known.refunds + excluded.refunds, refunded = known.refunded + excluded.refunded
), months AS (
    INSERT INTO usage_counts AS known (organization_id, month, channel, type, quantity, segments)
    SELECT organization_id, date_trunc('month', day)::date, channel, type, sum(quantity)::bigint, sum(of_them)::bigint
      FROM used CROSS JOIN LATERAL (VALUES ('usage', -messages, segments), ('refund', refunds, refunded))
           AS entry (type, quantity, of_them)
     GROUP BY 1, 2, 3, 4 HAVING sum(quantity) <> 0 OR sum(of_them) <> 0 ORDER BY 1, 2, 3, 4
    ON CONFLICT (organization_id, month, channel, type) DO UPDATE
       SET quantity = known.quantity + excluded.quantity, segments = known.segments + excluded.segments
)
SELECT count(*) FROM gone
"""


async def fold(conn: Connection) -> int:
    """Fold accumulated deltas; returns how many there were."""
    return await folding.fold(conn, FOLD, NONE)
