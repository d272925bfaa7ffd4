"""Look-up suppliers in the console: added, tried, changed and removed, with what they were asked and what it cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.networks import asked
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts, forms
from heliograph.sms.lookups.accounts import Account
from heliograph.suppliers.lookups import kinds

from .conftest import Browser, signed_in
from .test_suppliers import audit_entries

NEW = "/console/lookups/new"
#: In Vodacom's range; Movitel has it.
PORTED = "+258841230001"
TYPED = {"name": "mnp", "price": "0.003", "currency": "EUR", "countries": "mz", "secret": "its key"}


@pytest.fixture
async def supplier() -> AsyncIterator[Aggregator]:
    made = Aggregator(Options(profile="infobip", secret="its key", networks={PORTED[1:]: "64303"}))
    await made.start()
    yield made
    await made.stop()


async def account(pool: Pool) -> Account:
    async with pool.acquire() as conn:
        return await accounts.find(conn, "mnp")


async def added(browser: Browser, **typed: str) -> Any:
    return await browser.submit(await browser.get(NEW), NEW, **TYPED | typed)


async def test_one_is_added_tried_changed_and_removed(
    pool: Pool, root: Browser, settings: Settings, supplier: Aggregator
) -> None:
    page = await added(root, base_url=supplier.base_url)
    assert "mnp is added" in page.words, page.words
    assert "its key" not in page.text
    one = await account(pool)
    assert one.values == {
        "base_url": supplier.base_url,
        "price": "0.003",
        "currency": "EUR",
        "countries": ["MZ"],
    }
    path = f"/console/lookups/{one.id}"
    page = await root.submit(page, f"{path}/try", to="+258 84 123 0001")
    assert "+258841230001: network 643-03" in page.words
    assert supplier.looked_up == [PORTED[1:]]
    # Without its country code it would be looked up, and charged, as a Vietnamese number.
    for wrong in ("84", "841230001"):
        page = await root.submit(page, f"{path}/try", to=wrong)
        assert (page.status, 'href="#to"' in page.text) == (422, True), wrong
    assert supplier.looked_up == [PORTED[1:]]
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit", reuses="1", countries="")
    assert "Saved" in page.words
    assert "It is not used" in page.words, "it is not worth its price any more"
    assert (await account(pool)).values["reuses"] == 1
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit", reuses="")
    assert "reuses" not in (await account(pool)).values
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit")
    assert "Nothing was changed" in page.words
    page = await root.submit(await root.get(f"{path}/key"), f"{path}/key", secret="xyzzy-plugh")
    assert "Saved" in page.words
    assert "xyzzy-plugh" not in page.text
    key = suppliers.seal_key(settings)
    assert accounts.open_secret(key, await account(pool)) == '{"secret":"xyzzy-plugh"}'
    page = await root.submit(await root.get(path), f"{path}/try", to=PORTED)
    assert page.status == 422
    assert "mnp did not answer" in page.words
    working = page
    for offered in (True, False):  # the second time, it was perhaps somebody else who paused it
        page = await root.submit(working, f"{path}/pause")
        assert ("It is paused" in page.words, page.text.count(f'action="{path}/resume"')) == (True, 1 + offered)
    page = await root.submit(page, f"{path}/resume")
    assert "used again" in page.words
    form = await root.get(f"{path}/remove")
    assert (await root.submit(form, f"{path}/remove", typed="other")).status == 422
    page = await root.submit(form, f"{path}/remove", typed="mnp")
    assert "mnp is removed" in page.words
    assert (await root.get(path)).status == 404
    actions = [entry[0] for entry in await audit_entries(pool, one.id)]
    assert actions == ["lookup.added", *["lookup.changed"] * 6]
    assert "xyzzy-plugh" not in str(await audit_entries(pool, one.id))


async def test_refusals_stand_at_their_fields(pool: Pool, root: Browser) -> None:
    good = {"base_url": "https://x1y2z3.api.infobip.com"}
    for typed, field in (
        ({"base_url": ""}, "base_url"),
        ({"base_url": "nowhere"}, "base_url"),
        ({"price": "free"}, "price"),
        ({"ported": "much"}, "ported"),
        ({"countries": "Mozambique"}, "countries"),
        ({"wait_seconds": "11"}, "wait_seconds"),
        ({"per_second": "inf"}, "per_second"),
        ({"name": ""}, "name"),
        ({"secret": ""}, "secret"),
    ):
        page = await added(root, **good | typed)
        assert page.status == 422, typed
        assert f'href="#{field}"' in page.text, (typed, page.words)
    # Errors that read the same name their fields.
    page = await added(root, base_url="", price="", currency="")
    for field in ("base_url", "price", "currency"):
        assert f'<a href="#{field}">{field}: This is required: it has no default.</a>' in page.text
    assert "ported must be a number" in (await added(root, **good | {"ported": "much"})).words
    assert (await added(root, **good)).status == 200
    for name in (TYPED["name"], TYPED["name"].upper(), f" {TYPED['name']} "):
        assert "already a look-up supplier" in (await added(root, **good | {"name": name})).words


@pytest.mark.parametrize("kind", kinds.KINDS)
async def test_every_setting_of_every_kind_has_a_field(root: Browser, kind: str) -> None:
    page = await root.get(f"{NEW}?kind={kind}")
    for one in forms.fields(kind):
        assert f'name="{one.name}"' in page.text, one.name


async def test_what_was_asked_stands_beside_its_cost(pool: Pool, root: Browser) -> None:
    await added(root, base_url="https://x1y2z3.api.infobip.com")
    one = await account(pool)
    async with pool.acquire() as conn:
        await asked.ask(conn, dict.fromkeys((258841230001, 258841230002, 258841230003), one.id))
        told = {258841230001: "643-03", 258841230002: ""}
        numbers = [258841230001, 258841230002, 258841230003]
        await asked.answered(conn, numbers, told, supplier_id=one.id, error="late", price=3000, currency="EUR")
    for path in ("/console/lookups", f"/console/lookups/{one.id}"):
        page = await root.get(path)
        assert "€0.006" in page.words, page.words
    assert "No route names a network" in (await root.get("/console/lookups")).words


async def test_who_may_look_may_not_change(pool: Pool, browser: Browser) -> None:
    await signed_in(pool, browser, "auditor")
    page = await browser.get("/console/lookups")
    assert page.status == 200
    assert NEW not in page.text
    assert (await browser.get(NEW)).status == 403
    assert (await browser.get(f"/console/lookups/{UUID(int=1)}")).status == 404
