"""Ringing the bell, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.notices.kinds import KINDS

#: A cause is not reported again for this long.
QUIET = timedelta(hours=1)
#: Characters kept of a name.
LONGEST = 200
#: An SQL condition: the notice `known` was recorded within the interval {}. One in times to come is from before the
#: clock was set back.
IS_RECENT = f"(known.created_at > now() - {{}} AND known.created_at < {clock.LATEST})"


class Notice(msgspec.Struct, frozen=True):
    """Something that needs attention. `object`: the id of the object concerned; `name`: its display name; `facts`: as
    listed in `kinds`."""

    organization_id: UUID
    kind: str
    object: str
    name: str = ""
    mode: str = "live"
    facts: Mapping[str, str | int] = {}
    #: The only person it is for; None: everybody who may see what it concerns.
    user_id: UUID | None = None


RECORD = f"""
INSERT INTO notices (organization_id, id, mode, kind, object, name, facts, user_id)
SELECT item.* FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                          $9::uuid[])
                   AS item (organization_id, id, mode, kind, object, name, facts, user_id)
 WHERE NOT EXISTS (SELECT FROM notices known
                    WHERE known.organization_id = item.organization_id AND known.kind = item.kind
                      AND known.object = item.object AND {IS_RECENT.format("$8::interval")})
"""


async def record_many(conn: Connection, notices: Sequence[Notice], *, quiet: timedelta | None = QUIET) -> None:
    """Record notices, except for causes reported within `quiet`; None: each is a cause of its own, as what somebody
    decides."""
    if not notices:
        return
    assert all(one.kind in KINDS for one in notices), notices
    await conn.execute(
        RECORD,
        [one.organization_id for one in notices],
        [uuid7() for _ in notices],
        [one.mode for one in notices],
        [one.kind for one in notices],
        [one.object for one in notices],
        [one.name[:LONGEST] for one in notices],
        [msgspec.json.encode(one.facts).decode() for one in notices],
        quiet,
        [one.user_id for one in notices],
    )


async def record(conn: Connection, notice: Notice, *, quiet: timedelta | None = QUIET) -> None:
    """Record one notice; `quiet`: as above."""
    await record_many(conn, [notice], quiet=quiet)


# All of them, whenever they were recorded: the transaction that recorded one may have begun after this one.
WITHDRAW = f"""
DELETE FROM notices known WHERE organization_id = $1 AND kind = $2 AND object = $3
   AND ($4::interval IS NULL OR NOT {IS_RECENT.format("$4::interval")})
"""


async def withdraw(
    conn: Connection, organization_id: UUID, kind: str, object: str, *, quiet: timedelta | None = None
) -> None:
    """Remove the notices of something that no longer has to be done, in the caller's transaction. Nobody is asked for
    it from then on. `quiet`: not those of this time, for a cause that may come back, and should not be reported again
    within it."""
    assert kind in KINDS, kind
    await conn.execute(WITHDRAW, organization_id, kind, object, quiet)
