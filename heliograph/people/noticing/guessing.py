"""Notifies a person, and the owners of their organizations, of attempts to sign in as them.

An attempt costs nothing extra for an account that exists: attempts noted here are written a moment later, in one
statement for all. The rule nobody may break: no response waits for this, so that response times do not reveal which
accounts exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.base.database.batching import WriteBehind
from heliograph.base.database.pool import Connection, Pool
from heliograph.notices import Notice
from heliograph.people import roles
from heliograph.people.tries import FREE_ACCOUNT

#: Seconds between two writes, and maximum accounts noted per process and owners notified for each.
EVERY, MOST, MOST_OWNERS = 2.0, 1_000, 5_000

#: What was wrong: a code is entered only after a correct password.
Step = Literal["password", "code"]


class Seen(msgspec.Struct, frozen=True):
    """The latest failed attempt, and its number."""

    address: str
    tries: int


class Guesses:
    """Failed attempts that are not written yet. One per process."""

    def __init__(self, pool: Pool) -> None:
        self.noted: WriteBehind[tuple[UUID, Step], Seen] = WriteBehind(
            pool, tell, every=EVERY, most=MOST, merged=lambda _, latest: latest, beyond=lambda _: None
        )

    def note(self, user_id: UUID, step: Step, *, address: str, tries: int) -> None:
        """Note a failed attempt at an existing account, the `tries`th in a row. The first few are taken for typos."""
        if tries >= FREE_ACCOUNT:
            self.noted.note((user_id, step), Seen(address, tries))


# Where the person will look: the organization of their latest session, or else the first that they belong to.
THEIRS = """
SELECT asked.user_id, known.organization_id
  FROM unnest($1::uuid[]) AS asked (user_id) CROSS JOIN LATERAL (
       SELECT m.organization_id, m.created_at,
              (SELECT max(s.seen_at) FROM sessions s
                WHERE s.user_id = m.user_id AND s.organization_id = m.organization_id) AS seen_at
         FROM memberships m WHERE m.user_id = asked.user_id
        ORDER BY seen_at DESC NULLS LAST, created_at, organization_id LIMIT 1) known
"""
OWNERS = """
SELECT asked.user_id, u.name, m.organization_id, other.user_id AS owner_id
  FROM unnest($1::uuid[]) AS asked (user_id)
       CROSS JOIN LATERAL (SELECT name FROM users WHERE id = asked.user_id LIMIT 1) u
       CROSS JOIN LATERAL (SELECT organization_id FROM memberships WHERE user_id = asked.user_id) m
       CROSS JOIN LATERAL (SELECT user_id FROM memberships
                            WHERE organization_id = m.organization_id AND role = ANY ($2)
                              AND user_id <> asked.user_id) other
 LIMIT $3
"""


async def tell(conn: Connection, seen: Mapping[tuple[UUID, Step], Seen]) -> None:
    """Notify these people and their organizations' owners by the bell, except of causes that they were notified of
    within the hour."""
    ids = list({user_id for user_id, _ in seen})
    theirs = {row["user_id"]: row["organization_id"] for row in await conn.fetch(THEIRS, ids)}
    told = [
        Notice(
            theirs[user_id],
            "sign_in.failed",
            f"{user_id}/{step}",
            one.address,
            facts={"address": one.address, "tries": one.tries, "step": step},
            user_id=user_id,
        )
        for (user_id, step), one in seen.items()
        if user_id in theirs
    ]
    # Both steps are one cause; the later one says more.
    worst = {
        user_id: (step, one) for (user_id, step), one in sorted(seen.items(), key=lambda item: item[0][1] == "code")
    }
    for row in await conn.fetch(OWNERS, ids, roles.holders(permission=roles.OWNERS), MOST_OWNERS):
        step, one = worst[row["user_id"]]
        told.append(
            Notice(
                row["organization_id"],
                "member.sign_in_failed",
                f"{row['user_id']}/{step}",
                row["name"],
                facts={"address": one.address, "tries": one.tries, "step": step},
                user_id=row["owner_id"],
            )
        )
    await notices.record_many(conn, told)
