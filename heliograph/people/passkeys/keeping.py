"""People's passkeys: several each, with name and last use.

The rule nobody may break: a challenge is used once, in the transaction that acts on it, so that a device's signature
cannot be replayed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.people.passkeys.challenges import GOOD_FOR, PasskeyRefused, StoredPasskey

MOST, LONGEST_NAME = 20, 60
#: What is wrong with a passkey's name, by issue.
WRONG_NAME = {
    "length": "A name must have 1 to 60 characters.",
    "pattern": "A name must not contain control characters.",
}


class Passkey(msgspec.Struct, frozen=True):
    """A passkey as its owner sees it."""

    id: UUID
    name: str
    created_at: datetime
    used_at: datetime | None


LIST = "SELECT id, name, created_at, used_at FROM passkeys WHERE user_id = $1 ORDER BY id"


async def list_all(conn: Connection, *, user_id: UUID) -> list[Passkey]:
    """A person's passkeys, oldest first."""
    return [Passkey(**row) for row in await conn.fetch(LIST, user_id)]


KNOWN = "SELECT credential_id FROM passkeys WHERE user_id = $1"


async def known(conn: Connection, *, user_id: UUID) -> list[bytes]:
    """Credential ids of the person's passkeys."""
    return [row[0] for row in await conn.fetch(KNOWN, user_id)]


LOCK = "SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE"
INSERT = """
INSERT INTO passkeys (user_id, id, credential_id, public_key, uses, name, created_at)
SELECT $1, $2, $3, $4, $5, $6, now() WHERE (SELECT count(*) FROM passkeys WHERE user_id = $1) < $7
    ON CONFLICT (credential_id) DO NOTHING
RETURNING id
"""


async def add(
    conn: Connection, by: Actor | Principal, *, user_id: UUID, made: StoredPasskey, asked: bytes, name: str
) -> UUID:
    """Store a passkey. Raises Invalid, PasskeyRefused."""
    kept = naming.checked(name, "name", longest=LONGEST_NAME, said=WRONG_NAME)
    async with conn.transaction():
        await use_up(conn, asked)
        await conn.execute(LOCK, user_id)
        values = (made.credential_id, made.public_key, made.uses, kept, MOST)
        id: UUID | None = await conn.fetchval(INSERT, user_id, uuid7(), *values)
        if id is None:
            raise Invalid(("name", "count", "This passkey is already registered, or there are 20 of them."))
        await audit.record(conn, by, "user.passkey_added", object_id=user_id, after={"passkey": kept})
    return id


REMOVE = "DELETE FROM passkeys WHERE user_id = $1 AND id = $2 RETURNING name"


async def remove(conn: Connection, by: Actor | Principal, *, user_id: UUID, id: UUID) -> None:
    """Delete a passkey. Raises NotFound."""
    async with conn.transaction():
        name = await conn.fetchval(REMOVE, user_id, id)
        if name is None:
            raise NotFound("There is no such passkey.", resource="passkey", id=str(id))
        await audit.record(conn, by, "user.passkey_removed", object_id=user_id, before={"passkey": name})


REMOVE_ALL = "DELETE FROM passkeys WHERE user_id = $1"


async def remove_all(conn: Connection, *, user_id: UUID) -> None:
    """Delete all passkeys of a person."""
    await conn.execute(REMOVE_ALL, user_id)


USE_UP = """
INSERT INTO passkey_challenges (hash, used_at) VALUES ($1, now()) ON CONFLICT (hash) DO NOTHING RETURNING true
"""


async def use_up(conn: Connection, asked: bytes) -> None:
    """Accept a challenge once, in the caller's transaction. Raises PasskeyRefused."""
    if not await conn.fetchval(USE_UP, hash_secret(asked.hex())):
        raise PasskeyRefused


#: How long a used challenge is remembered: longer than it is valid.
REMEMBERED = timedelta(seconds=2 * GOOD_FOR)
# For retention: $1 is when REMEMBERED began, $2 the batch size.
FORGET = """
DELETE FROM passkey_challenges WHERE hash IN (SELECT hash FROM passkey_challenges WHERE used_at < $1 LIMIT $2)
"""
