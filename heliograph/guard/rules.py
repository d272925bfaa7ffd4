"""An organization's own rules: how the guard's findings are handled, and which numbers are never held.

The rule nobody may break: a change is recorded in the audit log, which contains no complete number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.classes import kinds

#: How findings are handled: only recorded; held for an operator; the send is refused; or it is refused with the request
#: to challenge the person first.
POLICIES = ("monitor", "hold", "refuse", "ask")
#: Days during which a new organization's holds are only recorded, unless it chose a policy.
LEARNING = 14
#: How far ahead an announced event may end.
EVENT = timedelta(days=14)
#: Maximum number of safe ranges, and minimum number of digits: a country's code would switch the guard off.
MOST_SAFE, LEAST_DIGITS = 500, 5

#: The highest limit of a class, in messages per ten minutes.
MOST_LIMIT = 10_000_000

#: The effective policy, in SQL: `s` is the organization's row of guard_settings, if any, `o` its row of organizations.
POLICY = f"""
coalesce(s.policy, CASE WHEN o.created_at > now() - interval '{LEARNING} days' THEN 'monitor' ELSE 'hold' END)
"""


class Rules(msgspec.Struct, frozen=True):
    """An organization's choices."""

    organization_id: UUID
    #: One of POLICIES.
    policy: str
    #: True if nobody chose it: it is `monitor` for the first LEARNING days, and `hold` from then on.
    by_default: bool
    #: Prefixes of numbers that are never held, or complete numbers; without `+`.
    safe: list[str]
    #: The end of an announced event: until then ten times as many messages are considered usual. None: there is none,
    #: or it is over.
    event_until: datetime | None
    #: Messages allowed in ten minutes, by class; a class that is left out has no limit.
    limits: dict[str, int]


SETTINGS = f"""
SELECT o.id AS organization_id, {POLICY} AS policy, s.policy IS NULL AS by_default, coalesce(s.safe, '{{}}') AS safe,
       CASE WHEN s.event_until > now() THEN s.event_until END AS event_until,
       coalesce(s.limits, '{{}}')::text AS limits
  FROM organizations o LEFT JOIN guard_settings s ON s.organization_id = o.id WHERE o.id = $1
"""
CONFIGURE = """
INSERT INTO guard_settings AS known (organization_id, policy, safe, event_until, limits)
VALUES ($1, $2, $3, $4, $5::text::jsonb)
ON CONFLICT (organization_id) DO UPDATE
   SET policy = excluded.policy, safe = excluded.safe, event_until = excluded.event_until,
       limits = excluded.limits
"""
LOCK = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"


async def rules_of(conn: Connection, organization_id: UUID) -> Rules:
    """The organization's choices, or the defaults. Raises NotFound."""
    row = await conn.fetchrow(SETTINGS, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return Rules(**dict(row) | {"limits": msgspec.json.decode(row["limits"])})


CHOSEN = f"""
SELECT o.id AS organization_id, o.name, {POLICY} AS policy, s.policy IS NULL AS by_default, s.safe,
       CASE WHEN s.event_until > now() THEN s.event_until END AS event_until, s.limits::text AS limits
  FROM guard_settings s JOIN organizations o ON o.id = s.organization_id ORDER BY lower(o.name), o.id LIMIT $1
"""


async def list_all(conn: Connection, *, limit: int) -> list[tuple[Rules, str]]:
    """(rules, name) of organizations that made choices, by name."""
    rows = [dict(row) for row in await conn.fetch(CHOSEN, limit)]
    names = [row.pop("name") for row in rows]
    found = [Rules(**row | {"limits": msgspec.json.decode(row["limits"])}) for row in rows]
    return list(zip(found, names, strict=True))


LIMITS = """
SELECT s.organization_id, item.key AS class, item.value::int AS messages
  FROM guard_settings s CROSS JOIN jsonb_each_text(s.limits) AS item WHERE s.limits <> '{}'
"""


async def limits(conn: Connection) -> dict[tuple[UUID, str], int]:
    """All limits of classes: messages in ten minutes by (organization, class)."""
    rows = await conn.fetch(LIMITS)
    return {(row["organization_id"], row["class"]): row["messages"] for row in rows}


async def configure(
    conn: Connection,
    organization_id: UUID,
    *,
    policy: str | msgspec.UnsetType | None = msgspec.UNSET,
    safe: Sequence[str] | msgspec.UnsetType = msgspec.UNSET,
    event_until: datetime | msgspec.UnsetType | None = msgspec.UNSET,
    limits: Mapping[str, int | None] | msgspec.UnsetType = msgspec.UNSET,
    by: Principal = SYSTEM,
) -> Rules:
    """Set how findings are handled (None: the default), which ranges are never held, until when an event is announced,
    at most EVENT ahead, and how many messages of a class may be sent in ten minutes before further ones are suspicious
    (None: no limit). Arguments and classes that are left out stay unchanged. Raises Invalid, NotFound."""
    wrong, listed = Problems(), None
    if isinstance(policy, str) and policy not in POLICIES:
        wrong.add("policy", "enum", f"`policy` must be one of {', '.join(POLICIES)}")
    with wrong.gathering():
        listed = None if isinstance(safe, msgspec.UnsetType) else _checked(safe)
    wanted: Mapping[str, int | None] = {} if isinstance(limits, msgspec.UnsetType) else limits
    for name, limit in wanted.items():
        if name not in kinds.CLASSES:
            wrong.add("limits", "enum", f"a limit is of one of {', '.join(kinds.NAMES)}")
        elif limit is not None and not 1 <= limit <= MOST_LIMIT:
            wrong.add(f"limits.{name}", "range", f"a limit is 1 to {MOST_LIMIT} messages in ten minutes")
    if isinstance(event_until, datetime) and event_until > clock.now() + EVENT:
        wrong.add("event_until", "range", f"an event ends within {EVENT.days} days")
    wrong.report()
    async with conn.transaction():
        await conn.execute(LOCK, organization_id)
        before = await rules_of(conn, organization_id)
        kept: str | None = None if before.by_default else before.policy
        chosen = kept if isinstance(policy, msgspec.UnsetType) else policy
        event = before.event_until if isinstance(event_until, msgspec.UnsetType) else event_until
        allowed = {name: limit for name, limit in {**before.limits, **wanted}.items() if limit is not None}
        ranges = before.safe if listed is None else listed
        await conn.execute(CONFIGURE, organization_id, chosen, ranges, event, msgspec.json.encode(allowed).decode())
        after = await rules_of(conn, organization_id)
        if after != before:
            await audit.record(
                conn,
                by,
                "guard.configured",
                object_id=organization_id,
                organization_id=organization_id,
                before=_audit_values(before),
                after=_audit_values(after),
            )
    return after


def _audit_values(rules: Rules) -> dict[str, Any]:
    """For the audit log. Ranges are shortened: they may be complete numbers, which the log must not contain."""
    told = {"policy": rules.policy, "by_default": rules.by_default, "safe": [one[:-4] + "…" for one in rules.safe]}
    if rules.event_until is not None:
        told["event_until"] = clock.iso(rules.event_until)
    return told | ({"limits": rules.limits} if rules.limits else {})


def _checked(safe: Sequence[str]) -> list[str]:
    listed = list(dict.fromkeys(one.strip().removeprefix("+") for one in safe))
    if len(listed) > MOST_SAFE:
        raise Invalid(("safe", "count", f"`safe` may list at most {MOST_SAFE} ranges"))
    for one in listed:
        if not (one.isascii() and one.isdigit() and LEAST_DIGITS <= len(one) <= 15):
            said = f"a safe range is {LEAST_DIGITS} to 15 digits that numbers begin with, country code included"
            raise Invalid(("safe", "pattern", said))
    return listed
