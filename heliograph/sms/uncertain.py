"""Attempts whose end nobody saw: looked for in the receipts, waited for, and then decided by the send's own guarantee.

    a receipt for each segment in doubt     the supplier has them: the receipts' ids stand for the lost answers
    fewer, and the grace is not over        wait
    the grace is over                       at_least_once: those segments are sent again; at_most_once: `unknown`

Receipts do not say which segment they are of. So unless there is one for each segment in doubt, none is taken for any:
one of the segments could be the one that never arrived.

The rule nobody may break: nothing is sent again while its answer may still be on its way into the database.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.db import Connection
from heliograph.queue.leases import UNROUTED, Postponed
from heliograph.sms import receipts
from heliograph.sms.claimed import ClaimedMessage
from heliograph.sms.status import OUTCOME_UNKNOWN, Move

#: One whose attempt was just found without an end waits at least this long, seconds: whoever has its answer may have
#: waited for the database as we did, and is about to record it.
OVERTAKEN = 5.0


class Resolved(msgspec.Struct, frozen=True):
    """What became of attempts of unknown outcome."""

    #: What is decided about a message: a new state, a wait, or None: nothing more. Others may be tried again.
    steps: dict[UUID, Move | Postponed | None]
    #: Moves that follow besides.
    moves: list[Move]
    #: Messages of which it is now known what the supplier has, and what it never got.
    known: dict[UUID, ClaimedMessage]


# An attempt that somebody has locked is being answered at this moment. It is not waited for: the recorder, which holds
# it, may be waiting for what this transaction holds.
MARK = """
WITH lost AS MATERIALIZED (
    SELECT a.* FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS item (organization_id, message_id, attempt)
     CROSS JOIN LATERAL (
           SELECT organization_id, message_id, attempt FROM sms_attempts
            WHERE organization_id = item.organization_id AND message_id = item.message_id AND attempt = item.attempt
              AND state = 'open' FOR UPDATE SKIP LOCKED) a
)
UPDATE sms_attempts a SET state = 'unknown', answered_at = now(), detail = 'the worker ended before the answer came'
  FROM lost
 WHERE a.organization_id = lost.organization_id AND a.message_id = lost.message_id AND a.attempt = lost.attempt
"""
ADOPT = """
INSERT INTO sms_parts (supplier_id, id_key, message_id, attempt, part, parts, organization_id, recipient_suffix,
                       created_at)
SELECT *, now()
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::smallint[], $5::smallint[], $6::smallint[], $7::uuid[],
              $8::text[])
ON CONFLICT DO NOTHING
"""


async def resolve(
    conn: Connection,
    lost: Sequence[ClaimedMessage],
    *,
    grace: float,
    policies: Mapping[UUID, str],
    held: Container[tuple[UUID, int]],
) -> Resolved:
    """Decide about messages whose last attempt has an end that nobody saw.

    `grace`: seconds that an attempt waits for its receipts. `held`: (message, attempt) whose answers this process has
    and has not recorded.
    """
    unseen = sorted((due for due in lost if due.attempt_state == "open"), key=lambda due: due.lease.id.int)
    if unseen:
        await conn.execute(
            MARK,
            [due.lease.organization_id for due in unseen],
            [due.lease.id for due in unseen],
            [due.attempt for due in unseen],
        )
    found = await receipts.find_for_uncertain(
        conn,
        [
            receipts.Uncertain(due.attempt_supplier, due.started_at, due.recipient, due.reference or 0, _wanted(due))
            for due in lost
            if due.attempt_supplier is not None and due.started_at is not None
        ],
    )
    resolved = Resolved({}, [], {})
    adopted: list[tuple[ClaimedMessage, int, str]] = []
    for due, keys in zip(lost, found, strict=True):
        lease, in_doubt = due.lease, due.in_doubt
        assert due.started_at is not None
        waits = (due.started_at + timedelta(seconds=grace) - due.at).total_seconds()
        if due.attempt_state == "open" or (lease.id, due.attempt) in held:
            waits = max(waits, OVERTAKEN)
        if keys or not in_doubt:
            adopted += [(due, number, key) for number, key in zip(in_doubt, keys, strict=True)]
            taken = sorted({*(due.taken or ()), *in_doubt})
            if len(taken) == due.parts:
                resolved.moves.append(Move(lease.organization_id, lease.id, "sent", due.at))
                resolved.steps[lease.id] = None
            else:
                resolved.known[lease.id] = msgspec.structs.replace(due, taken=taken, doubtful=(), attempt_state="busy")
        elif waits > 0:
            resolved.steps[lease.id] = Postponed(lease, waits, UNROUTED, counts=False)
        elif due.guarantee == "at_most_once":
            resolved.steps[lease.id] = unknown(due)
    if adopted:
        resolved.moves.extend(await _adopt(conn, adopted, policies))
    return resolved


def _wanted(due: ClaimedMessage) -> int:
    """How many receipts would prove that the supplier has all that is in doubt; 0: none can. What was sent twice may
    have two receipts, and they do not say of which segment they are."""
    return len(due.in_doubt) if due.attempt == due.series else 0


def unknown(due: ClaimedMessage) -> Move:
    """The end of a message of which nobody knows whether it arrived, and that is not sent again."""
    return Move(due.lease.organization_id, due.lease.id, "unknown", due.at, OUTCOME_UNKNOWN, unsent=True)


async def _adopt(
    conn: Connection, adopted: Sequence[tuple[ClaimedMessage, int, str]], policies: Mapping[UUID, str]
) -> list[Move]:
    """Receipts speak of these segments, so the supplier has them: their ids stand for the answers that were lost."""
    await conn.execute(
        ADOPT,
        [due.attempt_supplier for due, _, _ in adopted],
        [key for _, _, key in adopted],
        [due.lease.id for due, _, _ in adopted],
        [due.series for due, _, _ in adopted],
        [number for _, number, _ in adopted],
        [due.parts for due, _, _ in adopted],
        [due.lease.organization_id for due, _, _ in adopted],
        [receipts.suffix(due.recipient) for due, _, _ in adopted],
    )
    answers = [(due.attempt_supplier, key) for due, _, key in adopted if due.attempt_supplier is not None]
    return (await receipts.early(conn, answers, policies=policies))[0]
