"""Checks the passkey that a browser presents, at sign-in and when authenticating again before critical actions."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.people.passkeys import ceremony, keeping
from heliograph.people.passkeys.challenges import PasskeyRefused, Site

FIND = "SELECT user_id, id, public_key, uses FROM passkeys WHERE credential_id = $1 FOR NO KEY UPDATE"
USED = "UPDATE passkeys SET uses = $2, used_at = now() WHERE id = $1"


async def check(conn: Connection, where: Site, *, asked: bytes, given: str, user_id: UUID | None = None) -> UUID:
    """Verify the passkey that a browser presented, in the caller's transaction; returns its owner. `user_id`: it must
    be this person's. Raises PasskeyRefused."""
    row = await conn.fetchrow(FIND, ceremony.claimed(given))
    if row is None or user_id not in (None, row["user_id"]):
        raise PasskeyRefused
    uses = ceremony.shown(where, asked, given, public_key=row["public_key"], uses=row["uses"])
    await keeping.use_up(conn, asked)
    await conn.execute(USED, row["id"], uses)
    whose: UUID = row["user_id"]
    return whose
