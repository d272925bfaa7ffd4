"""Signing in: e-mail and password, then a code where the person has an authenticator app.

The rule nobody may break: whatever is wrong, the answer is one sentence and takes as long. A session begins only here,
when everything that was asked for is proved.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.crypto import constant_time_equal, mac
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Refusal
from heliograph.people import factors, passwords, tries

#: Seconds between the password and the code.
CODE_WITHIN = 300


class WrongSignIn(Refusal):
    """E-mail or password is not right."""

    code, status = "sign_in_refused", 403


class WrongCode(Refusal):
    """This code is not right, or was used already."""

    code, status = "code_refused", 403


class Proved(msgspec.Struct, frozen=True):
    """Somebody whose password is right. `needs_code`: they have a second factor, which is to be asked for."""

    user_id: UUID
    needs_code: bool


FIND = "SELECT id, password, totp IS NOT NULL AS has_totp FROM users WHERE email = $1"


async def password(pool: Pool, *, email: str, password: str, address: str) -> Proved:
    """Whose password this is. Raises WrongSignIn, TooManyTries, TooManySignIns.

    `address`: where it comes from. No connection is held while the hash is made.
    """
    account = email.strip().lower()[:254]
    async with pool.acquire() as conn:
        await tries.count(conn, account=account, address=address)
        row = None if "\0" in account else await conn.fetchrow(FIND, account)
    right = await passwords.verify(row["password"] if row else None, password)
    if row is None or not right:
        raise WrongSignIn
    if not row["has_totp"]:
        async with pool.acquire() as conn:
            await tries.forgive(conn, account=account, address=address)
    return Proved(row["id"], row["has_totp"])


FIND_BY_ID = "SELECT email, password FROM users WHERE id = $1"


async def prove_again(pool: Pool, *, user_id: UUID, password: str, address: str) -> None:
    """The person of a session gives their password once more. Raises as `password` does."""
    async with pool.acquire() as conn:
        row = await conn.fetchrow(FIND_BY_ID, user_id)
    await _checked(pool, row["email"] if row else "", password, address)


async def _checked(pool: Pool, email: str, given: str, address: str) -> None:
    async with pool.acquire() as conn:
        await tries.count(conn, account=email, address=address)
        row = await conn.fetchrow(FIND, email)
    right = await passwords.verify(row["password"] if row else None, given)
    if not right:
        raise WrongSignIn("The password is not right.")
    async with pool.acquire() as conn:
        await tries.forgive(conn, account=email, address=address)


async def code(conn: Connection, seal_key: bytes, *, user_id: UUID, given: str, address: str) -> None:
    """Check the code of an authenticator app, or a recovery code, which is used up. Raises WrongCode, TooManyTries."""
    email = await conn.fetchval("SELECT email FROM users WHERE id = $1", user_id)
    await tries.count(conn, account=f"code {user_id}", address=address)
    if not await factors.check(conn, seal_key, user_id=user_id, given=given):
        raise WrongCode
    await tries.forgive(conn, account=f"code {user_id}", address=address)
    await tries.forgive(conn, account=email or "", address=address)


def ticket(key: bytes, *, user_id: UUID, is_kept: bool) -> str:
    """What the form for the code carries: whose password was right, and until when that counts."""
    until = clock.milliseconds() // 1000 + CODE_WITHIN
    said = f"{user_id}.{int(is_kept)}.{until}"
    return f"{said}.{mac(key, said.encode()).hex()}"


def read_ticket(key: bytes, text: str) -> tuple[UUID, bool]:
    """(user, whether to stay signed in) of a ticket. Raises WrongSignIn for one that is not ours, or too old."""
    said, _, tag = text[:200].rpartition(".")
    if not constant_time_equal(mac(key, said.encode("utf-8", "surrogatepass")).hex(), tag):
        raise WrongSignIn("It took too long. Sign in once more.")
    user_id, kept, until = said.split(".")
    if int(until) < clock.milliseconds() // 1000:
        raise WrongSignIn("It took too long. Sign in once more.")
    return UUID(user_id), kept == "1"
