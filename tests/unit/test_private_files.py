"""Files that only their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from heliograph.base.process import private_files


@pytest.fixture(autouse=True)
def generous_umask() -> None:
    os.umask(0o022)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_narrow_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    with private_files.open_text(path, encoding="utf-8") as file:
        assert mode(path) == 0o600
        file.write("one\r\n")
    assert path.read_bytes() == b"one\r\n"


def test_a_file_that_everybody_read_is_narrowed_and_emptied(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("much longer than what comes\n")
    path.chmod(0o644)
    with private_files.open_text(path, encoding="utf-8") as file:
        assert (mode(path), path.stat().st_size) == (0o600, 0)
        file.write("short\n")
    assert path.read_text() == "short\n"


def test_a_device_keeps_its_mode() -> None:
    before = mode(Path(os.devnull))
    with private_files.open_text(Path(os.devnull), encoding="utf-8") as file:
        file.write("gone\n")
    assert mode(Path(os.devnull)) == before


def test_a_secret_replaces_what_was_there_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret"
    for content in (b"first\n", b"second\n"):
        private_files.write(path, content)
        assert (mode(path), path.read_bytes()) == (0o600, content)
    assert list(path.parent.iterdir()) == [path]


def test_a_secret_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both its content and its name: a database on another machine keeps what is encrypted with it."""
    path = tmp_path / "secret"
    flushed: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        flushed.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    private_files.write(path, b"secret")
    assert [exists for _, exists in flushed] == [False, True]
    assert flushed[1][0] == str(tmp_path)


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """Least of all a secret, under a name that nobody would look for."""
    (tmp_path / "credentials").mkdir()
    with pytest.raises(IsADirectoryError):
        private_files.write(tmp_path / "credentials", b"secret")
    assert [path.name for path in tmp_path.iterdir()] == ["credentials"]
