"""Queued work as operators see it: how much is waiting; what they hold back, with the names of what it concerns; and
what they withdraw permanently: messages are canceled and refunded, deliveries dropped.

Work is withdrawn in batches of some thousand rows, each in its own transaction. The rule nobody may break: work that a
worker has, or that was tried and may have been sent, is left alone unless the operator says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self
from uuid import UUID

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.queue import holds, waiting
from heliograph.queue.holds import AlreadyAttempted, Hold, Row, Selection, Withdrawn
from heliograph.sms.accepting import withdrawal as sms
from heliograph.sms.dispatch import outcomes
from heliograph.whatsapp.accepting import withdrawal as whatsapp
from heliograph.whatsapp.dispatch import claimed

#: Rows withdrawn per transaction.
BATCH = 1_000
#: How often a batch is retried when workers were faster.
TRIES = 5
#: An SQL condition on a row of `queue`: its message has expired, as defined by its channel. Webhooks do not expire.
EXPIRED = f"CASE queue.kind WHEN 'sms' THEN {outcomes.EXPIRED} WHEN 'whatsapp' THEN {claimed.EXPIRED} END"


async def backlog(
    conn: Connection, which: Selection, *, limit: int, look: int = waiting.LOOK, places: int = waiting.PLACES
) -> waiting.WaitingWork:
    """Queued work by kind, line and organization, largest first: at most `limit` entries. Messages are looked up for
    the rows counted, at most `look`."""
    return await waiting.summary(conn, which, expired=EXPIRED, limit=limit, look=look, places=places)


class Held(Hold, frozen=True):
    """A hold, with the names of what it concerns; None: it applies to all."""

    supplier: str | None
    organization: str | None

    @classmethod
    def of(cls, hold: Hold, names: dict[UUID, str]) -> Self:
        """A hold with its names; what no longer has a name is shown by its id."""
        values = {name: getattr(hold, name) for name in hold.__struct_fields__}
        supplier, organization = (id and names.get(id, str(id)) for id in (hold.line, hold.organization_id))
        return cls(**values, supplier=supplier or None, organization=organization or None)


NAMES = """
SELECT id, name FROM suppliers WHERE id = ANY ($1) UNION ALL SELECT id, name FROM organizations WHERE id = ANY ($1)
"""


async def named(conn: Connection, held: Sequence[Hold]) -> list[Held]:
    """The given holds, with names."""
    wanted = [id for one in held for id in (one.line, one.organization_id) if id is not None]
    names = {row["id"]: row["name"] for row in await conn.fetch(NAMES, wanted)} if wanted else {}
    return [Held.of(one, names) for one in held]


async def listed(conn: Connection) -> list[Held]:
    """All holds, oldest first."""
    return await named(conn, await holds.list_all(conn))


async def withdraw(
    conn: Connection,
    which: Selection,
    *,
    tried: bool,
    by: Principal = SYSTEM,
    on_progress: Callable[[str, Withdrawn], None] = lambda kind, done: None,
    most: int | None = None,
) -> dict[str, Withdrawn]:
    """Withdraw the selected work; returns the result by kind. `tried`: include messages that were attempted, which end
    as `unknown`. `most`: maximum batches per kind, None: all. `conn` must not be in a transaction."""
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
        except AlreadyAttempted:
            continue
    return Withdrawn(left=len(rows))
