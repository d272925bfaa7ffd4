"""Mails to operators about problems, and about what waits for a decision.

A worker reports what its checks have found, once (`people/operators/noticing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.accounts import installation
from heliograph.base.database.pool import Connection
from heliograph.base.network.smtp import Mail
from heliograph.base.sentences import Check
from heliograph.health import findings
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.overview.installation import approvals
from heliograph.people.operators import noticing
from heliograph.sms import checks as sms

#: How long mails are retried.
WITHIN = timedelta(hours=12)
#: Maximum causes reported at once; the rest is reported next time.
MOST = 50
#: The cause that stands for pending sender IDs.
APPROVALS = "approvals"


class Cause(msgspec.Struct, frozen=True):
    """A cause to report. `check`: the problem; None: `count` sender IDs wait for a decision."""

    kind: str
    key: str
    since: datetime
    check: Check | None = None
    count: int = 0


class Reader(msgspec.Struct, frozen=True):
    """The recipient of a mail, with their language and time zone (None: not chosen)."""

    email: str
    language: str | None
    zone: str | None


#: Writes a mail: (recipient, name of the installation, causes) → mail.
Writes = Callable[[Reader, str, Sequence[Cause]], Mail]


def kind_of(check: Check) -> str:
    """The kind of notice under which a failed check is reported."""
    subject = sms.subject(check)
    if subject == "supplier" and check.state == "failed":
        return "supplier.lost"
    if subject == "receipts":
        return "receipts.missing"
    return "check.failed" if check.state == "failed" else "check.warning"


READERS = """
SELECT o.user_id, o.role, o.notice_ways, u.email, u.language, u.time_zone AS zone
  FROM operators o CROSS JOIN LATERAL (SELECT * FROM users WHERE id = o.user_id LIMIT 1) u
 ORDER BY o.user_id LIMIT 200
"""


async def tell(conn: Connection, checks: Sequence[Check], *, box: Outbox | None, writes: Writes) -> int:
    """Queue mails about new problems and pending decisions, in the caller's transaction; returns how many. `box`: None
    if no mails are sent. Only one worker at a time may run this."""
    if box is None:
        return 0
    causes = await _causes(conn, checks)
    keys = await noticing.news(conn, {one.key: one.since for one in causes})
    news = [one for one in causes if one.key in keys][:MOST]
    if not news:
        return 0
    name = (await installation.load(conn)).name
    mails = []
    for row in await conn.fetch(READERS):
        ways = noticing.ways(row["notice_ways"])
        wanted = [one for one in news if noticing.sees(row["role"], one.kind) and "mail" in ways[one.kind]]
        if wanted:
            to = Reader(row["email"], row["language"], row["zone"])
            mails.append((None, row["user_id"], writes(to, name, wanted)))
    await noticing.record_notified(conn, [one.key for one in news])
    return await outbox.put_many(conn, box, mails, kind=outbox.NOTICES, within=WITHIN) if mails else 0


async def _causes(conn: Connection, checks: Sequence[Check]) -> list[Cause]:
    """Pending decisions and problems, failures first."""
    since = await findings.since(conn)
    found: dict[str, Cause] = {}
    waits = await approvals.waits(conn)
    if waits.newest is not None:
        found[APPROVALS] = Cause("approval.waiting", APPROVALS, waits.newest, count=waits.count)
    for one in sorted(checks, key=lambda one: (one.state != "failed", one.check)):
        if one.state != "ok" and (one.check, one.state) in since:
            key = f"{one.state} {one.check}"
            found.setdefault(key, Cause(kind_of(one), key, since[one.check, one.state], one))
    return list(found.values())
