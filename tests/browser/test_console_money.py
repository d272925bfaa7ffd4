"""Journey 9 in a browser: a month is exported for billing, and its sums equal those of the usage ledger to the
message."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.base.database.pool import Pool
from tests.processes import installation
from tests.rules.test_billing import LEDGER, bounds, used

from .conftest import DAY, Chromium, Site, browsing, looks, press_key
from .test_console import set_up


@pytest.fixture
async def office(
    request: pytest.FixtureRequest, database_url: str, pool: Pool, browser: Chromium, tmp_path: Path
) -> AsyncIterator[Site]:
    """A site without a worker: what was sent stays where the test puts it."""
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        browsing(made, pool, browser, request.param) as found,
    ):
        yield found
        assert found.complaints == []


@pytest.mark.lasts(20)
@pytest.mark.parametrize("office", looks(DAY), indirect=True)
async def test_a_month_is_exported_and_equals_the_ledger(office: Site, pool: Pool) -> None:
    month, _ = await used(pool)
    page = office.page
    await set_up(office)
    await page.get_by_role("link", name=office.says("Billing export")).first.focus()
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/billing")
    await page.locator(f'a[href="/console/billing/{month:%Y-%m}"]').focus()
    await press_key(page, "Enter")
    await page.wait_for_url(f"**/console/billing/{month:%Y-%m}")
    for role, label in (("link", "Lock the month…"), ("button", "Lock the month")):
        await page.get_by_role(role, name=office.says(label), exact=True).focus()
        await press_key(page, "Enter")
    checksum = await page.locator("#checksum").input_value()
    # Each sum over the file's lines equals that of the usage ledger.
    apart = page.locator("td .status")
    assert await apart.count() == 7
    assert {" ".join(one.split()) for one in await apart.all_inner_texts()} == {"● 0"}
    async with page.expect_download() as fetched:
        await page.locator(f'a.button[href="/console/billing/{month:%Y-%m}/file"]').click()
    text = Path(await (await fetched.value).path()).read_bytes()
    assert hashlib.sha256(text).hexdigest() == checksum
    sums: dict[tuple[str, str], int] = {}
    for row in csv.DictReader(io.StringIO(text.decode())):
        key = row["organization_id"], row["channel"]
        sums[key] = sums.get(key, 0) + int(row["quantity"])
    known = {(str(row[0]), row[1]): row[2] for row in await pool.fetch(LEDGER, *bounds(month))}
    assert sums == known
    # It can no longer be downloaded, not even from a page opened earlier.
    await page.reload()
    await page.locator("#checksum").wait_for()
    assert await page.get_by_role("link", name=office.says("Lock the month…")).count() == 0


@pytest.mark.lasts(15)
@pytest.mark.parametrize("office", looks(DAY), indirect=True)
@pytest.mark.parametrize("path", ["/console/rates/import", "/console/rates/whatsapp/import"])
async def test_a_file_that_is_gone_when_it_is_sent_is_to_be_chosen_again(
    office: Site, path: str, tmp_path: Path
) -> None:
    """The browser showed an error page of its own."""
    page, file, says = office.page, tmp_path / "rates.csv", office.says
    await set_up(office)
    await page.goto(office.base + path)
    if "whatsapp" in path:
        rates = "currency,category,country,valid_from,price\nEUR,utility,MZ,2030-01-01,0.01\n"
    else:
        rates = "country,price,currency\nMZ,0.01,EUR\n"
        await page.locator("#name").fill("Retail")
    file.write_text(rates)
    await page.locator("#file").set_input_files(file)
    file.unlink()
    await page.get_by_role("button", name=says("Continue"), exact=True).click()
    gone = says("The file was changed or removed after it was chosen. Choose it again; nothing was imported.")
    await page.get_by_text(gone).wait_for()
    assert page.url == office.base + path
    # What was typed is still there, and the file can be chosen again.
    file.write_text(rates)
    await page.locator("#file").set_input_files(file)
    await page.get_by_role("button", name=says("Continue"), exact=True).click()
    await page.locator(".notice[role=status]").wait_for()
