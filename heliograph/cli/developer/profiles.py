"""Profiles: installations that this person works with, each with its URL and a key, in a file that only they may read.

The rule nobody may break: a key is never printed, and the file is never readable by others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from heliograph.base.process import private_files
from heliograph.cli.terminal.console import WRONG, Problem

#: The profile used if none is named.
DEFAULT = "default"
#: The variables that name a key, or a profile, in place of the current profile.
KEY_VARIABLE, PROFILE_VARIABLE = "HELIOGRAPH_API_KEY", "HELIOGRAPH_PROFILE"


class Profile(msgspec.Struct, frozen=True):
    """An installation and a key for it."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Profile({self.url})"

    @property
    def shown_key(self) -> str:
        """The key, shortened so that it can be recognized but not used."""
        return f"{self.key[:8]}…{self.key[-4:]}"


class Profiles(msgspec.Struct, frozen=True):
    """The content of the file. `current`: the profile used if none is named."""

    current: str = DEFAULT
    profiles: dict[str, Profile] = {}


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory for this person's files. Raises Problem if this account has no home."""
    base = private_files.base_directory("XDG_CONFIG_HOME", ".config", environment)
    if base is None:
        raise Problem("this account has no home directory: set HOME or XDG_CONFIG_HOME", WRONG)
    return base / "heliograph"


def read() -> Profiles:
    """The stored profiles; empty if the file or the home directory is missing. Raises Problem."""
    try:
        path = folder() / "profiles.json"
    except Problem:
        return Profiles()
    try:
        if path.stat().st_mode & 0o077:
            raise Problem(f"{path} contains keys and can be read by others: chmod 600 {path}", WRONG)
        return msgspec.json.decode(path.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}", WRONG) from None
    except msgspec.MsgspecError as error:
        raise Problem(f"{path} is damaged: {error}", WRONG) from None


def change(to: Callable[[Profiles], Profiles]) -> None:
    """Replace the file by what `to` makes of its content. Raises Problem."""
    path = folder() / "profiles.json"
    try:
        with _one_at_a_time(path.with_suffix(".lock")):
            changed = to(read())
            private_files.write(path, msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Of two commands that change the file at once, the later one would undo what the other one did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.MODE)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks, and homes may be on one
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def get(name: str | None) -> Profile | None:
    """The profile of that name, or the current one; None if there is none. Raises Problem for an unknown name."""
    known = read()
    found = known.profiles.get(known.current if name is None else name)
    if found is None and name is not None:
        listed = ", ".join(sorted(known.profiles)) or "none"
        raise Problem(f"there is no profile {name!r} (available: {listed}); `heliograph login` creates one", WRONG)
    return found


def passed_over(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Why commands do not use the current profile, which has this name; empty: they do."""
    if environment.get(KEY_VARIABLE):
        return f"{KEY_VARIABLE} is set, and wins over the current profile: unset it, or give --profile {name}."
    other = environment.get(PROFILE_VARIABLE)
    if other and other != name:
        return f"{PROFILE_VARIABLE} is {other}, and wins over the current profile: unset it, or give --profile {name}."
    return ""
