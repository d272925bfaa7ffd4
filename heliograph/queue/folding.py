"""Folding: deltas appended by transactions are added up afterwards, by whichever worker's turn it is.

The rule nobody may break: a delta is deleted in the same commit that adds it up, so it counts exactly once.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection

#: Deltas per step, and steps per round.
STEP, STEPS = 5000, 20


async def fold(conn: Connection, statement: str, *values: object) -> int:
    """Fold accumulated deltas, each step in its own transaction; returns how many there were. `statement`: folds up to
    $1 of them and returns how many; `values` are its other parameters."""
    folded = 0
    for _ in range(STEPS):
        done: int = await conn.fetchval(statement, STEP, *values)
        folded += done
        if done < STEP:
            break
    return folded
