"""Messages whose answer was lost: whether silence is an answer, and whether their campaign was stopped meanwhile.

The rule nobody may break: nothing is sent again while Meta may still report on it, and a stopped campaign's messages
never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.whatsapp.dispatch.claimed import ClaimedMessage

#: Grace periods until silence counts as an answer although no callback arrived at all: the number is just quiet.
SILENCE = 5

# Callbacks of the app have arrived since the attempt began, or none has for a long time ($4), and none is waiting to be
# processed: so any report from Meta about a message whose answer was lost has been processed. An outage of our own
# looks like silence until callbacks arrive again, and Meta repeats those it could not deliver. (Callbacks of the last
# second are being processed, and under traffic there are always some. One in times to come is from before the clock was
# set back.)
HEARD = f"""
SELECT asked.message_id FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::boolean[], $5::uuid[])
       AS asked (organization_id, id, started_at, is_long, message_id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
  JOIN whatsapp_apps app ON app.id = a.app
 WHERE (app.last_callback_at > asked.started_at AND app.last_callback_at < {clock.LATEST}
        OR asked.is_long AND (app.verified_at IS NOT NULL OR app.last_callback_at IS NOT NULL))
   AND NOT EXISTS (SELECT FROM whatsapp_callbacks waiting
                    WHERE waiting.app = app.id AND waiting.received_at < now() - interval '1 second')
"""


async def heard(conn: Connection, lost: Sequence[ClaimedMessage], grace: float) -> set[UUID]:
    """Those of these messages that Meta would have reported on by now. `grace`: seconds."""
    began = [one.started_at or one.at for one in lost]
    # Silence takes as long as ever, however far the clock was set forward.
    silent = [min((one.at - at).total_seconds(), clock.since_forward()) for one, at in zip(lost, began, strict=True)]
    rows = await conn.fetch(
        HEARD,
        [one.lease.organization_id for one in lost],
        [one.number_id for one in lost],
        began,
        [seconds >= SILENCE * grace for seconds in silent],
        [one.lease.id for one in lost],
    )
    return {row["message_id"] for row in rows}


# LIMIT keeps the planner from turning these look-ups into other joins.
STOPPED = """
SELECT asked.id, c.status <> 'paused' AS ended
  FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id) CROSS JOIN LATERAL (
       SELECT campaign_id FROM whatsapp_messages
        WHERE organization_id = asked.organization_id AND id = asked.id LIMIT 1) m
 CROSS JOIN LATERAL (
       SELECT status, status_reason FROM campaigns
        WHERE organization_id = asked.organization_id AND id = m.campaign_id LIMIT 1) c
 WHERE c.status IN ('canceled', 'failed') OR c.status = 'paused' AND c.status_reason = 'paused_by_request'
"""


async def stopped(conn: Connection, lost: Sequence[ClaimedMessage]) -> dict[UUID, bool]:
    """Those of these messages whose campaign was canceled or has failed (True), or was paused by request (False)."""
    rows = await conn.fetch(STOPPED, [one.lease.organization_id for one in lost], [one.lease.id for one in lost])
    return {row["id"]: row["ended"] for row in rows}
