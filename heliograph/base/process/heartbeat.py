"""Heartbeats: each process writes a row of itself every few seconds, and one that missed three of them is gone.

The rule nobody may break: whether a row is alive is decided here and by the database's clock, so that no two places
disagree about who works.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime
from uuid import UUID

import msgspec

#: Seconds between two beats, after how many without one a process is gone, and for how many it is listed.
BEAT, GONE, LISTED = 5.0, 15.0, 60.0

#: SQL conditions on a row's `seen_at`.
IS_ALIVE = f"seen_at > now() - interval '{GONE:g} seconds'"
IS_LISTED = f"seen_at > now() - interval '{LISTED:g} seconds'"
#: The columns of a Process.
COLUMNS = f"id, name, started_at, seen_at, NOT ({IS_ALIVE}) AS is_gone, version, memory"


class Process(msgspec.Struct, frozen=True):
    """A process that was seen lately."""

    id: UUID
    name: str
    started_at: datetime
    seen_at: datetime
    is_gone: bool
    #: Of the program that it runs; "": not known. Bytes that it occupies; None: not known.
    version: str
    memory: int | None


def name() -> str:
    """What this process is called."""
    return f"{socket.gethostname()}:{os.getpid()}"
