"""A person's own phone number, for trying out a message before it goes to others.

It is verified by a code that is sent to it by SMS, on behalf and at the cost of the organization that the person works
in. The rule nobody may break: a code is valid once, for 15 minutes and five tries, and is stored as a hash.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal

#: How long a code is valid, how many tries it allows, and how many codes are sent per hour.
GOOD_FOR, TRIES, CODES = timedelta(minutes=15), 5, 3
DIGITS = 6


class TooManyCodes(Refusal):
    """Three codes were sent within the last hour. Wait, then ask again."""

    code, status = "too_many_codes", 429


class OwnNumber(msgspec.Struct, frozen=True):
    """A person's number; None: none is verified. `asked`: a number that awaits verification."""

    phone: str | None = None
    asked: str | None = None


GET = """
SELECT phone, CASE WHEN asked_at > now() - $2::interval AND tries < $3 THEN asked END AS asked
  FROM own_numbers WHERE user_id = $1
"""


async def get(conn: Connection, *, user_id: UUID) -> OwnNumber:
    """A person's number."""
    row = await conn.fetchrow(GET, user_id, GOOD_FOR, TRIES)
    return OwnNumber() if row is None else OwnNumber(*row.values())


# An hour that is over, or that began while the clock was ahead, before it was set back.
_OVER = f"known.codes_since NOT BETWEEN now() - interval '1 hour' AND {clock.LATEST}"
# An hour begins with its first code. The statement changes nothing once all codes of the hour have been sent.
ASK = f"""
INSERT INTO own_numbers AS known (user_id, asked, asked_at, code_hash, codes, codes_since)
VALUES ($1, $2, now(), $3, 1, now())
    ON CONFLICT (user_id) DO UPDATE
   SET asked = $2, asked_at = now(), code_hash = $3, tries = 0,
       codes = CASE WHEN {_OVER} THEN 1 ELSE known.codes + 1 END,
       codes_since = CASE WHEN {_OVER} THEN now() ELSE known.codes_since END
 WHERE known.codes < $4 OR {_OVER}
RETURNING true
"""


async def ask(conn: Connection, *, user_id: UUID, phone: str) -> str:
    """Create a code for a number (E.164), to be sent there by the caller; an earlier one becomes invalid. Raises
    TooManyCodes."""
    code = f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"
    if not await conn.fetchval(ASK, user_id, phone, _hash(user_id, phone, code), CODES):
        raise TooManyCodes
    return code


# Nothing, if another code was created meanwhile. One that was tried counts: otherwise, whoever asks for codes that are
# refused could guess at each until then, and at any number of them.
TAKE_BACK = """
UPDATE own_numbers SET asked = NULL, asked_at = NULL, code_hash = NULL, codes = codes - (tries = 0)::integer
 WHERE user_id = $1 AND code_hash = $2
"""


async def take_back(conn: Connection, *, user_id: UUID, phone: str, code: str) -> None:
    """A code could not be sent: nobody waits for it, and it does not count as one that was, unless it was tried."""
    await conn.execute(TAKE_BACK, user_id, _hash(user_id, phone, code))


TRY = """
UPDATE own_numbers SET tries = tries + 1
 WHERE user_id = $1 AND asked IS NOT NULL AND asked_at > now() - $2::interval AND tries < $3
RETURNING asked, code_hash
"""
# Only the number that the code was sent to: another one may have been asked for meanwhile.
PROVE = """
UPDATE own_numbers SET phone = asked, asked = NULL, code_hash = NULL, asked_at = NULL, tries = 0
 WHERE user_id = $1 AND asked = $2 AND code_hash = $3
RETURNING true
"""
PHONE = "SELECT phone FROM own_numbers WHERE user_id = $1"


async def prove(conn: Connection, by: Actor | Principal, *, user_id: UUID, code: str) -> str:
    """Verify the code; returns the number that it was sent to, which is now theirs. Raises Invalid on `code`.

    A wrong try is counted, so the caller must not roll it back.
    """
    row = await conn.fetchrow(TRY, user_id, GOOD_FOR, TRIES)
    if row is None:
        raise Invalid(("code", "ended", "`code` is no longer valid"))
    digits = "".join(one for one in code if one.isdigit())
    if not secrets.compare_digest(row["code_hash"], _hash(user_id, row["asked"], digits)):
        raise Invalid(("code", "wrong", "`code` is not the one that was sent"))
    phone: str = row["asked"]
    async with conn.transaction():
        if await conn.fetchval(PROVE, user_id, phone, row["code_hash"]):
            after = {"phone": phones.masked(phone)}
            await audit.record(conn, by, "user.number_changed", object_id=user_id, after=after)
        elif await conn.fetchval(PHONE, user_id) != phone:  # otherwise a second click was faster
            raise Invalid(("code", "ended", "`code` is no longer valid"))
    return phone


# For retention: $1 is when GOOD_FOR began, $2 the batch size. Anybody's number can be typed.
FORGET_UNVERIFIED = """
UPDATE own_numbers SET asked = NULL, asked_at = NULL, code_hash = NULL
 WHERE user_id IN (SELECT user_id FROM own_numbers WHERE asked_at < $1 LIMIT $2)
"""
# How many codes were sent within the hour still counts.
FORGET = """
UPDATE own_numbers own SET phone = NULL, asked = NULL, asked_at = NULL, code_hash = NULL
  FROM (SELECT user_id, phone FROM own_numbers WHERE user_id = $1 AND phone IS NOT NULL FOR NO KEY UPDATE) was
 WHERE own.user_id = was.user_id RETURNING was.phone
"""


async def forget(conn: Connection, by: Actor | Principal, *, user_id: UUID) -> None:
    """Forget a person's number. Idempotent."""
    async with conn.transaction():
        phone = await conn.fetchval(FORGET, user_id)
        if phone is not None:
            before = {"phone": phones.masked(phone)}
            await audit.record(conn, by, "user.number_changed", object_id=user_id, before=before)


def _hash(user_id: UUID, phone: str, code: str) -> bytes:
    return hashlib.sha256(f"{user_id} {phone} {code}".encode()).digest()
