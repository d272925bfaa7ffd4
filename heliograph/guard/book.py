"""The ranges that web processes refuse: those held for organizations that chose `refuse` or `ask`.

All of them are read together, at most once a second and only while messages arrive; sends do not wait for it.

The rule nobody may break: a message to a range that is not held costs a dictionary look-up here, and no statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from uuid import UUID

import structlog

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Refusal
from heliograph.guard import holds

log = structlog.get_logger()

#: Seconds for which the list is used.
FRESH = 1.0


class DestinationSuspicious(Refusal):
    """Numbers like `to` are being sent an unusual number of messages: nothing is sent there for a while."""

    code, status = "destination_suspicious", 403


class ChallengeRequired(Refusal):
    """Numbers like `to` are being sent an unusual number of messages: make sure that a person asked for this one."""

    code, status = "challenge_required", 403


def _refusal(policy: str, until: datetime) -> Refusal:
    refusal = DestinationSuspicious if policy == "refuse" else ChallengeRequired
    return refusal(until=iso(until))


async def check(
    conn: Connection, organization_id: UUID, to: str, traffic_class: str, *, challenged: bool = False
) -> bool:
    """Check whether a message of this class to this number would be held now, by a fresh query. Raises
    DestinationSuspicious, ChallengeRequired where `Book.refusal` would return them."""
    for policy, until in await holds.of_number(conn, organization_id, to, traffic_class):
        if policy == "refuse" or (policy == "ask" and not challenged):
            raise _refusal(policy, until)
        if policy == "hold":
            return True
    return False


class Book:
    """One per process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: Mapping[UUID, Mapping[str, tuple[str, datetime]]] = {}
        self._next = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def refusal(
        self, organization_id: UUID, to: str, traffic_class: str, *, challenged: bool = False
    ) -> Refusal | None:
        """Why a message of this class to this number (E.164) is refused, or None.

        Contacts and safe ranges are never refused; `challenged`: a person was challenged, as `ask` requires.
        """
        if monotonic() >= self._next and self._reading is None:
            self._reading = asyncio.create_task(self._read())
        ranges = self._known.get(organization_id)
        if ranges is None:
            return None
        for range in holds.ranges(to, traffic_class):
            found = ranges.get(range)
            if found is not None and not (challenged and found[0] == "ask"):
                async with self._pool.acquire() as conn:
                    if await holds.is_known(conn, organization_id, to):
                        return None
                return _refusal(*found)
        return None

    async def read(self) -> None:
        """Read the list now."""
        async with self._pool.acquire() as conn:
            self._known = await holds.refusing(conn)

    async def close(self) -> None:
        """Wait for a read that is in progress."""
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        try:
            await self.read()
        except Exception as error:
            # Until the next attempt the last list applies.
            if not is_down(error):
                log.exception("refused ranges not loaded")
        finally:
            self._next = monotonic() + FRESH
            self._reading = None
