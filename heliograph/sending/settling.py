"""What the outcomes of attempts do to their queue rows, within a transaction that records them (`results`).

The rule nobody may break: a row is finished or put back under its own lease only, and an outcome that was reported
before is not reversed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending import attempts
from heliograph.sending.attempts import EndedAttempt


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The effect of an answer. Without `postponed`, the work is done."""

    ended: EndedAttempt
    move: Any = None
    postponed: Postponed | None = None


async def settle(conn: Connection, settled: Sequence[Settlement], *, only_answers: bool = False) -> list[Any]:
    """Record the outcomes of attempts and settle their queue rows. Returns the moves that follow, which the caller must
    make in the same transaction. `only_answers`: no report of this channel is ever recorded as an attempt's outcome
    (`attempts.mark_accepted`).

    Queue rows are locked before attempts, in the same order as dispatch does.
    """
    done = [one.ended.attempt.lease for one in settled if one.postponed is None]
    back = [one.postponed for one in settled if one.postponed is not None]
    held = await leases.finish(conn, done) if done else 0
    # What was not accepted does not end a message of which another worker has begun a later attempt: that one decides.
    ends = [one.ended.attempt.lease.id for one in settled if one.postponed is None and one.ended.state != "accepted"]
    last = await leases.last_attempts(conn, done[0].kind, ends) if held < len(done) and ends else {}
    if back:
        await leases.postpone(conn, back)
    # A worker that takes a lease over records the attempt and changes the row's token in one transaction: while the
    # token is ours, nothing has been recorded. Should that ever be wrong, the batch is halved until each answer is
    # alone.
    are_new = only_answers and held == len(settled) > 1
    taken = await attempts.end(conn, [one.ended for one in settled], are_new=are_new)
    over = [one.lease for one in back if (one.lease.id, one.lease.attempt + 1) in taken]
    if over:
        await leases.withdraw(conn, over[0].kind, [lease.id for lease in over], only="all")
    moves = []
    for one in settled:
        id, number = one.ended.attempt.lease.id, one.ended.attempt.number
        decides = one.ended.state == "accepted" or last.get(id, 0) <= number
        if one.move is not None and decides and (id, number) not in taken:
            moves.append(one.move)
    return moves
