"""Files that backup commands read and remove: a kill or a refusal at any point leaves nothing half done."""

from __future__ import annotations

import errno
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from heliograph.backup import store
from heliograph.backup.store import Backup, BackupError
from heliograph.cli import app
from tests.rules.test_backups import PASSPHRASE, copy_of
from tests.up import NOBODY

NOW = datetime(2027, 1, 3, tzinfo=UTC)


def backup_of(directory: Path, at: datetime) -> Path:
    """A complete backup, and its directory."""
    place = directory / f"{store.PREFIX}{at:%Y%m%dT%H%M%SZ}"
    (place / store.CLUSTER).mkdir(parents=True)
    manifest = msgspec.structs.replace(copy_of("", "").manifest, taken_at=at)
    (place / store.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return place


@pytest.fixture
def two(tmp_path: Path) -> list[Backup]:
    """Two backups, the newest first."""
    for day in (1, 2):
        backup_of(tmp_path, datetime(2027, 1, day, tzinfo=UTC))
    return store.listed(tmp_path, now=NOW)


def test_a_backup_from_before_a_clock_was_set_back_does_not_outlive_newer_ones(
    two: list[Backup], tmp_path: Path
) -> None:
    ahead, newest = two
    now = newest.manifest.taken_at
    assert store.listed(tmp_path, now=now) == [newest, ahead]
    assert store.prune(tmp_path, keep=1, now=now, installation="") == [ahead.path]
    assert store.listed(tmp_path, now=now) == [newest]


def test_a_backup_from_before_a_clock_was_set_back_is_listed_last(tmp_path: Path) -> None:
    ahead, newest = (backup_of(tmp_path, datetime(year, 1, 1, tzinfo=UTC)) for year in (2999, 2001))
    done = CliRunner().invoke(app, ["backup", "list", str(tmp_path), "-o", "tsv"])
    assert [line.split("\t")[-1] for line in done.stdout.splitlines()] == [str(newest), str(ahead)]


def test_a_removal_that_is_killed_leaves_no_half_backup(
    two: list[Backup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, **options: Any) -> None:
        (path / store.CLUSTER).rmdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as half:
        half.setattr(store.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.prune(tmp_path, keep=1, now=NOW, installation="")
    assert store.listed(tmp_path, now=NOW) == two[:1]
    assert store.prune(tmp_path, keep=1, now=NOW, installation="") == []
    assert list(tmp_path.iterdir()) == [two[0].path], "the next time finishes it"


def test_a_backup_survives_a_power_failure_from_the_moment_it_has_its_name(
    two: list[Backup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    final = tmp_path / f"{store.PREFIX}20270104T000000Z"
    with store.unfinished(tmp_path) as place:
        (place / store.CLUSTER).mkdir()
        store.finish(place, final, two[0].manifest)
    everything = {str(place), str(place / store.CLUSTER), str(place / store.MANIFEST), str(tmp_path)}
    assert (set(flushed), flushed[-1]) == (everything, str(tmp_path))


def test_a_backup_that_cannot_be_removed_is_told(
    two: list[Backup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(BackupError, match=f"^{two[1].path} cannot be removed: Permission denied$"):
        store.prune(tmp_path, keep=1, now=NOW, installation="")
    assert store.listed(tmp_path, now=NOW) == two


def test_a_backup_that_another_command_removes_is_told_by_that_one_only(
    two: list[Backup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, others = Path.rename, []

    def second(path: Path, target: Path) -> Path:
        """Another command comes first."""
        monkeypatch.setattr(Path, "rename", rename)
        others.extend(store.prune(tmp_path, keep=1, now=NOW, installation=""))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", second)
    assert (store.prune(tmp_path, keep=1, now=NOW, installation=""), others) == ([], [two[1].path])


def test_a_file_that_cannot_be_read_is_told(two: list[Backup]) -> None:
    """A failing disk, or a file of another account: what a verification is there to find."""
    broken = two[0].path / store.CLUSTER / "base.tar.gz"
    broken.symlink_to("/proc/self/mem")  # whose first page nobody can read
    with pytest.raises(BackupError, match=f"^{broken} cannot be read: Input/output error$"):
        store.check(two[0])


def test_what_root_takes_belongs_to_the_account_of_its_directory(two: list[Backup], tmp_path: Path) -> None:
    """As somebody on call does on a machine where a service takes one every night, which could neither read nor remove
    it, and so removed no archived WAL either."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(tmp_path, NOBODY, NOBODY)
    with store.unfinished(tmp_path) as place:
        (place / store.CLUSTER).mkdir(mode=0o700)
        (place / store.CLUSTER / "base.tar.gz").write_bytes(b"a copy")
        taken = store.finish(place, tmp_path / f"{store.PREFIX}20270104T000000Z", two[0].manifest)
    found = [taken.path, *taken.path.rglob("*")]
    assert len(found) == 4
    assert {(one.stat().st_uid, one.stat().st_gid) for one in found} == {(NOBODY, NOBODY)}


def test_the_remains_of_another_account_are_left_to_it(
    two: list[Backup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup of root's that was killed: no backup of the service's could be completed any more."""
    remains = tmp_path / f"{store.UNFINISHED}0011aabb"
    remains.mkdir(mode=0o700)

    def refused(path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as service:
        service.setattr(store.os, "open", refused)
        assert store.prune(tmp_path, keep=2, now=NOW, installation="") == []
    assert remains.exists()
    assert store.prune(tmp_path, keep=2, now=NOW, installation="") == []
    assert not remains.exists()


def test_credentials_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    credentials = tmp_path / "data" / "credentials.json"
    (tmp_path / "data" / "postgres").mkdir(parents=True)
    for name, content in (("app.password", b"word"), ("owner.password", b"word"), ("port", b"5433")):
        (tmp_path / "data" / "postgres" / name).write_bytes(content)
    credentials.write_bytes(b"\xff")
    environment = {"HELIOGRAPH_SECRET_KEY": secrets.token_urlsafe(48), "HELIOGRAPH_BACKUP_PASSPHRASE": PASSPHRASE}
    words = ["backup", "take", "--to", str(tmp_path / "to"), "--data-dir", str(tmp_path / "data")]
    done = CliRunner().invoke(app, words, env=environment)
    assert str(done.exception) == f"{credentials} cannot be read: it is not UTF-8 text"


def test_where_nothing_can_be_locked_no_directory_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: each try left an empty one."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(store.fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"), store.unfinished(tmp_path):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []
