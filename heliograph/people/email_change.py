"""Changing one's own e-mail address: requested by a person who has authenticated, confirmed by a link mailed to the new
address. If no mails are sent, the change takes effect at once.

The rules nobody may break: the former address is notified when a change is requested and when it takes effect, and the
change ends all other sessions and every mailed link in the same transaction; a requested change is valid only as long
as the session that requested it, and ends with every way of recovering an account (`links.end`).
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from uuid import UUID, uuid5

import asyncpg

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.people import links, sessions, tries, users
from heliograph.people.mailing import texts
from heliograph.people.operators import sessions as operator_sessions
from heliograph.people.users import User

#: How long a link is valid, and for how long a mail to the former address is retried.
LIFE, TOLD_WITHIN = timedelta(hours=1), timedelta(days=1)
#: Kind of the mails; path below the address of the dashboard.
KIND, PATH = "email", "/account/email/confirm"


class EmailChangeEnded(Refusal):
    """This link was used already, was replaced by a newer one, or is too old. Ask for the change again."""

    code, status = "email_change_ended", 410


ASK = """
INSERT INTO email_changes (user_id, token_hash, email, session_id, organization_id, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::interval)
    ON CONFLICT (user_id) DO UPDATE
   SET token_hash = excluded.token_hash, email = excluded.email, session_id = excluded.session_id,
       organization_id = excluded.organization_id, expires_at = excluded.expires_at
"""


async def ask(
    conn: Connection,
    by: Actor | Principal,
    box: Outbox | None,
    *,
    user: User,
    email: str,
    session_id: UUID,
    language: str,
) -> bool:
    """Request another address. Returns True if no mails are sent (`box` is None), so that it has taken effect. Replaces
    an earlier request.

    `session_id`: the session that stays. Only the reader of the new address's mail learns whether somebody already has
    it. Raises Invalid, TooManyTries.
    """
    email = users.checked_email(email)
    if email == user.email:
        raise Invalid(("email", "same", "This is already your e-mail address."))
    await tries.count(conn, account=f"email {user.id}")
    organization_id = by.organization_id if isinstance(by, Actor) else None
    async with conn.transaction():
        await audit.record(conn, by, "user.email_asked", object_id=user.id, name=user.email, after={"email": email})
        if box is None:
            await _change(conn, by, None, user=user, email=email, keep=session_id)
            return True
        token = secrets.token_urlsafe(32)
        await conn.execute(ASK, user.id, hash_secret(token), email, session_id, organization_id, LIFE)
        mail = texts.new_email(language, to=email, name=user.name, link=f"{box.base_url.rstrip('/')}{PATH}#{token}")
        if not await outbox.put(conn, box, kind=KIND, content=mail, within=LIFE, subject_id=_subject(user.id)):
            raise _untold()
        known = texts.email_asked(user.language or language, to=user.email, name=user.name, email=email)
        if not await outbox.put(conn, box, kind=KIND, content=known, within=TOLD_WITHIN):
            raise _untold()
    return False


WAITING = "SELECT email FROM email_changes WHERE user_id = $1 AND expires_at > now()"


async def waiting(conn: Connection, *, user_id: UUID) -> str | None:
    """The address that a person has requested but not confirmed yet."""
    email: str | None = await conn.fetchval(WAITING, user_id)
    return email


async def withdraw(conn: Connection, *, user_id: UUID) -> None:
    """Keep the current address: the mailed link becomes invalid. Idempotent."""
    async with conn.transaction():
        await conn.execute(links.STAY, user_id)
        await outbox.drop(conn, subject_id=_subject(user_id))


# A request is void once its session has ended, whoever ended it, or by itself: its row stays until retention's turn.
USE = """
DELETE FROM email_changes WHERE token_hash = $1 AND expires_at > now()
   AND (EXISTS (SELECT FROM sessions WHERE id = session_id AND ends_at > now())
        OR EXISTS (SELECT FROM operator_sessions WHERE id = session_id AND ends_at > now()))
RETURNING user_id, email, session_id, organization_id
"""


async def confirm(conn: Connection, box: Outbox | None, *, token: str, by: Principal) -> User:
    """Confirm the new address with the mailed token; returns the changed user. `by`: what is known about the browser.
    Raises EmailChangeEnded, and Invalid if somebody else has the address by now, or the former one cannot be
    notified."""
    async with conn.transaction():
        row = await conn.fetchrow(USE, hash_secret(token.strip()[:200]))
        if row is None:
            raise EmailChangeEnded
        user = await users.get(conn, id=row["user_id"])
        who = Principal(
            "person", user.id, name=user.name, address=by.address, device=by.device, request_id=by.request_id
        )
        return await _change(
            conn,
            who,
            box,
            user=user,
            email=row["email"],
            keep=row["session_id"],
            organization_id=row["organization_id"],
        )


CHANGE = """
UPDATE users SET email = $2
 WHERE id = $1 AND NOT EXISTS (SELECT FROM users other WHERE other.email = $2 AND other.id <> $1) RETURNING id
"""


async def _change(
    conn: Connection,
    by: Actor | Principal,
    box: Outbox | None,
    *,
    user: User,
    email: str,
    keep: UUID,
    organization_id: UUID | None = None,
) -> User:
    try:
        async with conn.transaction():
            changed = await conn.fetchval(CHANGE, user.id, email)
    except asyncpg.UniqueViolationError:  # taken at the same moment
        changed = None
    if changed is None:
        raise Invalid(("email", "taken", "Somebody else has this e-mail address."))
    await links.end(conn, user_id=user.id)
    await outbox.drop(conn, subject_id=user.id)
    await sessions.end_all(conn, by, user_id=user.id, keep=keep)
    await operator_sessions.end_all(conn, by, user_id=user.id, keep=keep)
    before, after = {"email": user.email}, {"email": email}
    await audit.record(
        conn,
        by,
        "user.email_changed",
        object_id=user.id,
        name=email,
        organization_id=organization_id,
        before=before,
        after=after,
    )
    if box is not None:
        mail = texts.former_email(user.language or "en", to=user.email, name=user.name, email=email)
        if not await outbox.put(conn, box, kind=KIND, content=mail, within=TOLD_WITHIN):
            raise _untold()
    return await users.get(conn, id=user.id)


# For retention: $1 is now, $2 the batch size.
FORGET = """
DELETE FROM email_changes WHERE user_id IN (SELECT user_id FROM email_changes WHERE expires_at < $1 LIMIT $2)
"""


def _untold() -> Invalid:
    return Invalid(
        ("email", "mails", "Too many mails are waiting to be sent, so nobody could be notified. Try again later.")
    )


def _subject(user_id: UUID) -> UUID:
    """A separate subject: mails about the same subject replace each other."""
    return uuid5(user_id, KIND)
