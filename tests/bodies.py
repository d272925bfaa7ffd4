"""Checks the body of every event that a test records against the OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Any

import asyncpg
import msgspec

from heliograph.api.document.event_bodies import DATA
from heliograph.base.database.pool import Pool
from heliograph.webhooks.delivery.attempts import type_of

#: Delivery tests create events with hardly any content; a real one has more fields than this.
STUB = 3


async def events_are_as_documented(pool: Pool) -> None:
    """Assert that every event in the database has exactly the fields of `heliograph.api.document.event_bodies`."""
    try:
        rows = await pool.fetch("SELECT kind, data FROM events", timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return  # a test that stopped its database, or holds its locks
    for kind, text in rows:
        data: dict[str, dict[str, Any]] = msgspec.json.decode(text)
        if not any(isinstance(one, dict) and len(one) > STUB for one in data.values()):
            continue
        try:
            told = msgspec.to_builtins(_decoder(kind).decode(text))
        except msgspec.ValidationError as error:
            said = f"{kind} is not as `api/document/event_bodies.py` describes it"
            raise AssertionError(f"{said}: {error}\n{text}") from error
        if kind != type_of(kind):
            assert data.pop("example") is True  # type: ignore[comparison-overlap]
        assert told == data, f"`api/document/event_bodies.py` does not describe all that {kind} says"


@cache
def _decoder(kind: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(DATA[type_of(kind)])
