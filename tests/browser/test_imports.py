"""Journey 3: a messy file of 10,000 rows goes through all five steps, while web process and worker are killed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Route

from heliograph.base.database.pool import Pool
from tests.processes import installation, until, until_true

from .conftest import NIGHT, PASSWORD, Chromium, Look, Site, browsing, looks, press_key

ROWS = 10_000
#: A page's text about an import that was undone.
GONE = "Contacts it created are deleted, and those it changed are restored; anything changed since was kept."
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2"}
#: Numbers of rejected rows that stand on more than one line.
BROKEN = """() => [...document.querySelectorAll(".reason tbody th")].map((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return [one.textContent, new Set([...range.getClientRects()].map((box) => box.top)).size];
}).filter(([, lines]) => lines > 1)"""
#: Clicks once more as soon as the file has arrived, while the next page is loading.
CLICKED_AGAIN = """() => {
  const { send } = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.send = function (body) {
    this.addEventListener("load", () => setTimeout(() => document.querySelector("form[data-upload] button").click()));
    send.call(this, body);
  };
}"""


def messy(path: Path) -> tuple[int, int]:
    """A realistic sheet: a byte order mark, `;` separators, quoted line breaks, national numbers, 3 % invalid rows.
    Returns the number of people in it, and of rejected rows."""
    chance, rejected, people = random.Random(11), 0, 0
    lines = ["Telemóvel;Nome;Etiquetas"]
    for n in range(ROWS):
        if n % 33 == 0:
            lines.append(chance.choice([";Sem número;", "2,58841E+11;Eva;", "12;Rui;x"]))
            rejected += 1
            continue
        number = f"{840_000_000 + n}"
        written = chance.choice([f"+258{number}", f"{number[:2]} {number[2:5]} {number[5:]}", f"00258{number}"])
        lines.append(f'{written};"João\r\nda Beira {n}";{chance.choice(["", "VIP", "vip, maputo"])}')
        people += 1
    path.write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n;;\r\n").encode())
    return people, rejected


async def answers(base_url: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(base_url + "/readyz") as answer:
        return answer.status == 200


@pytest.mark.lasts(40)
@pytest.mark.parametrize("look", looks(NIGHT), ids=str)
async def test_a_messy_file_while_processes_are_killed(
    database_url: str, pool: Pool, browser: Chromium, tmp_path: Path, look: Look
) -> None:
    people, rejected = messy(tmp_path / "people.csv")
    async with (
        installation(database_url, tmp_path, **FAST) as made,
        browsing(made, pool, browser, look) as site,
    ):
        await pool.execute("UPDATE organizations SET country = 'MZ'")
        web, worker = await made.api(), await made.worker()
        await until_true(lambda: answers(made.base_url))
        await worker.ready()
        page, says, number = site.page, site.says, site.locale.number
        await site.enter()
        began = time.monotonic()
        await page.goto(site.base + "/contacts/import")
        await page.get_by_label(says("File"), exact=True).set_input_files(tmp_path / "people.csv")
        await page.get_by_role("button", name=says("Continue")).click()
        await page.wait_for_url("**/read")
        await page.get_by_role("button", name=says("Continue")).click()
        await page.wait_for_url("**/map")
        # The preview of numbers follows the chosen country without a page load.
        country = page.get_by_label(says("Numbers without + and country code belong to"))
        national = page.locator("#national", has_text="+2588400")
        await country.select_option("")
        await national.wait_for(state="detached")
        # Someone who changes the choice before the response arrives sees the last choice.
        asked = asyncio.Event()

        async def held(route: Route) -> None:
            asked.set()
            await national.wait_for()
            await route.abort()

        await page.route("**/map?*country=PT*", held)
        await country.select_option("PT")
        await asked.wait()
        await country.select_option("MZ")
        await national.wait_for()
        await page.get_by_role("button", name=says("Check the whole file")).click()
        told = site.locale.plural("Import %(num)s row", "Import %(num)s rows", people) % {"num": number(people)}
        run = page.get_by_role("button", name=told)
        await run.wait_for()
        assert await page.get_by_text(site.locale.country("MZ")).count() == 1
        # However narrow the screen, no number of a row is broken into two.
        await page.set_viewport_size({"width": 320, "height": 640})
        assert await page.evaluate(BROKEN) == []
        # The next worker is killed right after it has committed a part of the file.
        await worker.kill()
        await run.click()
        await page.wait_for_url("**/contacts/imports/*")
        ending = await made.worker(HELIOGRAPH_CRASH_AT="import.after_commit")
        assert await ending.ended() == -signal.SIGKILL, ending.err
        await web.kill()
        half = await pool.fetchrow("SELECT state, rows FROM contact_imports")
        assert half["state"] == "running"
        assert 0 < half["rows"] < ROWS
        web, worker = await made.api(), await made.worker()
        await until_true(lambda: answers(made.base_url))
        # The page continues by itself from where it was.
        await page.get_by_text(says("Finished")).wait_for()
        counts = await pool.fetchrow("SELECT rows, created, updated, unchanged, rejected FROM contact_imports")
        assert tuple(counts) == (ROWS, people, 0, 0, rejected)
        assert await pool.fetchval("SELECT count(*) FROM contacts WHERE phone LIKE '+25884%'") == people
        figures = await page.locator(".figure strong").all_inner_texts()
        assert figures == [number(one) for one in counts]
        await page.get_by_role("link", name=says("Fix here")).click()
        await page.locator('input[name$="-phone"]').first.fill("+351 912 345 678")
        await page.get_by_role("button", name=says("Save and import")).click()
        await page.get_by_text(site.locale.count("%(num)s row imported.", "%(num)s rows imported.", 1)).wait_for()
        await page.get_by_role("link", name="people.csv").click()
        await page.get_by_role("link", name=says("Undo the import")).click()
        await page.get_by_role("button", name=says("Undo the import")).click()
        await page.get_by_text(says(GONE)).wait_for()
        print(f"journey 3 {look}: {time.monotonic() - began:.1f} s")
        assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
        # Browser errors about the server that was down are not the page's fault.
        site.expect("ERR_(CONNECTION|EMPTY)")
        assert site.complaints == []


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_a_file_outlives_a_session_that_ended_and_one_that_is_gone_is_to_be_chosen_again(
    site: Site, tmp_path: Path
) -> None:
    page, says, file = site.page, site.says, tmp_path / "people.csv"
    file.write_text("phone,name\n+258841234567,Ana\n")
    await page.goto(await site.link(password=True))
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/contacts/import")
    await page.get_by_label(says("File"), exact=True).set_input_files(file)
    await site.pool.execute("DELETE FROM sessions")

    async def has_ended() -> bool:
        # A session is cached for a second.
        return (await page.request.get(site.base + "/session")).status == 401

    await until_true(has_ended)
    await page.get_by_role("button", name=says("Continue")).click()
    await page.locator("#signed-out #again-password").fill(PASSWORD)
    await press_key(page, "Enter")
    await page.wait_for_url("**/read")
    assert await page.get_by_text("+258841234567").count()

    await page.goto(site.base + "/contacts/import")
    await page.get_by_label(says("File"), exact=True).set_input_files(file)
    file.unlink()
    await page.get_by_role("button", name=says("Continue")).click()
    gone = "The file was changed or removed after it was chosen. Choose it again; nothing was imported."
    await page.get_by_text(says(gone)).wait_for()
    site.expect("status of 401|FILE_NOT_FOUND")


@pytest.mark.lasts(10)
async def test_a_file_on_its_way_is_not_sent_a_second_time(site: Site, tmp_path: Path) -> None:
    """Whoever clicked again while a large file was on its way sent it again beside the first, and whoever did while the
    next page was loading made a second import of it."""
    page, says, file = site.page, site.says, tmp_path / "people.csv"
    file.write_text("phone,name\n+258841234567,Ana\n")
    await site.enter()
    await page.goto(site.base + "/contacts/import")
    await page.get_by_label(says("File"), exact=True).set_input_files(file)
    sent, goes_on, follows = list[str](), asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "POST":
            sent.append(route.request.url)
            await goes_on.wait()
        await route.continue_()

    async def hold_next(route: Route) -> None:
        await follows.wait()
        await route.continue_()

    await page.route("**/contacts/import", hold)
    await page.route("**/read", hold_next)
    await page.evaluate(CLICKED_AGAIN)
    button = page.get_by_role("button", name=says("Continue"))
    await button.click(no_wait_after=True)
    await until(lambda: len(sent) == 1)
    # The session is looked at before each time.
    async with page.expect_response("**/session"):
        await button.click(no_wait_after=True)
    await page.evaluate("new Promise((done) => setTimeout(done, 200))")
    async with page.expect_response("**/session"):
        goes_on.set()
    await asyncio.sleep(0.2)
    follows.set()
    await page.wait_for_url("**/read")
    assert len(sent) == 1
    assert await site.pool.fetchval("SELECT count(*) FROM contact_imports") == 1
