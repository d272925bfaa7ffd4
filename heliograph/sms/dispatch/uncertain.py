"""Attempts with unknown outcomes: look for receipts, wait for them, and then let the send's guarantee decide.

    a receipt for each segment in doubt     the supplier has them: the receipts' ids replace the lost answers
    fewer, before the grace ends            wait
    fewer, after the grace has ended        at_least_once: those segments are sent again, each time after twice as long
                                            a wait; at_most_once: `unknown`

Receipts do not say which segment they are for. So unless there is one for each segment in doubt, none is assigned: the
missing one could be for the segment that never arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.money import charge_of
from heliograph.base.sentences import said
from heliograph.sending.channel import LostResolution
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.sms.reports import keys, parts, waiting
from heliograph.sms.reports.keys import PartId
from heliograph.sms.status import OUTCOME_UNKNOWN, WAS_COUNTED, Move, SupplierAcceptance
from heliograph.suppliers.contract import Verdict
from heliograph.traffic import reconciliation

#: More would be longer than any message is valid.
MOST_DOUBLINGS = 12
#: How it is known that an attempt with an unknown outcome was accepted.
SHOWN = said("a receipt shows that the supplier has it")
# No longer in doubt: these attempts now end as accepted, unless an answer has just been recorded. Locked first: that
# there was no answer may be being recorded, and counted, at this moment.
TAKEN = f"""
WITH doubtful AS MATERIALIZED (
    SELECT v.*, known.was_counted
      FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[])
           AS v (organization_id, message_id, attempt, id_key, suffix)
           CROSS JOIN LATERAL (
           SELECT {WAS_COUNTED} AS was_counted FROM attempts
            WHERE organization_id = v.organization_id AND message_id = v.message_id AND attempt = v.attempt
              AND state = 'unknown'
              FOR NO KEY UPDATE) known
)
UPDATE attempts SET state = 'accepted', ended_at = now(), detail = '{SHOWN}',
                    supplier_message_id = doubtful.id_key, recipient_suffix = doubtful.suffix
  FROM doubtful
 WHERE attempts.organization_id = doubtful.organization_id AND attempts.message_id = doubtful.message_id
   AND attempts.attempt = doubtful.attempt
RETURNING attempts.message_id, cost, cost_currency, cost_due, doubtful.was_counted
"""


async def find(conn: Connection, lost: Sequence[ClaimedMessage], *, policies: Mapping[UUID, str]) -> LostResolution:
    """What receipts say about messages whose last attempt has an unknown outcome."""
    found = await waiting.find_for_uncertain(
        conn,
        [
            waiting.Uncertain(due.attempt_supplier, due.started_at, due.recipient, due.reference or 0, _wanted(due))
            for due in lost
            if due.attempt_supplier is not None and due.started_at is not None
        ],
    )
    moves: list[Move] = []
    known: dict[UUID, ClaimedMessage | None] = {}
    adopted: list[tuple[ClaimedMessage, int, str]] = []
    whole: dict[UUID, ClaimedMessage] = {}
    for due, ids in zip(lost, found, strict=True):
        lease, in_doubt = due.lease, due.in_doubt
        if not ids and in_doubt:
            if due.attempt_supplier in due.passed:
                # An operator does not want to wait for its receipt, and has accepted that it may arrive twice.
                known[lease.id] = due
            continue
        adopted += [(due, number, id) for number, id in zip(in_doubt, ids, strict=True)]
        taken = sorted({*(due.taken or ()), *in_doubt})
        if len(taken) == due.parts:
            known[lease.id] = None
            whole[lease.id] = due
        else:
            known[lease.id] = msgspec.structs.replace(due, taken=taken, doubtful=(), attempt_state="busy")
    if adopted or whole:
        moves += await _adopt(conn, adopted, whole, policies)
    return LostResolution(moves, known)


def _wanted(due: ClaimedMessage) -> int:
    """How many receipts would prove that the supplier has everything in doubt; 0: none can. Segments that were sent
    twice may have two receipts, which do not say which segment they are for."""
    return len(due.in_doubt) if due.attempt == due.series else 0


def patience(due: ClaimedMessage, grace: float) -> float:
    """Seconds until a message for which no receipt has come may be sent again, or expires.

    The wait doubles with each try that had no answer: a supplier that takes messages and whose answers cannot be read
    would otherwise hand their recipients a copy each grace, 960 a day, instead of ten. The first tries of a long
    message may each lose the answers of other segments, and do not count."""
    assert due.started_at is not None
    # It takes as long as ever, however far the clock was set forward.
    waited = min((due.at - due.started_at).total_seconds(), clock.since_forward())
    wait = grace * 2 ** min(max(0, due.unknowns - due.parts), MOST_DOUBLINGS)
    return min(wait - waited, (deadline(due.accepted_at, due.expires_at) - due.at).total_seconds())


def unknown(due: ClaimedMessage) -> Move:
    """The final move of a message that may or may not have arrived, and is not sent again."""
    return Move(due.lease.organization_id, due.lease.id, "unknown", due.at, OUTCOME_UNKNOWN, unsent=True)


async def _adopt(
    conn: Connection,
    adopted: Sequence[tuple[ClaimedMessage, int, str]],
    whole: Mapping[UUID, ClaimedMessage],
    policies: Mapping[UUID, str],
) -> list[Move]:
    """Adopt receipts for these segments: the supplier has them, so the receipts' ids replace the lost answers. `whole`:
    the messages of which it has all segments. Returns the moves that follow, which count these as accepted."""
    at = now()
    ids = [
        PartId(
            due.attempt_supplier,
            id,
            due.lease.id,
            due.series,
            number,
            due.parts,
            due.lease.organization_id,
            keys.suffix(due.recipient),
        )
        for due, number, id in adopted
        if due.attempt_supplier is not None
    ]
    alone = {one.message_id: one.id_key for one in ids if one.is_in_attempt(at)}
    ordered = [whole[id] for id in sorted(whole)]
    rows = await conn.fetch(
        TAKEN,
        [due.lease.organization_id for due in ordered],
        [due.lease.id for due in ordered],
        [due.attempt for due in ordered],
        [alone.get(due.lease.id) for due in ordered],
        [keys.suffix(due.recipient) for due in ordered],
    )
    costs = {row["message_id"]: charge_of(row["cost"], row["cost_currency"], row["cost_due"]) for row in rows}
    counted = [
        (due.attempt_supplier, phones.country(due.recipient), Verdict.UNKNOWN.value, -1)
        for due in (whole[row["message_id"]] for row in rows if row["was_counted"])
        if due.attempt_supplier is not None and due.attempt_supplier != test_mode.SUPPLIER
    ]
    await reconciliation.count(conn, counted, at)
    moves = [
        Move(
            due.lease.organization_id,
            due.lease.id,
            "sent",
            due.at,
            supplier_id=due.attempt_supplier,
            taken=SupplierAcceptance(due.attempt > 1, cost=costs.get(due.lease.id)),
        )
        for due in ordered
    ]
    await parts.keep(conn, ids, at)
    return moves + (await waiting.early(conn, [(one.supplier_id, one.id_key) for one in ids], policies=policies))[0]
