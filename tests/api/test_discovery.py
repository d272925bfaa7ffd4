"""Index, health and the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from heliograph.api.door import health
from heliograph.api.routes import OPERATIONS
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.queue import holds as queue_holds
from tests.processes import until_true
from tests.rules.factories import endpoint, organization
from tests.rules.whatsapp_factories import made, message

from .conftest import Api, Tenant, running


async def test_the_index_with_and_without_a_slash(api: Api) -> None:
    for path in ("", "/"):
        status, headers, body = await api.ask("GET", path)
        assert status == 200
        assert headers["x-request-id"]
        assert body == {
            "success": True,
            "name": "Heliograph",
            "version": "v1",
            "docs": "/docs",
            "openapi": "/v1/openapi.json",
            "health": "/v1/health",
        }


async def test_health_without_and_with_a_worker(api: Api, pool: Pool) -> None:
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", uuid7())
    status, _, body = await api.ask("GET", "/health")
    assert status == 200
    assert body["status"] == "ok"
    assert body["checks"] == {"database": "ok", "queue": "ok", "worker": "ok", "clock": "ok", "whatsapp": "ok"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["time"])


async def test_health_is_degraded_without_a_worker(api: Api) -> None:
    status, _, body = await api.ask("GET", "/health")
    assert (status, body["status"], body["checks"]["worker"]) == (200, "degraded", "down")


async def test_health_says_that_a_clock_differs(database_url: str, pool: Pool) -> None:
    await pool.execute("INSERT INTO workers VALUES ($1, 'w', now(), now(), -3600)", uuid7())
    async with running(database_url) as api:
        status, _, body = await api.ask("GET", "/health")
    assert (status, body["status"], body["checks"]["clock"]) == (200, "degraded", "degraded")
    await pool.execute("UPDATE workers SET clock_ahead = 0")
    try:
        async with running(database_url, clock_shift="3600:running") as api:
            await until_true(lambda: skewed(api))
            # It still works correctly: its time is the database's.
            _, _, body = await api.ask("GET", "/health")
            there = await pool.fetchval("SELECT now()")
        assert abs(datetime.fromisoformat(body["time"]) - there) < timedelta(seconds=60)
    finally:
        clock.arm("")


async def skewed(api: Api) -> bool:
    _, _, body = await api.ask("GET", "/health")
    return bool(body["checks"]["clock"] == "degraded")


async def test_one_organizations_bad_credential_is_no_fault_of_the_service(database_url: str, pool: Pool) -> None:
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", uuid7())
    held, other = await made(pool), await made(pool)
    await pool.execute("UPDATE whatsapp_accounts SET held_until = now() WHERE id = $1", held.account_id)

    async def queue() -> str:
        """The response of a process that has not checked before."""
        async with running(database_url) as api:
            _, _, body = await api.ask("GET", "/health")
            return str(body["checks"]["queue"])

    await message(pool, held)
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour'")
    assert await queue() == "ok"
    await message(pool, other)
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour'")
    assert await queue() == "degraded"
    # Held work is not late either: a restored installation holds everything that waits.
    await pool.execute("INSERT INTO queue_holds (id, kind) VALUES ($1, 'sms')", uuid7())
    assert await queue() == "degraded"
    await pool.execute("INSERT INTO queue_holds (id, kind) VALUES ($1, 'whatsapp')", uuid7())
    assert await queue() == "ok"


# What a session has read is known at once only within its transaction.
READ = "SELECT coalesce(seq_tup_read + idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'queue'"
WAITING = """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
SELECT $1, $2, $3, $4, now() - $5::interval, id FROM unnest($6::uuid[]) AS one (id)
"""


async def test_an_endpoint_that_fails_is_no_fault_of_the_service(database_url: str, pool: Pool) -> None:
    """It gets one attempt at a time, so a receiver that hangs keeps its events waiting for days."""
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", uuid7())
    actor = await organization(pool)
    failing, well = [await endpoint(pool, actor, "message.sent") for _ in range(2)]
    await pool.execute("UPDATE webhook_endpoints SET failing_since = now() WHERE id = $1", failing)

    async def late() -> tuple[str, bool]:
        """The response of a process that has not checked before, and whether doctor, metrics and the console agree."""
        async with running(database_url) as api:
            _, _, body = await api.ask("GET", "/health")
        async with pool.acquire() as conn:
            return body["checks"]["queue"], await queue_holds.late(conn, "webhook", without=()) > 3_000

    async def waits(line: UUID) -> None:
        await pool.execute(WAITING, "webhook", line, 0, actor.organization_id, timedelta(hours=1), [uuid7()])

    await waits(failing)
    assert await late() == ("ok", False)
    await waits(well)
    assert await late() == ("degraded", True)
    await pool.execute("DELETE FROM queue WHERE line = $1", well)
    assert await late() == ("ok", False)
    # What has waited is sent as soon as it answers, so then it is our turn.
    await pool.execute("UPDATE webhook_endpoints SET failing_since = NULL WHERE id = $1", failing)
    assert await late() == ("degraded", True)


@pytest.mark.fresh_database
async def test_health_costs_the_same_however_many_messages_of_campaigns_wait(pool: Pool) -> None:
    """Those of two million rows took longer than the probe waits, so no process was ready. Late ones show among
    them."""

    async def fill(kind: str, line: int, lane: int, ago: timedelta, count: int = 1, whose: int = 1) -> None:
        ids = [uuid7() for _ in range(count)]
        await conn.execute(WAITING, kind, UUID(int=line), lane, UUID(int=whose), ago, ids)

    async def look() -> tuple[float, int]:
        """How late it reports the queue to be, and the rows that it has read."""
        before = await conn.fetchval(READ)
        row = await conn.fetchrow(health.CHECK, clock.MOST, 10, 5)
        assert row is not None
        return round(row["late"]), await conn.fetchval(READ) - before

    minute = timedelta(minutes=1)
    async with pool.acquire() as conn, conn.transaction():
        for kind in ("sms", "whatsapp"):
            for whose in range(1, 9):
                await fill(kind, 9, 1, 60 * minute, count=40, whose=whose)
        late, read = await look()
        assert (late, read < 60) == (0, True)
        for whose in range(1, 9):
            await fill("sms", 0, 0, timedelta(seconds=whose), whose=whose)
        await fill("webhook", 7, 0, 3 * minute)
        await fill("webhook", 8, 0, -minute)
        late, read = await look()
        assert (late, read < 90) == (180, True)
        await fill("whatsapp", 9, 0, 4 * minute)
        assert (await look())[0] == 240
        await conn.execute("INSERT INTO queue_holds (id, kind) VALUES ($1, 'whatsapp')", uuid7())
        assert (await look())[0] == 180


async def test_what_waits_for_room_at_a_supplier_is_as_old_as_its_place(database_url: str, pool: Pool) -> None:
    """It is put back every few seconds, due again, and keeps its place."""
    await message(pool, await made(pool))
    await pool.execute("UPDATE queue SET due_at = now(), since = now() - interval '1 hour'")
    async with running(database_url) as api:
        _, _, body = await api.ask("GET", "/health")
    assert body["checks"]["queue"] == "degraded"


async def test_probes_need_no_key_and_say_what_is_wrong(
    api: Api, pool: Pool, as_administrator: Callable[[str], Awaitable[None]]
) -> None:
    async def probe(path: str, method: str = "GET") -> tuple[int, str, str]:
        async with api.session.request(method, api.base_url + path) as answer:
            assert answer.headers["x-request-id"]
            return answer.status, await answer.text(), answer.headers["Cache-Control"]

    assert await probe("/livez") == (200, '{"status":"live"}', "no-store")
    assert await probe("/readyz") == (200, '{"status":"ready"}', "no-store")
    assert await probe("/readyz", "HEAD") == (200, "", "no-store")
    assert (await probe("/livez", "POST"))[0] == 405
    name = await pool.fetchval("SELECT current_database()")
    await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
    await as_administrator(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def is_down() -> bool:  # it asks every other second
        return (await probe("/readyz"))[:2] == (503, '{"status":"database_down"}')

    async def is_ready() -> bool:
        return (await probe("/readyz"))[0] == 200

    await until_true(is_down)
    assert (await probe("/livez"))[0] == 200
    await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')
    await until_true(is_ready)


async def test_the_document_comes_small_and_once(api: Api) -> None:
    address = api.base_url + "/v1/openapi.json"
    async with api.session.get(address, headers={"Accept-Encoding": "identity"}) as answer:
        whole = await answer.read()
        tag = answer.headers["ETag"]
        assert (answer.headers["Content-Length"], answer.headers["Vary"]) == (str(len(whole)), "accept-encoding")
        assert "Content-Encoding" not in answer.headers
    async with api.session.get(address, headers={"Accept-Encoding": "br, gzip"}) as answer:
        assert (answer.headers["Content-Encoding"], answer.headers["ETag"]) == ("gzip", tag)
        assert int(answer.headers["Content-Length"]) < len(whole) / 8
        assert await answer.read() == whole
    for given in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        async with api.session.get(address, headers={"If-None-Match": given}) as answer:
            assert (answer.status, await answer.read(), answer.headers["ETag"]) == (304, b"", tag)
            assert answer.headers["x-request-id"]
    async with api.session.get(address, headers={"If-None-Match": '"other"'}) as answer:
        assert answer.status == 200


async def test_what_meta_holds_up_or_warns_of_is_told_and_is_no_fault_of_the_service(
    database_url: str, pool: Pool
) -> None:
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", uuid7())
    who = await made(pool)

    async def told() -> tuple[str, str]:
        async with running(database_url) as api:
            _, _, body = await api.ask("GET", "/health")
            return body["status"], body["checks"]["whatsapp"]

    assert await told() == ("ok", "ok")
    await pool.execute(
        "INSERT INTO whatsapp_warnings VALUES ($1, $2, 'violation', 'SPAM', now())", who.organization_id, who.account_id
    )
    assert await told() == ("ok", "degraded")
    await pool.execute("UPDATE whatsapp_warnings SET ends_at = now()")
    assert await told() == ("ok", "ok")
    await pool.execute("UPDATE whatsapp_warnings SET ends_at = now() + interval '1 day'")
    assert await told() == ("ok", "degraded")
    await pool.execute("UPDATE whatsapp_warnings SET over_at = now()")
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now() + interval '1 hour'")
    assert await told() == ("ok", "degraded")


async def test_head_answers_as_get_without_a_body(api: Api) -> None:
    async with api.session.head(api.base_url + "/v1/openapi.json") as answer:
        assert answer.status == 200
        assert int(answer.headers["Content-Length"]) > 1000
        assert await answer.read() == b""


async def test_the_document_is_openapi_and_names_every_operation(api: Api) -> None:
    status, headers, document = await api.ask("GET", "/openapi.json")
    assert status == 200
    assert headers["content-type"] == "application/json"
    validate(document)
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path, operation["operationId"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert described == {(each.method, each.path, each.id) for each in OPERATIONS}


async def test_a_send_answers_in_the_documented_shape(api: Api, tenant: Tenant) -> None:

    _, _, document = await api.ask("GET", "/openapi.json")
    headers = tenant.headers | {"Idempotency-Key": "k"}
    send = {"to": "+258841234567", "message": "Hello"}
    for body, answer in ((send, "SmsAccepted"), ({}, "Envelope")):
        _, _, answered = await api.ask("POST", "/sms/send", json=body, headers=headers)
        schema = {"$ref": f"#/components/schemas/{answer}", "components": document["components"]}
        Draft202012Validator(schema).validate(answered)
