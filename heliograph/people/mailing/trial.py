"""A test mail that an operator sends to themselves, the same way as all other mails, to check that they arrive."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID, uuid5

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.people.mailing import texts

KIND = "trial"
#: Given up after this: the operator is no longer waiting for it.
WITHIN = timedelta(minutes=5)


class Tried(msgspec.Struct, frozen=True):
    """The outcome of the last test mail. `state` and `reason`: as in `mails`."""

    state: str
    reason: str
    at: datetime


async def put(conn: Connection, box: Outbox, *, user_id: UUID, email: str, language: str) -> bool:
    """Queue the mail, replacing one that waits, in the caller's transaction. False: too many mails are waiting."""
    mail = texts.test(language, to=email)
    return await outbox.put(conn, box, kind=KIND, content=mail, within=WITHIN, subject_id=_subject(user_id))


# One of times to come is from before the clock was set back.
LATEST = f"""
SELECT state, reason, created_at FROM mails WHERE subject_id = $1 AND state <> 'dropped'
 ORDER BY created_at < {clock.LATEST} DESC, created_at DESC LIMIT 1
"""


async def latest(conn: Connection, *, user_id: UUID) -> Tried | None:
    """The outcome of this operator's last test mail, known for a week."""
    row = await conn.fetchrow(LATEST, _subject(user_id))
    return Tried(*row.values()) if row else None


def _subject(user_id: UUID) -> UUID:
    """A separate subject: mails about the same subject replace each other."""
    return uuid5(user_id, KIND)
