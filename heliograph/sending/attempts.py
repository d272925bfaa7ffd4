"""Attempts: the committed intention to hand a message over, and its outcome.

An attempt begins in its message's queue row (`begin`), in the statement that leases it, and that commit comes before
the first byte. It ends as a row of `attempts` (`end`), in the transaction that finishes the queue row or puts it back.
In between it is under way; if its worker dies, the next worker to claim the row records it as `unknown`
(`mark_unknown`).

The rule nobody may break: an outcome is a fact. It is recorded even by a worker that has lost its lease in the
meantime, and a message that was once accepted stays accepted, whatever is reported about that attempt later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.money import Charge, columns
from heliograph.base.sentences import said
from heliograph.queue.leases import Lease

#: Maximum number of attempts for one message, whatever their outcome. They are counted in 16 bits.
MOST_ATTEMPTS = 32_000
#: The states, in SQL, of an attempt that arrived or may have.
MAY_HAVE_ARRIVED = "('accepted', 'unknown')"
#: The reason recorded when a worker died before it could record an answer.
WORKER_DIED = said("the worker ended before the answer came")
#: An SQL condition on a row of `attempts`: its detail may be the target's words, which may repeat the message's text.
MAY_QUOTE = f"detail NOT IN ('', '{WORKER_DIED}')"


class Loaded(Protocol):
    """A message as loaded by its channel in the transaction that picked it."""

    @property
    def at(self) -> datetime:
        """Now, by the database's clock."""


Message = TypeVar("Message", bound=Loaded)


class Attempt(msgspec.Struct, Generic[Message], frozen=True, gc=False):
    """One try to hand a message over."""

    lease: Lease
    #: Counts from 1.
    number: int
    #: The supplier, or WhatsApp number, that it is handed to.
    target_id: UUID
    #: The request for the connector.
    submission: Any
    #: The claimed message, as its channel loaded it.
    message: Message
    #: What the channel needs when the answer arrives.
    context: Any = None
    #: 16 bits that the supplier may echo.
    reference: int | None = None
    #: The attempt whose remaining segments it sends; None: it starts a new series.
    continues: int | None = None
    #: Segments of the whole message.
    parts: int = 1
    #: The routing decision that chose this target (`routes/decisions.py`).
    decision: int | None = None

    @property
    def begun_at(self) -> datetime:
        """When it began, by the database's clock: it was loaded and begun in the same transaction."""
        return self.message.at

    @property
    def series(self) -> int:
        """The first attempt of its series."""
        return self.continues or self.number


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended."""

    attempt: Attempt[Any]
    #: "accepted", "refused", "busy", "unreachable" or "unknown".
    state: str
    #: For operators.
    code: str = ""
    detail: str = ""
    #: Segments that were written but not answered.
    doubtful: Sequence[int] = ()
    #: The keys by which receipts are matched: the supplier's id, and the last digits of the recipient's number.
    supplier_message_id: str | None = None
    recipient_suffix: str | None = None
    #: The target's charge, if it was accepted.
    cost: Charge | None = None
    #: The sender actually used, if the target requires a different one from the message's.
    sent_as: str | None = None


# The rows have been locked since they were picked, so their positions are still valid.
BEGIN = """
UPDATE queue SET attempt = item.attempt, begun_at = now(), target_id = item.target_id, reference = item.reference,
                 continues = item.continues, parts = item.parts, decision = item.decision,
                 claims = least(queue.claims, 9999) + 1, lease_token = item.token,
                 lease_until = now() + make_interval(secs => $9)
  FROM unnest($1::tid[], $2::uuid[], $3::smallint[], $4::uuid[], $5::integer[], $6::smallint[], $7::smallint[],
              $8::bigint[])
       AS item (place, token, attempt, target_id, reference, continues, parts, decision)
 WHERE queue.ctid = item.place AND queue.attempt < item.attempt
"""


async def begin(conn: Connection, attempts: Sequence[Attempt[Message]], *, seconds: float) -> None:
    """Lease the rows of these messages, which this transaction picked, for `seconds`, and record that they are about to
    be handed over: after the commit, they may have been. Raises RuntimeError if the row of one is missing."""
    done = await conn.execute(
        BEGIN,
        [one.lease.place for one in attempts],
        [one.lease.token for one in attempts],
        [one.number for one in attempts],
        [one.target_id for one in attempts],
        [one.reference for one in attempts],
        [one.continues for one in attempts],
        [one.parts for one in attempts],
        [one.decision for one in attempts],
        seconds,
    )
    if done != f"UPDATE {len(attempts)}":
        raise RuntimeError(f"of {len(attempts)} attempts, not all could begin: {done}")


# An answer may be being recorded on another connection: then that answer counts.
MARK_UNKNOWN = f"""
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, reference,
                      continues, parts, decision, detail)
SELECT organization_id, id, attempt, target_id, 'unknown', begun_at, now(), reference, continues, parts,
       (SELECT decision FROM queue WHERE queue.id = lost.id AND queue.attempt = lost.attempt LIMIT 1), '{WORKER_DIED}'
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[], $5::timestamptz[], $6::integer[], $7::smallint[],
              $8::smallint[])
       AS lost (organization_id, id, attempt, target_id, begun_at, reference, continues, parts)
ON CONFLICT DO NOTHING
"""


async def mark_unknown(conn: Connection, lost: Sequence[Lease]) -> None:
    """Record attempts whose worker died as unknown, from the queue rows that show them under way."""
    # In the order in which answers are recorded, so that the two cannot deadlock.
    ordered = sorted(lost, key=lambda lease: lease.id.int)
    await conn.execute(
        MARK_UNKNOWN,
        [one.organization_id for one in ordered],
        [one.id for one in ordered],
        [one.attempt for one in ordered],
        [one.target_id for one in ordered],
        [one.begun_at for one in ordered],
        [one.reference for one in ordered],
        [one.continues for one in ordered],
        [one.parts for one in ordered],
    )


INSERT = """
INSERT INTO attempts AS known (organization_id, message_id, attempt, target_id, state, started_at, ended_at, reference,
                               continues, parts, decision, code, detail, doubtful, supplier_message_id,
                               recipient_suffix, cost, cost_currency, cost_due, sent_as)
SELECT organization_id, id, attempt, target_id, state, begun_at, now(), reference, continues, parts, decision, code,
       detail, doubtful::smallint[], supplier_message_id, recipient_suffix, cost, cost_currency, cost_due, sent_as
  FROM (SELECT unnest($1::uuid[]) AS organization_id, unnest($2::uuid[]) AS id, unnest($3::smallint[]) AS attempt,
               unnest($4::uuid[]) AS target_id, unnest($5::text[]) AS state, unnest($6::timestamptz[]) AS begun_at,
               unnest($7::integer[]) AS reference, unnest($8::smallint[]) AS continues,
               unnest($9::smallint[]) AS parts, unnest($10::text[]) AS code, unnest($11::text[]) AS detail,
               unnest($12::text[]) AS doubtful, unnest($13::text[]) AS supplier_message_id,
               unnest($14::text[]) AS recipient_suffix, unnest($15::bigint[]) AS decision,
               unnest($16::bigint[]) AS cost, unnest($17::text[]) AS cost_currency, unnest($18::text[]) AS cost_due,
               unnest($19::text[]) AS sent_as OFFSET 0) item
"""
END = f"""{INSERT}ON CONFLICT (organization_id, message_id, attempt) DO UPDATE
   SET state = CASE known.state WHEN 'accepted' THEN 'accepted' ELSE excluded.state END,
       ended_at = excluded.ended_at, code = excluded.code, detail = excluded.detail, doubtful = excluded.doubtful,
       supplier_message_id = coalesce(excluded.supplier_message_id, known.supplier_message_id),
       recipient_suffix = coalesce(excluded.recipient_suffix, known.recipient_suffix),
       cost = excluded.cost, cost_currency = excluded.cost_currency, cost_due = excluded.cost_due,
       sent_as = excluded.sent_as
"""
# Which of them are already known to be accepted; queried only for those now reported with another outcome.
END_KNOWN = f"{END}RETURNING message_id, attempt, state"


async def end(conn: Connection, ended: Sequence[EndedAttempt], *, are_new: bool = False) -> set[tuple[UUID, int]]:
    """Record how attempts ended. Returns those, as (message, attempt), that were already known to be accepted, whatever
    is reported here: these reports must not move their messages.

    `are_new`: nothing can have been recorded about any of them. That costs a third less; if it is not true, asyncpg
    raises UniqueViolationError.
    """
    # A late answer may be in the same batch as the report that there was none: the later one counts.
    last = {(one.attempt.lease.id.int, one.attempt.number): one for one in ended}
    ordered = [last[key] for key in sorted(last)]
    held = [one.attempt.lease for one in ordered]
    began = [one.attempt for one in ordered]
    values = (
        [lease.organization_id for lease in held],
        [lease.id for lease in held],
        [attempt.number for attempt in began],
        [attempt.target_id for attempt in began],
        [one.state for one in ordered],
        [attempt.message.at for attempt in began],
        [attempt.reference for attempt in began],
        [attempt.continues for attempt in began],
        [attempt.parts for attempt in began],
        [storable(one.code, 100) for one in ordered],
        [storable(one.detail, 500) for one in ordered],
        [f"{{{','.join(map(str, one.doubtful))}}}" if one.doubtful else None for one in ordered],
        [one.supplier_message_id for one in ordered],
        [one.recipient_suffix for one in ordered],
        [attempt.decision for attempt in began],
        *columns([one.cost for one in ordered]),
        [one.sent_as for one in ordered],
    )
    if are_new or all(one.state == "accepted" for one in ordered):
        await conn.execute(INSERT if are_new else END, *values)
        return set()
    rows = await conn.fetch(END_KNOWN, *values)
    taken = {(row["message_id"], row["attempt"]) for row in rows if row["state"] == "accepted"}
    return taken - {(one.attempt.lease.id, one.attempt.number) for one in ordered if one.state == "accepted"}


# A commit that seemed to fail may still be under way: it has these rows, or those of the attempts if they were known.
UNDER_WAY = "SELECT FROM queue WHERE id = ANY ($1) AND kind || '' = $2 ORDER BY id FOR UPDATE"
# Another worker records only that an attempt has no outcome. Whatever else shows that one was accepted, such as a
# receipt, says so in the detail, and has no code.
ARE_RECORDED = f"""
SELECT EXISTS (
    SELECT FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[])
           AS item (organization_id, id, number, state) CROSS JOIN LATERAL (
           SELECT state::text, code, detail FROM attempts
            WHERE organization_id = item.organization_id AND message_id = item.id AND attempt = item.number
              FOR UPDATE) a
     WHERE a.state = item.state AND a.detail <> '{WORKER_DIED}'
       AND (a.state <> 'accepted' OR a.code <> '' AND a.detail = ''))
"""


async def are_recorded(conn: Connection, kind: str, ended: Sequence[tuple[Attempt[Any], str]]) -> bool:
    """Whether a commit of these outcomes, as (attempt, state), succeeded although it seemed to fail. Waits for it if it
    is under way, and locks the rows in the caller's transaction."""
    ended = sorted(ended, key=lambda one: (one[0].lease.id.int, one[0].number))
    await conn.execute(UNDER_WAY, [one.lease.id for one, _ in ended], kind)
    recorded: bool = await conn.fetchval(
        ARE_RECORDED,
        [one.lease.organization_id for one, _ in ended],
        [one.lease.id for one, _ in ended],
        [one.number for one, _ in ended],
        [state for _, state in ended],
    )
    return recorded


# The accepted attempt was the last one without a known outcome: the one under way, or else the last unknown one. The
# queue row is read without a lock; a transaction that ends that attempt concurrently finds it accepted, or has already
# recorded more.
MARK_ACCEPTED = """
WITH bound AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS bound (organization_id, id)
), under_way AS (
    INSERT INTO attempts AS known (organization_id, message_id, attempt, target_id, state, started_at, ended_at,
                                   reference, continues, parts, decision, detail)
    SELECT bound.organization_id, bound.id, q.attempt, q.target_id, 'accepted', q.begun_at, now(), q.reference,
           q.continues, q.parts, q.decision, $4
      FROM bound CROSS JOIN LATERAL (
           SELECT attempt, target_id, begun_at, reference, continues, parts, decision FROM queue
            WHERE id = bound.id AND kind || '' = $3 AND begun_at IS NOT NULL LIMIT 1) q
    ON CONFLICT (organization_id, message_id, attempt) DO UPDATE
       SET state = 'accepted', detail = excluded.detail WHERE known.state = 'unknown'
    RETURNING message_id
)
UPDATE attempts a SET state = 'accepted', detail = $4
  FROM bound CROSS JOIN LATERAL (
       SELECT attempt, state FROM attempts
        WHERE organization_id = bound.organization_id AND message_id = bound.id ORDER BY attempt DESC LIMIT 1) last
 WHERE a.organization_id = bound.organization_id AND a.message_id = bound.id AND a.attempt = last.attempt
   AND last.state = 'unknown' AND NOT EXISTS (SELECT FROM under_way WHERE under_way.message_id = bound.id)
"""


async def mark_accepted(conn: Connection, kind: str, messages: Sequence[tuple[UUID, UUID]], *, detail: str) -> None:
    """Record that these messages, as (organization, message), turned out to have been accepted. `detail`: how that is
    known."""
    await conn.execute(MARK_ACCEPTED, [org for org, _ in messages], [id for _, id in messages], kind, detail)


#: All attempts of a message ($1 organization, $2 id), with the one that is under way.
OF_MESSAGE = """
SELECT attempt, target_id, state, started_at, ended_at, reference, code, detail, decision, cost, cost_currency,
       sent_as
  FROM attempts
 WHERE organization_id = $1 AND message_id = $2
UNION ALL
SELECT attempt, target_id, 'open', begun_at, NULL, reference, '', '', decision, NULL, NULL, NULL FROM queue
 WHERE organization_id = $1 AND id = $2 AND begun_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM attempts WHERE organization_id = $1 AND message_id = $2 AND attempt = queue.attempt)
"""


# An SMS that a supplier has accepted no longer has our status `accepted`; a WhatsApp message has it until Meta reports.
# Rows are locked, so that an answer being recorded at the same time comes first or waits.
UNSENT = """
SELECT m.id FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT id FROM {table} WHERE organization_id = item.organization_id AND id = item.id AND status = 'accepted'
          FOR NO KEY UPDATE) m
 WHERE NOT EXISTS (SELECT FROM attempts WHERE organization_id = item.organization_id AND message_id = item.id
                      AND state = 'accepted')
"""


async def still_unsent(conn: Connection, table: str, leases: Sequence[Lease]) -> set[UUID]:
    """The messages among these in `table` that are not known to have been accepted; they are locked until the
    commit."""
    ordered = sorted(leases, key=lambda lease: lease.id.int)
    rows = await conn.fetch(
        UNSENT.format(table=table), [one.organization_id for one in ordered], [one.id for one in ordered]
    )
    return {row["id"] for row in rows}
