"""Rate windows that do not end while a test counts what is left of them."""

from __future__ import annotations

import math

from heliograph.base.database.pool import Pool

#: Requests of the next minute can be counted in this one already: statements may come from a process that is ahead.
HOLD = "UPDATE rate_windows SET window_start = date_trunc('minute', now()) + interval '1 minute'"


async def hold_windows(pool: Pool) -> None:
    """Keep the windows as they are for a minute or two from now, whatever the time is."""
    await pool.execute(HOLD)


ENDS = "SELECT max(extract(epoch FROM window_start + interval '1 minute' - clock_timestamp())) FROM rate_windows"


async def seconds_left(pool: Pool) -> int:
    """Seconds to the end of the last window, rounded up."""
    return math.ceil(await pool.fetchval(ENDS))
