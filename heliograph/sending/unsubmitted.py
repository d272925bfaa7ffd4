"""Attempts of a round of dispatch whose commit failed, was interrupted or took too long, or that stood still before it
had handed them over: whether they have begun, and whether other workers have sent their messages since, is not known,
but none of them was handed over.

A connection that is lost during COMMIT does not say whether the database committed. Only this process knows that
nothing has left: without its word, such attempts would be in doubt until their leases and the wait for receipts are
over, and at most once, for ever.

The rule nobody may break: an attempt is looked for by its own lease, or its own beginning. Another worker's attempt at
the same message may have the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.base.database.pool import Connection
from heliograph.sending.attempts import Attempt, Message

# Rows that are locked may still be committed by that very transaction, which a server ends only once it notices that
# its client is gone. The look-up goes by id: `kind` is written so that no index matches.
FREE = "SELECT id, lease_token FROM queue WHERE id = ANY ($1) AND kind || '' = $2 FOR UPDATE SKIP LOCKED"
EXISTING = "SELECT id FROM queue WHERE id = ANY ($1) AND kind || '' = $2"
# Another worker found them after their leases had expired.
GIVEN_UP = """
SELECT message_id, attempt
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::timestamptz[]) AS item (organization_id, id, number, begun_at)
 CROSS JOIN LATERAL (
       SELECT message_id, attempt FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.id AND attempt = item.number
          AND state = 'unknown' AND started_at = item.begun_at LIMIT 1) a
"""


async def look(
    conn: Connection, kind: str, attempts: Sequence[Attempt[Message]]
) -> tuple[list[Attempt[Message]], list[Attempt[Message]]]:
    """Those of these attempts that have begun, and those about which nothing is known yet. The others never began.
    `conn` must not be in a transaction."""
    ids = [one.lease.id for one in attempts]
    free = {row["id"]: row["lease_token"] for row in await conn.fetch(FREE, ids, kind)}
    existing = {row["id"] for row in await conn.fetch(EXISTING, ids, kind)}
    rows = await conn.fetch(
        GIVEN_UP,
        [one.lease.organization_id for one in attempts],
        ids,
        [one.number for one in attempts],
        [one.begun_at for one in attempts],
    )
    given_up = {(row["message_id"], row["attempt"]) for row in rows}
    begun: list[Attempt[Message]] = []
    unclear: list[Attempt[Message]] = []
    for one in attempts:
        id = one.lease.id
        if free.get(id) == one.lease.token or (id, one.number) in given_up:
            begun.append(one)
        elif id in existing and id not in free:
            unclear.append(one)
    return begun, unclear
