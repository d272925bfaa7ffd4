"""The web process under attack: endless trailers and headers, unread responses, floods of connections. Nothing that was
accepted is lost, the process stays small, and (in the long form) other clients hardly notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests.faults.attackers import KINDS
from tests.faults.bystanders import MOST, NOISE, send_steadily
from tests.load import Client
from tests.processes import LONG, installation, until_true

#: Seconds of each attack, and of each quiet period it is compared with.
SECONDS = 15.0 if LONG else 0.6
ROUNDS = 3 if LONG else 1
#: Bytes by which a process under attack may grow.
MORE = 64 * 1_048_576

pytestmark = pytest.mark.lasts(10)


@contextlib.asynccontextmanager
async def under_attack(kind: str, port: int, seconds: float) -> AsyncIterator[None]:
    """An attack, from the end of its first round to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.attackers", kind, str(port), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            assert (await process.stdout.readline()).strip() == b"begun"
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.communicate()


@pytest.mark.timeout(1800 if LONG else 600)
async def test_the_others_are_served_while_the_door_is_attacked(database_url: str, tmp_path: Path) -> None:
    # Long deadlines, so that they are not what saves the process.
    settings = {"HELIOGRAPH_BODY_DEADLINE_SECONDS": "60"}
    numbers = itertools.count()
    async with (
        installation(database_url, tmp_path, **settings) as made,
        Client(made.base_url, made.key) as client,
    ):
        program = await made.api()

        async def ready() -> bool:
            return (await client.ask("GET", "/health"))[0] == 200

        await until_true(ready)
        await send_steadily(client, numbers, SECONDS)
        process = psutil.Process(program.pid)
        before = process.memory_info().rss
        for kind in KINDS:
            quiet, loud = [], []
            for _ in range(ROUNDS):
                quiet.append(await send_steadily(client, numbers, SECONDS) if LONG else 0.0)
                async with under_attack(kind, made.port, SECONDS + 60):
                    loud.append(await send_steadily(client, numbers, SECONDS))
                    assert process.memory_info().rss - before < MORE, kind
            if LONG:
                before_ms, during_ms = (statistics.median(each) * 1e3 for each in (quiet, loud))
                print(f"{kind}: p99 of the others {before_ms:.1f} ms, under attack {during_ms:.1f} ms")
                assert during_ms < MOST * max(before_ms, NOISE * 1e3), (kind, quiet, loud)
        assert client.unanswered == 0
        assert {answer.status for answer in client.answers} == {202}
        conn = await asyncpg.connect(database_url)
        try:
            stored = {str(row["id"]) for row in await conn.fetch("SELECT id FROM messages")}
        finally:
            await conn.close()
        assert set(client.ledger.values()) == stored, "nothing lost, nothing twice"
        assert not made.complaints
