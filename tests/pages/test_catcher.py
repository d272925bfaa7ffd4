"""D8c Catcher and journey 2: a first key, a first send, its delivery, and the event that a program would receive."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import shlex
import uuid
from collections.abc import AsyncIterator

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.dashboard.developers.catcher import LOCAL
from heliograph.privacy import erasure
from heliograph.retention import forgetting
from heliograph.webhooks import catcher, endpoints
from heliograph.webhooks.delivery import catching, signing
from heliograph.worker import Worker
from tests.hooks import attempted, delivering, queued, record, until
from tests.hooks import settings as impatient
from tests.rules.whatsapp_factories import SECRET_KEY

from .conftest import PASSWORD, Api, Browser, Page, Tenant, make_person, make_tenant
from .test_keys import secret_in as key_in
from .test_webhooks import id_in, register, secret_in

#: No connection to this machine is allowed.
UNDER = impatient(secret_key=SECRET_KEY, webhook_allow_http=False, webhook_allow_networks="")
HERE = "/webhooks/catcher"


@contextlib.asynccontextmanager
async def working(pool: Pool, url: str) -> AsyncIterator[None]:
    worker = Worker(impatient(secret_key=SECRET_KEY, database_url=url), pool)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def opened(owner: Browser, mode: str = "live") -> Page:
    where = HERE if mode == "live" else HERE + "?mode=test"
    return await owner.submit(await owner.get(where), where)


def curl_in(page: Page) -> tuple[dict[str, str], bytes]:
    """Headers and body of the first curl line."""
    found = re.search(r'data-copy="(curl [^"]+)"', page.text)
    assert found, page.words
    words = shlex.split(html.unescape(found[1]).replace("\\\n", ""))
    assert words[:3] == ["curl", "-sS", LOCAL]
    headers = [words[n + 1].partition(": ") for n, word in enumerate(words) if word == "-H"]
    return {name: value for name, _, value in headers}, words[words.index("--data-raw") + 1].encode()


async def test_from_a_key_to_the_signed_event(
    api: Api, pool: Pool, database_url: str, tenant: Tenant, owner: Browser
) -> None:
    home = await owner.get("/")
    assert 'href="/webhooks/catcher?mode=test"' in home.text
    page = await owner.get("/keys/new?mode=test")
    key = key_in(await owner.submit(page, "/keys?mode=test", name="first", profile="sms_only"))
    page = await owner.get(HERE + "?mode=test")
    assert "The catcher is closed" in page.words
    page = await opened(owner, "test")
    secret = secret_in(page)
    assert "The catcher is open for an hour" in page.words
    page = await owner.get(HERE + "?mode=test")
    assert ("Nothing was caught yet" in page.words, secret in page.text) == (True, False)
    assert "Use the built-in catcher" not in (await owner.get("/")).words  # that step is done
    status, _, answer = await api.ask(
        "POST",
        "/sms/send",
        json={"to": "+258841230000", "message": "it's me & <you>"},
        headers={"x-api-key": key, "idempotency-key": str(uuid.uuid4())},
    )
    assert status == 202, answer

    async def caught() -> bool:
        found = await pool.fetchval("SELECT count(*) FROM webhook_caught WHERE body LIKE '%message.delivered%'")
        return bool(found) and await queued(pool) == 0

    async with working(pool, database_url):
        await until(caught)
    page = await owner.get(HERE + "?mode=test", HX_Request="true")
    assert ("message.delivered" in page.words, "✓ Signature verified" in page.words) == (True, True)
    headers, body = curl_in(page)
    signed = {"timestamp": headers["x-service-timestamp"], "signature": headers["x-service-signature"]}
    assert signing.verify([secret], **signed, body=body, now=clock.now()) is None
    assert msgspec.json.decode(body)["data"]["message"]["to"] == "+258841230000"
    assert "The catcher is closed" in (await owner.get(HERE)).words  # of the other mode
    delivery = re.search(r"/webhooks/[0-9a-f-]{36}/events/[0-9a-f-]{36}", page.text)
    assert delivery
    assert "HTTP 204" in (await owner.get(delivery[0] + "?mode=test")).words
    assert (await owner.get(f"/webhooks/{id_in(page)}?mode=test")).path.startswith(HERE)
    assert "The catcher is open" in (await owner.get("/webhooks?mode=test")).words
    # Someone who may not see texts and numbers gets neither from here, and nobody else gets anything.
    await make_person(pool, tenant, "rui@example.com", "viewer")
    rui = Browser(owner.base_url)
    await rui.sign_in("rui@example.com", PASSWORD)
    page = await rui.get(HERE + "?mode=test")
    assert ("••• 0000" in page.text, "841230000" in page.text, f"curl -sS {LOCAL}" in page.text) == (True, False, False)
    assert page.text.count('action="/webhooks') == 0
    await rui.session.close()
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        assert await catcher.current(conn, msgspec.structs.replace(other.actor, mode="test")) is None
    # Closing it erases them.
    page = await owner.submit(await owner.get(HERE + "?mode=test"), HERE + "/close?mode=test")
    assert "what it caught is erased" in page.words
    assert await pool.fetchval("SELECT count(*) FROM webhook_caught") == 0
    assert "heliograph:catcher" not in (await owner.get("/webhooks?mode=test")).text
    told = await pool.fetch("SELECT action, who_name FROM audit_log WHERE action ~ '^webhook' ORDER BY id")
    assert [tuple(row) for row in told] == [("webhook.created", "Ana"), ("webhook.disabled", "Ana")]


async def test_it_keeps_the_latest_and_ends_after_its_hour(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = id_in(await opened(owner))
    await register(owner, "https://example.com/hooks", events="campaign.completed")
    events = await record(pool, tenant.actor, catching.MOST + 30)
    async with delivering(pool, UNDER):
        await attempted(pool, len(events))
    assert await pool.fetchval("SELECT count(*) FROM webhook_caught") == catching.MOST
    assert {one["result"] for one in await attempted(pool, len(events))} == {"delivered"}
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address="+420777123456")
        assert await conn.fetchval("SELECT count(*) FROM webhook_caught") == 0
    await record(pool, tenant.actor, 2)
    async with delivering(pool, UNDER):
        await attempted(pool, len(events) + 2)
    await record(pool, tenant.actor)  # it is waiting when the hour is over
    async with pool.acquire() as conn:
        assert await conn.fetchval(f"SELECT {catcher.ANY_PAST}") is False
        assert await catcher.end_past(conn) == 0
        await conn.execute("UPDATE webhook_endpoints SET catches_until = now() WHERE id = $1", id)
        assert await conn.fetchval(f"SELECT {catcher.ANY_PAST}") is True
        assert "The catcher is closed" in (await owner.get(HERE)).words
        assert await catcher.end_past(conn) == 1
        assert await conn.fetchval("SELECT count(*) FROM webhook_caught") == 0
        ended = await endpoints.get(conn, tenant.actor, id=id)
        assert (ended.status, ended.disabled_reason) == ("disabled", endpoints.ENDED)
    assert await queued(pool) == 0
    last = await pool.fetchrow("SELECT action, who FROM audit_log ORDER BY id DESC LIMIT 1")
    assert last is not None
    assert (last["action"], last["who"]) == ("webhook.disabled", "system")
    # It is not enabled, but opened again, in the same row and with another secret.
    page = await owner.post(f"/webhooks/{id}/enable", (await owner.get("/webhooks/new")).form("/webhooks"))
    assert "The catcher is closed" in page.words
    for number in range(9):
        secret_in(await register(owner, f"https://example.com/{number}"))
    assert id_in(await opened(owner)) == id  # beside ten others
    page = await owner.submit(
        await owner.get(f"/webhooks/{id}/edit"), f"/webhooks/{id}/edit", url="https://example.com"
    )
    assert page.status == 422
    # What a worker stored while it ended is removed by retention.
    await pool.execute(
        "INSERT INTO webhook_caught"
        " SELECT $1, now() - make_interval(hours => n), $2, $2, '', '' FROM generate_series(0, 2) n",
        tenant.id,
        id,
    )
    async with pool.acquire() as conn:
        await forgetting.forget(conn, UNDER)
    assert await pool.fetchval("SELECT count(*) FROM webhook_caught") == 1


async def test_home_says_since_when_an_endpoint_fails_and_what_waits(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id = id_in(await register(owner, "https://example.com/hooks"))
    await record(pool, tenant.actor, 3)
    failing = "UPDATE webhook_endpoints SET consecutive_failures = 5, failing_since = now() - interval '2 hours'"
    await pool.execute(failing)
    page = await owner.get("/")
    assert re.search(
        r"Webhooks to https://example.com/hooks have failed since [^;]+; events that wait: 3\.", page.words
    )
    assert f'href="/webhooks/{id}"' in page.text
