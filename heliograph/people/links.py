"""Links that sign a person in once, for people who have no password yet, or have lost it.

The token comes after `#` in the URL, so it appears in no access log. The rules nobody may break: a link is valid for
one hour (30 minutes if it was mailed) and one use, and a new one ends the previous one; a mailbox is not a second
factor, so a person who has one must enter its code after using a mailed link.
"""

from __future__ import annotations

import secrets
import urllib.parse
from datetime import timedelta
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal

Realm = Literal["dashboard", "console"]

LIFE, MAILED_LIFE = timedelta(hours=1), timedelta(minutes=30)
#: Kind of the mails that bring one.
KIND = "link"
#: Path below the address of the dashboard or console.
PATHS: dict[Realm, str] = {"dashboard": "/enter", "console": "/console/setup"}


class LinkUsed(Refusal):
    """This link was used already, was replaced by a newer one, or is too old. Ask for a new one."""

    code, status = "link_used", 410


class LinkLogin(msgspec.Struct, frozen=True):
    """The person whom a link signs in. `hashed`: the hash of their password, if any. `needs_code`: it was mailed, and
    their second factor is required next."""

    user_id: UUID
    is_mailed: bool
    hashed: str | None
    needs_code: bool


MAKE = """
INSERT INTO sign_in_links (token_hash, user_id, is_mailed, expires_at, realm)
VALUES ($1, $2, $3, now() + $4::interval, $5)
    ON CONFLICT (user_id, realm) DO UPDATE
   SET token_hash = excluded.token_hash, is_mailed = excluded.is_mailed, expires_at = excluded.expires_at
"""


async def make(
    conn: Connection, by: Actor | Principal, *, user_id: UUID, is_mailed: bool = False, realm: Realm = "dashboard"
) -> str:
    """A token that signs this person in once, valid for an hour, or 30 minutes if it is mailed. Ends the realm's
    previous one."""
    token = secrets.token_urlsafe(32)
    async with conn.transaction():
        await conn.execute(MAKE, hash_secret(token), user_id, is_mailed, MAILED_LIFE if is_mailed else LIFE, realm)
        await audit.record(conn, by, "user.link_made", object_id=user_id, after={"realm": realm})
    return token


USE = """
DELETE FROM sign_in_links WHERE token_hash = $1 AND realm = $2
RETURNING user_id, is_mailed, expires_at > now() AS is_good,
          (SELECT password FROM users WHERE id = user_id) AS hashed,
          is_mailed AND EXISTS (SELECT FROM users WHERE id = user_id AND totp IS NOT NULL) AS needs_code
"""


async def use(conn: Connection, *, token: str, realm: Realm = "dashboard") -> LinkLogin:
    """The person of a token, which is used up. Raises LinkUsed."""
    row = await conn.fetchrow(USE, hash_secret(token.strip()[:200]), realm)
    if row is None or not row["is_good"]:
        raise LinkUsed
    return LinkLogin(row["user_id"], row["is_mailed"], row["hashed"], row["needs_code"])


END = "DELETE FROM sign_in_links WHERE user_id = $1"
STAY = "DELETE FROM email_changes WHERE user_id = $1"


async def end(conn: Connection, *, user_id: UUID) -> None:
    """Invalidate a person's sign-in links and a pending change of their e-mail address: whoever requested these may be
    the reason why the account is being recovered."""
    await conn.execute(END, user_id)
    await conn.execute(STAY, user_id)


# For retention: $1 is now, $2 the batch size.
FORGET = """
DELETE FROM sign_in_links WHERE token_hash IN (SELECT token_hash FROM sign_in_links WHERE expires_at < $1 LIMIT $2)
"""


def address(base_url: str, token: str, *, realm: Realm = "dashboard", following: str = "") -> str:
    """The link itself. `base_url`: the dashboard's or the console's; `following`: the page that it leads to."""
    query = f"?{urllib.parse.urlencode({'next': following})}" if following else ""
    return f"{base_url.rstrip('/')}{PATHS[realm]}{query}#{token}"
