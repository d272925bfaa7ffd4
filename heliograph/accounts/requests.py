"""What a request contributes to the commit that stores its effect: its idempotency key and its unit of a rate window.

The rule nobody may break: both are settled in that same commit, so that a request is counted and remembered if and only
if its effect is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.errors import Refusal


class IdempotencyConflict(Refusal):
    """This Idempotency-Key was used earlier with a different payload, or by another API key to obtain a secret."""

    code, status = "idempotency_conflict", 409


class IdempotencyInProgress(Refusal):
    """The first request with this Idempotency-Key is still being processed."""

    code, status = "idempotency_in_progress", 409

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"retry-after": "1"}


class OverLimit(Exception):
    """The rate window of the request's key is used up. Nothing was stored."""


class RateUnit:
    """One unit of a key's rate window, to be taken (`count_requests`) in the same commit that stores the message.

    A unit that was not taken (`used` is 0) belongs to a request that never reached a commit.
    """

    __slots__ = ("at", "key_id", "limit", "used", "window_start")

    def __init__(self, key_id: UUID, limit: int) -> None:
        self.key_id = key_id
        self.limit = limit
        #: The request's number in its window, from 1.
        self.used = 0
        self.window_start: datetime | None = None
        #: When it was taken; by the database's clock, like the window.
        self.at: datetime | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A stored outcome, as sent to the client."""

    status: int
    body: bytes
    replayed: bool


def windows_of(rate_units: Sequence[tuple[UUID, RateUnit | None]]) -> tuple[list[Any], ...]:
    """For the organizations and rate units of a batch: its windows, in locking order, with their units; then for each
    item its window's number (from 1), its position among that window's units, and its limit."""
    takers: dict[tuple[UUID, UUID], list[int]] = {}
    for n, (organization_id, rate_unit) in enumerate(rate_units):
        if rate_unit is not None:
            takers.setdefault((organization_id, rate_unit.key_id), []).append(n)
    windows = sorted(takers, key=lambda window: (window[0].int, window[1].int))
    numbers: list[int | None] = [None] * len(rate_units)
    places: list[int | None] = [None] * len(rate_units)
    for number, window in enumerate(windows, 1):
        for place, n in enumerate(takers[window], 1):
            numbers[n], places[n] = number, place
    return (
        [organization_id for organization_id, _ in windows],
        [key_id for _, key_id in windows],
        [len(takers[window]) for window in windows],
        numbers,
        places,
        [rate_unit and rate_unit.limit for _, rate_unit in rate_units],
    )


def tell(rate_units: Sequence[RateUnit | None], windows: Sequence[Sequence[Any]], row: asyncpg.Record) -> None:
    """Set the rate units of a batch to the units taken. `windows`: from `windows_of`; `row`: the batch's result, with
    `used` for each item, `window_start` for each window, and `at`."""
    for rate_unit, slot, used in zip(rate_units, windows[3], row["used"], strict=True):
        if rate_unit is not None:
            rate_unit.used, rate_unit.window_start, rate_unit.at = used, row["window_start"][slot - 1], row["at"]
