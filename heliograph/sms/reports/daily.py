"""A daily mail to operators about the previous day's receipts, so that nobody has to remember to look.

The rule nobody may break: an operator gets one mail per day, whichever worker runs this, and however often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta

import msgspec

from heliograph.accounts import installation
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.network.smtp import Mail
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.people.operators import noticing, roles
from heliograph.sms.reports import reconciliation
from heliograph.sms.reports.reconciliation import Reconciled
from heliograph.traffic.reconciliation import Query

#: Seconds between a worker's checks; and the hour of the next day (UTC) from which the mail is sent: most receipts of
#: the evening have arrived by then.
TIMER, EVERY, HOUR = "receipts mail", 600.0, 6
KIND = "report"
#: Given up after this: the next one is due soon.
WITHIN = timedelta(hours=12)
DAY = timedelta(days=1)


class Reader(msgspec.Struct, frozen=True):
    """An addressee and their preferences; None: not chosen."""

    email: str
    language: str | None
    zone: str | None


#: Writes a mail, given the reader, the installation's name, the day, and a line for each supplier.
Writes = Callable[[Reader, str, date, Sequence[Reconciled]], Mail]

READERS = """
SELECT u.id, u.email, u.language, u.time_zone AS zone FROM operators o JOIN users u ON u.id = o.user_id
 WHERE o.role = ANY ($1) ORDER BY u.id LIMIT 200
"""
# A mail of times to come is from before the clock was set back: it was about another day.
TOLD = f"""
SELECT DISTINCT subject_id FROM mails
 WHERE subject_id = ANY ($1) AND created_at >= $2 AND created_at < {clock.LATEST}
"""


async def tell(conn: Connection, *, box: Outbox | None, writes: Writes, at: datetime | None = None) -> int:
    """Queue mails about the day before `at` to the operators that have not had theirs, in the caller's transaction;
    returns how many. There are none if the installation does not want them, sends no mail (`box`), or handed nothing to
    a supplier. Only one worker at a time may run this."""
    at = clock.now() if at is None else at
    if box is None or at.hour < HOUR:
        return 0
    known = await installation.load(conn)
    if not known.receipts_mail:
        return 0
    today = clock.midnight(at)
    readers = {
        noticing.report_subject(row["id"]): row for row in await conn.fetch(READERS, roles.holders(roles.TRAFFIC))
    }
    told = {row["subject_id"] for row in await conn.fetch(TOLD, list(readers), today)}
    wanted = {subject: row for subject, row in readers.items() if subject not in told}
    if not wanted:
        return 0
    lines = await reconciliation.report(conn, Query(date_from=today - DAY, date_to=today, by=()))
    if not lines:
        return 0
    day = (today - DAY).date()
    mails = [
        (None, subject, writes(Reader(row["email"], row["language"], row["zone"]), known.name, day, lines))
        for subject, row in wanted.items()
    ]
    return await outbox.put_many(conn, box, mails, kind=KIND, within=WITHIN)
