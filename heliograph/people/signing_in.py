"""Signing in: e-mail and password, then a code if the person has an authenticator app.

The rule nobody may break: whatever is wrong, the answer is the same sentence after the same time. A session begins only
once everything required has been verified here, and only while the password that was verified is still the person's:
changing it also stops a sign-in that is half finished.

A browser in which somebody has signed in before carries a mark, and its attempts are counted separately from those of
strangers: guessing at an account from a thousand addresses does not lock out its owner, nor does guessing at others
from the owner's own address, which may be that of a mobile network. It carries one of each person who shares it.
"""

from __future__ import annotations

import functools
import re
import secrets
from uuid import UUID

import msgspec

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Refusal
from heliograph.people import factors, passwords, tries
from heliograph.people.noticing.guessing import Guesses
from heliograph.people.passkeys import ceremony, checking
from heliograph.people.passkeys.challenges import Site
from heliograph.people.tries import WrongSignIn

#: Maximum seconds between the password and the code.
CODE_WITHIN = 300
#: Maximum people whose marks a browser carries: those who signed in last.
MOST_MARKS = 5
_marks_in = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{64})").findall


class WrongCode(Refusal):
    """This code is not correct, or was used already."""

    code, status = "code_refused", 403


class VerifiedPassword(msgspec.Struct, frozen=True):
    """Somebody with a correct password. `hashed`: its hash. `needs_code`: they have a second factor, which is required
    next."""

    user_id: UUID
    hashed: str
    needs_code: bool


_is_ticket = re.compile(
    r"(?P<user_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(?P<kept>[01])\.(?P<until>[0-9]{1,12})"
).fullmatch
FIND = "SELECT id, password, totp IS NOT NULL AS has_totp FROM users WHERE email = $1"


async def password(
    pool: Pool, mark_key: Key, guesses: Guesses, *, email: str, password: str, address: str, browser: str = ""
) -> VerifiedPassword:
    """The person with this e-mail and password. Raises WrongSignIn, TooManyTries, TooManySignIns.

    `guesses`: notified of failures; `address`: where the attempt comes from; `browser`: the marks that it carries. No
    connection is held while the hash is computed.
    """
    account = email.strip().lower()[:254]
    async with pool.acquire() as conn:
        row = None if "\0" in account else await conn.fetchrow(FIND, account)
        counted, shared = (
            (account, address)
            if row is None
            else _counted(mark_key, account, user_id=row["id"], browser=browser, address=address)
        )
        tried = await tries.count(conn, account=counted, address=shared)
    right = await passwords.verify(row["password"] if row else None, password)
    if row is None or not right:
        if row is not None:
            guesses.note(row["id"], "password", address=address, tries=tried)
        raise WrongSignIn
    if not row["has_totp"]:
        async with pool.acquire() as conn:
            await tries.forgive(conn, account=counted, address=shared)
    return VerifiedPassword(row["id"], row["password"], row["has_totp"])


FIND_BY_ID = "SELECT password FROM users WHERE id = $1"


async def prove_again(
    pool: Pool, guesses: Guesses, *, session_id: UUID, user_id: UUID, password: str, address: str
) -> None:
    """Verify the password of a session's person again. Raises the same as `password`, and `guesses` is notified of
    failures: the browser may be in somebody else's hands. Attempts are counted per session."""
    account = f"session {session_id}"
    async with pool.acquire() as conn:
        tried = await tries.count(conn, account=account)
        known = await conn.fetchval(FIND_BY_ID, user_id)
    if not await passwords.verify(known, password):
        guesses.note(user_id, "password", address=address, tries=tried)
        raise WrongSignIn("The password is not correct.")
    async with pool.acquire() as conn:
        await tries.forgive(conn, account=account)


async def code(
    conn: Connection,
    seal_key: Key,
    mark_key: Key,
    guesses: Guesses,
    *,
    user_id: UUID,
    given: str,
    address: str,
    browser: str = "",
) -> None:
    """Check the code of an authenticator app, or a recovery code, which is used up. Raises WrongCode, TooManyTries."""
    email = await conn.fetchval("SELECT email FROM users WHERE id = $1", user_id)
    count = functools.partial(_counted, mark_key, user_id=user_id, browser=browser, address=address)
    counted, shared = count(tries.of_code(user_id))
    tried = await tries.count(conn, account=counted, address=shared, is_code=True)
    if not await factors.check(conn, seal_key, user_id=user_id, given=given):
        guesses.note(user_id, "code", address=address, tries=tried)
        raise WrongCode
    for account in (tries.of_code(user_id), email or ""):
        counted, shared = count(account)
        await tries.forgive(conn, account=counted, address=shared)


def mark(key: Key, *, user_id: UUID, browser: str = "") -> str:
    """The marks kept by a browser in which this person has signed in: a new one of theirs, and those of others that it
    carries (`browser`). They do not authenticate anybody."""
    name, own = secrets.token_hex(8), _mark_of(key, user_id=user_id, browser=browser)
    others = [f"{one}.{tag}" for one, tag in _carried(browser) if one != own]
    return "_".join([f"{name}.{mac(key, _marked(user_id, name)).hex()}", *others[: MOST_MARKS - 1]])


def is_known(key: Key, *, user_id: UUID, browser: str) -> bool:
    """True if this person has signed in before in the browser that carries these marks."""
    return _mark_of(key, user_id=user_id, browser=browser) is not None


def _mark_of(key: Key, *, user_id: UUID, browser: str) -> str | None:
    """The name of the person's own mark among those that a browser carries."""
    return next((name for name, tag in _carried(browser) if is_mac(key, _marked(user_id, name), tag)), None)


def _carried(browser: str) -> list[tuple[str, str]]:
    return _marks_in(browser)[:MOST_MARKS]


def _counted(key: Key, account: str, *, user_id: UUID, browser: str, address: str) -> tuple[str, str | None]:
    """The account and the address under which an attempt is counted. In a browser that this person has used: the
    account's name in it, and no address."""
    name = _mark_of(key, user_id=user_id, browser=browser)
    return (account, address) if name is None else (f"{account} in {name}", None)


def _marked(user_id: UUID, name: str) -> bytes:
    return f"{user_id} {name}".encode()


async def passkey(conn: Connection, where: Site, *, asked: bytes, given: str, address: str) -> UUID:
    """The owner of a presented passkey; its challenge is used up. Raises PasskeyRefused, TooManyTries."""
    account = f"passkey {ceremony.claimed(given).hex()}"
    await tries.count(conn, account=account, address=address)
    async with conn.transaction():
        user_id = await checking.check(conn, where, asked=asked, given=given)
    await tries.forgive(conn, account=account, address=address)
    return user_id


class Ticket(msgspec.Struct, frozen=True):
    """Somebody who has to enter a code. `hashed`: the hash of their password; None: a mailed link takes its place."""

    user_id: UUID
    hashed: str | None
    is_kept: bool


def ticket(key: Key, *, user_id: UUID, hashed: str | None, is_kept: bool) -> str:
    """The ticket carried by the form for the code: whose password was correct, and when it expires. It is void once the
    password, of which `hashed` is the hash, is changed."""
    until = clock.milliseconds() // 1000 + CODE_WITHIN
    said = f"{user_id}.{int(is_kept)}.{until}"
    return f"{said}.{mac(key, _with_password(said, hashed)).hex()}"


async def read_ticket(conn: Connection, key: Key, text: str) -> Ticket:
    """What a ticket says. Raises WrongSignIn if it is not ours, or too old, or if the password was changed since."""
    said, _, tag = text[:200].rpartition(".")
    match = _is_ticket(said)
    if match is not None:
        user_id = UUID(match["user_id"])
        hashed = await conn.fetchval(FIND_BY_ID, user_id)
        if is_mac(key, _with_password(said, hashed), tag) and int(match["until"]) >= clock.milliseconds() // 1000:
            return Ticket(user_id, hashed, match["kept"] == "1")
    raise WrongSignIn("It took too long. Sign in again.")


def _with_password(said: str, hashed: str | None) -> bytes:
    return f"{said} {hashed or ''}".encode()
