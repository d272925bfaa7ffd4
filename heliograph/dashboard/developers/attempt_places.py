"""Positions in the list of an endpoint's attempts, as encoded in addresses: where a page begins, and the first row
that a reader sees. Each is valid only for the filters under which it was created.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from heliograph.base.database import cursor
from heliograph.base.errors import Invalid
from heliograph.pages.requests import Request
from heliograph.webhooks.history import AttemptEntry

COLLECTION = "attempts of a page"
#: (when an attempt began, its event, its number).
Place = tuple[datetime, UUID, int]


class Places:
    """Positions in a list with given filters."""

    def __init__(self, request: Request, filters: Mapping[str, str | None]) -> None:
        self._request, self._filters = request, filters

    def written(self, place: Place) -> str:
        """Encoded for an address."""
        organization_id, key = self._request.actor.organization_id, self._request.services.cursor_key
        return cursor.encode(key, place, organization_id=organization_id, collection=COLLECTION, filters=self._filters)

    def after(self) -> Place | None:
        """The last row of the previous page; None: this is the newest page. Raises Invalid."""
        text = self._request.query.get("after")
        return self._read(text) if text else None

    def top(self) -> Place | None:
        """The first row that the reader sees: a self-refreshing list names it, so that no rows are inserted above;
        None: this is not such a fragment, or it is empty."""
        text = self._request.query.get("top")
        if not text or not self._request.is_fragment:
            return None
        try:
            return self._read(text)
        except Invalid:
            return None

    def _read(self, text: str) -> Place:
        organization_id, key = self._request.actor.organization_id, self._request.services.cursor_key
        at, event, number = cursor.decode(
            key, text, organization_id=organization_id, collection=COLLECTION, filters=self._filters
        )
        return datetime.fromisoformat(at), UUID(event), number


def place(one: AttemptEntry) -> Place:
    """The position of an attempt."""
    return one.started_at, one.event_id, one.attempt
