"""The outage drill: what an operator at three in the morning sees on the wall, and that its remedy or button works."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import aiohttp
import asyncpg
import msgspec
import pytest
from playwright.async_api import Request, Route

from heliograph import doctor
from heliograph.base.database.pool import Pool
from heliograph.base.sentences import Sentence, said
from heliograph.pages.languages import catalogue
from heliograph.simulators.graph.callbacks.webhooks import sign
from heliograph.sms.dispatch import routing, suppliers
from heliograph.whatsapp.mirror import accounts, apps
from tests.certificates import Authority
from tests.processes import installation

from .conftest import NIGHT, Chromium, Site, browsing, looks
from .test_console import set_up

SECRET = "a secret of an app at Meta"


@pytest.fixture
async def site(
    request: pytest.FixtureRequest, database_url: str, pool: Pool, browser: Chromium, tmp_path: Path
) -> AsyncIterator[Site]:
    """A site whose worker goes when the test says so (`site.worker`)."""
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        browsing(made, pool, browser, request.param) as found,
    ):
        yield found
        assert found.complaints == []


#: What the checks say of statements that wait.
BLOCKED = "%(count)s statements wait for others, the longest for %(seconds)s s"
#: What the wall says of callbacks that Meta did not sign, and of a disk.
UNSIGNED = "callbacks arrive that are not signed with the app's secret, the last at %(at)s"
FREE = "%(free)s GB of %(total)s GB are free at %(place)s (%(percent)s %%)"


def told(site: Site, word: str) -> str:
    """A sentence as its reader has it, of one whose values are not known its longest piece without any; names stay."""
    if isinstance(word, Sentence):
        assert site.says(word.english)
        return site.locale.sentence(word)
    if word not in catalogue("pt"):
        return word
    return max(re.split(r"%\(\w+\)s|%%", site.says(word)), key=len).strip()


#: The wall names what is wrong by its second refresh at the latest: the bell may have looked just before the first. By
#: its own clock that is within so many milliseconds.
REFRESHES, WITHIN = 2, 5_000


async def found(site: Site, words: tuple[str, ...]) -> None:
    """Wait until the checks find something with all of these words."""
    while True:
        async with site.pool.acquire() as conn:
            checks = await doctor.examine(conn, site.made.settings, far=False)
        for one in checks:
            said_of = " ".join(site.locale.sentence(part) for part in (one.check, one.detail, one.remedy))
            if one.state != "ok" and all(told(site, word) in said_of for word in words):
                return
        await asyncio.sleep(0.2)


async def wall(site: Site, *words: str, gone: bool = False, because: str = "") -> None:
    """Wait until the checks find something with all of these words (and with `because`), which the wall names soon
    and says what to do; or until it names that no more."""
    trouble = site.page.locator("article.trouble")
    for word in words:
        trouble = trouble.filter(has_text=told(site, word))
    if gone:
        await trouble.first.wait_for(state="detached")
        return
    await found(site, (*words, because) if because else words)
    begun: asyncio.Queue[str] = asyncio.Queue()

    def heard(asked: Request) -> None:
        if asked.url == site.base + "/console/now" and "hx-request" in asked.headers:
            begun.put_nowait(asked.url)

    site.page.on("request", heard)
    try:
        # One refresh may be on its way already, and the last one is over when the next begins.
        for _ in range(REFRESHES + 2):
            if await trouble.count():
                break
            await begun.get()
        assert await trouble.count(), words
    finally:
        site.page.remove_listener("request", heard)
    assert site.says("What to do") in await trouble.first.inner_text()


async def told_to_run(site: Site, check: str) -> str:
    """The command, or the statement, in what the wall says is to be done about a check."""
    trouble = site.page.locator("article.trouble").filter(has_text=told(site, check))
    return await trouble.locator("code").first.inner_text()


async def press(site: Site, path: str, button: str, **typed: str) -> None:
    """A button on another page, in a tab of its own: the wall stays as it is."""
    page = await site.context.new_page()
    site.watch(page)
    try:
        await page.goto(site.base + path)
        for name, value in typed.items():
            await page.locator(f"[name={name}]").fill(value)
        await page.get_by_role("button", name=site.says(button)).first.click()
        await page.locator(".notice").wait_for()
    finally:
        await page.close()


@pytest.mark.lasts(60)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_each_outage_is_named_on_the_wall_and_mended(site: Site, tmp_path: Path) -> None:
    made, pool = site.made, site.pool
    await set_up(site)
    await site.page.goto(site.base + "/console/now")
    assert int(await site.page.locator("[data-wall]").get_attribute("data-live") or "") * REFRESHES <= WITHIN
    # No worker: nothing is sent, and the supplier is not connected.
    await wall(site, said("workers"))
    async with AsyncExitStack() as working:
        await working.enter_async_context(made.working())
        await wall(site, said("workers"), gone=True)
        await wall(site, said("supplier %(name)s", name="main"), gone=True)
        # The supplier dies, and comes back.
        await made.smsc.stop()
        await wall(site, said("supplier %(name)s", name="main"))
        await made.smsc.start()
        await wall(site, said("supplier %(name)s", name="main"), gone=True)
    # The worker goes; what is accepted meanwhile is late.
    await wall(site, said("workers"))
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {made.key}", "Idempotency-Key": str(uuid4())}
        body = {"to": "+258841234567", "message": "Hello"}
        async with client.post(made.base_url + "/v1/sms/send", json=body, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
    await pool.execute(
        "UPDATE queue SET due_at = due_at - interval '10 minutes', since = since - interval '10 minutes'"
    )
    await wall(site, said("queue"), "%(kind)s is %(seconds)s s overdue")
    async with made.working():
        await wall(site, said("queue"), "%(kind)s is %(seconds)s s overdue", gone=True)
        await wall(site, said("workers"), gone=True)
        # Statements wait for somebody's transaction, which the query that the wall tells names.
        blocking = await asyncpg.connect(made.settings.database_url)
        async with pool.acquire() as other:
            await blocking.execute("SELECT pg_advisory_lock(4711)")
            waiting = asyncio.create_task(other.execute("SELECT pg_advisory_lock(4711)", timeout=300))
            await wall(site, said("speed of the database"), because=BLOCKED)
            rows = await pool.fetch(await told_to_run(site, said("speed of the database")))
            (culprit,) = {pid for row in rows if "(4711)" in row["query"] for pid in row["pg_blocking_pids"]}
            assert culprit == blocking.get_server_pid()
            await pool.execute("SELECT pg_terminate_backend($1)", culprit)
            await waiting
            await other.execute("SELECT pg_advisory_unlock(4711)")
        blocking.terminate()
        await wall(site, said("speed of the database"), gone=True)
        # A certificate ends tomorrow, until it is replaced.
        file = Path(Authority(tmp_path).issue("client"))
        key = suppliers.seal_key(made.settings)
        async with pool.acquire() as conn:
            (before, *_) = await routing.load(conn)
            settings = {"host": "127.0.0.1", "port": 1, "system_id": "a", "tls_certificate_file": str(file)}
            await suppliers.add(conn, key, name="shown", kind="smpp", settings=settings, secret="s")
            await suppliers.set_state(conn, supplier="shown", state="paused")
        await wall(site, said("certificate of %(whose)s", whose="shown"), str(file))
        file.write_text(Path(Authority(tmp_path).issue("another", days=400)).read_text())
        await wall(site, said("certificate of %(whose)s", whose="shown"), gone=True)
        # Callbacks come that Meta did not sign, and then one that it did.
        async with pool.acquire() as conn:
            account = await accounts.add(
                conn,
                apps.seal_key(made.settings),
                organization_id=made.actor.organization_id,
                app_id="660",
                app_secret=SECRET,
                verify_token="v",
                waba_id="900",
                token="EAA",
                currency="EUR",
                base_url="http://127.0.0.1:1",
                api_version="v24.0",
            )

        async def call_back(secret: str) -> int:
            envelope = {"object": "whatsapp_business_account", "entry": [{"id": "900", "changes": []}]}
            body, signed = sign(msgspec.json.encode(envelope), secret)
            url = f"{made.base_url}/in/whatsapp/{account.app}"
            async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=signed) as answer:
                return answer.status

        assert await call_back("changed at Meta") == 403
        await wall(site, said("whatsapp %(id)s", id="900"), UNSIGNED)
        there = f"/console/whatsapp/accounts/{made.actor.organization_id}/{account.id}/app"
        await press(site, there, "Save it", app_secret="changed at Meta")
        assert await call_back("changed at Meta") == 200
        await wall(site, said("whatsapp %(id)s", id="900"), UNSIGNED, gone=True)
        # What is held is released where the wall leads to.
        await press(site, f"/console/suppliers/{before.id}/pause", "Pause")
        await wall(site, said("supplier %(name)s", name="main"))
        await press(site, f"/console/suppliers/{before.id}", "Resume")
        await wall(site, said("supplier %(name)s", name="main"), gone=True)


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_a_wall_that_could_not_be_renewed_asks_again_within_five_seconds(site: Site) -> None:
    """By the page's own clock, which stands still but for what the test lets pass."""
    page, here = site.page, site.base + "/console/now"
    await set_up(site)
    await page.clock.install()
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
    await page.goto(here)

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, body="")

    await page.route(here, refuse)
    await page.clock.run_for(int(await page.locator("[data-wall]").get_attribute("data-live") or ""))
    await page.locator(".renewed.wrong").wait_for()
    async with page.expect_request(lambda asked: asked.url == here and "hx-request" in asked.headers):
        await page.clock.run_for(WITHIN)
    assert [one for one in site.complaints if "503" not in one] == []
    site.complaints.clear()


@pytest.fixture
async def full(
    request: pytest.FixtureRequest, database_url: str, pool: Pool, browser: Chromium, tmp_path: Path
) -> AsyncIterator[Site]:
    """A site that wants more of its disk to be free than there is."""
    async with (
        installation(database_url, tmp_path, HELIOGRAPH_DISK_FREE_PERCENT="100") as made,
        made.serving(),
        browsing(made, pool, browser, request.param) as found,
    ):
        yield found
        assert found.complaints == []


@pytest.mark.lasts(15)
@pytest.mark.parametrize("full", looks(NIGHT), indirect=True)
async def test_a_disk_that_is_nearly_full_is_named_on_the_wall(full: Site) -> None:
    await set_up(full)
    await full.page.goto(full.base + "/console/now")
    await wall(full, said("disk"), FREE, "HELIOGRAPH_METADATA_RETENTION_MONTHS")


#: What is not answered is waited for a tenth as long.
IMPATIENT = "patient = AbortSignal.timeout; AbortSignal.timeout = (ms) => patient.call(AbortSignal, ms / 10)"
PATIENT = "AbortSignal.timeout = patient"


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_a_wall_that_is_not_renewed_says_so_at_its_head(site: Site) -> None:
    page = site.page
    await set_up(site)
    here = re.compile("/console/(now|state)$")
    band, word, never = page.locator("#old"), page.locator("[data-state]"), asyncio.Event()
    neutral = site.says("State of the service")

    async def refused(route: Route) -> None:
        await route.fulfill(status=503)

    async def hangs(route: Route) -> None:
        await never.wait()

    for trouble in (refused, hangs):
        await page.goto(site.base + "/console/now")
        await word.get_by_text(neutral).wait_for(state="detached")
        await page.evaluate(IMPATIENT)
        await page.route(here, trouble)
        await band.wait_for(state="visible")
        assert re.search(r"\d\d:\d\d:\d\d", await band.inner_text())
        # Nor does it say at its foot that all is normal.
        await word.get_by_text(neutral).wait_for()
        await page.evaluate(PATIENT)
        await page.unroute(here, trouble)
        await band.wait_for(state="hidden")
    # A form that nobody answers is not said to lack a network, and keeps what was typed.
    await page.goto(site.base + "/console/organizations/new")
    await page.locator("#name").fill("Padaria Sol")
    await page.route("**/console/session", refused)
    create = page.get_by_role("button", name=site.says("Create"))
    await create.click()
    await page.locator("#unanswered").wait_for(state="visible")
    assert not await page.locator("#offline").is_visible()
    assert await page.locator("#name").input_value() == "Padaria Sol"
    await page.unroute("**/console/session", refused)
    await create.click()
    await page.get_by_role("heading", name="Padaria Sol").wait_for()
    site.complaints = [one for one in site.complaints if "503" not in one]
