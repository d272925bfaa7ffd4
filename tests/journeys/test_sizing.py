"""The storage arithmetic of docs/sizing.md, compared with the rows of real messages, and with itself."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from heliograph.base.process.settings import Settings
from tests.judge import until_settled
from tests.load import Load
from tests.processes import installation, until
from tests.sizes import stored

pytestmark = pytest.mark.lasts(10)

PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
#: Tables that have rows of a message only temporarily, or only in exceptional cases.
PASSING = {"traffic_deltas", "reconciliation_deltas", "webhook_traffic_deltas", "guard_held", "guard_seen"}
#: How far a table may be from the page's figure; further if a row holds several messages' data, which varies: the
#: busier the machine, the more share a row, and the less each takes.
NEAR, NEAR_TOGETHER, LEAST_TOGETHER = 0.1, 0.6, 0.1
TOGETHER = {"webhook_successes", "receipt_bytes"}


def documented() -> dict[str, tuple[int, int]]:
    """(bytes a message, days) of each table."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    return {table: (int(size), int(days)) for table, size, days in rows}


async def test_messages_leave_what_the_page_says(database_url: str, tmp_path: Path) -> None:
    async with installation(database_url, tmp_path) as made:
        async with made.serving(), made.working():
            async with Load(made.base_url, made.key, senders=8) as load:
                await load.until_sent(200)
            await until_settled(made.url)
            await until(lambda: len({one.id for one in made.receiver.events}) >= len(load.ledger))
        conn = await asyncpg.connect(made.url)
        found = {one.table: one.bytes for one in await stored(conn, len(load.ledger))}
        await conn.close()
    known = documented()
    assert set(found) - PASSING == set(known)
    for table, (size, _) in known.items():
        if table in TOGETHER:
            assert LEAST_TOGETHER * size <= found[table] <= (1 + NEAR_TOGETHER) * size, (table, found[table])
        else:
            assert abs(found[table] - size) <= NEAR * size, (table, found[table])


def test_the_page_multiplies_correctly_and_knows_retention() -> None:
    known = documented()
    settings = Settings()
    assert known["messages"][1] == known["attempts"][1] == 31 * settings.metadata_retention_months
    assert known["receipt_bytes"][1] == settings.text_retention_days
    assert known["send_keys"][1] == settings.idempotency_hours // 24 + 1
    of_one = sum(size * days for size, days in known.values())
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for messages, gigabytes in rows:
        exact = int(messages.replace(",", "")) * of_one / 1e9
        assert abs(int(gigabytes) - exact) <= max(0.5, exact * 0.01), (messages, exact)
