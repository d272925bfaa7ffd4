"""A database that hangs, as clients of the API see it: told within seconds, and answered later by the same key."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from heliograph.base.database.pool import Pool
from tests.processes import until_true
from tests.wire import wire

from .conftest import Api, make_tenant, running

BODY = {"to": "+258841234567", "message": "Hello"}
PERSON = {"name": "Ana", "phone": "+258841234567"}


async def test_requests_are_refused_while_the_database_hangs_and_answered_afterwards(
    database_url: str, pool: Pool
) -> None:
    tenant = await make_tenant(pool)
    async with wire(database_url) as (line, url), running(url, database_patience_seconds=2.0) as api:

        async def post(path: str, body: dict[str, str], key: str) -> tuple[int, Any, Any]:
            return await api.ask("POST", path, json=body, headers=tenant.headers | {"idempotency-key": key})

        assert (await post("/sms/send", BODY, "before"))[0] == 202
        line.freeze()
        async with asyncio.timeout(120):
            told = await asyncio.gather(
                post("/sms/send", BODY, "during"),
                post("/contacts", PERSON, "during"),
                api.ask("GET", "/account", headers=tenant.headers),
                api.ask("GET", "/sms/messages", headers=tenant.headers),
            )
            # Those that come later wait for nothing.
            told.append(await post("/sms/send", BODY, "during"))
        for status, headers, body in told:
            assert (status, body["error"]["code"]) == (503, "service_unavailable")
            assert int(headers["retry-after"]) >= 1
        assert (await vital(api))["database"] == "down"
        line.thaw()
        await until_true(partial(is_back, api))
        assert (await post("/sms/send", BODY, "during"))[0] == 202
        assert (await post("/contacts", PERSON, "during"))[0] == 200
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2


async def vital(api: Api) -> dict[str, str]:
    status, _, body = await api.ask("GET", "/health")
    assert status == 200
    checks: dict[str, str] = body["checks"]
    return checks


async def is_back(api: Api) -> bool:
    return (await vital(api))["database"] == "ok"
