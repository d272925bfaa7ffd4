"""The bell on every page, and its page: each kind in words, for those who may see its subject."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest

from heliograph import notices
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.notices import Notice
from heliograph.notices.kinds import KINDS
from heliograph.pages import cookies
from heliograph.webhooks import endpoints
from tests.api.conftest import SECRET_KEY
from tests.hooks import until

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant

FACTS: dict[str, dict[str, str | int]] = {
    "campaign.paused": {"reason": "quota_exceeded"},
    "campaign.approved": {"by": "Rui"},
    "webhook.disabled": {"reason": "failing"},
    "import.finished": {"created": 1200, "updated": 3, "rejected": 2},
    "sender.rejected": {"reason": "Not your name."},
    "sender.asked": {"reason": "Which company is this?"},
    "number.quality": {"rating": "red"},
    "quota.used": {"left": 5, "total": 1000},
    "wallet.low": {"left": "4.500000", "below": "50.000000", "currency": "EUR"},
    "key.ending": {"until": "2027-01-02T03:04:05.000Z"},
}
KIND = ["message.delivered"]
OBJECTS = {"quota.used": "95", "wallet.low": "wallet"}


@pytest.fixture(autouse=True)
async def quiet(pool: Pool, tenant: Tenant) -> None:
    """Its sender was approved, which is reported."""
    assert await pool.fetchval("DELETE FROM notices RETURNING kind") == "sender.approved"


async def tell(pool: Pool, tenant: Tenant, *kinds: str, name: str = "Spring <b>sale</b>") -> None:
    id = "0198c8f5-0000-7000-8000-000000000001"
    told = [Notice(tenant.id, kind, OBJECTS.get(kind, id), name, facts=FACTS.get(kind, {})) for kind in kinds]
    async with pool.acquire() as conn:
        await notices.record_many(conn, told)


def leave(owner: Browser) -> None:
    """Like somebody who signs in again in the same browser, which is remembered."""
    owner.session.cookie_jar.clear(lambda one: one.key != cookies.BROWSER)


def bell(text: str) -> str:
    """The bell's text for somebody who cannot see the subject."""
    found = re.search(r'class="button quiet bell".*?<span class="unseen">(.*?)</span>', text, re.S)
    assert found, text[:2000]
    return found[1]


async def test_the_bell_counts_until_it_is_read(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/notices")
    assert ("Nothing yet" in page.words, bell(page.text)) == (True, "Notifications")
    await tell(pool, tenant, "campaign.completed", "quota.used")
    await tell(pool, await make_tenant(pool), "webhook.disabled")
    # A session is cached for half a second; somebody who signs in again need not wait for that.
    leave(owner)
    await owner.sign_in("ana@example.com")
    page = await owner.get("/messages")
    assert bell(page.text) == "Notifications: 2 new"
    page = await owner.get("/notices")
    assert "The campaign “Spring <b>sale</b>” is finished." in page.words
    assert "95 % of the quota is used. new 5 of 1,000 messages are left." in page.words
    assert page.text.count('<li class="new">') == 2
    assert "disabled" not in page.words
    page = await owner.submit(page, "/notices/read")
    assert (page.path, page.text.count('<li class="new">'), bell(page.text)) == ("/notices", 0, "Notifications")
    assert "is finished" in page.words


async def test_the_bell_counts_though_it_was_read_before_the_clock_was_set_back(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Nothing was new for as long as the clock had been ahead."""
    await tell(pool, tenant, "campaign.completed")
    await owner.submit(await owner.get("/notices"), "/notices/read")
    ahead = uuid7_floor(clock.now() + timedelta(days=3))
    await pool.execute("WITH told AS (UPDATE notices SET id = $1) UPDATE notice_reads SET read_to = $1", ahead)
    for kind in ("quota.used", "webhook.disabled"):
        await tell(pool, tenant, kind)
        leave(owner)
        await owner.sign_in("ana@example.com")
        page = await owner.get("/notices")
        assert (page.text.count('<li class="new">'), bell(page.text)) == (1, "Notifications: 1 new")
        page = await owner.submit(page, "/notices/read")
        assert (page.text.count('<li class="new">'), bell(page.text)) == (0, "Notifications")


@pytest.mark.parametrize("language", ["en", "pt"])
async def test_every_kind_has_its_words(pool: Pool, tenant: Tenant, owner: Browser, language: str) -> None:
    await tell(pool, tenant, *KINDS, name="X")
    await pool.execute("UPDATE users SET language = $1", language)
    leave(owner)
    await owner.sign_in("ana@example.com")
    page = await owner.get("/notices")
    rows = re.findall(r'<li class="new"><a href="([^"]+)">(.+?)</a>', page.text)
    assert len(rows) == len({said for _, said in rows}) == len(KINDS)
    for where in {link for link, _ in rows if "0198c8f5" not in link}:
        assert (await owner.get(where.replace("&amp;", "&"))).status == 200, where
    assert ("1,200 new, 3 changed, 2 rejected." in page.words) == (language == "en")
    assert ("€4.50 is available, less than €50.00." in page.words) == (language == "en")
    assert "reason" not in page.words


async def test_nobody_is_told_what_they_do_not_see(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "eva@example.com", "billing")
    await tell(pool, tenant, "campaign.completed", "webhook.disabled", "quota.used")
    page = await other_browser.sign_in("eva@example.com")
    assert bell(page.text) == "Notifications: 1 new"
    page = await other_browser.get("/notices")
    assert ("95 % of the quota" in page.words, "campaign" in page.words, "endpoint" in page.words) == (
        True,
        False,
        False,
    )


async def test_what_is_no_id_is_refused(owner: Browser, pool: Pool, tenant: Tenant) -> None:
    await tell(pool, tenant, "quota.used")
    page = await owner.get("/notices")
    refused = await owner.submit(page, "/notices/read", up_to="x")
    assert refused.status == 400


async def test_the_bell_of_an_open_page_renews_itself(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    first = await owner.get("/state", HX_Request="true")
    assert "<html" not in first.text
    assert "Notifications" in first.words
    again = await owner.get("/state", HX_Request="true", If_None_Match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")
    await tell(pool, tenant, "campaign.completed")

    async def counted() -> bool:
        page = await owner.get("/state", HX_Request="true", If_None_Match=first.headers["etag"])
        return page.status == 200 and "Notifications: 1 new" in page.words

    await until(counted)


async def test_the_rail_is_marked_where_something_needs_somebody(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    def marks(page: Page) -> list[tuple[str, str]]:
        return re.findall(r'<span data-mark="([^"]+)">.*?<span class="unseen">: ([^<]+)<', page.text)

    body = {"name": "Spring sale", "content": "Hello", "recipients": ["+258841234567"]}
    status, _, begun = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    assert status < 300, begun
    async with pool.acquire() as conn:
        about = endpoints.rules(Settings(secret_key=SECRET_KEY))
        await endpoints.create(conn, tenant.actor, url="https://example.com", subscribed_events=KIND, rules=about)
    assert marks(await owner.get("/state", HX_Request="true")) == []
    await pool.execute("UPDATE campaigns SET status = 'paused', status_reason = 'quota_exceeded'")
    await pool.execute("UPDATE webhook_endpoints SET consecutive_failures = 3, failing_since = now()")
    found = marks(await owner.get("/state", HX_Request="true"))
    assert found == [("/campaigns", "1 campaign is stalled."), ("/webhooks", "1 endpoint is failing.")]
    assert marks(await owner.get("/state?mode=test", HX_Request="true")) == []
    # Someone who does not see a page has no mark on it.
    await make_person(pool, tenant, "bill@example.com", "billing")
    await other_browser.sign_in("bill@example.com")
    assert marks(await other_browser.get("/state", HX_Request="true")) == []


async def test_the_state_of_the_service_in_words(pool: Pool, owner: Browser) -> None:
    async def said(words: str) -> None:
        async def there() -> bool:  # health is checked every other second
            return words in (await owner.get("/state")).words

        await until(there)

    await said("New messages are accepted, sending waits for the operator")
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now() + interval '50 seconds')",
        uuid7(),
    )
    await said("Working normally")
    await pool.execute(
        "INSERT INTO queue (kind, line, organization_id, due_at, id)"
        " VALUES ('sms', $1, $1, now() - interval '230 s', $1)",
        uuid7(),
    )
    await said("Deliveries are slower than usual: about ")


async def test_a_sign_in_in_another_browser_is_told_to_that_person_alone(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    kinds = "SELECT kind FROM notices WHERE kind = 'sign_in.new'"
    leave(owner)
    await owner.sign_in("ana@example.com")
    assert await pool.fetch(kinds) == []
    for _ in range(2):  # within an hour, once
        other_browser.session.cookie_jar.clear()
        await other_browser.sign_in("ana@example.com")
    assert len(await pool.fetch(kinds)) == 1
    page = await owner.get("/notices")
    assert "Somebody signed in as you in a new browser." in page.words
    assert "if it was not you, change your password." in page.words
    # On another device, it may be somebody else: also within the hour.
    other_browser.session.cookie_jar.clear()
    other_browser.session.headers["User-Agent"] = "another device"
    await other_browser.sign_in("ana@example.com")
    assert len(await pool.fetch(kinds)) == 2
    page = await owner.get("/notices")
    assert "Somebody signed in as you in 2 new browsers." in page.words
    await make_person(pool, tenant, "rui@example.com", "owner")
    other_browser.session.cookie_jar.clear()
    await other_browser.sign_in("rui@example.com")
    assert "signed in as you" not in (await other_browser.get("/notices")).words


async def without(owner: Browser, page: Page, *boxes: str) -> Page:
    """Untick some, and save: an unticked checkbox is not sent."""
    ticked = set(re.findall(r'type="checkbox" name="([^"]*)" value="1" checked', page.text))
    assert set(boxes) <= ticked
    return await owner.submit(page, page.path, **dict.fromkeys(ticked - set(boxes), "1"))


async def test_what_the_bell_counts_is_chosen(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/notices/choices")
    assert (page.status, "The wallet is below its alert" in page.words) == (200, True)
    assert "webhook.failing webhook" not in page.text
    kept = await without(owner, page, "campaign.completed bell", "quota.used bell")
    assert (kept.status, kept.path) == (200, "/notices/choices")
    await tell(pool, tenant, "campaign.completed", "webhook.disabled")
    leave(owner)
    await owner.sign_in("ana@example.com")
    assert bell((await owner.get("/messages")).text) == "Notifications: 1 new"
    page = await owner.get("/notices")
    assert ("is finished" in page.words, "was disabled" in page.words) == (False, True)
    stored = "SELECT notice_ways FROM memberships"
    assert await pool.fetchval(stored) == '{"campaign.completed":[],"quota.used":["mail"]}'
    # The organization's own choice, which includes webhooks.
    page = await owner.get("/settings/notices")
    await without(owner, page, "webhook.disabled mail", "import.finished webhook")
    assert await pool.fetchval("SELECT notice_ways FROM organizations WHERE id = $1", tenant.id) == (
        '{"import.finished":["bell"],"webhook.disabled":["bell","webhook"]}'
    )
    page = await owner.get("/notices/choices")
    await owner.submit(page, "/notices/choices", usual="1")
    assert await pool.fetchval(stored) == "{}"


async def test_a_key_that_has_expired_no_longer_does_so_soon(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    hour = timedelta(hours=1)
    async with pool.acquire() as conn:
        for n, until in enumerate((clock.now() + hour, clock.now() - hour, clock.now() - hour)):
            await notices.record(conn, Notice(tenant.id, "key.ending", str(n), f"K{n}", facts={"until": iso(until)}))
    page = await owner.get("/notices")
    assert ("2 keys have expired." in page.words, "The key “K0” expires soon." in page.words) == (True, True)
    await pool.execute("DELETE FROM notices WHERE object = '2'")
    assert "The key “K1” has expired." in (await owner.get("/notices")).words


async def test_several_of_a_kind_are_one_line(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        for number in range(3):
            name = f"https://{number}.example.com"
            await notices.record(conn, Notice(tenant.id, "webhook.failing", str(number), name))
    page = await owner.get("/notices")
    assert (
        "3 endpoints are failing. new https://2.example.com, https://1.example.com, https://0.example.com" in page.words
    )
    assert page.text.count('<li class="new">') == 1


async def test_several_campaigns_lead_to_the_list_that_has_them(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Those on WhatsApp were counted with those by SMS, and led to the list of the latter."""
    async with pool.acquire() as conn:
        for n, channel in enumerate(("sms", "sms", "whatsapp", "whatsapp")):
            facts = {"channel": channel}
            await notices.record(conn, Notice(tenant.id, "campaign.completed", str(n), f"Sale {n}", facts=facts))
    page = await owner.get("/notices")
    found = re.findall(r'<a href="([^"]+)">2 campaigns are finished\.</a>', page.text)
    assert [html.unescape(one) for one in found] == ["/campaigns?channel=whatsapp&mode=live", "/campaigns?mode=live"]
