"""Gaps in a WAL archive are reported: PostgreSQL takes a missing segment for the end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from heliograph.base.embedded import archive

MB = 1 << 20


def segment(position: int) -> str:
    return f"00000001{position // 256:08X}000000{position % 256:02X}"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Segments 250 to 260 without 257, and other files beside them."""
    for one in {*range(250, 261)} - {257}:
        (tmp_path / segment(one)).touch()
    for name in (f"{segment(250)}.00000028.backup", "00000002.history", f".{segment(257)}.part"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("first", "missing"), [(1, 257), (250, 257), (256, 257), (257, None), (258, None), (300, None)]
)
def test_a_gap_is_what_lacks_before_a_later_segment(kept: Path, first: int, missing: int | None) -> None:
    assert archive.gap(kept, first=segment(first)) == (None if missing is None else segment(missing))


@pytest.mark.parametrize(
    ("first", "last", "missing"),
    [(250, 256, None), (250, 260, 257), (258, 260, None), (249, 252, 249), (258, 261, 261), (259, 258, None)],
)
def test_an_archive_lacks_what_was_archived_and_is_not_there(
    kept: Path, first: int, last: int, missing: int | None
) -> None:
    """Its last segment as well: a disk that is not mounted has none."""
    for name in (segment(last), f"{segment(last)}.00000028.backup"):
        found = archive.lacking(kept, first=segment(first), last=name)
        assert found == (None if missing is None else segment(missing))
    assert archive.lacking(kept, first=segment(first), last="00000002.history") is None


@pytest.mark.parametrize(
    ("end", "stopped"),
    [
        # It ended with the last record of 256, which is complete, or with one that 257 would have continued.
        (257 * 16 * MB, 257),
        (257 * 16 * MB - 100, 257),
        # In the middle of a segment whose successor exists: it is damaged.
        (255 * 16 * MB + 4096, 255),
        # At the end of the archive.
        (260 * 16 * MB + 4096, None),
        (261 * 16 * MB, None),
    ],
)
def test_a_replay_that_ended_before_the_archive_does_is_told_from_one_that_saw_all(
    kept: Path, end: int, stopped: int | None
) -> None:
    assert archive.unreplayed(kept, end=end) == (None if stopped is None else segment(stopped))


@pytest.mark.parametrize("flushes_directories", [True, False])
def test_an_archived_segment_survives_a_power_failure_with_its_name(tmp_path: Path, flushes_directories: bool) -> None:
    place, programs, flushed = tmp_path / "a place", tmp_path / "programs", tmp_path / "flushed"
    for directory in (place, programs):
        directory.mkdir()
    (tmp_path / "segment").write_bytes(b"WAL")
    refuses = "" if flushes_directories else 'test ! -d "$1" || exit 1; '
    (programs / "sync").write_text(f'#!/bin/sh\n{refuses}ls "{place}" >>{flushed}; echo "$@" >>{flushed}\n')
    (programs / "sync").chmod(0o755)
    command = archive.settings(place)["archive_command"]
    command = command.replace("%p", str(tmp_path / "segment")).replace("%f", segment(1))
    for _ in range(2):
        done = subprocess.run(
            ["/bin/sh", "-c", command], env={"PATH": f"{programs}:{os.environ['PATH']}"}, capture_output=True
        )
        assert (done.returncode, (place / segment(1)).read_bytes()) == (0, b"WAL")
    # Its content before it has its name, then the name; that also if it was there, since what wrote it may have been
    # killed before it was flushed.
    name = [segment(1), str(place) if flushes_directories else f"-f {place}"]
    assert flushed.read_text().splitlines() == [f"{place}/.{segment(1)}.part", *name, *name]
