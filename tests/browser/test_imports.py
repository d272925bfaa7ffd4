"""A messy file of 10,000 rows through all five steps, while web and worker are killed in the middle."""

from __future__ import annotations

import random
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import async_playwright

from heliograph.base.database.pool import Pool
from tests.processes import installation, until_true

from .conftest import ARGUMENTS, Site, chromium

ROWS = 10_000
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2"}


def messy(path: Path) -> tuple[int, int]:
    """A sheet as they come: a mark, `;`, quoted line breaks, national numbers, 3 % that cannot be imported. Returns how
    many people are in it, and how many rows are rejected."""
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
async def test_a_messy_file_while_processes_are_killed(database_url: str, pool: Pool, tmp_path: Path) -> None:
    people, rejected = messy(tmp_path / "people.csv")
    async with installation(database_url, tmp_path, **FAST) as made, async_playwright() as playwright:
        await pool.execute("UPDATE organizations SET country = 'MZ'")
        web, worker = await made.api(), await made.worker()
        await until_true(lambda: answers(made.base_url))
        await worker.ready()
        context = await playwright.chromium.launch_persistent_context(
            tmp_path / "browser", executable_path=chromium(), args=ARGUMENTS, locale="en-GB"
        )
        try:
            site = Site(made, context, await context.new_page(), pool)
            page = site.page
            await page.goto(await site.link())
            await page.wait_for_url(site.base + "/")
            await page.goto(site.base + "/contacts/import")
            await page.get_by_label("File", exact=True).set_input_files(tmp_path / "people.csv")
            await page.get_by_role("button", name="Continue").click()
            await page.wait_for_url("**/read")
            await page.get_by_role("button", name="Continue").click()
            await page.wait_for_url("**/map")
            # What becomes of numbers follows the choice of a country without a new page.
            await page.get_by_label("Numbers without + and country code belong to").select_option("")
            await page.locator("#national", has_text="rejected").wait_for()
            await page.get_by_label("Numbers without + and country code belong to").select_option("MZ")
            await page.locator("#national", has_text="+2588400").wait_for()
            await page.get_by_role("button", name="Check the whole file").click()
            run = page.get_by_role("button", name=f"Import {people:,} rows")
            await run.wait_for()
            assert await page.get_by_text("Mozambique").count() == 1
            await run.click()
            await page.wait_for_url("**/contacts/imports/*")

            async def is_under_way() -> bool:
                return bool(await pool.fetchval("SELECT rows FROM contact_imports WHERE rows > 0"))

            await until_true(is_under_way)
            await worker.kill()
            await web.kill()
            assert await pool.fetchval("SELECT state FROM contact_imports") in ("running", "finished")
            web, worker = await made.api(), await made.worker()
            await until_true(lambda: answers(made.base_url))
            # The page goes on by itself, where it stood.
            await page.get_by_text("Finished").wait_for()
            counts = await pool.fetchrow("SELECT rows, created, updated, unchanged, rejected FROM contact_imports")
            assert tuple(counts) == (ROWS, people, 0, 0, rejected)
            assert await pool.fetchval("SELECT count(*) FROM contacts WHERE phone LIKE '+25884%'") == people
            await page.get_by_role("link", name="Mend here").click()
            await page.locator('input[name$="-phone"]').first.fill("+351 912 345 678")
            await page.get_by_role("button", name="Save and import").click()
            await page.get_by_text("1 row imported.").wait_for()
            await page.get_by_role("link", name="people.csv").click()
            await page.get_by_role("button", name="Undo the import").click()
            await page.get_by_text("What it had made is gone").wait_for()
            assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
            # What the browser says of a server that is not there is no fault of the page's.
            assert [one for one in site.complaints if "ERR_CONNECTION" not in one and "ERR_EMPTY" not in one] == []
        finally:
            await context.close()
