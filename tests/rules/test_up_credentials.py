"""The keys of `heliograph up`: a start that is interrupted leaves its keys to the next one, and none loses them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.process import private_files
from heliograph.base.process.settings import Settings
from heliograph.demo.credentials import Credentials
from heliograph.up.errors import UpError
from heliograph.up.running import CREDENTIALS, STARTING, _prepare
from tests.up import NOBODY


async def test_keys_that_replace_revoked_ones_outlast_a_start_that_is_interrupted(
    database_url: str, tmp_path: Path
) -> None:
    """Otherwise each such start would create others, until the organization has as many as it may have."""
    first, *_ = await prepared(database_url, tmp_path)
    old = msgspec.json.encode(msgspec.structs.replace(first, live_key="hg_live_revoked", test_key="hg_test_revoked"))
    (tmp_path / CREDENTIALS).write_bytes(old)
    (tmp_path / STARTING).unlink()
    starts = [await prepared(database_url, tmp_path) for _ in range(3)]
    keys = [(credentials.live_key, credentials.test_key) for credentials, *_ in starts]
    assert keys == [keys[0]] * 3
    assert keys[0] != (first.live_key, first.test_key)
    assert [are_new for _, _, are_new, _, _ in starts] == [True] * 3


@pytest.mark.parametrize("name", [CREDENTIALS, STARTING])
async def test_keys_that_cannot_be_read_are_not_replaced(
    database_url: str, pool: Pool, tmp_path: Path, name: str
) -> None:
    """As after a start by root, whose file the service's account cannot read: its clients' keys were revoked."""
    await prepared(database_url, tmp_path)
    file = tmp_path / name
    for make, why in (
        (lambda: file.write_text("{"), "Input data was truncated"),
        (lambda: file.symlink_to("/proc/self/mem"), "Input/output error"),
    ):
        file.unlink(missing_ok=True)
        make()
        with pytest.raises(UpError, match=f"{file}, which has the keys .* cannot be read: {why}; make it readable"):
            await prepared(database_url, tmp_path)
    assert await pool.fetch("SELECT DISTINCT status FROM api_keys") == [("active",)]


def test_what_root_writes_belongs_to_the_account_of_the_file_or_else_of_its_directory(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    file = tmp_path / CREDENTIALS
    private_files.write(file, b"before")
    assert file.stat().st_uid == 0
    os.chown(file, NOBODY, NOBODY)
    private_files.write(file, b"after")
    found = file.stat()
    assert (file.read_bytes(), found.st_uid, found.st_gid, found.st_mode & 0o777) == (b"after", NOBODY, NOBODY, 0o600)
    os.chown(tmp_path, NOBODY, NOBODY)
    private_files.write(tmp_path / STARTING, b"new")
    assert (tmp_path / STARTING).stat().st_uid == NOBODY


def test_root_writes_through_no_link(tmp_path: Path) -> None:
    """Of the account that the directory belongs to: the file of root's that it names would be that account's."""
    other = tmp_path / "other"
    other.write_bytes(b"root's")
    (tmp_path / f".{CREDENTIALS}.{os.getpid()}").symlink_to(other)
    private_files.write(tmp_path / CREDENTIALS, b"the keys")
    found = tmp_path / CREDENTIALS
    assert (other.read_bytes(), found.read_bytes(), found.is_symlink()) == (b"root's", b"the keys", False)


async def prepared(database_url: str, data_dir: Path) -> tuple[Credentials, UUID, bool, str, str]:
    """A start of `up` until its keys are known."""
    settings = Settings(database_url=database_url, secret_key="a secret key for tests, long enough")
    with contextlib.ExitStack() as held:
        return await _prepare(settings, data_dir, "http://127.0.0.1:1", held, is_local=True)
