"""The outage drill: what an operator sees on the wall at three in the morning, and that the suggested remedy works."""

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

from .conftest import DAY, NIGHT, Chromium, Site, browsing, looks, press_key, until_true_in_page
from .test_console import set_up

SECRET = "a secret of an app at Meta"


@pytest.fixture
async def site(
    request: pytest.FixtureRequest, database_url: str, pool: Pool, browser: Chromium, tmp_path: Path
) -> AsyncIterator[Site]:
    """A site without a worker: the test runs one when it needs it."""
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        browsing(made, pool, browser, request.param) as found,
    ):
        yield found
        assert found.complaints == []


#: The check's text about blocked statements.
BLOCKED = "statements that wait for others: %(count)s; the longest for %(seconds)s s"
#: The wall's text about callbacks that Meta did not sign, and about a disk.
UNSIGNED = "callbacks arrive that are not signed with the app's secret, the last at %(at)s"
FREE = "%(free)s GB of %(total)s GB are free at %(place)s (%(percent)s %%)"


def shown_text(site: Site, word: str) -> str:
    """A text in the reader's language. Of a text whose values are unknown, its longest part without a placeholder;
    names stay as they are."""
    if isinstance(word, Sentence):
        assert site.says(word.english)
        return site.locale.sentence(word)
    if word not in catalogue("pt"):
        return word
    return max(re.split(r"%\(\w+\)s|%%", site.says(word)), key=len).strip()


#: The wall shows a problem by its second refresh at the latest: the bell may have read the state just before the first.
#: By the page's own clock that is within this many milliseconds.
REFRESHES, WITHIN = 2, 5_000


async def until_check_fails(site: Site, words: tuple[str, ...]) -> None:
    """Wait until a check fails with all of these words."""
    while True:
        async with site.pool.acquire() as conn:
            checks = await doctor.examine(conn, site.made.settings, far=False)
        for one in checks:
            said_of = " ".join(site.locale.sentence(part) for part in (one.check, one.detail, one.remedy))
            if one.state != "ok" and all(shown_text(site, word) in said_of for word in words):
                return
        await asyncio.sleep(0.2)


async def until_on_wall(site: Site, *words: str, gone: bool = False, because: str = "") -> None:
    """Wait until a check fails with all of these words (and with `because`), the wall shows it by its second refresh,
    and says what to do. With `gone`: until the wall no longer shows it."""
    trouble = site.page.locator("article.trouble")
    for word in words:
        trouble = trouble.filter(has_text=shown_text(site, word))
    if gone:
        await trouble.first.wait_for(state="detached")
        return
    await until_check_fails(site, (*words, because) if because else words)
    begun: asyncio.Queue[str] = asyncio.Queue()

    def note_refresh(asked: Request) -> None:
        if asked.url == site.base + "/console/now" and "hx-request" in asked.headers:
            begun.put_nowait(asked.url)

    site.page.on("request", note_refresh)
    try:
        # One refresh may be in flight already, and the last one is complete when the next begins.
        for _ in range(REFRESHES + 2):
            if await trouble.count():
                break
            await begun.get()
        assert await trouble.count(), words
    finally:
        site.page.remove_listener("request", note_refresh)
    assert site.says("What to do") in await trouble.first.inner_text()


async def suggested_command(site: Site, check: str) -> str:
    """The command or SQL statement that the wall suggests for a failed check."""
    trouble = site.page.locator("article.trouble").filter(has_text=shown_text(site, check))
    return await trouble.locator("code").first.inner_text()


async def press_in_new_tab(site: Site, path: str, button: str, **typed: str) -> None:
    """Press a button on another page, in a new tab: the wall stays open."""
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
    await until_on_wall(site, said("workers"))
    async with AsyncExitStack() as working:
        await working.enter_async_context(made.working())
        await until_on_wall(site, said("workers"), gone=True)
        await until_on_wall(site, said("supplier %(name)s", name="main"), gone=True)
        # The supplier dies, and comes back.
        await made.smsc.stop()
        await until_on_wall(site, said("supplier %(name)s", name="main"))
        await made.smsc.start()
        await until_on_wall(site, said("supplier %(name)s", name="main"), gone=True)
    # The worker stops; messages accepted meanwhile become overdue.
    await until_on_wall(site, said("workers"))
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {made.key}", "Idempotency-Key": str(uuid4())}
        body = {"to": "+258841234567", "message": "Hello"}
        async with client.post(made.base_url + "/v1/sms/send", json=body, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
    await pool.execute(
        "UPDATE queue SET due_at = due_at - interval '10 minutes', since = since - interval '10 minutes'"
    )
    await until_on_wall(site, said("queue"), "%(kind)s is %(seconds)s s overdue")
    async with made.working():
        await until_on_wall(site, said("queue"), "%(kind)s is %(seconds)s s overdue", gone=True)
        await until_on_wall(site, said("workers"), gone=True)
        # Statements wait for somebody's lock; the query that the wall suggests names the culprit.
        blocking = await asyncpg.connect(made.settings.database_url)
        async with pool.acquire() as other:
            await blocking.execute("SELECT pg_advisory_lock(4711)")
            waiting = asyncio.create_task(other.execute("SELECT pg_advisory_lock(4711)", timeout=300))
            await until_on_wall(site, said("speed of the database"), because=BLOCKED)
            rows = await pool.fetch(await suggested_command(site, said("speed of the database")))
            (culprit,) = {pid for row in rows if "(4711)" in row["query"] for pid in row["pg_blocking_pids"]}
            assert culprit == blocking.get_server_pid()
            await pool.execute("SELECT pg_terminate_backend($1)", culprit)
            await waiting
            await other.execute("SELECT pg_advisory_unlock(4711)")
        blocking.terminate()
        await until_on_wall(site, said("speed of the database"), gone=True)
        # A certificate expires tomorrow, until it is replaced.
        file = Path(Authority(tmp_path).issue("client"))
        key = suppliers.seal_key(made.settings)
        async with pool.acquire() as conn:
            (before, *_) = await routing.load(conn)
            settings = {"host": "127.0.0.1", "port": 1, "system_id": "a", "tls_certificate_file": str(file)}
            await suppliers.add(conn, key, name="shown", kind="smpp", settings=settings, secret="s")
            await suppliers.set_state(conn, supplier="shown", state="paused")
        await until_on_wall(site, said("certificate of %(whose)s", whose="shown"), str(file))
        file.write_text(Path(Authority(tmp_path).issue("another", days=400)).read_text())
        await until_on_wall(site, said("certificate of %(whose)s", whose="shown"), gone=True)
        # Callbacks with a wrong signature arrive, and then one with the right one.
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
        await until_on_wall(site, said("whatsapp %(id)s", id="900"), UNSIGNED)
        there = f"/console/whatsapp/accounts/{made.actor.organization_id}/{account.id}/app"
        await press_in_new_tab(site, there, "Save it", app_secret="changed at Meta")
        assert await call_back("changed at Meta") == 200
        await until_on_wall(site, said("whatsapp %(id)s", id="900"), UNSIGNED, gone=True)
        # A paused supplier is resumed on the page that the wall links to.
        await press_in_new_tab(site, f"/console/suppliers/{before.id}/pause", "Pause")
        await until_on_wall(site, said("supplier %(name)s", name="main"))
        await press_in_new_tab(site, f"/console/suppliers/{before.id}", "Resume")
        await until_on_wall(site, said("supplier %(name)s", name="main"), gone=True)


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_a_wall_that_could_not_be_renewed_asks_again_within_five_seconds(site: Site) -> None:
    """With the page's clock stopped, except for the time that the test lets pass."""
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
    """A site that requires more free disk space than there is."""
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
    await until_on_wall(full, said("disk"), FREE, "HELIOGRAPH_METADATA_RETENTION_MONTHS")


#: Makes timeouts of requests ten times shorter.
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
        # Nor does its footer say that everything is normal.
        await word.get_by_text(neutral).wait_for()
        await page.evaluate(PATIENT)
        await page.unroute(here, trouble)
        await band.wait_for(state="hidden")
    # A form that gets no response does not blame the network, and keeps the input.
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
    site.expect("503")


@pytest.mark.lasts(10)
@pytest.mark.parametrize("site", looks(DAY), indirect=True)
async def test_a_wall_takes_the_whole_of_a_full_screen(site: Site) -> None:
    page = site.page
    await set_up(site)
    await page.goto(site.base + "/console/now")
    await press_key(page, "f")
    await until_true_in_page(page, "() => document.fullscreenElement")
    place = await page.locator("#main").bounding_box()
    assert place is not None
    assert (place["x"], place["y"], place["width"]) == (0, 0, 1280)
