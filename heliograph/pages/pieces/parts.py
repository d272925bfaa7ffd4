"""Parts of a page that fail independently: a query that takes too long, or fails, does not affect the others.

    parts = Parts(request)
    latest = await parts.load("latest", messages.list_page(conn, …), otherwise=None)

and in the template: `{% if "latest" in parts.failed %}{{ kit.failed_part(parts, "latest", _("Latest")) }}…`.

An unavailable database fails the whole page, and so does a refusal. A file is complete or not sent at all: when `csv`
asks for one, any failure fails the page, and there is no time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from heliograph.base.database.pool import is_down
from heliograph.base.errors import Refusal
from heliograph.pages.requests import Request

Found = TypeVar("Found")

#: Seconds for all queries of a page: parts not queried by then fail as well.
LONGEST = 6.0


class Parts:
    """The parts of one page."""

    def __init__(self, request: Request, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._request, self._now = request, monotonic
        self._ends = monotonic() + LONGEST
        #: Failed parts by name; True: for lack of time.
        self.failed: dict[str, bool] = {}

    async def load(self, name: str, query: Coroutine[Any, Any, Found], *, otherwise: Found) -> Found:
        """The result of `query`, or `otherwise` if the part fails. Raises refusals, and errors that fail the whole
        page."""
        is_file = bool(self._request.query.get("csv"))
        if self._now() > self._ends and not is_file:
            query.close()
            self.failed[name] = True
            return otherwise
        try:
            return await query
        except Refusal:
            raise
        except Exception as error:
            is_slow = isinstance(error, asyncpg.QueryCanceledError)
            if is_file or (is_down(error) and not is_slow):
                raise
            request = self._request
            request.services.refusal_of(error, request_id=request.request_id, operation=f"page, {name}")
            self.failed[name] = is_slow
            return otherwise
