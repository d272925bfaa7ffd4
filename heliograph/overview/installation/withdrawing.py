"""Work that an operator takes out of the queue for good: messages are canceled and refunded, deliveries dropped.

Some thousand rows at a time, each in a transaction of its own. The rule nobody may break: what a worker has, or what
was tried and may have gone out, is left alone unless the operator says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database.pool import Connection
from heliograph.queue import holds
from heliograph.queue.holds import Overtaken, Row, Selection, Withdrawn
from heliograph.sms.accepting import withdrawal as sms
from heliograph.whatsapp.accepting import withdrawal as whatsapp

#: Rows taken out in one transaction.
BATCH = 1_000
#: Times that a batch is tried again when workers were quicker.
TRIES = 5


async def withdraw(
    conn: Connection,
    which: Selection,
    *,
    tried: bool,
    by: Who = SYSTEM,
    on_progress: Callable[[str, Withdrawn], None] = lambda kind, done: None,
    most: int | None = None,
) -> dict[str, Withdrawn]:
    """Withdraw this work; by kind, what became of it. `tried`: also messages that were attempted, which end as
    `unknown`. `most`: batches of a kind that are taken, None: all. `conn` is in no transaction."""
    await holds.begin_withdrawal(conn, which, tried=tried, by=by)
    found = {}
    for kind in which.kinds:
        done, after, batches = Withdrawn(), None, 0
        while (most is None or batches < most) and (
            rows := await holds.free(conn, kind, which, after=after, limit=BATCH)
        ):
            done += await _batch(conn, kind, rows, tried=tried)
            after, batches = rows[-1], batches + 1
            if len(rows) == BATCH:
                on_progress(kind, done)
        found[kind] = done
    return found


async def _batch(conn: Connection, kind: str, rows: list[Row], *, tried: bool) -> Withdrawn:
    if kind == "webhook":
        return await holds.drop(conn, kind, rows)
    rule: Callable[..., Coroutine[Any, Any, Withdrawn]] = {
        "sms": sms.withdraw_rows,
        "whatsapp": whatsapp.withdraw_rows,
    }[kind]
    for _ in range(TRIES):
        try:
            async with conn.transaction():
                return await rule(conn, rows, tried=tried)
        except Overtaken:
            continue
    return Withdrawn(left=len(rows))
