"""Failed sign-ins, which delay the next attempt: longer each time, but never permanently.

Counted by account and by address, whether or not the account exists, so that nobody learns which accounts exist. The
rule nobody may break: an attempt is counted before the password is checked, so that a thousand at once are not free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal
from heliograph.base.network.addresses import sharer

#: Attempts without delay, per account and per address (which may be a whole office).
FREE_ACCOUNT, FREE_ADDRESS = 5, 30
#: Maximum delay in seconds. Somebody who guesses at an account all day must not lock out its owner. Whoever guesses at
#: codes has the password already, and of a million codes three are right at any time: with a minute between them they
#: would find one within weeks.
LONGEST_ACCOUNT, LONGEST_ADDRESS, LONGEST_CODE = 60, 900, 3600
#: After this long without a failure, the count is reset; that of codes, whose longest delay it would undercut, later.
FORGOTTEN, CODES_FORGOTTEN = timedelta(minutes=15), timedelta(days=1)

#: Seconds by which the last failure may seem to lie ahead: statements of several processes wait for each other.
SLACK = 60


def of_code(user_id: UUID) -> str:
    """The account under which attempts at a person's codes are counted."""
    return f"code {user_id}"


class WrongSignIn(Refusal):
    """E-mail or password is not correct."""

    code, status = "sign_in_refused", 403


class TooManyTries(Refusal):
    """Too many attempts. Wait a moment, then try again."""

    code, status = "sign_in_paused", 429

    def __init__(self, seconds: int) -> None:
        super().__init__(retry_after=seconds)
        self.headers = {"retry-after": str(seconds)}


# The delay doubles with each attempt beyond the free ones. An attempt that comes too early is not counted, so that
# waiting helps. A free attempt is never early: of two at once, the one that waited for the row has the earlier now().
# After a failure that lies further ahead, the clock has been set back: the delay would be as long as it was ahead.
_WAIT = """CASE WHEN known.tries < excluded_free THEN interval '0'
                ELSE make_interval(secs => least(excluded_most, 2.0 ^ least(known.tries - excluded_free, 20))) END"""


def _statement(free: int, most: int, forgotten: timedelta = FORGOTTEN) -> str:
    wait = _WAIT.replace("excluded_free", str(free)).replace("excluded_most", str(most))
    is_past = f"known.tried_at < now() + interval '{SLACK} seconds'"
    early = f"known.tries >= {free} AND now() < known.tried_at + {wait} AND {is_past}"
    return f"""
INSERT INTO sign_in_tries AS known (subject, tries, tried_at) VALUES ($1, 1, now())
    ON CONFLICT (subject) DO UPDATE
   SET tries = CASE WHEN known.tried_at < now() - interval '{forgotten.total_seconds():.0f} seconds' THEN 1
                    WHEN {early} THEN known.tries ELSE known.tries + 1 END,
       tried_at = CASE WHEN {early} THEN known.tried_at ELSE now() END
RETURNING tried_at = now() AS counted, tries,
          ceil(extract(epoch FROM tried_at + {wait} - now()))::int AS wait
"""


COUNT_ACCOUNT = _statement(FREE_ACCOUNT, LONGEST_ACCOUNT)
COUNT_ADDRESS = _statement(FREE_ADDRESS, LONGEST_ADDRESS)
COUNT_CODE = _statement(FREE_ACCOUNT, LONGEST_CODE, CODES_FORGOTTEN)


async def count(conn: Connection, *, account: str, address: str | None = None, is_code: bool = False) -> int:
    """Count an attempt, assuming that it fails, and return its number among consecutive attempts at this account.
    Raises TooManyTries. `account`: as typed, in lower case. `address`: where the attempt comes from; None: it is an
    action of somebody who is signed in, or an attempt in a browser that they have used, limited by account alone.
    `is_code`: it is a code, after the password."""
    tries = 0
    counted = [(COUNT_ADDRESS, _subject("address", sharer(address)))] if address is not None else []
    for statement, subject in (*counted, (COUNT_CODE if is_code else COUNT_ACCOUNT, _subject("account", account))):
        row = await conn.fetchrow(statement, subject)
        assert row is not None
        if not row["counted"]:
            raise TooManyTries(max(row["wait"], 1))
        tries = row["tries"]
    return tries


# Whoever guesses at codes waits for up to an hour between two of them, and has not given up meanwhile: after FORGOTTEN,
# or twice the delay that their next attempt has. $3: the longest delay.
STANDING = f"""
SELECT subject, tries FROM sign_in_tries
 WHERE subject = ANY ($1) AND tried_at < now() + interval '{SLACK} seconds'
   AND tried_at >= now() - greatest($2::interval, 2 * make_interval(
           secs => least($3::float8, 2.0 ^ least(greatest(tries - {FREE_ACCOUNT}, 0), 20))))
"""


async def standing(conn: Connection, accounts: Sequence[str], *, are_codes: bool = False) -> dict[str, int]:
    """Consecutive recent failures by account; accounts without any are omitted. `are_codes`: they count codes."""
    subjects = {_subject("account", account): account for account in accounts}
    longest = LONGEST_CODE if are_codes else LONGEST_ACCOUNT
    rows = await conn.fetch(STANDING, list(subjects), FORGOTTEN, longest)
    return {subjects[row["subject"]]: row["tries"] for row in rows}


FORGIVE = "DELETE FROM sign_in_tries WHERE subject = $1"
TAKE_BACK = "UPDATE sign_in_tries SET tries = greatest(tries - 1, 0) WHERE subject = $1"


async def forgive(conn: Connection, *, account: str, address: str | None = None) -> None:
    """Record that the attempt succeeded. For the address only this attempt is taken back: somebody who guesses may also
    have an account."""
    await conn.execute(FORGIVE, _subject("account", account))
    if address is not None:
        await conn.execute(TAKE_BACK, _subject("address", sharer(address)))


# For retention: $1 is when FORGOTTEN began, $2 the batch size.
FORGET = """
DELETE FROM sign_in_tries WHERE subject IN (SELECT subject FROM sign_in_tries WHERE tried_at < $1 LIMIT $2)
"""


def _subject(kind: str, name: str) -> bytes:
    return hashlib.sha256(f"{kind} {name}".encode("utf-8", "surrogatepass")).digest()[:16]
