"""What a batch of results says about its endpoints: that they are healthy, or fail, or are gone. One that fails for too
long, or says that it is gone, is disabled.

The rule nobody may break: an endpoint is judged in the commit that records its attempts, and by each attempt once. A
failure that was recorded before must not count again toward its failures in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec

from heliograph import notices
from heliograph.base.database.pool import Connection
from heliograph.notices import Notice
from heliograph.notices.conditions import FAILURES
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import DELIVERED, Ended
from heliograph.webhooks.recording import stopping, successes


class Standing(msgspec.Struct):
    """A batch's summary for one endpoint: whether anything succeeded, and how many failures came after."""

    succeeded: bool = False
    failures: int = 0
    #: Where the receiver said that it is gone; "": it did not.
    gone_from: str = ""


def standings(items: Sequence[Ended]) -> dict[tuple[UUID, UUID], Standing]:
    """How the endpoints of these results did, by (organization, id)."""
    found: dict[tuple[UUID, UUID], Standing] = {}
    for item in items:
        lease, attempt = item.lease, item.attempt
        if attempt is None:
            continue
        key = (lease.organization_id, lease.line)
        standing = found.get(key)
        if standing is None:
            standing = found[key] = Standing()
        if attempt.result == DELIVERED:
            standing.succeeded, standing.failures = True, 0
        else:
            standing.failures += 1
            standing.gone_from = attempt.gone_from or standing.gone_from
    return found


# The reason why this batch disables an endpoint, or NULL. An earlier address says nothing about the present one.
_VERDICT = """CASE WHEN told.gone_from = e.url THEN $7::text
     WHEN NOT told.succeeded AND e.failing_since <= now() - make_interval(secs => $6)
      AND coalesce(e.moved_at <= now() - make_interval(secs => $6), true) THEN $8::text END"""

# The endpoints are ordered by id, so that two workers cannot deadlock.
JUDGE = f"""
UPDATE webhook_endpoints e
   SET last_success_at = CASE WHEN told.succeeded THEN now() ELSE e.last_success_at END,
       consecutive_failures = told.failures + CASE WHEN told.succeeded THEN 0 ELSE e.consecutive_failures END,
       failing_since = CASE WHEN told.failures = 0 THEN NULL WHEN told.succeeded THEN now()
                            ELSE coalesce(e.failing_since, now()) END,
       status = CASE WHEN {_VERDICT} IS NULL THEN 'active' ELSE 'disabled' END,
       disabled_at = CASE WHEN {_VERDICT} IS NOT NULL THEN now() END,
       disabled_reason = {_VERDICT}
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::integer[], $5::text[])
       AS told (organization_id, id, succeeded, failures, gone_from)
 WHERE e.organization_id = ANY ($1) AND e.id = ANY ($2)  -- otherwise all endpoints might be scanned
   AND e.organization_id = told.organization_id AND e.id = told.id AND e.status = 'active'
   AND (told.failures > 0 OR told.gone_from <> '' OR {successes.NEWS})
RETURNING e.id, e.disabled_reason, e.organization_id, e.consecutive_failures, e.mode, e.url
"""


async def judge(
    conn: Connection, standings: Mapping[tuple[UUID, UUID], Standing], *, disable_after: float
) -> dict[UUID, str]:
    """Record how these endpoints do, and disable those that have done nothing but fail for so many seconds, or are
    gone; returns the disabled ones (id and reason). Runs in the transaction that records the attempts."""
    keys = sorted(standings)
    rows = await conn.fetch(
        JUDGE,
        [key[0] for key in keys],
        [key[1] for key in keys],
        [standings[key].succeeded for key in keys],
        [standings[key].failures for key in keys],
        [standings[key].gone_from for key in keys],
        disable_after,
        endpoints.GONE,
        endpoints.FAILING,
    )
    disabled = {row["id"]: row["disabled_reason"] for row in rows if row["disabled_reason"] is not None}
    noticed = list(_noticed(rows, standings))
    await notices.record_many(conn, [one for one in noticed if one.kind != "webhook.disabled"])
    # Somebody has enabled them since the last time.
    await notices.record_many(conn, [one for one in noticed if one.kind == "webhook.disabled"], quiet=None)
    await stopping.stop_disabled(conn, {key: disabled[key[1]] for key in keys if key[1] in disabled})
    return disabled


def _noticed(rows: Iterable[asyncpg.Record], standings: Mapping[tuple[UUID, UUID], Standing]) -> Iterable[Notice]:
    """The notices to raise: an endpoint was disabled, or failed for the FAILURES-th time in a row."""
    for row in rows:
        key = (row["organization_id"], row["id"])
        kind, facts = "webhook.disabled", {"reason": row["disabled_reason"]}
        if row["disabled_reason"] is None:
            one, failed = standings[key], row["consecutive_failures"]
            if failed < FAILURES or (not one.succeeded and failed - one.failures >= FAILURES):
                continue
            kind, facts = "webhook.failing", {}
        yield Notice(key[0], kind, str(key[1]), row["url"], row["mode"], facts)
