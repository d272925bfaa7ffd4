"""Heartbeats: each process updates its own row every few seconds, and is considered gone after three missed beats.

The rule nobody may break: whether a row is alive is decided here and by the database's clock, so that all places agree
on which processes are working.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime
from uuid import UUID

import msgspec

#: Seconds between two beats; without a beat until a process counts as gone; and without one until it is not listed.
BEAT, GONE, LISTED = 5.0, 15.0, 60.0

#: SQL conditions on a row's `seen_at`. One that lies far ahead was written before the clock was set back: a living
#: process has since replaced its own.
_NOT_AHEAD = f"seen_at < now() + interval '{LISTED:g} seconds'"
IS_ALIVE = f"seen_at > now() - interval '{GONE:g} seconds' AND {_NOT_AHEAD}"
IS_LISTED = f"seen_at > now() - interval '{LISTED:g} seconds' AND {_NOT_AHEAD}"
#: The columns for a Process.
COLUMNS = f"id, name, started_at, seen_at, NOT ({IS_ALIVE}) AS is_gone, version, memory"


class Process(msgspec.Struct, frozen=True):
    """A process that was seen recently."""

    id: UUID
    name: str
    started_at: datetime
    seen_at: datetime
    is_gone: bool
    #: Version of its program; "": unknown. Bytes of memory that it occupies; None: unknown.
    version: str
    memory: int | None


def name() -> str:
    """The name of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"
