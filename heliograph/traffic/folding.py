"""Folding deltas into the roll-ups, in steps, by whichever worker's turn it is.

The rule nobody may break: a delta goes in the very commit in which it is added, so it counts once.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection

#: Every ten seconds.
TIMER, EVERY = "traffic", 10.0
#: Deltas of one step, and steps of one round.
STEP, STEPS = 5000, 20

# In the order of the key, so that two who fold at once cannot deadlock.
FOLD = """
WITH gone AS (
    DELETE FROM traffic_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM traffic_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), added AS (
    INSERT INTO traffic AS known (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,
                                  segments, to_sent, to_delivered)
    SELECT organization_id, hour, channel, mode, country, sender, supplier_id, status, sum(count)::bigint,
           sum(segments)::bigint, histogram_sum(to_sent), histogram_sum(to_delivered)
      FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (organization_id, hour, channel, mode, country, sender, supplier_id, status) DO UPDATE
       SET count = known.count + excluded.count, segments = known.segments + excluded.segments,
           to_sent = histogram_add(known.to_sent, excluded.to_sent),
           to_delivered = histogram_add(known.to_delivered, excluded.to_delivered)
)
SELECT count(*) FROM gone
"""


async def fold(conn: Connection) -> int:
    """Fold what has gathered, each step in a transaction of its own; returns how many deltas that were."""
    folded = 0
    for _ in range(STEPS):
        done: int = await conn.fetchval(FOLD, STEP)
        folded += done
        if done < STEP:
            break
    return folded
