"""Invitations: a link, valid for three days and one use, that makes somebody a member.

The rule nobody may break: an invitation is bound to its e-mail address. If there is no account for that address, the
holder of the link creates one; otherwise they prove that it is theirs by signing in.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.notices import Notice
from heliograph.people import links, memberships, roles, users
from heliograph.people.mailing import texts
from heliograph.people.users import User

LIFE = timedelta(hours=72)
#: How long an expired one is listed, to be renewed; then the address of somebody who never accepted is erased.
KEPT = timedelta(days=30)
#: A mail not sent by then is given up; the link can still be handed over in other ways.
MAILED_WITHIN = timedelta(hours=24)
LONGEST_NOTE = 500
#: Path below the address of the dashboard.
PATH = "/invitation"


class InvitationEnded(Refusal):
    """This invitation was accepted, withdrawn or renewed, or is older than three days. Ask for a new one."""

    code, status = "invitation_ended", 410


class AlreadyMember(Refusal):
    """This person belongs to the organization already."""

    code, status = "already_member", 409


class Invitation(msgspec.Struct, frozen=True):
    """A pending invitation. `invited_by`: a name, or None for an operator or somebody who left."""

    id: UUID
    email: str
    role: str
    note: str
    invited_by: str | None
    created_at: datetime
    expires_at: datetime
    has_expired: bool
    #: State of the last mail with its link: "waiting", "sent" or "failed"; None: there was none within a week.
    mail: str | None = None
    #: Why it failed, or will be retried.
    mail_reason: str = ""


class Offer(msgspec.Struct, frozen=True):
    """What a link offers: membership in an organization. `is_known`: the address has an account."""

    organization_id: UUID
    id: UUID
    organization: str
    email: str
    role: str
    note: str
    is_known: bool


MEMBER = """
SELECT EXISTS (SELECT FROM users u CROSS JOIN LATERAL (
                 SELECT FROM memberships WHERE organization_id = $1 AND user_id = u.id LIMIT 1) m WHERE u.email = $2)
"""
INVITE = """
INSERT INTO invitations (organization_id, id, email, role, note, token_hash, invited_by, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now(), now() + $8::interval)
    ON CONFLICT (organization_id, email) DO UPDATE
   SET role = excluded.role, note = excluded.note, token_hash = excluded.token_hash, invited_by = excluded.invited_by,
       created_at = excluded.created_at, expires_at = excluded.expires_at
RETURNING id
"""


async def invite(
    conn: Connection,
    actor: Actor,
    *,
    email: str,
    role: str,
    note: str = "",
    box: Outbox | None = None,
    language: str = "en",
) -> tuple[UUID, str, bool]:
    """Invite somebody to the actor's organization. Returns (id, token, whether a mail will be sent). A second
    invitation for an address replaces the first. `box`: where to put the mail; `language`: used if the person's is not
    known.

    Raises Invalid, AlreadyMember, RoleRequired.
    """
    wrong = Problems()
    with wrong.gathering():
        address = users.checked_email(email)
    with wrong.gathering():
        roles.checked(role)
    if len(note) > LONGEST_NOTE or "\0" in note:
        wrong.add("note", "length", "A note can have at most 500 characters.")
    wrong.report()
    token = secrets.token_urlsafe(32)
    values = (address, role, note.strip(), hash_secret(token), actor.user_id, LIFE)
    async with conn.transaction():
        # The lock comes first: whoever loses the role, and their invitations with it, must not leave another one.
        await conn.fetchval(memberships.LOCK_ORGANIZATION, actor.organization_id)
        await memberships.demand_team(conn, actor, role)
        if await conn.fetchval(MEMBER, actor.organization_id, address):
            raise AlreadyMember
        id: UUID = await conn.fetchval(INVITE, actor.organization_id, uuid7(), *values)
        await audit.record(conn, actor, "invitation.made", object_id=id, name=address, after={"role": role})
        is_mailed = box is not None and await _mail(conn, actor, box, id=id, token=token, language=language)
    return id, token, is_mailed


TOLD = """
SELECT i.email, i.note, o.name AS organization,
       (SELECT name FROM users WHERE id = i.invited_by) AS inviter,
       (SELECT language FROM users WHERE email = i.email) AS language
  FROM invitations i CROSS JOIN LATERAL (SELECT name FROM organizations WHERE id = i.organization_id LIMIT 1) o
 WHERE i.organization_id = $1 AND i.id = $2
"""


async def _mail(conn: Connection, actor: Actor, box: Outbox, *, id: UUID, token: str, language: str) -> bool:
    row = await conn.fetchrow(TOLD, actor.organization_id, id)
    assert row is not None
    mail = texts.invitation(
        row["language"] or language,
        to=row["email"],
        organization=row["organization"],
        inviter=row["inviter"],
        note=row["note"],
        link=address(box.base_url, token),
    )
    return await outbox.put(
        conn,
        box,
        kind="invitation",
        content=mail,
        within=MAILED_WITHIN,
        organization_id=actor.organization_id,
        subject_id=id,
    )


async def admit(conn: Connection, actor: Actor, *, email: str, name: str, role: str) -> tuple[User, str | None]:
    """For operators: make somebody a member at once, with a new account. Returns the user, and the token of a sign-in
    link; no token for an existing member, who is left unchanged. Raises Invalid.

    An account of somebody who is not a member is refused: an organization can invite any address and read the link, so
    the person who created the account need not own the address. An invitation reaches the owner.
    """
    async with conn.transaction():
        user, is_new = await users.ensure(conn, actor, email=email, name=name)
        if not is_new and await memberships.role_of(conn, actor, user_id=user.id) is None:
            raise Invalid(
                (
                    "email",
                    "taken",
                    f"{user.email} has an account already, which somebody else may have created: invite them"
                    " (`heliograph user invite`), and give the link to the owner of the address",
                )
            )
        await memberships.add(conn, actor, user_id=user.id, role=role)
        return user, await links.make(conn, actor, user_id=user.id) if is_new else None


# Locked: an invitation that is accepted or withdrawn at the same moment must not come back.
FIND = "SELECT email, role, note FROM invitations WHERE organization_id = $1 AND id = $2 FOR UPDATE"


async def renew(
    conn: Connection, actor: Actor, *, id: UUID, box: Outbox | None = None, language: str = "en"
) -> tuple[str, str, bool]:
    """Renew an invitation for three more days; the old link ends. Returns (e-mail, new token, whether a mail will be
    sent). Raises NotFound, RoleRequired."""
    async with conn.transaction():
        await conn.fetchval(memberships.LOCK_ORGANIZATION, actor.organization_id)
        row = await conn.fetchrow(FIND, actor.organization_id, id)
        if row is None:
            raise NotFound("There is no such invitation.", resource="invitation", id=str(id))
        _, token, is_mailed = await invite(conn, actor, **row, box=box, language=language)
    return row["email"], token, is_mailed


WITHDRAW = "DELETE FROM invitations WHERE organization_id = $1 AND id = $2 RETURNING email"


async def withdraw(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """End an invitation. Idempotent. Raises RoleRequired."""
    await memberships.demand_team(conn, actor)
    async with conn.transaction():
        email = await conn.fetchval(WITHDRAW, actor.organization_id, id)
        if email is not None:
            await outbox.drop(conn, subject_id=id)
            await audit.record(conn, actor, "invitation.withdrawn", object_id=id, name=email)


BY_EMAIL = "SELECT id FROM invitations WHERE organization_id = $1 AND email = $2"


async def find(conn: Connection, actor: Actor, *, email: str) -> UUID:
    """The pending invitation of an address. Raises NotFound."""
    id: UUID | None = await conn.fetchval(BY_EMAIL, actor.organization_id, email.strip().lower())
    if id is None:
        raise NotFound("There is no such invitation.", resource="invitation", email=email)
    return id


# Of its mails, the last one; one of times to come is from before the clock was set back.
LIST = f"""
SELECT i.id, i.email, i.role, i.note, u.name AS invited_by, i.created_at, i.expires_at,
       i.expires_at <= now() AS has_expired, m.state AS mail, coalesce(m.reason, '') AS mail_reason
  FROM invitations i LEFT JOIN LATERAL (SELECT name FROM users WHERE id = i.invited_by LIMIT 1) u ON true
       LEFT JOIN LATERAL (SELECT state, reason FROM mails
                           WHERE subject_id = i.id
                           ORDER BY created_at < {clock.LATEST} DESC, created_at DESC, id DESC LIMIT 1) m ON true
 WHERE i.organization_id = $1 AND starts_with(normalize(i.email), lower($2))
 ORDER BY i.created_at DESC, i.id DESC LIMIT $3
"""
#: The most invitations of a list.
MOST_LISTED = 500


async def list_all(conn: Connection, actor: Actor, *, search: str = "", limit: int = MOST_LISTED) -> list[Invitation]:
    """Pending invitations, newest first, including expired ones. `search`: the beginning of an e-mail address."""
    rows = await conn.fetch(LIST, actor.organization_id, naming.sought(search), limit)
    return [Invitation(**row) for row in rows]


# For retention: $1 is when it expired, $2 the batch size.
FORGET = """
DELETE FROM invitations WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM invitations WHERE expires_at < $1 LIMIT $2)
"""


OFFER = """
SELECT i.organization_id, i.id, o.name AS organization, i.email, i.role, i.note,
       EXISTS (SELECT FROM users WHERE email = i.email) AS is_known
  FROM invitations i CROSS JOIN LATERAL (SELECT name FROM organizations WHERE id = i.organization_id LIMIT 1) o
 WHERE i.token_hash = $1 AND i.expires_at > now()
"""


async def offer(conn: Connection, *, token: str) -> Offer:
    """What a link offers. Raises InvitationEnded."""
    row = await conn.fetchrow(OFFER, hash_secret(token.strip()[:200]))
    if row is None:
        raise InvitationEnded
    return Offer(**row)


NAME = "SELECT name FROM users WHERE id = $1"
TAKE = "DELETE FROM invitations WHERE token_hash = $1 AND expires_at > now() RETURNING id, organization_id, role"


async def accept(conn: Connection, who: Principal, *, token: str, user_id: UUID) -> UUID:
    """Make the person a member and use up the link; returns the organization. The caller has verified that the address
    is theirs. Raises InvitationEnded."""
    async with conn.transaction():
        row = await conn.fetchrow(TAKE, hash_secret(token.strip()[:200]))
        if row is None:
            raise InvitationEnded
        await outbox.drop(conn, subject_id=row["id"])
        actor = Actor(row["organization_id"], None, "live", frozenset(), "active", by=who)
        await memberships.add(conn, actor, user_id=user_id, role=row["role"])
        name = await conn.fetchval(NAME, user_id) or ""
        joined = Notice(actor.organization_id, "member.joined", str(user_id), name, facts={"role": row["role"]})
        await notices.record(conn, joined)
    return actor.organization_id


def address(base_url: str, token: str) -> str:
    """The link itself. `base_url`: the dashboard's."""
    return f"{base_url.rstrip('/')}{PATH}#{token}"
