"""Attempts whose end nobody saw: looked for in the receipts, waited for, and then decided by the send's own guarantee.

    a receipt for each segment in doubt     the supplier has them: the receipts' ids stand for the lost answers
    fewer, and the grace is not over        wait
    the grace is over                       at_least_once: those segments are sent again; at_most_once: `unknown`

Receipts do not say which segment they are of. So unless there is one for each segment in doubt, none is taken for any:
one of the segments could be the one that never arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.sending.channel import Found
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.reports import receipts
from heliograph.sms.status import OUTCOME_UNKNOWN, Move

ADOPT = """
INSERT INTO sms_parts (supplier_id, id_key, message_id, attempt, part, parts, organization_id, recipient_suffix,
                       created_at)
SELECT *, now()
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::smallint[], $5::smallint[], $6::smallint[], $7::uuid[],
              $8::text[])
ON CONFLICT DO NOTHING
"""


async def find(conn: Connection, lost: Sequence[ClaimedMessage], *, policies: Mapping[UUID, str]) -> Found:
    """What receipts say of messages whose last attempt has an end that nobody saw."""
    found = await receipts.find_for_uncertain(
        conn,
        [
            receipts.Uncertain(due.attempt_supplier, due.started_at, due.recipient, due.reference or 0, _wanted(due))
            for due in lost
            if due.attempt_supplier is not None and due.started_at is not None
        ],
    )
    moves: list[Move] = []
    known: dict[UUID, ClaimedMessage | None] = {}
    adopted: list[tuple[ClaimedMessage, int, str]] = []
    for due, keys in zip(lost, found, strict=True):
        lease, in_doubt = due.lease, due.in_doubt
        if not keys and in_doubt:
            continue
        adopted += [(due, number, key) for number, key in zip(in_doubt, keys, strict=True)]
        taken = sorted({*(due.taken or ()), *in_doubt})
        if len(taken) == due.parts:
            moves.append(Move(lease.organization_id, lease.id, "sent", due.at, supplier_id=due.attempt_supplier))
            known[lease.id] = None
        else:
            known[lease.id] = msgspec.structs.replace(due, taken=taken, doubtful=(), attempt_state="busy")
    if adopted:
        moves += await _adopt(conn, adopted, policies)
    return Found(moves, known)


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
