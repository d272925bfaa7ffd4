"""The real server on a real socket, on the event loop used in production."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest

from heliograph.accounts import organizations, quota
from heliograph.accounts.api_keys import lifecycle
from heliograph.api.document import openapi
from heliograph.api.routes import OPERATIONS
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.serve import serve
from heliograph.sms.accepting import sender_ids
from tests import sessions
from tests.rules.whatsapp_factories import SECRET_KEY


class Tenant(msgspec.Struct):
    """An organization with a key of each kind."""

    id: UUID
    actor: Actor
    secret: str
    key_id: UUID

    @property
    def headers(self) -> dict[str, str]:
        return {"x-api-key": self.secret}


async def make_tenant(pool: Pool, *, amount: int = 1000, profile: str = "full_access", mode: str = "live") -> Tenant:
    """An organization with an approved default sender HELIOGRAPH, a quota and a key."""
    async with pool.acquire() as conn:
        others = await conn.fetchval("SELECT count(*) FROM organizations")
        organization = await organizations.create(conn, name=f"Acme {others}" if others else "Acme")
        operator = Actor(organization.id, None, "live", frozenset(), "active")
        if amount:
            await quota.grant(conn, organization.id, amount=amount, reason="test")
        key, secret = await lifecycle.issue(conn, operator, name="test", profile=profile, mode=mode)
        sender = await sender_ids.request(conn, operator, value="HELIOGRAPH")
        await sender_ids.review(conn, operator, id=sender.id, status="approved")
    return Tenant(organization.id, operator, secret, key.id)


@functools.cache
def documented() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """The OpenAPI document's operations by the form of their path, those without parameters first."""
    paths = msgspec.json.decode(openapi.document(OPERATIONS, ""))["paths"]
    return [
        (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), methods)
        for path, methods in sorted(paths.items(), key=lambda one: one[0].count("{"))
    ]


def judge(method: str, path: str, status: int, body: Any) -> None:
    """The document has the status of this response, and the code of a refusal. What it does not know as an operation is
    no affair of it."""
    for form, methods in documented():
        if form.fullmatch(path or "/"):
            if method.lower() not in methods:
                return
            known = methods[method.lower()]["responses"].get(str(status))
            assert known is not None, f"{method} {path}: {status} {body}"
            if status >= 400:
                codes = known["content"]["application/json"]["examples"]
                assert body["error"]["code"] in codes, f"{method} {path}: {status} {body}"
            return


class Api:
    """A running server and a client for it."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url
        self.session = session

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.base_url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        """(status, headers, decoded body)"""
        async with self.session.request(method, self.base_url + "/v1" + path, **options) as answer:
            raw = await answer.read()
            body = msgspec.json.decode(raw) if raw else None
            if body is not None:
                judge(method, path.partition("?")[0], answer.status, body)
            return answer.status, answer.headers, body

    async def raw(self, *pieces: bytes, pause: float = 0.0, wait: float = 120.0, eof: bool = False) -> bytes:
        """Send bytes as they are, and read until the server closes, or sends nothing for `wait` seconds."""
        reader, writer = await asyncio.open_connection(*self.address)
        answer = b""
        try:
            for piece in pieces:
                if writer.is_closing():
                    break
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(pause)
            if eof and not writer.is_closing():
                writer.write_eof()
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(wait):
                    while piece := await reader.read(65536):
                        answer += piece
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return answer


#: No test is refused because the machine stood still for some seconds.
DEFAULTS: dict[str, Any] = {
    "secret_key": SECRET_KEY,
    "drain_seconds": 2.0,
    "not_ready_seconds": 0.0,
    "database_patience_seconds": 60.0,
    "page_patience_seconds": 60.0,
}


@contextlib.asynccontextmanager
async def running(database_url: str, **changed: Any) -> AsyncIterator[Api]:
    """A server on uvloop, as in production, in a thread of its own; with long timeouts, for busy machines."""
    documented()  # not in the midst of what a test measures
    settings = Settings(
        database_url=database_url,
        **(DEFAULTS | changed),
    )
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def life() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_ready(base_url: str) -> None:
            ready.set_result((base_url, loop, stop))

        await serve(settings, port=0, on_ready=on_ready, stop=stop, own_process=False)

    with sessions.thread() as thread:
        ended, started = asyncio.wrap_future(thread.submit(life())), asyncio.wrap_future(ready)
        await asyncio.wait([ended, started], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        base_url, loop, stop = started.result()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                yield Api(base_url, session)
        finally:
            loop.call_soon_threadsafe(stop.set)
            await ended


@pytest.fixture
async def tenant(pool: Pool) -> Tenant:
    return await make_tenant(pool)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with running(database_url) as found:
        yield found


@pytest.fixture
def key() -> Callable[[], str]:
    """Fresh idempotency keys."""
    numbers = iter(range(1_000_000))
    return lambda: f"key-{next(numbers)}"
