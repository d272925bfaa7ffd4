"""When a contact was last written to, and last reached: kept in its row, and found out behind the messages.

Accepting and dispatching a message do nothing for it. A timer reads the messages of each stretch of time three times:
two minutes after it, when most have been delivered, two hours after it, and after 74 hours, when no receipt is waited
for any more. So `written_at` is at most three minutes late, and `delivered_at` as late as that for a receipt that came
within two minutes, else two hours, or three days.

The rule nobody may break: a stretch is done in the commit that says so. What is not newer by an hour is not written: a
contact who gets a message each minute costs a write an hour.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from heliograph.base.database import bounded_scan
from heliograph.base.database.pool import Connection

log = structlog.get_logger()

#: The timer, and seconds.
TIMER, EVERY = "recency", 60.0
#: How long after messages they are read.
LAGS = (timedelta(minutes=2), timedelta(hours=2), timedelta(hours=74))
#: A stretch that is read at once: the first, and its bounds. It is halved and doubled by what it held.
STRETCH, LEAST, LONGEST = timedelta(seconds=60), timedelta(seconds=1), timedelta(days=1)
FEW, MANY = 2_000, 20_000
#: Stretches of one run, for each lag: what is left is the next one's.
MOST = 500

ENSURE = """
INSERT INTO contact_readings (lag, read_to) SELECT lag, now() - lag FROM unnest($1::interval[]) AS one (lag)
ON CONFLICT DO NOTHING
"""
TAKE = "SELECT read_to, now() - lag AS goal FROM contact_readings WHERE lag = $1 FOR UPDATE SKIP LOCKED"
DONE = "UPDATE contact_readings SET read_to = $2 WHERE lag = $1"
# The index on accepted_at finds the pages that were filled then; the bounds on ids leave out other months.
# Whoever writes several contacts locks them in the order of their numbers.
READ = """
WITH said AS MATERIALIZED (
    SELECT organization_id, mode, recipient, max(coalesce(sent_at, delivered_at)) AS written_at,
           max(delivered_at) AS delivered_at, count(*) AS messages
      FROM messages
     WHERE accepted_at >= $1 AND accepted_at < $2 AND id >= $3 AND id < $4
       AND coalesce(sent_at, delivered_at) IS NOT NULL
     GROUP BY organization_id, mode, recipient
    UNION ALL
    SELECT organization_id, mode, recipient, max(coalesce(sent_at, delivered_at)), max(delivered_at), count(*)
      FROM whatsapp_messages
     WHERE accepted_at >= $1 AND accepted_at < $2 AND id >= $3 AND id < $4 AND direction = 'outbound'
       AND coalesce(sent_at, delivered_at) IS NOT NULL
     GROUP BY organization_id, mode, recipient
), heard AS (
    SELECT organization_id, mode, recipient, max(written_at) AS written_at, max(delivered_at) AS delivered_at
      FROM said GROUP BY organization_id, mode, recipient
), held AS MATERIALIZED (
    SELECT c.organization_id, c.mode, c.id, heard.written_at, heard.delivered_at
      FROM heard JOIN contacts c
        ON c.organization_id = heard.organization_id AND c.phone = heard.recipient AND c.mode = heard.mode
     WHERE heard.written_at > coalesce(c.written_at, '-infinity') + interval '1 hour'
        OR heard.delivered_at > coalesce(c.delivered_at, '-infinity') + interval '1 hour'
     ORDER BY c.organization_id, c.phone, c.mode FOR NO KEY UPDATE OF c
), noted AS (
    UPDATE contacts c
       SET written_at = greatest(c.written_at, held.written_at),
           delivered_at = greatest(c.delivered_at, held.delivered_at)
      FROM held WHERE c.organization_id = held.organization_id AND c.mode = held.mode AND c.id = held.id
    RETURNING 1
)
SELECT coalesce((SELECT sum(messages) FROM said), 0)::bigint AS messages, (SELECT count(*) FROM noted) AS noted
"""


async def read(conn: Connection) -> int:
    """Read what is due; how many contacts were written. Each stretch is a commit."""
    await conn.execute(ENSURE, list(LAGS))
    noted = 0
    for lag in LAGS:
        stretch = STRETCH
        for _ in range(MOST):
            async with conn.transaction():
                messages, written, is_done = await _stretch(conn, lag, stretch)
            noted += written
            if is_done:
                break
            if messages > MANY:
                stretch = max(stretch / 2, LEAST)
            elif messages < FEW:
                stretch = min(stretch * 2, LONGEST)
    return noted


async def _stretch(conn: Connection, lag: timedelta, stretch: timedelta) -> tuple[int, int, bool]:
    """(messages, contacts written, whether nothing is left)"""
    row = await conn.fetchrow(TAKE, lag)
    if row is None or row["read_to"] >= row["goal"]:
        return 0, 0, True
    begin: datetime = row["read_to"]
    end = min(begin + stretch, row["goal"])
    upper, lower = bounded_scan.bounds(None, date_from=begin, date_to=end)
    found = await conn.fetchrow(READ, begin, end, lower, upper)
    assert found is not None
    await conn.execute(DONE, lag, end)
    return found["messages"], found["noted"], end == row["goal"]
