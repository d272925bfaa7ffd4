"""One number that every change moves, so that whoever holds the book notices with one look.

The rule nobody may break: who moves it holds it until the end of the transaction, so versions appear in their order.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection

MOVE = """
INSERT INTO sender_book AS book (is_only, version, numbers_at) VALUES (true, 1, CASE WHEN $1 THEN now() END)
ON CONFLICT (is_only) DO UPDATE
   SET version = book.version + 1, numbers_at = coalesce(excluded.numbers_at, book.numbers_at)
"""


async def move(conn: Connection, *, numbers: bool = False) -> None:
    """Something changed in this transaction. `numbers`: a rule for numbers did."""
    await conn.execute(MOVE, numbers)
