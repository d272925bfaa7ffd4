"""Journey 1, the dashboard's part: from the first link to a colleague who works, as people do it, without scripts."""

from __future__ import annotations

import re

from heliograph.base.database.pool import Pool

from .conftest import PASSWORD, Browser, Tenant, app_of, link_for, make_person
from .test_team import invite


async def test_from_the_first_link_to_a_colleague(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser
) -> None:
    ana = await make_person(pool, tenant, "ana@example.com", password=None)
    assert (await browser.enter(await link_for(pool, ana, tenant))).path == "/"
    page = await browser.submit(await browser.get("/account/password"), "/account/password", password=PASSWORD)
    offered = await browser.get("/account/factor")
    page = await browser.submit(offered, "/account/factor", code=app_of(offered).now())
    codes = re.findall(r"\b[a-z2-9]{4}-[a-z2-9]{4}-[a-z2-9]{4}\b", page.words)
    assert len(codes) == 10
    page = await browser.submit(await browser.get("/settings"), "/settings/general", name="Acme Moçambique")
    page = await browser.submit(page, "/settings/security", factor_required="yes", reveals="yes")
    assert "The settings are saved." in page.words

    link = await invite(browser, "rui@example.com", role="developer")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    assert "Acme Moçambique" in page.words
    page = await other_browser.submit(page, "/invitation/accept", name="Rui Costa", password=PASSWORD)
    assert (page.path, "requires a second factor" in page.words) == ("/account/factor?new=yes", True)
    assert (await other_browser.get("/messages")).path == "/account/factor"
    app = app_of(page)
    await other_browser.submit(page, "/account/factor?new=yes", code=app.now())
    assert (await other_browser.get("/messages")).path == "/messages"

    await other_browser.submit(await other_browser.get("/account"), "/logout")
    page = await other_browser.sign_in("rui@example.com")
    assert (page.path, "Code from your authenticator app" in page.words) == ("/login", True)
    page = await browser.get("/team")
    assert re.search(r"Rui Costa rui@example\.com Developer ● on", page.words), page.words

    await browser.submit(await browser.get("/account"), "/logout")
    page = await browser.submit(await browser.sign_in("ana@example.com"), "/login/code", code=codes[0])
    assert page.path == "/"
    told = [row[0] for row in await pool.fetch("SELECT action FROM audit_log WHERE who = 'person' ORDER BY id")]
    for action in ("user.password_changed", "user.factor_changed", "organization.renamed", "invitation.made"):
        assert action in told
    assert told.index("invitation.made") < told.index("member.added")
