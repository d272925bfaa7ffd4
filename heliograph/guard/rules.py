"""An organization's own rules: what is done with what the guard finds, and which numbers are never held.

The rule nobody may break: a change stands in the audit log, which holds no whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound

#: What an organization has done with what the rules find: only noted; held for an operator; refused to whoever sends;
#: or refused with the request to challenge the person first.
POLICIES = ("monitor", "hold", "refuse", "ask")
#: Days in which a new organization's holds are only noted, unless it chose a policy.
LEARNING = 14
#: How far ahead an announced event may end.
EVENT = timedelta(days=14)
#: Entries of a list of safe ranges, and digits of one: a country's code would switch the guard off.
MOST_SAFE, LEAST_DIGITS = 500, 5

#: What is done now, in SQL: `s` is the organization's row of guard_settings, if any, `o` its own.
POLICY = f"""
coalesce(s.policy, CASE WHEN o.created_at > now() - interval '{LEARNING} days' THEN 'monitor' ELSE 'hold' END)
"""


class Rules(msgspec.Struct, frozen=True):
    """What an organization decided."""

    organization_id: UUID
    #: One of POLICIES.
    policy: str
    #: Nobody chose it: it is `monitor` for the first LEARNING days, and `hold` from then on.
    by_default: bool
    #: Digits that begin numbers which are never held, or are whole numbers; without `+`.
    safe: list[str]
    #: An event was announced: until then ten times as many messages are usual. None: none, or it is over.
    event_until: datetime | None


SETTINGS = f"""
SELECT o.id AS organization_id, {POLICY} AS policy, s.policy IS NULL AS by_default, coalesce(s.safe, '{{}}') AS safe,
       CASE WHEN s.event_until > now() THEN s.event_until END AS event_until
  FROM organizations o LEFT JOIN guard_settings s ON s.organization_id = o.id WHERE o.id = $1
"""
CONFIGURE = """
INSERT INTO guard_settings AS known (organization_id, policy, safe, event_until) VALUES ($1, $2, $3, $4)
ON CONFLICT (organization_id) DO UPDATE
   SET policy = excluded.policy, safe = excluded.safe, event_until = excluded.event_until
"""
LOCK = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"


async def rules_of(conn: Connection, organization_id: UUID) -> Rules:
    """What the organization decided, or what holds by default. Raises NotFound."""
    row = await conn.fetchrow(SETTINGS, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return Rules(**row)


async def configure(
    conn: Connection,
    organization_id: UUID,
    *,
    policy: str | msgspec.UnsetType | None = msgspec.UNSET,
    safe: Sequence[str] | msgspec.UnsetType = msgspec.UNSET,
    event_until: datetime | msgspec.UnsetType | None = msgspec.UNSET,
    by: Who = SYSTEM,
) -> Rules:
    """Choose what is done with what the rules find (None: the default), which ranges are never held, and until when an
    event is announced, at most EVENT ahead. What is left out stays. Raises Invalid, NotFound."""
    if isinstance(policy, str) and policy not in POLICIES:
        raise Invalid(("policy", "enum", f"`policy` must be one of {', '.join(POLICIES)}"))
    listed = None if isinstance(safe, msgspec.UnsetType) else _checked(safe)
    async with conn.transaction():
        await conn.execute(LOCK, organization_id)
        before = await rules_of(conn, organization_id)
        kept: str | None = None if before.by_default else before.policy
        chosen = kept if isinstance(policy, msgspec.UnsetType) else policy
        event = before.event_until if isinstance(event_until, msgspec.UnsetType) else event_until
        if event is not None and event > clock.now() + EVENT:
            raise Invalid(("event_until", "range", f"an event ends within {EVENT.days} days"))
        await conn.execute(CONFIGURE, organization_id, chosen, before.safe if listed is None else listed, event)
        after = await rules_of(conn, organization_id)
        await audit.record(
            conn,
            by,
            "guard.configured",
            object_id=organization_id,
            organization_id=organization_id,
            before=_told(before),
            after=_told(after),
        )
    return after


def _told(rules: Rules) -> dict[str, Any]:
    """Ranges may be whole numbers, which the log does not keep."""
    return {"policy": rules.policy, "by_default": rules.by_default, "safe": [one[:-4] + "…" for one in rules.safe]} | (
        {} if rules.event_until is None else {"event_until": clock.iso(rules.event_until)}
    )


def _checked(safe: Sequence[str]) -> list[str]:
    listed = list(dict.fromkeys(one.strip().removeprefix("+") for one in safe))
    if len(listed) > MOST_SAFE:
        raise Invalid(("safe", "count", f"`safe` may list at most {MOST_SAFE} ranges"))
    for one in listed:
        if not (one.isascii() and one.isdigit() and LEAST_DIGITS <= len(one) <= 15):
            said = f"a safe range is {LEAST_DIGITS} to 15 digits that numbers begin with, country code included"
            raise Invalid(("safe", "pattern", said))
    return listed
