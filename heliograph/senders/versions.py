"""A version number that every change increments, so that holders of the book notice changes with one query.

The rule nobody may break: the number stays locked until the end of the incrementing transaction, so versions appear in
order.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection

MOVE = """
INSERT INTO sender_book AS book (is_only, version, numbers_at) VALUES (true, 1, CASE WHEN $1 THEN now() END)
ON CONFLICT (is_only) DO UPDATE
   SET version = book.version + 1, numbers_at = coalesce(excluded.numbers_at, book.numbers_at)
"""


async def move(conn: Connection, *, numbers: bool = False) -> None:
    """Record that something changed in this transaction. `numbers`: a rule for numbers did."""
    await conn.execute(MOVE, numbers)
