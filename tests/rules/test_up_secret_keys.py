"""The secret key of `heliograph up`: an installation has one, however many starts create it at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from heliograph.base.process.settings import Settings
from heliograph.up import secret_keys


async def test_starts_at_the_same_time_have_the_same_key(empty_database_url: str, tmp_path: Path) -> None:
    """Each had its own, of which the file kept the last: what the other encrypted was lost with its process."""
    settings = Settings(database_url=empty_database_url)
    both = await asyncio.gather(*(secret_keys.ensured(settings, tmp_path) for _ in range(2)))
    assert {one.secret_key for one in both} == {(tmp_path / secret_keys.FILE).read_text().strip()}
    assert len(both[0].secret_key) == 64
