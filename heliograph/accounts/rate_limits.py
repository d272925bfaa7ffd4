"""Rate limits of a key, in requests per minute, for each of four buckets: the installation's, or the organization's
own.

The rule nobody may break: a request never queries for its limit. The organization's own limits are loaded with the key
(`api_keys.authentication.AUTHENTICATE`), and so take effect in every process within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal, RateLimits
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.process.settings import Settings

BUCKETS = RateLimits.__struct_fields__
#: Range of a limit. To allow no requests at all, suspend the key.
BOUNDS = (1, 1_000_000)


def of_installation(settings: Settings) -> dict[str, int]:
    """Requests per minute and key, by bucket, for organizations without limits of their own."""
    return {
        "sms_send": settings.rate_sms_send,
        "campaigns": settings.rate_campaigns,
        "mutations": settings.rate_mutations,
        "reads": settings.rate_reads,
    }


def in_force(settings: Settings, own: RateLimits) -> dict[str, int]:
    """The effective limits of an organization's keys, by bucket."""
    return {bucket: getattr(own, bucket) or limit for bucket, limit in of_installation(settings).items()}


GET = "SELECT rate_sms_send, rate_campaigns, rate_mutations, rate_reads FROM organizations WHERE id = $1"


async def get(conn: Connection, *, organization_id: UUID) -> RateLimits:
    """An organization's own limits. Raises NotFound."""
    row = await conn.fetchrow(GET, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return RateLimits(*row.values())


LOCK = """
SELECT name, rate_sms_send, rate_campaigns, rate_mutations, rate_reads
  FROM organizations WHERE id = $1 FOR NO KEY UPDATE
"""
CHANGE = """
UPDATE organizations SET rate_sms_send = $2, rate_campaigns = $3, rate_mutations = $4, rate_reads = $5 WHERE id = $1
"""


async def change(
    conn: Connection, *, organization_id: UUID, limits: Mapping[str, int | None], by: Principal = SYSTEM
) -> RateLimits:
    """Change the organization's own limits for the given buckets; None restores the installation's. Takes effect in
    every process within a second. Raises Invalid, NotFound."""
    least, most = BOUNDS
    for bucket, limit in limits.items():
        if limit is not None and not least <= limit <= most:
            raise Invalid((bucket, "range", f"`{bucket}` must be from {least} to {most} requests a minute"))
    async with conn.transaction():
        row = await conn.fetchrow(LOCK, organization_id)
        if row is None:
            raise NotFound(resource="organization", id=str(organization_id))
        name, *known = row.values()
        before = RateLimits(*known)
        after = msgspec.structs.replace(before, **limits)
        if after != before:
            await conn.execute(CHANGE, organization_id, *msgspec.structs.astuple(after))
            await audit.record(
                conn,
                by,
                "organization.configured",
                object_id=organization_id,
                name=name,
                organization_id=organization_id,
                before=_audit_values(before),
                after=_audit_values(after),
            )
    return after


# Of keys that have ended, or are suspended; windows of the current minute as in `count_requests`, to which nobody knows
# the new key's yet.
HAND_ON = """
INSERT INTO rate_windows (organization_id, key_id, bucket, window_start, taken)
SELECT $1, $2, w.bucket, max(w.window_start), max(w.taken)
  FROM rate_windows w JOIN api_keys k ON k.organization_id = w.organization_id AND k.id = w.key_id
 WHERE w.organization_id = $1 AND w.window_start - date_trunc('minute', now()) BETWEEN '0' AND '1 minute'
   AND (k.status <> 'active' OR k.expires_at <= now())
 GROUP BY w.bucket
"""


async def hand_on(conn: Connection, organization_id: UUID, *, to: UUID) -> None:
    """Let a new key begin the minute with what a key whose place it takes has used of it: otherwise a program that
    creates, uses and revokes keys would have any number of windows. The organization's row must be locked."""
    await conn.execute(HAND_ON, organization_id, to)


def _audit_values(limits: RateLimits) -> dict[str, int | None]:
    """For the audit log, by column names, which are unambiguous next to an organization's other settings."""
    return {f"rate_{bucket}": limit for bucket, limit in msgspec.structs.asdict(limits).items()}
