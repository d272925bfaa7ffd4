"""Archived WAL, for restoring any point in time: each cluster archives to a directory of its own.

    <archive>/18-7561234567890123456/            a cluster's: major version and system identifier
    <archive>/18-7561234567890123456-3f9a01c2/   that of a cluster restored from a copy of it

The rule nobody may break: a directory holds the WAL of one cluster only. Segments are named by their position, so those
of an upgraded or restored cluster have the same names as others that already exist.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import struct
import subprocess
from itertools import pairwise
from pathlib import Path

from heliograph.base.embedded import files
from heliograph.base.embedded.install import PostgresError, SystemUser

#: The longest time before a transaction is archived, seconds.
ARCHIVE_EVERY = 60
#: A file in the data directory of a restored cluster, and so in every copy of it; an upgrade does not take it over.
MARK = "heliograph_restored"

#: A segment's timeline, and its position in two parts: units of 4 GB, and of 16 MB within them.
_is_segment = re.compile("[0-9A-F]{8}([0-9A-F]{8})000000([0-9A-F]{2})").fullmatch
SEGMENT_BYTES = 16 << 20


def name_of(data: Path) -> str:
    """The archive name of the cluster in `data`."""
    with (data / "global" / "pg_control").open("rb") as file:
        # The first field in every version: PostgreSQL's own programs use it to identify the file's cluster.
        (system,) = struct.unpack("=Q", file.read(8))
    mark = data / MARK
    own = f"-{mark.read_text()}" if mark.exists() else ""
    return f"{files.major_of(data)}-{system}{own}"


def rename_cluster(data: Path, account: SystemUser) -> None:
    """Give a cluster restored from a copy a name of its own."""
    files.write(data / MARK, secrets.token_hex(4), mode=0o600, account=account)


def prepare(archive: Path, name: str, account: SystemUser) -> Path:
    """Create a cluster's directory for the account that PostgreSQL runs as. Raises PostgresError."""
    place = archive / name
    try:
        # An existing directory may contain files of others, so it keeps its owner.
        if not archive.exists():
            with contextlib.suppress(FileExistsError):  # another installation has just created it
                archive.mkdir(parents=True, mode=0o700)
            account.own(archive)
        place.mkdir(exist_ok=True, mode=0o700)
        if place.stat().st_uid != account.uid:
            account.own(place)
    except OSError as error:
        raise PostgresError(f"cannot archive WAL to {place}: {error.strerror}") from None
    if _asked('test -w "$1"', place, account).returncode != 0:
        raise PostgresError(
            f"PostgreSQL, which runs as uid {account.uid}, cannot write to {place}: let it enter the directories above"
        )
    return place


def gap(directory: Path, *, first: str) -> str | None:
    """The segment that is missing in a directory although later ones exist, or None. Only segments from `first` on
    count; `first` itself may be missing, since a copy contains the WAL written until it ended."""
    there = _segments(directory)
    begun = sorted(one for one in there if one >= _position(first))
    missing = next((one + 1 for one, after in pairwise(begun) if after > one + 1), None)
    return None if missing is None else _named(missing, like=there[begun[0]])


def lacking(directory: Path, *, first: str, last: str) -> str | None:
    """The first missing segment in a directory of those from `first` to `last`, or None. `last`: any file that
    PostgreSQL archived; most are named like a segment. Raises OSError."""
    end = _is_segment(last[:24])
    if end is None:
        return None
    there = _segments(directory)
    missing = next((one for one in range(_position(first), _position(end[0]) + 1) if one not in there), None)
    return None if missing is None else _named(missing, like=first)


def unreplayed(directory: Path, *, end: int) -> str | None:
    """The segment that ended a replay although the directory has later ones: it is missing or damaged. None: the replay
    reached the end of the archive. `end`: how far it got, in bytes from the beginning of the WAL."""
    there, reached = _segments(directory), end // SEGMENT_BYTES
    later = [one for one in there if one > reached]
    if not later:
        return None
    # A record that continues in the next segment cannot be replayed without it.
    stopped = reached if reached not in there or reached + 1 in there else reached + 1
    return _named(stopped, like=there[later[0]])


def _segments(directory: Path) -> dict[int, str]:
    """Position, in segments from the beginning of the WAL → name."""
    return {_position(path.name): path.name for path in directory.iterdir() if _is_segment(path.name)}


def _position(segment: str) -> int:
    found = _is_segment(segment)
    assert found is not None
    return int(found[1], 16) * 256 + int(found[2], 16)


def _named(position: int, *, like: str) -> str:
    """The name of a segment, on the timeline of another one."""
    return f"{like[:8]}{position // 256:08X}000000{position % 256:02X}"


READABLE = 'cd -P "$1" && ls >/dev/null || exit 1; for one in *; do test ! -e "$one" || test -r "$one" || exit 1; done'


def demand_readable(directory: Path, account: SystemUser) -> None:
    """Raise PostgresError if PostgreSQL could not replay the archived WAL: it treats an unreadable segment as the end
    of the archive."""
    if _asked(READABLE, directory, account).returncode != 0:
        raise PostgresError(
            f"PostgreSQL, which runs as uid {account.uid}, cannot read everything in {directory}: give the archive to"
            f" that user, such as with chown -R {account.uid}, and let it enter the directories above"
        )


def _asked(script: str, directory: Path, account: SystemUser) -> subprocess.CompletedProcess[bytes]:
    """Runs a test as the account: the kernel decides, not the mode bits, so that ACLs and mounts count as well."""
    command = ["/bin/sh", "-c", script, "sh", str(directory)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, cwd="/", **account.spawn())


def settings(directory: Path) -> dict[str, str]:
    """Server settings that archive each WAL segment into `directory`, which PostgreSQL's account must be able to write.

    An existing, identical segment counts as archived: the server may have been killed before it recorded that. Its name
    is flushed in any case: PostgreSQL then removes its own copy, and a power failure would leave a gap.
    """
    place = _in_command(directory)
    target, part = f"{place}/%f", f"{place}/.%f.part"
    copied = f"test ! -e {target} && cp %p {part} && sync {part} && mv {part} {target}"
    # Some network file systems flush no directory by itself.
    flushed = f"{{ sync {place} 2>/dev/null || sync -f {place}; }}"
    command = f"{{ cmp -s %p {target} || {{ {copied}; }}; }} && {flushed}"
    return {"archive_mode": "on", "archive_command": command, "archive_timeout": str(ARCHIVE_EVERY)}


def restore_command(directory: Path) -> str:
    """The setting `restore_command` that fetches segments from `directory`. One that is there and cannot be copied, as
    onto a full disk, ends the recovery (a status above 125), where a missing one is the archive's end."""
    segment = f"{_in_command(directory)}/%f"
    return f"test -e {segment} && {{ cp {segment} %p || exit 200; }}"


def _in_command(directory: Path) -> str:
    """Quoted for the shell, and for PostgreSQL, where % begins a placeholder."""
    return shlex.quote(str(directory)).replace("%", "%%")
