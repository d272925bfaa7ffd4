"""Two people of an organization have the same settings open: what one of them left unchanged does not undo the other's
changes, and a value that was chosen elsewhere is shown, and saved, as it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from heliograph.accounts import organizations, send_defaults
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.process.settings import Settings
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.guard import rules
from heliograph.notices.kinds import KINDS
from heliograph.sms.by_hand import saved_texts
from heliograph.webhooks import endpoints
from tests.api.conftest import SECRET_KEY
from tests.meanwhile import Meanwhile

from .conftest import Browser, Tenant


async def both(owner: Browser, path: str, action: str, first: dict[str, str], then: dict[str, str]) -> None:
    """Both opened the page before either sent its form."""
    forms = [await owner.get(path) for _ in range(2)]
    for form, typed in zip(forms, (first, then), strict=True):
        page = await owner.submit(form, action, **typed)
        assert (page.status, page.path) == (200, path), page.words


async def test_of_the_name_and_the_country(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await both(owner, "/settings", "/settings/general", {"country": "MZ"}, {"name": "Acme, Lda"})
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.name, one.country) == ("Acme, Lda", "MZ")


async def test_of_how_texts_are_written_and_where_they_go(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await both(
        owner, "/settings", "/settings/messages", {"allowed": "MZ", "encoding": "smart"}, {"encoding": "accents"}
    )
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.allowed_countries, one.replace_accents) == (["MZ"], True)


async def test_of_how_long_texts_are_kept(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=tenant.id, text_days=1)
    # Erased data does not come back.
    await both(owner, "/settings", "/settings/defaults", {"text_days": ""}, {"validity": "3600"})
    async with pool.acquire() as conn:
        known = await send_defaults.get(conn, organization_id=tenant.id)
    assert (known.text_days, known.validity_seconds) == (None, 3_600)


async def test_of_what_is_demanded_of_members(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.id, developer_keys=True, reveals=True)
    first = {"approval_above": "1000"}  # unticks both
    await both(owner, "/settings", "/settings/security", first, {"reveals": "yes", "developer_keys": "yes"})
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
        known = await send_defaults.get(conn, organization_id=tenant.id)
    assert (one.reveals, one.developer_keys, known.approval_above) == (False, False, 1_000)


async def test_of_suspicious_messages(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    path = "/settings/limits"
    await both(owner, path, "/settings/guard", {"policy": "refuse", "safe": "25884000"}, {"limit_otp": "500"})
    await both(owner, path, "/settings/guard", {"policy": "refuse", "safe": "25885000"}, {"policy": "refuse"})
    async with pool.acquire() as conn:
        known = await rules.rules_of(conn, tenant.id)
    assert (known.safe, known.limits) == (["25885000"], {"otp": 500})


async def test_of_words_and_replies(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    path = "/contacts/opt-outs/words"
    forms = [await owner.get(path) for _ in range(2)]
    await owner.submit(forms[0], path, opt_out_words="FORA")
    # Through a preview, too.
    seen = await owner.submit(forms[1], path, reply_language="pt", do="preview")
    assert "FORA" in seen.text
    await owner.submit(seen, path)
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.opt_out_words, one.reply_language) == (["FORA"], "pt")


async def test_of_how_people_are_told(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    path = "/settings/notices"
    one, other = list(KINDS)[:2]
    async with pool.acquire() as conn:
        await conn.execute("UPDATE organizations SET notice_ways = '{}' WHERE id = $1", tenant.id)
    usual = {f"{kind} {way}": "1" for kind, about in KINDS.items() for way in about.ways}
    silent = {box: "1" for box in usual if not box.startswith(f"{one} ")}
    await both(owner, path, path, silent, {box: "1" for box in usual if not box.startswith(f"{other} ")})
    page = await owner.get(path)
    for kind in (one, other):
        for way in KINDS[kind].ways:
            assert f'name="{kind} {way}" value="1">' in page.text, (kind, way)


async def test_of_a_person(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        id = (await records.create(conn, tenant.actor, entry=Entry("+258841234567", "Ana", tags=("a",)))).id
    forms = [await owner.get(f"/contacts/{id}/edit") for _ in range(2)]
    await owner.submit(forms[0], f"/contacts/{id}", tags="a, vip")
    page = await owner.submit(forms[1], f"/contacts/{id}", first_name="Ana", last_name="Silva", name="")
    assert page.path == f"/contacts/{id}", page.words
    async with pool.acquire() as conn:
        one = await records.get(conn, tenant.actor, id=id)
    assert (one.name, one.last_name, list(one.tags)) == ("Ana Silva", "Silva", ["a", "vip"])


async def test_of_a_saved_text(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Whoever only renamed it brought back the text that another had corrected."""
    async with pool.acquire() as conn:
        id = (await saved_texts.create(conn, tenant.actor, name="Opening", body="We open at 9.")).id
    forms = [await owner.get(f"/texts/{id}") for _ in range(2)]
    await owner.submit(forms[0], f"/texts/{id}", body="We open at 10.")
    wrong = await owner.submit(forms[1], f"/texts/{id}", name="")
    assert wrong.status == 422
    page = await owner.submit(wrong, f"/texts/{id}", name="Hours")
    assert page.path == "/texts", page.words
    async with pool.acquire() as conn:
        one = await saved_texts.get(conn, tenant.actor, id=id)
    assert (one.name, one.body) == ("Hours", "We open at 10.")


async def test_of_a_saved_text_that_another_removes(pool: Pool, tenant: Tenant) -> None:
    async with pool.acquire() as conn, pool.acquire() as other:
        id = (await saved_texts.create(conn, tenant.actor, name="Opening", body="We open at 9.")).id

        async def removed() -> None:
            await saved_texts.remove(other, tenant.actor, id=id)

        changing: Any = Meanwhile(conn, saved_texts.CHANGE, removed)
        with pytest.raises(NotFound):
            await saved_texts.change(changing, tenant.actor, id=id, name="Hours")


async def test_of_the_pace_of_a_campaign(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Its field stays as it is while the page renews itself, so that nothing typed is lost, and may be old."""
    at = clock.now() + timedelta(days=1)
    spec = SmsCampaignSpec(name="Sale", message_template="Hi", recipients=["+258841000001"], scheduled_at=at)
    async with pool.acquire() as conn, conn.transaction():
        path = f"/campaigns/{(await sms.create(conn, tenant.actor, spec=spec, request_id='req')).id}"
    forms = [await owner.get(path) for _ in range(3)]
    assert "Pace:" not in forms[1].words
    await owner.submit(forms[0], f"{path}/pace", pace="500")
    assert "Pace: 500 a minute" in (await owner.get(path, HX_Request="true")).words
    await owner.submit(forms[1], f"{path}/pace")
    assert await pool.fetchval("SELECT messages_per_minute FROM campaigns") == 500
    await owner.submit(forms[2], f"{path}/pace", pace="600")
    assert await pool.fetchval("SELECT messages_per_minute FROM campaigns") == 600


async def test_of_a_webhook_endpoint(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    kinds = ["message.delivered", "message.failed"]
    allowed = endpoints.rules(Settings(secret_key=SECRET_KEY))
    async with pool.acquire() as conn:
        made, _ = await endpoints.create(
            conn, tenant.actor, url="https://example.com/a", subscribed_events=kinds, rules=allowed
        )
    path = f"/webhooks/{made.id}/edit"
    forms = [await owner.get(path) for _ in range(2)]
    # The first moves it and ticks one more event; the other unticks one.
    ticked = ",".join(["message.sent", *kinds])
    await owner.submit(forms[0], path, url="https://example.com/b", subscribed_events=ticked)
    wrong = await owner.submit(forms[1], path, subscribed_events="message.delivered,no.event")
    assert wrong.status == 422
    page = await owner.submit(forms[1], path, subscribed_events="message.delivered", description="shop")
    assert "The endpoint is changed." in page.words
    async with pool.acquire() as conn:
        one = await endpoints.get(conn, tenant.actor, id=made.id)
    assert (one.url, one.description) == ("https://example.com/b", "shop")
    assert sorted(one.subscribed_events) == ["message.delivered", "message.sent"]


async def test_a_refused_form_still_undoes_nothing(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    form = await owner.get("/settings")
    await owner.submit(await owner.get("/settings"), "/settings/messages", allowed="MZ ZA")
    wrong = await owner.submit(form, "/settings/general", name="")
    assert wrong.status == 422
    forms = [await owner.get("/settings") for _ in range(2)]
    await owner.submit(forms[0], "/settings/general", country="MZ")
    wrong = await owner.submit(forms[1], "/settings/general", name="")
    assert wrong.status == 422
    await owner.submit(wrong, "/settings/general", name="Acme, Lda")
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.name, one.country, one.allowed_countries) == ("Acme, Lda", "MZ", ["MZ", "ZA"])


async def test_what_was_chosen_elsewhere_is_offered(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.id, session_hours=5)
        await send_defaults.change(conn, organization_id=tenant.id, validity_seconds=7_200)
    page = await owner.get("/settings")
    assert page.form("/settings/security")["session_hours"] == "5"
    assert page.form("/settings/defaults")["validity"] == "7200"
    for action in ("security", "defaults"):
        page = await owner.submit(page, f"/settings/{action}")
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
        known = await send_defaults.get(conn, organization_id=tenant.id)
    assert (one.session_hours, known.validity_seconds) == (5, 7_200)
