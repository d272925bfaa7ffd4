"""What an installation still lacks before it can be relied on, and which quotas are nearly exhausted."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection

#: How many organizations near the end of their quota are named.
NAMED = 5


class Setup(msgspec.Struct, frozen=True):
    """Which of the things that an installation needs exist."""

    #: A supplier that is not a simulator.
    supplier: bool
    organization: bool
    #: An approved sender ID.
    sender: bool
    #: A finished backup.
    backup: bool
    #: Another operator who can sign in: with a second factor, which those who were only invited lack.
    second_operator: bool

    @property
    def is_done(self) -> bool:
        """Nothing is missing."""
        return all(getattr(self, name) for name in self.__struct_fields__)


class NearlyExhausted(msgspec.Struct, frozen=True):
    """An organization that has used at least nine tenths of its quota."""

    id: UUID
    name: str
    used: int
    total: int


class Facts(msgspec.Struct, frozen=True):
    """All of these facts. `held`: WhatsApp accounts and numbers that are currently not sent from, counted up to 1,000
    each; `near`: at most NAMED, most used first; `is_cut`: there are more of them."""

    setup: Setup
    near: list[NearlyExhausted]
    is_cut: bool
    held: int


SETUP = """
SELECT EXISTS (SELECT FROM suppliers WHERE state <> 'removed' AND NOT simulated) AS supplier,
       EXISTS (SELECT FROM organizations) AS organization,
       EXISTS (SELECT FROM sender_ids WHERE status = 'approved') AS sender,
       EXISTS (SELECT FROM backups) AS backup,
       (SELECT count(*) > 1
          FROM (SELECT FROM operators o JOIN users u ON u.id = o.user_id
                 WHERE u.totp IS NOT NULL OR EXISTS (SELECT FROM passkeys WHERE user_id = u.id) LIMIT 2) few
       ) AS second_operator
"""
NEAR = """
SELECT o.id, o.name, q.used, q.total
  FROM (SELECT organization_id, used, total FROM quotas WHERE total > 0 AND used >= total - total / 10) q
       JOIN organizations o ON o.id = q.organization_id AND o.state IN ('active', 'past_due', 'trial')
 ORDER BY q.used::float8 / q.total DESC, o.name LIMIT $1
"""
HELD = """
SELECT (SELECT count(*) FROM (SELECT FROM whatsapp_accounts WHERE state = 'active' AND held_until > now()
                               LIMIT 1000) a)
     + (SELECT count(*) FROM (SELECT FROM whatsapp_numbers WHERE state = 'active' AND held_until > now()
                               LIMIT 1000) n)
"""


async def read(conn: Connection) -> Facts:
    """Read the facts."""
    row = await conn.fetchrow(SETUP)
    assert row is not None
    near = [NearlyExhausted(*one) for one in await conn.fetch(NEAR, NAMED + 1)]
    return Facts(Setup(**row), near[:NAMED], len(near) > NAMED, await conn.fetchval(HELD))
