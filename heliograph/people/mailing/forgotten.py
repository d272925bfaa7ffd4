"""Mails a sign-in link to somebody who lost their password, or has none and must confirm that it is them.

The rule nobody may break: a request reveals nothing about who has an account. It writes the same row for any address; a
worker later finds out whose it is.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Connection, Pool
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.people import links, tries, users
from heliograph.people.mailing import texts

#: Kind of the rows of requests.
ASKED = "forgotten"
#: Minimum time between two mails: nobody can flood a mailbox, or keep invalidating the link in it.
BETWEEN = timedelta(minutes=5)
#: A request not answered within this time is dropped.
WITHIN = timedelta(minutes=30)


class Asked(msgspec.Struct, frozen=True):
    """A request: the e-mail address, and the language to write in. `following`: the page that the link leads to, of
    somebody who is signed in; "": it lets them choose a new password."""

    email: str
    language: str
    following: str = ""


async def ask(pool: Pool, box: Outbox, *, email: str, language: str, address: str, following: str = "") -> None:
    """Have a link mailed to the owner of this address. `address`: where the request comes from; `following`: see Asked.
    Raises Invalid, TooManyTries."""
    email = users.checked_email(email)
    async with pool.acquire() as conn:
        await tries.count(conn, account=f"forgotten {email}", address=address)
        await outbox.put(conn, box, kind=ASKED, content=Asked(email, language, following), within=WITHIN)


async def is_recent(pool: Pool, *, user_id: UUID) -> bool:
    """True if somebody was sent a mail so recently that no other would follow. Only they may know."""
    async with pool.acquire() as conn:
        return await _is_recent(conn, user_id)


async def _is_recent(conn: Connection, user_id: UUID) -> bool:
    return await outbox.is_recent(conn, subject_id=user_id, kind=links.KIND, within=BETWEEN)


# The lock serializes two requests for one person.
FIND = "SELECT id, name, language FROM users WHERE email = $1 FOR UPDATE"


async def answer(conn: Connection, box: Outbox, content: bytes) -> None:
    """Put the mail into the outbox if there is such a person, in the caller's transaction."""
    asked = msgspec.json.decode(content, type=Asked)
    person = await conn.fetchrow(FIND, asked.email)
    if person is None or await _is_recent(conn, person["id"]):
        return
    token = await links.make(conn, SYSTEM, user_id=person["id"], is_mailed=True)
    write = texts.confirm if asked.following else texts.forgotten
    mail = write(
        person["language"] or asked.language,
        to=asked.email,
        name=person["name"],
        link=links.address(box.base_url, token, following=asked.following),
    )
    await outbox.put(conn, box, kind=links.KIND, content=mail, within=links.MAILED_LIFE, subject_id=person["id"])
