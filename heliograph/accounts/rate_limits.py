"""How many requests a key may make in a minute, in each of four buckets: as many as the installation allows, or as many
as its organization's own limit says.

The rule nobody may break: a request does not ask for its limit. The organization's own come along with the key
(`api_keys.authentication.AUTHENTICATE`), and so hold on every process within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, RateLimits, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.process.settings import Settings

BUCKETS = RateLimits.__struct_fields__
#: Of a limit. None at all is what suspending is for.
BOUNDS = (1, 1_000_000)


def of_installation(settings: Settings) -> dict[str, int]:
    """Requests that each key may make in a minute, by bucket, where its organization has no limit of its own."""
    return {
        "sms_send": settings.rate_sms_send,
        "campaigns": settings.rate_campaigns,
        "mutations": settings.rate_mutations,
        "reads": settings.rate_reads,
    }


def in_force(settings: Settings, own: RateLimits) -> dict[str, int]:
    """The limits of an organization's keys, by bucket."""
    return {bucket: getattr(own, bucket) or limit for bucket, limit in of_installation(settings).items()}


GET = "SELECT rate_sms_send, rate_campaigns, rate_mutations, rate_reads FROM organizations WHERE id = $1"


async def get(conn: Connection, *, organization_id: UUID) -> RateLimits:
    """An organization's own. Raises NotFound."""
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
    conn: Connection, *, organization_id: UUID, limits: Mapping[str, int | None], by: Who = SYSTEM
) -> RateLimits:
    """Change the organization's own limits of the buckets that are given; None gives the installation's back. Every
    process knows within a second. Raises Invalid, NotFound."""
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
                before=_told(before),
                after=_told(after),
            )
    return after


def _told(limits: RateLimits) -> dict[str, int | None]:
    """By the names of the columns, which say what they are beside others of an organization."""
    return {f"rate_{bucket}": limit for bucket, limit in msgspec.structs.asdict(limits).items()}
