"""Profiles: installations that this person works with, each with its URL and a key, in a file that only they may read.

The rule nobody may break: a key is never printed, and the file is never open to others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from heliograph.base.process import private_files
from heliograph.cli.terminal.console import WRONG, Problem

#: The profile that is used when none is named.
DEFAULT = "default"


class Profile(msgspec.Struct, frozen=True):
    """An installation and a key for it."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Profile({self.url})"

    @property
    def shown_key(self) -> str:
        """Which key it is, without letting anybody use it."""
        return f"{self.key[:8]}…{self.key[-4:]}"


class Profiles(msgspec.Struct, frozen=True):
    """What the file holds. `current`: the profile that is used when none is named."""

    current: str = DEFAULT
    profiles: dict[str, Profile] = {}


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where what belongs to this person lies."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "heliograph"


def read() -> Profiles:
    """What is there; nothing if the file is missing. Raises Problem."""
    path = folder() / "profiles.json"
    try:
        if path.stat().st_mode & 0o077:
            raise Problem(f"{path} holds keys and others may read it: chmod 600 {path}", WRONG)
        return msgspec.json.decode(path.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}", WRONG) from None
    except msgspec.MsgspecError as error:
        raise Problem(f"{path} is damaged: {error}", WRONG) from None


def write(profiles: Profiles) -> None:
    """Replace the file. Raises Problem."""
    path = folder() / "profiles.json"
    try:
        private_files.write(path, msgspec.json.format(msgspec.json.encode(profiles), indent=2) + b"\n")
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}") from None


def get(name: str | None) -> Profile | None:
    """The profile of that name, or the current one; None: there is none. Raises Problem for a name that is unknown."""
    known = read()
    found = known.profiles.get(known.current if name is None else name)
    if found is None and name is not None:
        listed = ", ".join(sorted(known.profiles)) or "none"
        raise Problem(f"there is no profile {name!r} (there is: {listed}); `heliograph login` creates one", WRONG)
    return found
