"""Every page, in both themes and at both widths: axe finds nothing, nothing is wider than the screen, and nobody
complains: neither the policy nor the console."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import aiohttp
import pytest

from heliograph.dashboard.table import ROUTES
from heliograph.people import invitations
from heliograph.webhooks import endpoints, replays
from heliograph.webhooks.recording.events import KINDS

from .conftest import Site

VENDOR = Path(__file__).with_name("vendor")
#: Pages of the table that show nothing of their own: they lead elsewhere.
LEADS = frozenset({"/go", "/go/{anything}", "/palette"})
RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(
    one => one.id + ': ' + one.nodes.map(node => node.target.join(' ')).join(', '))"""


def test_axe_is_as_it_was_published() -> None:
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.M)
    sums = {name: digest for digest, name in listed}
    assert set(sums) == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.lasts(60)
@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("pt", "dark")])
async def test_every_page(site: Site, language: str, theme: str) -> None:
    page = site.page
    axe = (VENDOR / "axe.min.js").read_text()
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "one"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            site.base + "/v1/sms/send", json={"to": "+258841234567", "message": "Olá"}, headers=headers
        ) as answer,
    ):
        message = (await answer.json())["message"]["id"]
    async with site.pool.acquire() as conn:
        _, invited, _ = await invitations.invite(conn, site.made.actor, email="rui@example.com", role="viewer")
        other = await site.link("rui.costa@example.com")
        member = await conn.fetchval("SELECT id FROM users WHERE email = 'rui.costa@example.com'")
        rules = endpoints.rules(site.made.settings)
        hook, _ = await endpoints.create(
            conn, site.made.actor, url=site.made.receiver.url, subscribed_events=KINDS, rules=rules
        )
        event = await replays.send_example(conn, site.made.actor, endpoint_id=hook.id, request_id="one")
    assert other
    await site.context.add_cookies(
        [
            {"name": "hg-theme", "value": theme, "url": site.base},
            {"name": "hg-language", "value": language, "url": site.base},
        ]
    )
    ids = {
        "/messages/{id}": message,
        "/team/members/{id}": str(member),
        **{f"/keys/{{id}}/{one}": str(site.made.key_id) for one in ("revoke", "rotate", "rename")},
    }
    paths = [
        route.path.replace("{id}", ids.get(route.path, str(hook.id))).replace("{event}", str(event))
        for route in ROUTES
        if route.method == "GET" and route.path not in LEADS
    ]
    found: list[str] = []

    async def look(path: str, shows: str = "html") -> None:
        await page.goto(site.base + path)
        await page.locator(shows).wait_for()
        assert await page.locator("html").get_attribute("lang") == language
        await page.evaluate(axe)
        # 640 px are what a screen of 1280 px shows at 200 %.
        for width in (1280, 640, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            wide = await page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{path} is {wide} px wide at {width}")
            if width != 640:
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(RUN))

    for path in ("/", "/login", "/login/forgotten", "/enter", "/invitation"):
        await look(path)
    # A script sends what stands after the `#`, and leads to what is offered.
    await look(f"/invitation#{invited}", shows="form[action='/invitation/accept']")
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    for path in (*paths, "/messages?q=nothing", "/keys?mode=test", "/account/nothing"):
        await look(path)
    assert found == [], "\n".join(found)
    site.complaints = [one for one in site.complaints if "404" not in one]
