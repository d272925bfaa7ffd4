"""Detects problems with mails from the outcome of the latest ones: no server is contacted."""

from __future__ import annotations

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.network import smtp
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, kept, said

#: Reasons for failures that lie with the server or this service, not with a single mail.
OF_SERVER = ("unreachable", "tls", "credentials", "sender", "busy", "slow")
# Counted since the last mail that was sent: from then on the server was unusable. What is of times to come is from
# before the clock was set back: it says nothing.
UNSENT = f"""
SELECT count(*) AS count, min(created_at) AS since, (array_agg(reason ORDER BY created_at DESC))[1] AS reason
  FROM (SELECT created_at, reason FROM mails
         WHERE state IN ('waiting', 'failed') AND reason = ANY ($1) AND created_at < {clock.LATEST}
           AND created_at > greatest(
               now() - interval '1 day',
               (SELECT created_at FROM mails WHERE state = 'sent' AND created_at < {clock.LATEST}
                 ORDER BY created_at DESC LIMIT 1))
         LIMIT 1000) unsent
"""


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Checks whether mails have been failing since the last one that was sent."""
    row = await conn.fetchrow(UNSENT, OF_SERVER) if settings.smtp_url else None
    if row is None or not row["count"]:
        return [Check(said("mails"), "ok", said("none is held up"))]
    detail = said(
        "%(count)s could not be sent since %(since)s: %(why)s",
        count=row["count"],
        since=row["since"],
        why=kept(smtp.REASONS[row["reason"]]),
    )
    remedy = said(
        "Check HELIOGRAPH_SMTP_URL and HELIOGRAPH_MAIL_FROM; `heliograph mail test ADDRESS` tries them. Links of"
        " invitations can be passed on by hand meanwhile."
    )
    return [Check(said("mails"), "warning", detail, remedy)]
