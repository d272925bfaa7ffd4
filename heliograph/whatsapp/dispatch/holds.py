"""Holds: what a refused send or failed message stops, and what resumes it.

    held        nothing is sent before the hold's time is over
    trying      its time is over: one message of all that the hold stops is sent as a probe (`leave_to_try`)
    ended       by the outcome of the probe, by a new token, or by an operator (`release`)

A number that the mirror sees connected again is probed at once.

A fault reported in an answer is over when an answer shows so. A fault reported in a status (usually a failed payment)
is not visible in answers: Meta accepts the message and fails it a second later, so only a status of the probe, `sent`
or later, ends that hold.

The rule nobody may break: a hold is never shortened by another one, and while one lasts, at most one message at a time
is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.whatsapp.mirror import numbers

#: Seconds after which an unused permission to probe goes to another worker, or another message probes because the
#: answer to the last one was lost; and after which another one probes if nothing was heard of an accepted one.
UNUSED, UNHEARD = 10.0, 120.0

# A hold begins when the fault was reported: of one that a status reports hours later, as after an outage of callbacks,
# the time is over, and one message probes at once. A report that does not prolong a hold says nothing about its probe,
# nor about why it lasts.
_UNTIL = "least({at}, now()) + make_interval(secs => $3)"
_HOLD = f"""
   SET held_until = greatest(held_until, {_UNTIL}),
       held_reason = CASE WHEN held_until > {_UNTIL} THEN held_reason ELSE $4 END,
       held_for_status = $5 OR held_until IS NOT NULL AND held_for_status,
       trying_id = CASE WHEN held_until >= {_UNTIL} THEN trying_id END,
       trying_at = CASE WHEN held_until >= {_UNTIL} THEN trying_at END
"""
HOLD_ACCOUNT = f"""
UPDATE whatsapp_accounts {_HOLD.format(at="$8::timestamptz")},
       credential_status = CASE WHEN $6 THEN 'invalid' ELSE credential_status END,
       credential_checked_at = CASE WHEN $6 THEN now() ELSE credential_checked_at END
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed' AND ($7::bytea IS NULL OR token = $7)
"""


async def hold_account(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    *,
    seconds: float,
    reason: str,
    credential_invalid: bool = False,
    token: bytes | None = None,
    by_status: bool = False,
    at: datetime | None = None,
) -> int:
    """Send nothing from the account for `seconds`. `credential_invalid`: Meta refused the credential itself (INVALID),
    which overrides any earlier check. `token`: the sealed one that was refused; if another one has replaced it, nothing
    is held. `by_status`: only a status can end the hold. `at`: when the fault was reported; None: now. Returns the
    number of deliveries queued."""
    async with conn.transaction():
        before = await numbers.of_account(conn, organization_id, account_id) if credential_invalid else {}
        await conn.execute(
            HOLD_ACCOUNT, organization_id, account_id, seconds, reason, by_status, credential_invalid, token, at
        )
        if not credential_invalid:
            return 0
        return await numbers.announce(conn, organization_id, account_id, before)


HOLD_NUMBER = f"""
UPDATE whatsapp_numbers n {_HOLD.format(at="$7::timestamptz")}
 WHERE organization_id = $1 AND id = $2
   AND ($6::bytea IS NULL
        OR $6 = (SELECT token FROM whatsapp_accounts WHERE organization_id = n.organization_id AND id = n.account_id))
"""


async def hold_number(
    conn: Connection,
    organization_id: UUID,
    number_id: UUID,
    *,
    seconds: float,
    reason: str,
    token: bytes | None = None,
    by_status: bool = False,
    at: datetime | None = None,
) -> None:
    """Send nothing from the number for `seconds`. `token`, `by_status`, `at`: as for an account."""
    await conn.execute(HOLD_NUMBER, organization_id, number_id, seconds, reason, by_status, token, at)


# Statuses come by the hundred; one of a moment ago says the same. One that is late says nothing about the present rate.
# A time to come is from before the clock was set back.
SLOW_NUMBER = f"""
UPDATE whatsapp_numbers SET slowed_at = now()
 WHERE organization_id = $1 AND id = $2 AND $3 > now() - interval '1 minute'
   AND (slowed_at IS NULL OR slowed_at < now() - interval '1 second' OR slowed_at > {clock.LATEST})
"""


async def slow_number(conn: Connection, organization_id: UUID, number_id: UUID, at: datetime) -> None:
    """Have every worker send more slowly from the number, since a status of `at` reported that it is too fast."""
    await conn.execute(SLOW_NUMBER, organization_id, number_id, at)


# Locked rows are skipped: the transaction with the lock decides about the same hold, and this is tried again. A try in
# times to come is from before the clock was set back. $3 and $4: UNUSED and UNHEARD.
_FREE = f"""
({{0}}.held_until IS NULL
  OR {{0}}.held_until <= now()
     AND ({{0}}.trying_at IS NULL OR {{0}}.trying_at < now() - make_interval(
          secs => CASE WHEN {{0}}.trying_id IS NULL THEN $3::float8 ELSE $4 END)
          OR {{0}}.trying_at > {clock.LATEST}))
"""
LEAVE = f"""
WITH account AS MATERIALIZED (
    SELECT a.organization_id, a.id FROM whatsapp_accounts a
     WHERE a.organization_id = $1 AND {_FREE.format("a")}
       AND a.id = (SELECT account_id FROM whatsapp_numbers WHERE organization_id = $1 AND id = $2)
       FOR NO KEY UPDATE SKIP LOCKED
), number AS MATERIALIZED (
    SELECT n.organization_id, n.id FROM account JOIN whatsapp_numbers n USING (organization_id)
     WHERE n.id = $2 AND {_FREE.format("n")} FOR NO KEY UPDATE OF n SKIP LOCKED
), of_account AS (
    UPDATE whatsapp_accounts a SET trying_id = NULL, trying_at = now() FROM account, number
     WHERE a.organization_id = account.organization_id AND a.id = account.id AND a.held_until IS NOT NULL
), of_number AS (
    UPDATE whatsapp_numbers n SET trying_id = NULL, trying_at = now() FROM number
     WHERE n.organization_id = number.organization_id AND n.id = number.id AND n.held_until IS NOT NULL
)
SELECT EXISTS (SELECT FROM number)
"""


async def leave_to_try(conn: Connection, organization_id: UUID, number_id: UUID) -> bool:
    """Whether one message of the number may probe now: the time of every hold on it is over, and no other message is
    probing. `conn` must not be in a transaction."""
    leave: bool = await conn.fetchval(LEAVE, organization_id, number_id, UNUSED, UNHEARD)
    return leave


TRIES_ACCOUNT = """
UPDATE whatsapp_accounts SET trying_id = $3, trying_at = now()
 WHERE organization_id = $1 AND id = $2 AND held_until IS NOT NULL
"""
TRIES_NUMBER = """
UPDATE whatsapp_numbers SET trying_id = $3, trying_at = now()
 WHERE organization_id = $1 AND id = $2 AND held_until IS NOT NULL
"""


async def tries(conn: Connection, organization_id: UUID, account_id: UUID, number_id: UUID, message_id: UUID) -> None:
    """Record this message as the probe."""
    await conn.execute(TRIES_ACCOUNT, organization_id, account_id, message_id)
    await conn.execute(TRIES_NUMBER, organization_id, number_id, message_id)


# The outcome says nothing about the hold: the next message may probe at once.
_UNDECIDED = """
UPDATE {} SET trying_id = NULL, trying_at = NULL
 WHERE organization_id = $1 AND trying_id = ANY ($2) AND held_until IS NOT NULL
"""
UNDECIDED = tuple(_UNDECIDED.format(table) for table in ("whatsapp_accounts", "whatsapp_numbers"))


async def undecided(conn: Connection, organization_id: UUID, messages: Sequence[UUID]) -> None:
    """These messages ended for reasons of their own; probes among them say nothing about the hold."""
    for statement in UNDECIDED:
        await conn.execute(statement, organization_id, messages)


# It stays the probe until another one leaves: its status may still arrive.
_UNANSWERED = """
UPDATE {} SET trying_at = least(trying_at, now() - make_interval(secs => $3))
 WHERE organization_id = $1 AND trying_id = $2 AND held_until IS NOT NULL
"""
UNANSWERED = tuple(_UNANSWERED.format(table) for table in ("whatsapp_accounts", "whatsapp_numbers"))


async def unanswered(conn: Connection, organization_id: UUID, message_id: UUID) -> None:
    """The answer to this message was lost. If it is a probe, and nothing is heard of it, another one follows soon."""
    for statement in UNANSWERED:
        await conn.execute(statement, organization_id, message_id, UNHEARD - UNUSED)


_ENDED = "held_until = NULL, held_reason = NULL, held_for_status = false, trying_id = NULL, trying_at = NULL"
CLEAR_ACCOUNT = f"""
UPDATE whatsapp_accounts
   SET {_ENDED}, credential_status = CASE credential_status WHEN 'invalid' THEN 'ok' ELSE credential_status END
 WHERE organization_id = $1 AND id = $2 AND (held_until IS NOT NULL OR credential_status = 'invalid')
   AND NOT held_for_status
RETURNING credential_status
"""
CLEAR_NUMBER = f"""
UPDATE whatsapp_numbers SET {_ENDED}
 WHERE organization_id = $1 AND id = $2 AND held_until IS NOT NULL AND NOT held_for_status
"""


async def answered(conn: Connection, organization_id: UUID, account_id: UUID, number_id: UUID) -> int:
    """Meta accepted the probe: the credential is valid, and only holds that a status must end remain. Returns the
    number of deliveries queued."""
    async with conn.transaction():
        before = await numbers.of_account(conn, organization_id, account_id)
        cleared = await conn.fetchval(CLEAR_ACCOUNT, organization_id, account_id)
        await conn.execute(CLEAR_NUMBER, organization_id, number_id)
        return await numbers.announce(conn, organization_id, account_id, before) if cleared else 0


# Whether a credential is valid again that was refused, a reading says at once.
_READ = """
numbers_at = CASE credential_status WHEN 'invalid' THEN now() ELSE numbers_at END,
mirror_at = CASE credential_status WHEN 'invalid' THEN now() ELSE mirror_at END
"""
SENT_ACCOUNT = f"UPDATE whatsapp_accounts SET {_ENDED}, {_READ} WHERE organization_id = $1 AND trying_id = ANY ($2)"
SENT_NUMBER = f"""
UPDATE whatsapp_numbers SET {_ENDED}, last_sent_at = now() WHERE organization_id = $1 AND trying_id = ANY ($2)
"""


async def sent(conn: Connection, organization_id: UUID, messages: Sequence[UUID]) -> None:
    """Statuses show that these were sent on to their users: the holds tested by the probes among them are over."""
    await conn.execute(SENT_ACCOUNT, organization_id, messages)
    await conn.execute(SENT_NUMBER, organization_id, messages)


# As if the number had long been silent: a few messages are sent before the others.
RELEASE_ACCOUNT = f"""
UPDATE whatsapp_accounts SET {_ENDED}, released_at = now(), {_READ}
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed' AND held_until IS NOT NULL RETURNING id
"""
RELEASE_NUMBERS = f"""
UPDATE whatsapp_numbers SET {_ENDED}, last_sent_at = NULL, released_at = now()
 WHERE organization_id = $1 AND (id = $2 OR account_id = $3) AND state = 'active' AND held_until IS NOT NULL
RETURNING id
"""


async def release_account(conn: Connection, organization_id: UUID, account_id: UUID, *, by: Principal = SYSTEM) -> bool:
    """End the holds of an account and all its numbers, for an operator; False: there was none."""
    async with conn.transaction():
        found = await conn.fetchval(RELEASE_ACCOUNT, organization_id, account_id)
        of_numbers = await conn.fetch(RELEASE_NUMBERS, organization_id, None, account_id)
        ended = found is not None or bool(of_numbers)
        if ended:
            told = {"numbers": [row["id"] for row in of_numbers]}
            await audit.record(
                conn,
                by,
                "whatsapp_account.released",
                object_id=account_id,
                organization_id=organization_id,
                after=told,
            )
        return ended


async def release_number(conn: Connection, organization_id: UUID, number_id: UUID, *, by: Principal = SYSTEM) -> bool:
    """End the hold of one number, for an operator; False: there was none. A hold of its account remains."""
    async with conn.transaction():
        ended = bool(await conn.fetch(RELEASE_NUMBERS, organization_id, number_id, None))
        if ended:
            await audit.record(
                conn, by, "whatsapp_number.released", object_id=number_id, organization_id=organization_id
            )
        return ended


# For all organizations: work that waits for these is not late because of the workers.
HELD = """
SELECT n.id FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.state = 'active' AND (n.held_until IS NOT NULL OR a.held_until IS NOT NULL)
"""


async def held(conn: Connection) -> list[UUID]:
    """Ids of the numbers that are held, or whose hold still awaits a probe."""
    return [row["id"] for row in await conn.fetch(HELD)]
