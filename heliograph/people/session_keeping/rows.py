"""Rows of sessions, for dashboard and console alike: touching, proving, ending and listing them.

Each realm has a table of its own, and defines how its sessions begin and what is loaded with them. The rule nobody may
break: ending a session deletes its row, so that no process can find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection

# Two processes may write the same sessions at once: a row that the other is writing needs no second write.
TOUCH = """
UPDATE {table} SET seen_at = now()
 WHERE token_hash IN (SELECT token_hash FROM {table} WHERE token_hash = ANY ($1)
                       ORDER BY token_hash FOR NO KEY UPDATE SKIP LOCKED)
"""
PROVE = "UPDATE {table} SET proved_at = now() WHERE id = $1 AND user_id = $2"
END_TOKEN = "DELETE FROM {table} WHERE token_hash = $1"  # noqa: S105
END = "DELETE FROM {table} WHERE user_id = $1 AND id = $2"
END_ALL = "DELETE FROM {table} WHERE user_id = $1 AND id IS DISTINCT FROM $2"
LIST = """
SELECT id, address, agent, created_at, seen_at FROM {table}
 WHERE user_id = $1 AND ends_at > now() AND seen_at + {idle} > now() ORDER BY seen_at DESC LIMIT 200
"""
# For retention: $1 is now, $2 the batch size.
FORGET = """
DELETE FROM {table} WHERE token_hash IN (
    SELECT token_hash FROM {table} WHERE ends_at < $1 OR seen_at + {idle} < $1 LIMIT $2)
"""


class Listed(msgspec.Struct, frozen=True):
    """A session as its person sees it."""

    id: UUID
    address: str
    agent: str
    created_at: datetime
    seen_at: datetime


class Rows(msgspec.Struct, frozen=True):
    """The sessions of one realm."""

    table: str
    #: An SQL interval: a session ends after this long without a request.
    idle: str
    #: The audit log's action for ending sessions.
    ended: str

    @property
    def forget(self) -> str:
        """The retention statement that deletes ended sessions."""
        return self._of(FORGET)

    async def touch(self, conn: Connection, hashes: Sequence[bytes]) -> None:
        """Record that sessions were used just now."""
        await conn.execute(self._of(TOUCH), list(hashes))

    async def prove(self, conn: Connection, *, id: UUID, user_id: UUID) -> None:
        """Record that the person of a session authenticated again."""
        await conn.execute(self._of(PROVE), id, user_id)

    async def end_token(self, conn: Connection, *, token: str) -> None:
        """Sign out."""
        await conn.execute(self._of(END_TOKEN), hash_secret(token))

    async def end(self, conn: Connection, by: Actor | Principal, *, user_id: UUID, id: UUID) -> None:
        """End one session of a person. Idempotent."""
        await self._end(conn, by, user_id, END, id)

    async def end_all(
        self, conn: Connection, by: Actor | Principal, *, user_id: UUID, keep: UUID | None = None
    ) -> None:
        """End all sessions of a person, except one."""
        await self._end(conn, by, user_id, END_ALL, keep)

    async def list_all(self, conn: Connection, *, user_id: UUID) -> list[Listed]:
        """The sessions of a person, most recently used first."""
        return [Listed(**row) for row in await conn.fetch(self._of(LIST), user_id)]

    async def _end(
        self, conn: Connection, by: Actor | Principal, user_id: UUID, statement: str, id: UUID | None
    ) -> None:
        async with conn.transaction():
            count = int((await conn.execute(self._of(statement), user_id, id)).split()[-1])
            if count:
                await audit.record(conn, by, self.ended, object_id=user_id, after={"sessions": count})

    def _of(self, statement: str) -> str:
        return statement.format(table=self.table, idle=self.idle)


def printable(text: str) -> str:
    """A client's description of itself, without unprintable characters."""
    return "".join(character for character in text[:300] if character.isprintable())
