"""Opt-outs when a number gets another owner: they follow the former owner, and also stay with the number.

The rule nobody may break: an opt-out in force for a person before a link is removed is in force for them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.consent import optouts

# An opt-out may have no history anymore: an erasure deletes the history, but not the opt-out. A statement that the
# other person already has is not repeated.
STANDING = """
WITH given AS (
    SELECT said.* FROM names_of_person($1, $2) names CROSS JOIN LATERAL (
           SELECT at, source, keyword, message_id, import_id, author_kind, author_id, author FROM consent_history
            WHERE organization_id = $1 AND person = names.name AND said = 'out' AND ended_at IS NULL
            UNION
           SELECT since, source, keyword, message_id, import_id, NULL, NULL, NULL FROM opt_outs
            WHERE organization_id = $1 AND person = names.name
              AND NOT EXISTS (SELECT FROM consent_history
                               WHERE organization_id = $1 AND person = names.name AND said = 'out'
                                 AND ended_at IS NULL)) said
)
SELECT * FROM given
 WHERE ($4::timestamptz IS NULL OR at <= $4)
   AND NOT EXISTS (SELECT FROM names_of_person($1, $3) names JOIN consent_history known
                       ON known.organization_id = $1 AND known.person = names.name
                    WHERE known.said = 'out' AND known.ended_at IS NULL
                      AND (known.at, known.source, known.message_id, known.import_id)
                          IS NOT DISTINCT FROM (given.at, given.source, given.message_id, given.import_id))
 ORDER BY at
"""
COPY = """
INSERT INTO consent_history (organization_id, id, recipient, said, at, source, keyword, message_id, import_id,
                             author_kind, author_id, author)
VALUES ($1, $2, $3, 'out', $4, $5, $6, $7, $8, $9, $10, $11)
"""


class Handover(msgspec.Struct, frozen=True, gc=False):
    """A number that belongs to somebody else now, and the number that its former owner moved to."""

    organization_id: UUID
    number: str
    moved_to: str
    left_at: datetime
    #: The two numbers were never linked here: we learned of the move too late.
    is_separate: bool = False


async def hand_on(conn: Connection, handovers: Sequence[Handover]) -> None:
    """Separate the opt-outs of numbers from those of the people who left them, in the caller's transaction.

    A number's opt-outs also apply to its former owner. Those that the former owner stated under other names before the
    move also stay with the number, whose new owner can lift them by START.
    """
    for one in handovers:
        pairs = [(one.organization_id, one.number), (one.organization_id, one.moved_to)]
        await optouts.hold(conn, pairs)
        if one.is_separate:
            await _copy(conn, one.organization_id, one.number, one.moved_to, until=one.left_at)
        else:
            await _copy(conn, one.organization_id, one.moved_to, one.number, until=one.left_at)
            await _copy(conn, one.organization_id, one.number, one.moved_to)
        await optouts.restore(conn, pairs)


async def _copy(conn: Connection, organization_id: UUID, of: str, to: str, *, until: datetime | None = None) -> None:
    for row in await conn.fetch(STANDING, organization_id, of, to, until):
        await conn.execute(COPY, organization_id, uuid7(), to, *row.values())
