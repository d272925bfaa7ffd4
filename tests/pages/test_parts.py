"""Parts of a page fail independently: an error is shown in place of the failed part, and the others are shown."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from heliograph import traffic
from heliograph.api.shapes import envelope
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.pages.pieces.parts import LONGEST, Parts
from heliograph.whatsapp.money import wallet
from tests.hooks import until

from .conftest import Api, Browser, Page, Tenant
from .test_campaigns import make, people, stage
from .test_messages import send
from .test_pieces import asked
from .test_webhooks import register

Owner = Callable[[str], Awaitable[None]]
FELL = "This part could not be loaded; the fault is ours. The rest of the page is not affected."


class _Services:
    refusal_of = staticmethod(envelope.refusal_of)


def parts_of(**query: str) -> Parts:
    request = asked(query)
    request.services, request.request_id = _Services, "an-id"  # type: ignore[assignment]
    return Parts(request)


def fallen(page: Page) -> list[str]:
    """The titles of the failed cards."""
    return re.findall(r"data-failed-part><h2>([^<]*)</h2>", page.text)


async def test_a_card_of_home_fails_alone(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, as_owner: Owner
) -> None:
    await send(api, tenant)
    await as_owner("ALTER TABLE failure_counts RENAME TO elsewhere")
    page = await owner.get("/")
    assert (page.status, fallen(page)) == (200, ["Figures"])
    for said in (FELL, "Quota left 999", "Latest messages", "First steps", "SMS spent"):
        assert (said in page.words) == (said != "SMS spent"), said
    # It can be quoted, and retried.
    assert f'data-copy="{page.headers["x-request-id"]}"' in page.text
    (again,) = re.findall(r'href="([^"]*)" data-ask>Try again', page.text)
    shown = await owner.get("/", HX_Request="true", X_Seen="0")
    assert (shown.status, fallen(shown)) == (200, ["Figures"])
    # A file is complete or not written at all.
    assert (await owner.get("/?csv=messages")).status == 500
    await as_owner("ALTER TABLE elsewhere RENAME TO failure_counts")
    assert fallen(await owner.get(html.unescape(again))) == []
    seen = int(shown.headers["x-made"])
    assert fallen(await owner.get("/", HX_Request="true", X_Seen=str(seen + 1))) == []

    await as_owner("ALTER TABLE quotas RENAME TO elsewhere")
    page = await owner.get("/")
    assert fallen(page) == ["Quota left"]
    assert "What happened to your messages" in page.words


async def test_a_part_of_usage_fails_alone(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, as_owner: Owner
) -> None:
    await send(api, tenant)
    async with pool.acquire() as conn:
        await traffic.fold(conn)
    await as_owner("ALTER TABLE usage_counts RENAME TO elsewhere")
    page = await owner.get("/usage")
    assert (page.status, fallen(page)) == (200, ["Months"])
    for said in ("Left 999", "1 SMS in 1 segment,", "Mozambique 1 1 100 %", "Export for billing"):
        assert said in page.words, said
    # The response to a form has the form's address, and none of its links leads to one that only accepts forms.
    refused = await owner.submit(page, "/usage/alert", above="many")
    assert (refused.status, refused.path, fallen(refused)) == (422, "/usage/alert", ["Months"])
    assert set(re.findall(r'href="([^"]*)" data-ask>Try again', refused.text)) == {"/usage"}
    assert "/usage/alert" not in re.findall(r'(?:href="|get" action="|href=")([^"?]*)', refused.text)
    for link in ("/usage?csv=", "/usage?range=7d"):
        assert f'href="{link}' in refused.text, link
    await as_owner("ALTER TABLE elsewhere RENAME TO usage_counts")
    await as_owner("ALTER TABLE quotas RENAME TO elsewhere")
    page = await owner.get("/usage")
    assert "This period" in fallen(page)
    assert "1 SMS in 1 segment," in page.words


async def test_a_part_of_a_campaign_fails_alone(pool: Pool, tenant: Tenant, owner: Browser, as_owner: Owner) -> None:
    await people(pool, tenant, 2)
    page = await make(owner)
    await stage(pool)
    await as_owner("ALTER TABLE campaign_minutes RENAME TO elsewhere")
    page = await owner.get(page.path)
    assert (page.status, "Minute by minute" in fallen(page)) == (200, True)
    for said in ("Recipients by status", "Who got it, who did not", "Cancel the campaign"):
        assert said in page.words, said


async def test_parts_of_a_message_and_of_the_wallet_fail_alone(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, as_owner: Owner
) -> None:
    id = await send(api, tenant)
    async with pool.acquire() as conn:
        await wallet.top_up(conn, tenant.id, amount=20_000_000, currency="EUR", reason="paid")
    await as_owner("ALTER TABLE wallet_days RENAME TO elsewhere")
    page = await owner.get("/wallet")
    assert (page.status, fallen(page)) == (200, ["Day by day"])
    for said in ("Available €20.00", "Latest movements", "Top-up"):
        assert said in page.words, said
    await as_owner("ALTER TABLE elsewhere RENAME TO wallet_days")
    # If one of its queries fails, whichever it is, the message is still shown.
    await as_owner("ALTER TABLE usage_ledger RENAME TO elsewhere")
    page = await owner.get(f"/messages/{id}")
    assert (page.status, fallen(page)) == (200, ["Why"])
    for said in ("What happened", "Your code is 4711"):
        assert said in page.words, said


async def test_parts_of_an_endpoint_fail_alone(pool: Pool, owner: Browser, as_owner: Owner) -> None:
    await register(owner, "https://hooks.example.com/")
    id = await pool.fetchval("SELECT id FROM webhook_endpoints")
    await as_owner("ALTER TABLE webhook_attempts RENAME TO elsewhere")
    page = await owner.get(f"/webhooks/{id}")
    assert (page.status, fallen(page)) == (200, ["Attempts"])
    for said in ("How it is doing", "Rotate secret", "Send a test event"):
        assert said in page.words, said


async def test_parts_of_a_person_fail_alone(owner: Browser, as_owner: Owner) -> None:
    made = await owner.submit(await owner.get("/contacts/new"), "/contacts", name="Ana", phone="+258841234567")
    await as_owner("ALTER TABLE inbox_threads RENAME TO elsewhere")
    page = await owner.get(made.path)
    assert (page.status, fallen(page)) == (200, ["Conversations"])
    for said in ("What is known", "May be messaged", "Notes", "Latest messages"):
        assert said in page.words, said
    # So it is beside the list.
    beside = await owner.get(f"/contacts?open={made.path.rpartition('/')[2]}")
    assert (beside.status, fallen(beside)) == (200, ["Conversations"])


async def test_slow_parts_fail_alone_and_a_page_has_its_time(pool: Pool) -> None:
    parts = parts_of()
    async with pool.acquire() as conn:
        # It is cancelled, as if it had taken too long, once it runs: a short timeout might end the next statement, too.
        slow = asyncio.create_task(parts.load("slow", conn.fetchval("SELECT pg_sleep(600)"), otherwise="-"))
        asleep = "SELECT wait_event IS NOT DISTINCT FROM 'PgSleep' FROM pg_stat_activity WHERE pid = $1"
        pid = conn.get_server_pid()

        async def sleeps() -> bool:
            return bool(await pool.fetchval(asleep, pid))

        await until(sleeps)
        await pool.execute("SELECT pg_cancel_backend($1)", pid)
        assert await slow == "-"
        assert await parts.load("next", conn.fetchval("SELECT 'found'"), otherwise="-") == "found"
    assert parts.failed == {"slow": True}
    now = 0.0
    late = Parts(parts._request, monotonic=lambda: now)
    now = LONGEST + 1
    assert await late.load("late", asyncio.sleep(0, "found"), otherwise="-") == "-"
    assert late.failed == {"late": True}
    # A file is complete or not written at all.
    now = 0.0
    file = Parts(parts_of(csv="one")._request, monotonic=lambda: now)
    now = LONGEST + 1
    assert await file.load("late", asyncio.sleep(0, "found"), otherwise="-") == "found"
    assert file.failed == {}


async def test_what_is_the_whole_pages_affair_ends_it(pool: Pool) -> None:
    async def refused() -> None:
        raise NotFound

    async def stumbles() -> None:
        raise ZeroDivisionError

    with pytest.raises(NotFound):
        await parts_of().load("one", refused(), otherwise=None)
    with pytest.raises(ZeroDivisionError):
        await parts_of(csv="one").load("one", stumbles(), otherwise=None)
    async with pool.acquire() as conn:
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await parts_of().load("one", conn.execute("SELECT pg_terminate_backend(pg_backend_pid())"), otherwise="")
