"""The API while the database hangs: clients are told within seconds, and a retry with the same key succeeds later."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Pool, is_down, open_pool
from heliograph.base.process import measures
from tests.processes import until, until_true
from tests.wire import wire

from .conftest import Api, make_tenant, running

BODY = {"to": "+258841234567", "message": "Hello"}
PERSON = {"name": "Ana", "phone": "+258841234567"}


async def test_requests_are_refused_while_the_database_hangs_and_answered_afterwards(
    database_url: str, pool: Pool
) -> None:
    tenant, stranger = await make_tenant(pool), await make_tenant(pool)
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
            # Later requests do not wait at all.
            told.append(await post("/sms/send", BODY, "during"))
        for status, headers, body in told:
            assert (status, body["error"]["code"]) == (503, "service_unavailable")
            assert int(headers["retry-after"]) >= 1
        assert (await vital(api))["database"] == "down"
        # The senders of these cannot be known. They are counted all the same.
        failed = measures.REQUESTS.values.get(("sendSms", "503", "service_unavailable"), 0)
        strange = stranger.headers | {"idempotency-key": "strange"}
        assert (await api.ask("POST", "/sms/send", json=BODY, headers=strange))[0] == 503
        assert measures.REQUESTS.values[("sendSms", "503", "service_unavailable")] == failed + 1
        line.thaw()
        await until_true(partial(is_at, api, "ok"))
        assert (await post("/sms/send", BODY, "during"))[0] == 202
        assert (await post("/contacts", PERSON, "during"))[0] == 200
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2


async def test_an_outage_is_summed_up_and_not_logged_with_each_request(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool)
    with capture_logs() as logs:

        def refused() -> float:
            return measures.REQUESTS.values.get(("listSmsMessages", "503", "service_unavailable"), 0)

        def said(event: str) -> list[Any]:
            return [line for line in logs if line["event"] == event and line["log_level"] != "debug"]

        async with wire(database_url) as (line, url), running(url, database_patience_seconds=2.0) as api:
            assert (await api.ask("GET", "/account", headers=tenant.headers))[0] == 200
            line.freeze()
            await until(lambda: said("database is away"))
            before = refused()
            for _ in range(5):
                assert (await api.ask("GET", "/sms/messages", headers=tenant.headers))[0] == 503
            # Requests with a known key are counted a second later.
            await until(lambda: refused() >= before + 5)
            line.thaw()
            await until(lambda: len(said("database is back")) == len(said("database is away")))
    # Each kind of error at most once; none if an earlier test was refused for the same reason.
    kinds = [one["error"] for one in said("database unavailable") if "request_id" in one]
    assert len(kinds) == len(set(kinds))
    ends = said("database is back")
    assert sum(end["refused_requests"] for end in ends) >= 5
    assert all(end["seconds"] > 0 for end in ends)


#: The errors of a server that cannot start a session: its files or an extension's are gone or unreadable, it has no
#: room, no memory or no slot, it is starting, stopping or was dropped, its catalogue is damaged, the database does not
#: exist, and an unknown code.
SESSIONLESS = [
    "58P01",
    "58030",
    "53100",
    "53200",
    "53300",
    "57P03",
    "57P01",
    "57P04",
    "57P99",
    "XX000",
    "XX001",
    "3D000",
    "08004",
]


async def test_a_server_that_can_begin_no_session_is_away_whatever_it_says(database_url: str) -> None:
    async with wire(database_url) as (line, url):
        before = await open_pool(url, size=1)
        for code in SESSIONLESS:
            await line.refuse(code)
            with pytest.raises(Exception) as at_once:
                await open_pool(url, size=1)
            with pytest.raises(Exception) as later:
                await before.fetchval("SELECT 1")
            assert (code, is_down(at_once.value), is_down(later.value)) == (code, True, True)
        await line.refuse("")
        assert await before.fetchval("SELECT 1") == 1
        with pytest.raises(asyncpg.InternalServerError) as fault:  # a statement's own error, on a server that works
            await before.execute("DO $$ BEGIN RAISE 'internal' USING ERRCODE = 'XX000'; END $$")
        assert not is_down(fault.value)
        before.terminate()


async def test_requests_and_pages_are_refused_while_no_session_can_begin(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool)
    async with wire(database_url) as (line, url), running(url, database_patience_seconds=2.0) as api:
        await line.refuse("58P01")
        for ask in (
            api.ask("POST", "/sms/send", json=BODY, headers=tenant.headers | {"idempotency-key": "1"}),
            api.ask("GET", "/sms/messages", headers=tenant.headers),
        ):
            status, headers, body = await ask
            assert (status, body["error"]["code"]) == (503, "service_unavailable")
            assert int(headers["retry-after"]) >= 1
        async with api.session.get(f"{api.base_url}/messages", cookies={"hg": "x" * 43}) as page:
            assert (page.status, page.headers["retry-after"]) == (503, "1"), await page.text()
        await line.refuse("")
        await until_true(partial(is_at, api, "ok"))
        answer = await api.ask("POST", "/sms/send", json=BODY, headers=tenant.headers | {"idempotency-key": "1"})
        assert answer[0] == 202


async def vital(api: Api) -> dict[str, str]:
    status, _, body = await api.ask("GET", "/health")
    assert status == 200
    checks: dict[str, str] = body["checks"]
    return checks


async def is_at(api: Api, state: str) -> bool:
    return (await vital(api))["database"] == state


# As long as a commit that waits for its disk, or for a standby that is gone.
SLOW = """
CREATE FUNCTION takes_long() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NEW; END';
CREATE TRIGGER slow_disk BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION takes_long();
"""


async def test_a_send_that_could_not_be_stored_in_time_waits_for_nothing_else_and_health_says_so(
    database_url: str, pool: Pool, as_administrator: Any
) -> None:
    """It waited as long again, and longer, for its unit of the rate to be counted: 7 s instead of 3."""
    tenant = await make_tenant(pool)
    async with running(database_url, database_patience_seconds=0.1, idempotency_wait_seconds=0.1) as api:
        await as_administrator(SLOW)
        headers = tenant.headers | {"idempotency-key": "slow"}

        async def is_noticed() -> bool:
            status, answered, _ = await api.ask("POST", "/sms/send", json=BODY, headers=headers)
            assert (status, answered["retry-after"], answered.get("x-ratelimit-limit")) == (503, "1", None)
            return await is_at(api, "degraded")

        await until_true(is_noticed)
        await as_administrator("DROP TRIGGER slow_disk ON messages; DROP FUNCTION takes_long()")
    assert await pool.fetchval("SELECT count(*) FROM rate_windows") == 0


# As PostgreSQL reports it when a table's file cannot grow.
FULL = """
CREATE FUNCTION has_no_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION has_no_room();
"""


async def test_health_says_that_nothing_can_be_stored_until_something_is(
    database_url: str, pool: Pool, as_administrator: Any
) -> None:
    tenant = await make_tenant(pool)
    async with running(database_url) as api:

        async def send(key: str) -> int:
            headers = tenant.headers | {"idempotency-key": key}
            status, _, _ = await api.ask("POST", "/sms/send", json=BODY, headers=headers)
            return status

        await as_administrator(FULL)
        assert await send("full") == 503
        await until_true(partial(is_at, api, "degraded"))
        # Lists are still served: a load balancer must not take every process out of service.
        async with api.session.get(f"{api.base_url}/readyz") as answer:
            assert answer.status == 200
        assert (await api.ask("GET", "/sms/messages", headers=tenant.headers))[0] == 200
        await as_administrator("DROP TRIGGER full_disk ON messages; DROP FUNCTION has_no_room()")
        assert await send("full") == 202
        await until_true(partial(is_at, api, "ok"))
