"""The keys of `heliograph up`: a start that is interrupted leaves its keys to the next one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.base.process.settings import Settings
from heliograph.demo.credentials import Credentials
from heliograph.up.running import CREDENTIALS, STARTING, _prepare


async def test_keys_that_replace_revoked_ones_outlast_a_start_that_is_interrupted(
    database_url: str, tmp_path: Path
) -> None:
    """Otherwise each such start would create others, until the organization has as many as it may have."""
    settings = Settings(database_url=database_url, secret_key="a secret key for tests, long enough")

    async def prepared() -> tuple[Credentials, UUID, bool, str, str]:
        with contextlib.ExitStack() as held:
            return await _prepare(settings, tmp_path, "http://127.0.0.1:1", held, is_local=True)

    first, *_ = await prepared()
    old = msgspec.json.encode(msgspec.structs.replace(first, live_key="hg_live_revoked", test_key="hg_test_revoked"))
    (tmp_path / CREDENTIALS).write_bytes(old)
    (tmp_path / STARTING).unlink()
    starts = [await prepared() for _ in range(3)]
    keys = [(credentials.live_key, credentials.test_key) for credentials, *_ in starts]
    assert keys == [keys[0]] * 3
    assert keys[0] != (first.live_key, first.test_key)
    assert [are_new for _, _, are_new, _, _ in starts] == [True] * 3
