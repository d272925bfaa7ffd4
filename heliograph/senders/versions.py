"""One number that every change moves, so that whoever holds the book notices with one look.

The rule nobody may break: who moves it holds it until the end of the transaction, so versions appear in their order.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection

MOVE = """
INSERT INTO sender_book AS book (is_only, version) VALUES (true, 1)
ON CONFLICT (is_only) DO UPDATE SET version = book.version + 1
"""


async def move(conn: Connection) -> None:
    """Something changed in this transaction."""
    await conn.execute(MOVE)
