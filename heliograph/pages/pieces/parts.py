"""Parts of a page that fail alone: a look that takes too long, or stumbles, leaves the others standing.

    parts = Parts(request)
    latest = await parts.look("latest", messages.list_page(conn, …), otherwise=None)

and where its card stands: `{% if "latest" in parts.failed %}{{ kit.failed_part(parts, "latest", _("Latest")) }}…`.

A database that is away is the whole page's affair, and so is a refusal. A file is whole or not at all: one that is
asked for by `csv` takes its page with it, and has as much time as its looks take.
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

#: Seconds for all looks of a page: parts that were not looked for by then fail, too.
LONGEST = 6.0


class Parts:
    """Those of one page."""

    def __init__(self, request: Request, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._request, self._now = request, monotonic
        self._ends = monotonic() + LONGEST
        #: Names of those that failed; whether it was for want of time.
        self.failed: dict[str, bool] = {}

    async def look(self, name: str, look: Coroutine[Any, Any, Found], *, otherwise: Found) -> Found:
        """What `look` finds; `otherwise` for a part that fails. Raises refusals, and what ends the whole page."""
        is_file = bool(self._request.query.get("csv"))
        if self._now() > self._ends and not is_file:
            look.close()
            self.failed[name] = True
            return otherwise
        try:
            return await look
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
