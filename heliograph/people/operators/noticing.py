"""How an operator is notified of problems and of work that waits for them: by the bell, by mail, or not at all.

As with members (`people/noticing`), only deviations from a kind's defaults are stored, in the operator's row. The rules
nobody may break: nobody is notified of what their role may not see; a cause is mailed once for as long as it lasts, and
never twice within APART, however often it comes and goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID, uuid5

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.notices.kinds import OWN_WAYS, Way
from heliograph.notices.ways import Chosen, audit_values, checked, decoded, encoded, merged
from heliograph.people.operators import roles

#: Minimum time between two mails of one cause, and how long past mails are remembered: longer than most causes last.
APART, KEPT = timedelta(hours=1), timedelta(days=90)


class Kind(msgspec.Struct, frozen=True):
    """A kind of notice: the console's page about it, the permission whose holders are notified, the default ways."""

    path: str
    permission: str = roles.NOW
    ways: tuple[Way, ...] = OWN_WAYS


#: All kinds. The checks are those of `heliograph doctor`.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "check.failed": Kind("/now"),
        "check.warning": Kind("/now", ways=("bell",)),
        "supplier.lost": Kind("/now"),
        "receipts.missing": Kind("/now"),
        "approval.waiting": Kind("/approvals", permission=roles.APPROVALS),
    }
)
USUAL: Chosen = MappingProxyType({name: kind.ways for name, kind in KINDS.items()})


def report_subject(user_id: UUID) -> UUID:
    """The subject of an operator's daily mail about receipts."""
    return uuid5(user_id, "report")


def ways(chosen: str) -> Chosen:
    """Ways by kind, from the column `notice_ways`."""
    return {**USUAL, **decoded(chosen, KINDS)}


def sees(role: str, kind: str) -> bool:
    """True if a role is notified of a kind at all."""
    return role in roles.holders(KINDS[kind].permission)


def silent(chosen: str) -> frozenset[str]:
    """The kinds for which an operator's bell is silent."""
    if chosen == "{}":
        return frozenset()
    return frozenset(kind for kind, of in ways(chosen).items() if "bell" not in of)


GET = "SELECT notice_ways FROM operators WHERE user_id = $1"


async def get(conn: Connection, *, user_id: UUID) -> str:
    """An operator's choices, as stored. Raises NotFound."""
    return _known(await conn.fetchval(GET, user_id), user_id)


LOCK = f"{GET} FOR NO KEY UPDATE"
KEEP = "UPDATE operators SET notice_ways = $2 WHERE user_id = $1"


async def choose(
    conn: Connection, by: Principal, *, user_id: UUID, ways: Mapping[str, Collection[str] | None]
) -> dict[str, tuple[Way, ...]]:
    """Set how an operator is notified, by kind; None: the kind's default. Kinds not named are unchanged. Returns the
    resulting choices. Raises Invalid, NotFound."""
    changes = checked(ways, dict.fromkeys(KINDS, OWN_WAYS))
    async with conn.transaction():
        before = decoded(_known(await conn.fetchval(LOCK, user_id), user_id), KINDS)
        after = merged(before, changes, USUAL)
        if after != before:
            await conn.execute(KEEP, user_id, encoded(after))
            await audit.record(
                conn,
                by,
                "operator.notices_chosen",
                object_id=user_id,
                before=audit_values(before),
                after=audit_values(after),
            )
    return after


# Causes that began after they were last mailed, unless that was within APART. Times to come are from before the clock
# was set back: what was mailed then is mailed once more, and so is what began then.
NEWS = f"""
SELECT one.cause FROM unnest($1::text[], $2::timestamptz[]) AS one (cause, since)
 WHERE NOT EXISTS (SELECT FROM operator_tellings told
                    WHERE told.cause = one.cause AND told.told_at < {clock.LATEST}
                      AND (told.told_at >= one.since OR one.since > {clock.LATEST}
                           OR told.told_at > now() - $3::interval))
"""


async def news(conn: Connection, causes: Mapping[str, datetime]) -> set[str]:
    """The causes of which operators are to be notified now. `causes`: each with the time at which it began."""
    return {row["cause"] for row in await conn.fetch(NEWS, list(causes), list(causes.values()), APART)}


RECORD_NOTIFIED = """
INSERT INTO operator_tellings (cause, told_at) SELECT cause, now() FROM unnest($1::text[]) AS one (cause)
    ON CONFLICT (cause) DO UPDATE SET told_at = excluded.told_at
"""


async def record_notified(conn: Connection, causes: Collection[str]) -> None:
    """Record that operators have just been notified of these causes."""
    await conn.execute(RECORD_NOTIFIED, sorted(causes))


# For retention: $1 is the cutoff, $2 the batch size.
FORGET = (
    "DELETE FROM operator_tellings WHERE cause IN (SELECT cause FROM operator_tellings WHERE told_at < $1 LIMIT $2)"
)


def _known(chosen: str | None, user_id: UUID) -> str:
    if chosen is None:
        raise NotFound("There is no such operator.", resource="operator", id=str(user_id))
    return chosen
