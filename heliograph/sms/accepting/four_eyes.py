"""The four-eyes rule: if the installation requires it, a sender ID needs the approval of two operators.

The first approval counts as long as its operator may give it, or if it was given at a shell.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.accounts import installation
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Connection
from heliograph.people.operators import roles

#: An SQL expression about a row of `sender_ids`: who approved it first (`identity`); NULL: nobody who still counts.
FIRST_BY = f"""
(SELECT first_by WHERE first_by LIKE '% %' OR EXISTS (
        SELECT FROM operators WHERE user_id::text = first_by
                                AND role IN ({", ".join(map(repr, roles.holders(roles.APPROVE)))})))
"""
NOTE = "UPDATE sender_ids SET first_by = $3 WHERE organization_id = $1 AND id = $2"


async def holds(conn: Connection, actor: Actor, *, id: UUID, known: Any) -> bool:
    """Whether an approval still needs that of another operator. Runs in the caller's transaction, which has locked the
    sender ID as `known` (`value`, `status`, FIRST_BY as `first_by`). The first approval is recorded, also in the audit
    log."""
    mine = identity(actor.principal)
    if known["first_by"] not in (None, mine) or not (await installation.load(conn)).four_eyes:
        return False
    if known["first_by"] is None:
        await conn.execute(NOTE, actor.organization_id, id, mine)
        await audit.record(conn, actor, "sender_id.seconded", object_id=id, name=known["value"])
    return True


def identity(who: Principal) -> str:
    """What identifies an operator: the id, or the shell user."""
    return str(who.id) if who.id else f"{who.kind} {who.name}"
