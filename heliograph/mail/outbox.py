"""The outbox: a mail is a row, committed together with the event that it reports, and sent by a worker afterwards.

The rules nobody may break: a mail's content is sealed while it waits, and erased once it is sent, given up or
withdrawn; no transaction is open while talking to a server. The row without its content stays for a week, to show
whether the mail was sent.

Sending is at-least-once: if a worker is killed after the server accepted a mail, it is sent again with the same
Message-ID.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.crypto import Key, derive_key, seal, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, follow_clock
from heliograph.base.ids import uuid7
from heliograph.base.network.smtp import Mail
from heliograph.base.process.settings import Settings

#: Maximum mails of a kind waiting in an installation, organizations' and its own apart, and per organization and kind
#: in a day.
MOST_WAITING, MOST_A_DAY = 1000, 200
#: Mails taken at once, and for how long; sending one takes at most 40 s.
TAKEN, LEASE = 4, timedelta(seconds=120)
#: Seconds until the next try; the last value repeats until the deadline.
RETRIES = (10, 30, 60, 300, 900)
#: Maximum octets of a mail as JSON: its sealed form has at most 16,384 (`mails.sealed`). Its last paragraph stays if it
#: is a link, with a few words.
LONGEST, LAST = 16_000, 1_000
#: How long a row is kept.
KEPT = timedelta(days=7)
#: Kind of mails about notices, which have the person as their subject.
NOTICES = "notices"


class Outbox(msgspec.Struct, frozen=True):
    """What is needed to queue mails. `base_url`: the dashboard's, for links in them; paths begin with a slash."""

    key: Key
    base_url: str


class ClaimedMail(msgspec.Struct, frozen=True):
    """A mail that this worker holds until its lease ends. `attempts` is its fencing token."""

    id: UUID
    kind: str
    sealed: bytes
    attempts: int


def of(settings: Settings) -> Outbox | None:
    """The outbox of an installation; None: it sends no mails."""
    return Outbox(seal_key(settings), settings.public_url.rstrip("/")) if settings.smtp_url else None


def seal_key(settings: Settings) -> Key:
    """The key that seals waiting mails."""
    return derive_key(settings.secret_keys, "mails")


# A mail of times to come is from before the clock was set back: it counts no longer.
_NOT_AHEAD = f"created_at < {clock.LATEST}"
# Both counts stop at their limit. Other kinds do not count: notices that wait for a server for hours must not keep
# anybody from getting a new password.
_WAITING = """(SELECT count(*) FROM (
        SELECT FROM mails WHERE state = 'waiting' AND kind = {kind} AND (organization_id IS NULL) = ({owner} IS NULL)
         LIMIT $7) w)"""
# Mails that somebody waits for, and those to operators, go before notices to organizations, of which there may be many.
_FIRST = "now() - interval '1 day'"
PUT = f"""
INSERT INTO mails (id, kind, organization_id, subject_id, sealed, created_at, due_at, deadline)
SELECT $1, $2, $3, $4, $5, now(), {_FIRST}, now() + $6::interval
 WHERE {_WAITING.format(kind="$2", owner="$3::uuid")} < $7
   AND ($3::uuid IS NULL OR (SELECT count(*) FROM (
        SELECT FROM mails WHERE organization_id = $3 AND created_at > now() - interval '1 day' AND {_NOT_AHEAD}
           AND kind = $2 LIMIT $8) o) < $8)
RETURNING true
"""
# Per organization, as many as it may still send today. All are organizations', or none is.
PUT_MANY = f"""
INSERT INTO mails (id, kind, organization_id, subject_id, sealed, created_at, due_at, deadline)
SELECT item.id, $1, item.organization_id, item.subject_id, item.sealed, now(),
       CASE WHEN item.organization_id IS NULL THEN {_FIRST} ELSE now() END, now() + $6::interval
  FROM (SELECT *, row_number() OVER () AS place, row_number() OVER (PARTITION BY organization_id) AS own
          FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[])
            AS item (id, organization_id, subject_id, sealed)) item
       CROSS JOIN (SELECT {_WAITING.format(kind="$1", owner="($3::uuid[])[1]")}) waiting (mails)
       CROSS JOIN LATERAL (SELECT count(*) FROM (
            SELECT FROM mails WHERE organization_id = item.organization_id AND created_at > now() - interval '1 day'
               AND {_NOT_AHEAD} AND kind = $1 LIMIT $8) o) today (mails)
 WHERE waiting.mails + item.place <= $7 AND today.mails + item.own <= $8
"""


async def put(
    conn: Connection,
    outbox: Outbox,
    *,
    kind: str,
    content: msgspec.Struct,
    within: timedelta,
    organization_id: UUID | None = None,
    subject_id: UUID | None = None,
) -> bool:
    """Queue a mail, to be sent once the caller's transaction commits; replaces one of its kind that waits for the same
    subject. False: too many of its kind are waiting, or the organization has sent too many today. `within`: it is given
    up after this."""
    id = uuid7()
    if subject_id is not None:
        await drop(conn, subject_id=subject_id, kind=kind)
    sealed = _sealed(outbox, content, id)
    values = (kind, organization_id, subject_id, sealed, within, MOST_WAITING, MOST_A_DAY)
    return bool(await conn.fetchval(PUT, id, *values))


async def put_many(
    conn: Connection,
    outbox: Outbox,
    mails: Sequence[tuple[UUID | None, UUID, Mail]],
    *,
    kind: str,
    within: timedelta,
) -> int:
    """Queue mails of one kind, to be sent once the caller's transaction commits: (organization, or None for the
    installation; subject; content). Returns how many; the others exceed the limits of the installation or of their
    organization's day. Mails already waiting for the same subjects stay."""
    ids = [uuid7() for _ in mails]
    done = await conn.execute(
        PUT_MANY,
        kind,
        ids,
        [organization_id for organization_id, _, _ in mails],
        [subject_id for _, subject_id, _ in mails],
        [_sealed(outbox, content, id) for id, (_, _, content) in zip(ids, mails, strict=True)],
        within,
        MOST_WAITING,
        MOST_A_DAY,
    )
    return int(done.split()[-1])


def _sealed(outbox: Outbox, content: msgspec.Struct, id: UUID) -> bytes:
    if isinstance(content, Mail):
        content = _shortened(content)
    return seal(outbox.key, msgspec.json.encode(content), context(id))


def _shortened(mail: Mail) -> Mail:
    """A mail that may be stored: of one that is too long, as many lines as fit, and the last paragraph. Otherwise one
    person's mail would keep back everybody's."""
    if len(msgspec.json.encode(mail)) <= LONGEST:
        return mail
    body, _, last = mail.text.rpartition("\n\n")
    body, last = (body, last) if _octets(last) <= LAST else (mail.text, "")
    end = f"…\n\n{last}" if last else "…\n"
    room = LONGEST - len(msgspec.json.encode(msgspec.structs.replace(mail, text=end)))
    kept = []
    for line in body.splitlines(keepends=True):
        room -= _octets(line)
        if room < 0:
            break
        kept.append(line)
    return msgspec.structs.replace(mail, text="".join(kept) + end)


def _octets(text: str) -> int:
    """The length of a text as JSON, without its quotes."""
    return len(msgspec.json.encode(text)) - 2


def opened(key: Key, taken: ClaimedMail) -> Mail:
    """The content of a mail. Raises Unsealable."""
    return msgspec.json.decode(content(key, taken), type=Mail)


def content(key: Key, taken: ClaimedMail) -> bytes:
    """A row's content as JSON. Raises Unsealable."""
    return unseal(key, taken.sealed, context(taken.id))


# By the subject: an index of all mails that wait would do as well on an empty table.
DROP = """
UPDATE mails SET state = 'dropped', sealed = NULL
 WHERE subject_id = $1 AND state || '' = 'waiting' AND kind = coalesce($2, kind)
"""
DROP_NOTICES = f"{DROP} AND organization_id IS NOT DISTINCT FROM $3"


async def drop(conn: Connection, *, subject_id: UUID, kind: str | None = None) -> None:
    """Withdraw what is waiting for a subject, because it no longer applies. `kind`: only mails of this kind."""
    await conn.execute(DROP, subject_id, kind)


async def drop_notices(conn: Connection, *, user_id: UUID, organization_id: UUID | None) -> None:
    """Withdraw notices that wait for somebody who is no longer a member of an organization; None: an operator."""
    await conn.execute(DROP_NOTICES, user_id, NOTICES, organization_id)


# Of its kind: a notice says nothing about when a link was last mailed.
RECENT = f"""
SELECT EXISTS (SELECT FROM mails WHERE subject_id = $1 AND kind = $2 AND state IN ('waiting', 'sent')
                                   AND created_at > now() - $3::interval AND {_NOT_AHEAD})
"""


async def is_recent(conn: Connection, *, subject_id: UUID, kind: str, within: timedelta) -> bool:
    """True if a mail of a kind for a subject that is no older than `within` is waiting or was sent."""
    return bool(await conn.fetchval(RECENT, subject_id, kind, within))


#: SQL conditions for the watch: with an SMTP server, and without.
DUE = "EXISTS (SELECT FROM mails WHERE state = 'waiting' AND due_at <= now())"
LATE = "EXISTS (SELECT FROM mails WHERE state = 'waiting' AND deadline <= now())"
TAKE = """
UPDATE mails SET due_at = now() + $2::interval, attempts = attempts + 1
 WHERE id IN (SELECT id FROM mails WHERE state = 'waiting' AND due_at <= now() AND (attempts = 0 OR $3)
               ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, kind, sealed, attempts
"""


async def take(conn: Connection) -> list[ClaimedMail]:
    """Mails to be sent now. After the database's clock was set forward, which ends leases early, only those that nobody
    has taken yet, until a lease has passed: others may be being sent."""
    await follow_clock(conn)
    again = clock.since_forward() > LEASE.total_seconds()
    return [ClaimedMail(**row) for row in await conn.fetch(TAKE, TAKEN, LEASE, again)]


GIVE_UP = """
UPDATE mails SET state = 'failed', sealed = NULL, reason = CASE WHEN reason = '' THEN 'late' ELSE reason END
 WHERE id IN (SELECT id FROM mails WHERE state = 'waiting' AND deadline <= now() LIMIT 100 FOR UPDATE SKIP LOCKED)
RETURNING id, kind, reason
"""


async def give_up(conn: Connection) -> list[tuple[UUID, str, str]]:
    """Give up mails past their deadline; returns (id, kind, reason) of each."""
    return [(row["id"], row["kind"], row["reason"]) for row in await conn.fetch(GIVE_UP)]


SENT = """
UPDATE mails SET state = 'sent', sealed = NULL, reason = '' WHERE id = $1 AND attempts = $2 AND state = 'waiting'
"""


async def sent(conn: Connection, taken: ClaimedMail) -> None:
    """Record that the server accepted a mail."""
    await conn.execute(SENT, taken.id, taken.attempts)


FAILED = """
UPDATE mails SET state = 'failed', sealed = NULL, reason = $3 WHERE id = $1 AND attempts = $2 AND state = 'waiting'
"""


async def failed(conn: Connection, taken: ClaimedMail, *, reason: str) -> None:
    """Record a permanent failure."""
    await conn.execute(FAILED, taken.id, taken.attempts, reason)


RETRY = """
UPDATE mails SET due_at = least(now() + make_interval(secs => $4), deadline), reason = $3
 WHERE id = $1 AND attempts = $2 AND state = 'waiting'
"""


async def retry(conn: Connection, taken: ClaimedMail, *, reason: str) -> None:
    """Schedule another try."""
    wait = RETRIES[min(taken.attempts, len(RETRIES)) - 1]
    await conn.execute(RETRY, taken.id, taken.attempts, reason, float(wait))


DELETE = "DELETE FROM mails WHERE id = $1 AND attempts = $2 AND state = 'waiting' RETURNING true"


async def delete(conn: Connection, taken: ClaimedMail) -> bool:
    """Delete a row that was a request, not a mail; False: another worker has it."""
    return bool(await conn.fetchval(DELETE, taken.id, taken.attempts))


# For retention: $1 is when KEPT began, $2 the batch size.
FORGET = "DELETE FROM mails WHERE id IN (SELECT id FROM mails WHERE created_at < $1 ORDER BY created_at LIMIT $2)"


def context(id: UUID) -> str:
    """The context of a mail's seal."""
    return f"mails {id}"
