"""GET /livez and /readyz, for load balancers and supervisors. `/v1/health` reports the same in detail.

    /livez   200 while the process runs its event loop. Restart it if it does not respond.
    /readyz  200 while it should receive requests: it is not shutting down, and can query the database. 503 otherwise.
             A database that stores nothing, but responds, still serves reads: no other process could do better.

Any number of probes costs the database the same (`HealthChecks`), so they are not rate limited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.api.door.health import HealthChecks
from heliograph.api.shapes import envelope
from heliograph.base.ids import uuid7_text

LIVE, READY = "/livez", "/readyz"
PATHS = frozenset({LIVE, READY})


class Probes:
    """The probes as an ASGI application: everything in PATHS."""

    def __init__(self, health: HealthChecks, is_draining: Callable[[], bool]) -> None:
        self._health = health
        self._is_draining = is_draining

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        status, word = await self._answer(scope["path"])
        headers = [
            envelope.JSON,
            *envelope.PRIVATE,
            (b"x-request-id", uuid7_text().encode()),
        ]
        if scope["method"] not in ("GET", "HEAD"):
            status, word = 405, "method_not_allowed"
            headers.append((b"allow", b"GET, HEAD"))
        elif status == 503:
            headers.append((b"retry-after", b"1"))
        body = b'{"status":"%b"}' % word.encode()
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, path: str) -> tuple[int, str]:
        if path == LIVE:
            return 200, "live"
        if self._is_draining():
            return 503, "stopping"
        if (await self._health.read()).database == "down":
            return 503, "database_down"
        return 200, "ready"
