"""Messaging limits: how many users a portfolio may still reach. The limit counts unique users written to outside their
service windows, in any 24 hours.

Meta enforces it without a specific error code, or by dropping messages, so it is enforced here, in the database: one
row per portfolio has the count, and only the transaction that locked it admits users who are not counted yet. No worker
waits for the lock: one that finds it taken postpones the messages that need it for a moment, so there are no deadlocks.
A portfolio without a limit, a known user or an open window costs nothing.

The rules nobody may break: no number of workers reaches more users than the limit; a user who is counted already, or
whose window is open, is never held back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.queue.leases import SINGLE
from heliograph.whatsapp.callbacks.matching import KIND
from heliograph.whatsapp.mirror.accounts import SendingNumber

#: Seconds that a message waits if its portfolio may reach no more users today: a single one, and one of a campaign. Of
#: the latter there may be a hundred thousand for days: examined every minute, they would occupy a worker.
LIMIT_PAUSE, BULK_LIMIT_PAUSE = 60.0, 600.0
#: The same if another worker has locked the count.
BUSY_PAUSE = 0.1
#: Maximum messages made due by one statement when a limit is raised.
MOST = 5_000

KNOWN = """
SELECT item.portfolio, item.recipient FROM unnest($1::text[], $2::text[]) AS item (portfolio, recipient)
       CROSS JOIN LATERAL (
       SELECT FROM whatsapp_reached
        WHERE portfolio = item.portfolio AND recipient = item.recipient
          AND reached_at > now() - interval '24 hours') known
"""
LOCK = """
SELECT portfolio, users, frees_at <= now() AS stale FROM whatsapp_portfolios
 WHERE portfolio = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED
"""
_COUNTED = """
CROSS JOIN LATERAL (
       SELECT count(*) AS users, coalesce(min(reached_at), now()) + interval '24 hours' AS frees_at
         FROM whatsapp_reached
        WHERE whatsapp_reached.portfolio = asked.name AND reached_at > now() - interval '24 hours') counted
"""
# An existing row is looked up first: an INSERT would wait for a transaction that is changing it.
OPEN = f"""
INSERT INTO whatsapp_portfolios (portfolio, users, frees_at)
SELECT asked.name, counted.users, counted.frees_at FROM unnest($1::text[]) AS asked (name) {_COUNTED}
 WHERE NOT EXISTS (SELECT FROM whatsapp_portfolios p WHERE p.portfolio = asked.name)
 ORDER BY asked.name
ON CONFLICT DO NOTHING
"""
RECOUNT = f"""
UPDATE whatsapp_portfolios p SET users = counted.users, frees_at = counted.frees_at
  FROM unnest($1::text[]) AS asked (name) {_COUNTED}
 WHERE p.portfolio = asked.name
RETURNING p.portfolio, p.users
"""
# A user recorded by another worker since KNOWN was read is not counted again.
NOTE = """
WITH noted AS (
    INSERT INTO whatsapp_reached AS known (portfolio, recipient, reached_at)
    SELECT portfolio, recipient, now() FROM unnest($1::text[], $2::text[]) AS item (portfolio, recipient)
     ORDER BY portfolio, recipient
    ON CONFLICT (portfolio, recipient) DO UPDATE SET reached_at = excluded.reached_at
     WHERE known.reached_at <= now() - interval '24 hours'
    RETURNING portfolio
)
UPDATE whatsapp_portfolios p SET users = p.users + added.users
  FROM (SELECT portfolio, count(*) AS users FROM noted GROUP BY portfolio) added
 WHERE p.portfolio = added.portfolio
"""

#: A message about to leave: its line, its user (`phones.person`), whether the user's window is open, and its lane.
Leaving = tuple[SendingNumber | None, str, bool, int]


class MessagingLimits:
    """One worker's access to the counts, which are in the database."""

    def __init__(self) -> None:
        #: Portfolios that have a row.
        self._opened: set[str] = set()

    async def admit(self, conn: Connection, leaving: Sequence[Leaving], places: dict[UUID, int]) -> list[float]:
        """For each message 0 if it may leave now, or the seconds that it waits. Users of messages that may leave are
        counted in the caller's transaction, and no other one counts for their portfolios until it ends. `places`: how
        many messages of a number may leave; it is counted down."""
        waits = [0.0] * len(leaving)
        strange = await self._strange(conn, leaving)
        if not strange and not places:
            return waits
        counts, stale = await self._lock(conn, {portfolio for portfolio, _ in strange.values()})
        new: set[tuple[str, str]] = set()
        for n, (line, _, _, lane) in enumerate(leaving):
            user = strange.get(n)
            if line is not None and line.messaging_limit is not None and user is not None and user not in new:
                portfolio, limit = user[0], line.messaging_limit
                if portfolio not in counts:
                    waits[n] = BUSY_PAUSE
                    continue
                if counts[portfolio] >= limit and portfolio in stale:
                    stale.discard(portfolio)
                    # The users that this transaction is about to record are not in the table yet.
                    ours = sum(1 for name, _ in new if name == portfolio)
                    rows = await conn.fetch(RECOUNT, [portfolio])
                    counts.update({row["portfolio"]: row["users"] + ours for row in rows})
                if counts[portfolio] >= limit:
                    waits[n] = LIMIT_PAUSE if lane == SINGLE else BULK_LIMIT_PAUSE
                    continue
            if line is not None and line.number_id in places:
                if places[line.number_id] <= 0:
                    waits[n] = BUSY_PAUSE
                    continue
                places[line.number_id] -= 1
            if user is not None and user not in new:
                counts[user[0]] += 1
                new.add(user)
        if new:
            await conn.execute(NOTE, [portfolio for portfolio, _ in new], [recipient for _, recipient in new])
        return waits

    async def _strange(self, conn: Connection, leaving: Sequence[Leaving]) -> dict[int, tuple[str, str]]:
        """The messages to users who count towards a limit and are not counted yet: place → (portfolio, recipient)."""
        asked = {
            n: (line.portfolio, recipient)
            for n, (line, recipient, inside, _) in enumerate(leaving)
            if line is not None and line.messaging_limit is not None and not inside
        }
        if not asked:
            return {}
        users = set(asked.values())
        rows = await conn.fetch(KNOWN, [portfolio for portfolio, _ in users], [recipient for _, recipient in users])
        known = {(row["portfolio"], row["recipient"]) for row in rows}
        return {n: user for n, user in asked.items() if user not in known}

    async def _lock(self, conn: Connection, portfolios: set[str]) -> tuple[dict[str, int], set[str]]:
        """The number of users by portfolio, except for those locked by others; and the portfolios where it may have
        fallen since."""
        if not portfolios:
            return {}, set()
        rows = await conn.fetch(LOCK, list(portfolios))
        found = {row["portfolio"] for row in rows}
        self._opened |= found
        if unopened := portfolios - self._opened:
            await conn.execute(OPEN, sorted(unopened))
            rows += await conn.fetch(LOCK, list(unopened))
        return {row["portfolio"]: row["users"] for row in rows}, {row["portfolio"] for row in rows if row["stale"]}


# Messages of a campaign with a pace of its own are due at their times, and so is what was tried before.
DUE = """
WITH waiting AS MATERIALIZED (
    SELECT ctid AS place FROM queue
     WHERE kind = $1 AND line = ANY ($2) AND attempt = 0 AND lease_token IS NULL
       AND due_at - now() > interval '0' AND due_at - now() <= make_interval(secs => $3)
       AND NOT EXISTS (
           SELECT FROM whatsapp_messages m JOIN campaigns c
                  ON c.organization_id = m.organization_id AND c.id = m.campaign_id
            WHERE m.organization_id = queue.organization_id AND m.id = queue.id AND c.messages_per_minute IS NOT NULL)
     LIMIT $4 FOR UPDATE SKIP LOCKED
), made_due AS (
    UPDATE queue SET due_at = now() FROM waiting WHERE queue.ctid = waiting.place RETURNING 1
)
SELECT count(*) FROM made_due
"""


def is_raised(old: int | None, new: int | None) -> bool:
    """Whether a messaging limit allows more users than before."""
    return old is not None and (new is None or new > old)


async def resume(conn: Connection, numbers: Collection[UUID]) -> None:
    """Make the messages due that wait because of the limit of these numbers, which has been raised. `conn` must not be
    in a transaction."""
    moved = MOST
    while moved == MOST:
        moved = await conn.fetchval(DUE, KIND, list(numbers), BULK_LIMIT_PAUSE, MOST)
