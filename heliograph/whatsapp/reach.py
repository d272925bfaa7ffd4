"""How many users a portfolio may still reach: its messaging limit counts unique users written to outside of their
service windows, in any 24 hours.

Meta enforces it without a code of its own, or by losing messages, so it is kept here. The rule nobody may break: a
user who is counted already, or whose window is open, is never held back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from heliograph.base.db import Connection
from heliograph.whatsapp.accounts import Line

#: Seconds that a portfolio's count is used; other workers' users are counted with it.
FRESH = 5.0

COUNT = """
SELECT portfolio.name, (SELECT count(*) FROM whatsapp_reached
                         WHERE whatsapp_reached.portfolio = portfolio.name
                           AND reached_at > now() - interval '24 hours') AS users
  FROM unnest($1::text[]) AS portfolio (name)
"""
KNOWN = """
SELECT item.n FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS item (portfolio, recipient, n)
       CROSS JOIN LATERAL (
       SELECT FROM whatsapp_reached
        WHERE portfolio = item.portfolio AND recipient = item.recipient
          AND reached_at > now() - interval '24 hours') known
"""
NOTE = """
INSERT INTO whatsapp_reached AS known (portfolio, recipient, reached_at)
SELECT portfolio, recipient, now() FROM unnest($1::text[], $2::text[]) AS item (portfolio, recipient)
 ORDER BY portfolio, recipient
ON CONFLICT (portfolio, recipient) DO UPDATE SET reached_at = excluded.reached_at
 WHERE known.reached_at <= now() - interval '24 hours'
"""

#: A message about to leave: its line, its user, and whether the user's window is open.
Leaving = tuple[Line | None, str, bool]


class Reach:
    """One worker's view of all portfolios' counts. Between workers it is exact to what they send in FRESH seconds."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    async def admit(self, conn: Connection, leaving: Sequence[Leaving]) -> list[bool]:
        """For each message whether it may leave now; the users of those that may are counted."""
        admitted = [True] * len(leaving)
        asked = [
            (n, line.portfolio, line.messaging_limit, recipient)
            for n, (line, recipient, inside) in enumerate(leaving)
            if line is not None and line.messaging_limit is not None and not inside
        ]
        if not asked:
            return admitted
        await self._count(conn, {portfolio for _, portfolio, _, _ in asked})
        rows = await conn.fetch(
            KNOWN, [portfolio for _, portfolio, _, _ in asked], [recipient for *_, recipient in asked]
        )
        known = {asked[row["n"] - 1][1::2] for row in rows}
        new: set[tuple[str, str]] = set()
        for n, portfolio, limit, recipient in asked:
            user = (portfolio, recipient)
            if user in known or user in new:
                continue
            at, users = self._counts[portfolio]
            if users >= limit:
                admitted[n] = False
                continue
            self._counts[portfolio] = (at, users + 1)
            new.add(user)
        if new:
            await conn.execute(NOTE, [portfolio for portfolio, _ in new], [recipient for _, recipient in new])
        return admitted

    async def _count(self, conn: Connection, portfolios: set[str]) -> None:
        now = time.monotonic()
        stale = [one for one in portfolios if one not in self._counts or now - self._counts[one][0] > FRESH]
        for row in await conn.fetch(COUNT, stale) if stale else ():
            self._counts[row["name"]] = (now, row["users"])
