"""Merges reports about one facet of a number or template (its name, its quality …), by time.

Meta reports facets in full readings and events, in any order. The rule nobody may break: the latest report wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from heliograph.base.database import clock


def quality(word: str | None) -> str:
    """Meta's rating in its stored form."""
    return word.lower() if word in ("GREEN", "YELLOW", "RED") else "unknown"


def is_newer(at: datetime, known_at: datetime | None) -> bool:
    """Whether a report of `at` outweighs what is known as of `known_at`; None: nothing is."""
    return known_at is None or not at < known_at <= clock.now() + clock.AHEAD


def merge(
    row: dict[str, Any], facet: str, at: datetime, read_at: datetime | None, values: Mapping[str, Any], *, alone: bool
) -> None:
    """Put `values` into the row unless something newer is known about this facet.

    `read_at`: time of the last full reading. `alone`: this report concerns only this row, so its time is kept here;
    that of a full reading is kept with the account.
    """
    applied = msgspec.json.decode(row["applied"])
    applied_at = clock.EPOCH + timedelta(seconds=applied.get(facet, 0.0))
    if not is_newer(at, applied_at) or not is_newer(at, read_at):
        return
    row.update(values)
    if alone:
        row["applied"] = msgspec.json.encode({**applied, facet: at.timestamp()}).decode()
        row["applied_at"] = max(at, row["applied_at"] or at)
