"""API keys on a page: made once, shown once, and never more than the person may do."""

from __future__ import annotations

import re

from heliograph.base.database.pool import Pool

from .conftest import Api, Browser, Page, Tenant, make_person


def secret_in(page: Page) -> str:
    found = re.search(r'id="secret"[^>]*value="(hg_(?:live|test)_\w+)"', page.text)
    assert found, page.words
    return found[1]


async def test_a_key_is_made_shown_once_used_and_revoked(api: Api, pool: Pool, owner: Browser) -> None:
    page = await owner.get("/keys/new")
    assert re.findall(r'value="(\w+)"[^>]*(?: checked)?>\s*<span><strong>', page.text)[0] == "sms_only"
    page = await owner.submit(page, "/keys", name="web shop", profile="sms")
    secret = secret_in(page)
    assert page.headers["cache-control"] == "no-store"
    status, _, _ = await api.ask("GET", "/sms/messages", headers={"x-api-key": secret})
    assert status == 200
    page = await owner.get("/keys")
    assert "web shop" in page.words
    assert secret not in page.text
    action = re.search(r"/keys/[0-9a-f-]{36}/revoke", page.text[page.text.index("web shop") :])
    assert action
    page = await owner.submit(await owner.get(action[0]), action[0])
    assert "is revoked" in page.words
    assert "is revoked" not in (await owner.get("/keys")).words
    assert await pool.fetchval("SELECT status FROM api_keys WHERE name = 'web shop'") == "revoked"
    told = await pool.fetch("SELECT action, who, who_name FROM audit_log WHERE action ~ '^api_key' ORDER BY id DESC")
    assert [tuple(row) for row in told][:2] == [
        ("api_key.revoked", "person", "Ana"),
        ("api_key.created", "person", "Ana"),
    ]


async def test_a_double_click_makes_one_key_and_back_shows_it_again(pool: Pool, owner: Browser) -> None:
    form = (await owner.get("/keys/new")).form("/keys") | {"name": "web shop", "profile": "sms_only"}
    first, second = await owner.post("/keys", form), await owner.post("/keys", form)
    assert secret_in(first) == secret_in(second)
    assert await pool.fetchval("SELECT count(*) FROM api_keys WHERE name = 'web shop'") == 1
    # What is kept of the answer holds the secret, and is sealed.
    assert not await pool.fetchval("SELECT count(*) FROM idempotency WHERE body LIKE '%hg_live%'")


async def test_what_is_wrong_is_said_and_what_was_typed_is_kept(owner: Browser) -> None:
    page = await owner.get("/keys/new")
    for wrong, said in (
        ({"name": " "}, "A name has 1 to 100 characters."),
        ({"allowed_ips": "10.0.0.0/8 nowhere"}, "List addresses or networks"),
        ({"profile": "root"}, "Choose one of the profiles."),
        ({"expires": "7"}, "Choose one of the dates"),
    ):
        answer = await owner.submit(page, "/keys", **({"name": "web shop", "profile": "sms"} | wrong))
        assert (answer.status, said in answer.words) == (422, True), wrong
        assert 'href="#' + next(iter(wrong)) + '"' in answer.text
        if "name" not in wrong:
            assert 'value="web shop"' in answer.text


async def test_the_sixth_key_says_what_to_do(owner: Browser) -> None:
    for number in range(4):  # the tenant has one
        page = await owner.submit(await owner.get("/keys/new"), "/keys", name=f"key {number}", profile="sms")
        secret_in(page)
    page = await owner.submit(await owner.get("/keys/new"), "/keys", name="one more", profile="sms")
    assert (page.status, "already has five active API keys" in page.words) == (422, True)


async def test_modes_are_apart(owner: Browser) -> None:
    page = await owner.get("/keys/new?mode=test")
    assert "Test mode: nothing reaches a phone" in page.words
    page = await owner.submit(page, "/keys?mode=test", name="trial", profile="full_access")
    assert secret_in(page).startswith("hg_test_")
    assert "trial" in (await owner.get("/keys?mode=test")).words
    assert "trial" not in (await owner.get("/keys")).words


async def test_a_developer_makes_test_keys_only(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "rui@example.com", "developer")
    await browser.sign_in("rui@example.com")
    page = await browser.get("/keys")
    assert page.status == 200
    assert "New key" not in page.words
    refused = await browser.get("/keys/new")
    assert (refused.status, "Roles that may: Owner, Admin." in refused.words) == (403, True)
    token = page.form("/preferences")["_token"]
    forged = await browser.post("/keys", {"_token": token, "_once": "x", "name": "a", "profile": "sms_only"})
    assert forged.status == 403
    page = await browser.submit(await browser.get("/keys/new?mode=test"), "/keys?mode=test", name="a", profile="sms")
    assert secret_in(page).startswith("hg_test_")


async def test_another_organizations_key_is_not_there(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    other = await pool.fetchval("SELECT gen_random_uuid()")
    token = (await owner.get("/keys")).form("/preferences")["_token"]
    for path in (f"/keys/{other}/revoke", "/keys/none/revoke"):
        assert (await owner.get(path)).status == 404
        assert (await owner.post(path, {"_token": token})).status == 404
