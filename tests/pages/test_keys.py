"""API keys on a page: created once, shown once, and never with more rights than the person has."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from html import unescape

import msgspec
import pytest
from asyncpg import DeadlockDetectedError

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.people import policy
from heliograph.people.roles import RoleRequired
from tests.rules.factories import blocked, losing_deadlocks

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant


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
    # The stored response contains the secret, and is sealed.
    assert not await pool.fetchval("SELECT count(*) FROM idempotency WHERE body LIKE '%hg_live%'")


async def test_what_is_wrong_is_said_and_what_was_typed_is_kept(owner: Browser) -> None:
    page = await owner.get("/keys/new")
    for wrong, said in (
        ({"name": " "}, "A name must have 1 to 100 characters."),
        ({"allowed_ips": "10.0.0.0/8 nowhere"}, "List addresses or networks"),
        ({"profile": "root"}, "Choose one of the profiles."),
        ({"expires": "7"}, "Choose one of the dates"),
    ):
        answer = await owner.submit(page, "/keys", **({"name": "web shop", "profile": "sms"} | wrong))
        assert (answer.status, said in answer.words) == (422, True), wrong
        assert 'href="#' + next(iter(wrong)) + '"' in answer.text
        if "name" not in wrong:
            assert 'value="web shop"' in answer.text


async def test_all_that_is_wrong_is_said_at_once(owner: Browser) -> None:
    wrong = {"name": " ", "allowed_ips": "nowhere", "profile": "root", "expires": "7"}
    answer = await owner.submit(await owner.get("/keys/new"), "/keys", **wrong)
    assert answer.status == 422
    assert [field for field in wrong if f'href="#{field}"' not in answer.text] == []


async def test_the_sixth_key_says_what_to_do(owner: Browser) -> None:
    for number in range(4):  # the tenant has one
        page = await owner.submit(await owner.get("/keys/new"), "/keys", name=f"key {number}", profile="sms")
        secret_in(page)
    page = await owner.submit(await owner.get("/keys/new"), "/keys", name="one more", profile="sms")
    assert (page.status, "already has five active API keys" in page.words) == (422, True)
    # The page says which one to revoke, the unused one first.
    assert len(re.findall(r"/keys/[0-9a-f-]{36}/revoke", page.text)) == 5


async def test_a_key_is_rotated_once_although_a_transaction_is_the_victim_of_a_deadlock(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """As with an open session of the operator's. Forms that change something once are made again."""
    page = await owner.get(f"/keys/{tenant.key_id}/rotate")
    async with pool.acquire() as open_session:
        transaction = open_session.transaction()
        await transaction.start()
        await open_session.execute("SELECT FROM api_keys FOR UPDATE")
        rotating = asyncio.create_task(owner.submit(page, f"/keys/{tenant.key_id}/rotate", overlap="1"))
        await blocked(pool)
        with contextlib.suppress(DeadlockDetectedError):
            await open_session.execute("SELECT FROM organizations FOR UPDATE")
        await transaction.rollback()
    assert secret_in(await rotating)
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 2


@pytest.mark.parametrize(("times", "status"), [(3, 200), (100, 503)])
@pytest.mark.parametrize(("act", "action"), [("revoke", "api_key.revoked"), ("rotate", "api_key.rotated")])
async def test_a_change_that_was_rolled_back_for_others_is_made_or_can_be_made_later(
    act: str,
    action: str,
    times: int,
    status: int,
    pool: Pool,
    tenant: Tenant,
    owner: Browser,
    as_owner: Callable[[str], Awaitable[None]],
) -> None:
    """Whether or not a form remembers that it was sent: both said "The fault is ours"."""
    page = await owner.get(f"/keys/{tenant.key_id}/{act}")
    await as_owner(losing_deadlocks("api_keys", times=times))
    answer = await owner.submit(page, f"/keys/{tenant.key_id}/{act}", overlap="1")
    assert (answer.status, answer.headers.get("retry-after")) == (status, None if status == 200 else "1"), answer.words
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = $1", action) == (status == 200)
    assert await pool.fetchval("SELECT last_value FROM lost") >= 4
    # A form tries four times; those that remember were not tried sixteen times.
    assert status == 200 or await pool.fetchval("SELECT last_value FROM lost") == 4


async def test_a_key_is_rotated_without_a_gap(api: Api, pool: Pool, owner: Browser) -> None:
    """Journey 7: a program keeps sending, first with the old key, then with the new one; none of its sends is refused,
    and the old key ends at the chosen time."""
    old = secret_in(await owner.submit(await owner.get("/keys/new"), "/keys", name="web shop", profile="sms"))
    id = await pool.fetchval("SELECT id FROM api_keys WHERE name = 'web shop'")
    sent = 0

    async def send(secret: str) -> int:
        nonlocal sent
        sent += 1
        status, _, _ = await api.ask(
            "POST",
            "/sms/send",
            json={"to": "+258841234567", "message": "Hello"},
            headers={"x-api-key": secret, "idempotency-key": f"send-{sent}"},
        )
        return status

    assert await send(old) == 202
    page = await owner.get(f"/keys/{id}/rotate")
    wrong = await owner.submit(page, f"/keys/{id}/rotate", overlap="0")
    assert (wrong.status, "Choose one of the times" in wrong.words) == (422, True)
    form = page.form(f"/keys/{id}/rotate") | {"overlap": "1"}
    sending = asyncio.create_task(owner.post(f"/keys/{id}/rotate", form))
    statuses = [await send(old)]
    while not sending.done():
        statuses.append(await send(old))
    page = await sending
    new = secret_in(page)
    assert new != old
    assert "The old key works until" in page.words
    assert secret_in(await owner.post(f"/keys/{id}/rotate", form)) == new  # a double click
    statuses += [await send(one) for one in (old, new, old, new)]
    assert set(statuses) == {202}
    page = await owner.get("/keys")
    assert ("replaced by" in page.words, "from 127.0.0.1" in page.words) == (True, True)
    again = await owner.submit(await owner.get(f"/keys/{id}/rotate"), f"/keys/{id}/rotate", overlap="24")
    assert (again.status, "has been rotated already" in again.words) == (422, True)
    made = await pool.fetchrow("SELECT * FROM api_keys WHERE name = 'web shop' AND id <> $1", id)
    known = await pool.fetchrow("SELECT * FROM api_keys WHERE id = $1", id)
    assert made is not None
    assert known is not None
    assert (known["replaced_by"], made["scopes"], made["profile"]) == (made["id"], known["scopes"], "sms")
    await pool.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", id)
    while await send(old) != 401:  # noqa: ASYNC110 (nothing signals it)
        await asyncio.sleep(0.01)
    assert await send(new) == 202
    told = await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'api_key.rotated'")
    assert told == 1


async def test_whose_key_it_is(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.submit(await owner.get("/keys/new?mode=test"), "/keys?mode=test", name="trial", profile="sms")
    secret = secret_in(page)
    form = (await owner.get("/keys/check")).form("/keys/check")
    page = await owner.post("/keys/check", form | {"secret": f" {secret} "})
    assert ("It is “trial”" in page.words, secret in page.text) == (True, False)
    way = re.search(r"/keys/[0-9a-f-]{36}/revoke[?]mode=test", page.text)
    assert way
    await owner.submit(await owner.get(way[0]), way[0])
    page = await owner.post("/keys/check", form | {"secret": secret})
    assert "It no longer works" in page.words
    other = await make_tenant(pool)
    changed = secret[:-1] + ("x" if secret[-1] != "x" else "y")
    for wrong in (other.secret, changed, "", "x" * 10_000):
        page = await owner.post("/keys/check", form | {"secret": wrong})
        assert "This is not a key of this organization." in page.words
    assert not await pool.fetchval("SELECT count(*) FROM idempotency WHERE body LIKE '%hg_test%'")


async def test_renamed_with_who_made_it_and_what_it_sent(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await owner.submit(await owner.get("/keys/new"), "/keys", name="web shop", profile="sms")
    id = await pool.fetchval("SELECT id FROM api_keys WHERE name = 'web shop'")
    page = await owner.get(f"/keys/{id}/rename")
    wrong = await owner.submit(page, f"/keys/{id}/rename", name=" ")
    assert (wrong.status, "A name must have 1 to 100 characters." in wrong.words) == (422, True)
    page = await owner.submit(page, f"/keys/{id}/rename", name="<b>till</b>")
    row = page.text[page.text.index("&lt;b&gt;till") :].partition("</tr>")[0]
    assert (">Ana<" in row, "no expiry" in row, "<b>" in row) == (True, True, False)
    assert "Sent in 7 days" in page.words
    assert "Sent in 7 days" not in (await owner.get("/keys?mode=test")).words
    for path in ("rotate", "rename"):
        assert (await owner.get(f"/keys/{tenant.id}/{path}")).status == 404


async def test_what_is_wrong_with_a_key_stands_beside_it(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    form = await owner.get("/keys/new")
    # The first profile, which is selected, can send, and nothing else.
    assert re.search(r'name="profile" value="sms_only" checked', form.text)
    secret = secret_in(await owner.submit(form, "/keys", name="first", profile="sms_only"))
    headers = {"x-api-key": secret, "idempotency-key": "one"}
    sent = await api.ask("POST", "/sms/send", json={"to": "+258841234567", "message": "Hello"}, headers=headers)
    assert sent[0] == 202
    for path in ("/sms/messages", "/contacts", "/account", "/webhooks", "/api-keys"):
        assert (await api.ask("GET", path, headers={"x-api-key": secret}))[0] == 403, path
    for name, profile in (("idle", "sms"), ("all", "full_access"), ("young", "sms")):
        secret_in(await owner.submit(await owner.get("/keys/new"), "/keys", name=name, profile=profile))
    await pool.execute("UPDATE api_keys SET created_at = now() - interval '8 days' WHERE name = 'all'")
    await pool.execute("UPDATE api_keys SET last_used_at = now() - interval '91 days' WHERE name = 'idle'")
    text = (await owner.get("/keys")).text

    def warned(name: str) -> list[str]:
        row = text.partition(f"<strong><bdi>{name}</bdi></strong>")[2].partition("</tr>")[0]
        return re.findall(r'<span class="sub">([^<]+)</span>', row.partition('data-name="Status"')[2])

    assert warned("idle") == ["not used for 90 days", "no expiry"]
    assert warned("all") == ["never used", "no expiry", "full access"]
    assert warned("young") == ["no expiry"]


ENDED = """
INSERT INTO api_keys (id, organization_id, name, mode, scopes, status, prefix, last4, secret_hash, created_at,
                      revoked_at)
SELECT id, $1, 'old ' || lpad(n::text, 2, '0'), 'live', '{}', 'revoked', 'hg_live_', 'abcd', sha256(id::text::bytea),
       now() - interval '80 days', now() - n / 3 * interval '1 day'
  FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)
"""


async def test_ended_keys_are_out_of_the_way_in_pages(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    # Three were revoked at a time.
    await pool.execute(ENDED, tenant.actor.organization_id, [uuid7() for _ in range(60)])
    path, seen = "/keys?limit=25", []
    for most in (25, 25, 10):
        page = await owner.get(path)
        assert "Active keys" in page.words
        listed = re.findall(r"<strong><bdi>(old \d\d)</bdi></strong>", page.text)
        assert len(listed) == most
        seen += listed
        older = re.search(r'rel="next" href="([^"]+)"', page.text)
        path = unescape(older[1]) if older else ""
    assert not path
    assert sorted(seen) == [f"old {n:02}" for n in range(1, 61)]
    assert [int(one[4:]) // 3 for one in seen] == sorted(int(one[4:]) // 3 for one in seen)
    # A list can be filtered by a key that ended recently, and by one that the address names, however old.
    named = "SELECT id::text FROM api_keys WHERE name = $1"
    last, lately = await pool.fetchval(named, "old 60"), await pool.fetchval(named, "old 01")
    for list in ("/messages", "/requests"):
        page = await owner.get(list)
        assert f'<option value="{lately}">old 01</option>' in page.text
        assert last not in page.text
        assert f'<option value="{last}" selected>old 60</option>' in (await owner.get(f"{list}?key={last}")).text
    await pool.execute("UPDATE api_keys SET status = 'revoked', revoked_at = now() WHERE status = 'active'")
    page = await owner.get("/keys")
    assert ("No active key" in page.words, "No key yet" in page.words) == (True, False)


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
    assert "Ask " not in refused.words
    await make_person(pool, tenant, "olga@example.com", "owner")
    (name,) = await pool.fetchrow("SELECT name FROM users WHERE email = 'olga@example.com'")  # type: ignore[misc]
    assert f"Roles that may: Owner, Admin. Ask {name}." in (await browser.get("/keys/new")).words
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


async def test_developers_create_live_keys_where_an_owner_lets_them(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """And no more than that: none that changes settings or creates further keys, and nothing done manually."""
    await make_person(pool, tenant, "dev@example.com", "developer")
    await other_browser.sign_in("dev@example.com")
    page = await other_browser.get("/keys")
    assert "An owner (Ana) can allow live keys under Settings." in page.words
    assert ("New key" in page.words, "Revoke" in page.words) == (False, False)
    assert (await other_browser.get("/keys/new")).status == 403

    await owner.submit(await owner.get("/settings"), "/settings/security", reveals="yes", developer_keys="yes")
    told = "SELECT after FROM audit_log WHERE action = 'organization.configured' ORDER BY id DESC LIMIT 1"
    assert '"developer_keys":true' in await pool.fetchval(told)
    async with asyncio.timeout(60):  # session data is cached for half a second
        while (page := await other_browser.get("/keys/new")).status == 403:
            pass
    offered = re.findall(r'type="radio" name="profile" value="(\w+)"', page.text)
    assert offered == ["sms_only", "sms", "whatsapp", "read_only"]
    refused = await other_browser.submit(page, "/keys", name="all of it", profile="full_access")
    assert (refused.status, "A key can grant only scopes" in refused.words) == (403, True)
    secret = secret_in(await other_browser.submit(page, "/keys", name="web shop", profile="sms"))
    status, _, _ = await api.ask("GET", "/sms/messages", headers={"x-api-key": secret})
    assert status == 200
    page = await other_browser.get("/keys")
    assert "may let them" not in page.words
    key = await pool.fetchval("SELECT id FROM api_keys WHERE name = 'web shop'")
    for act, typed in (("rename", {"name": "shop"}), ("rotate", {"overlap": "24"}), ("revoke", {})):
        where = f"/keys/{key}/{act}"
        assert (await other_browser.submit(await other_browser.get(where), where, **typed)).status == 200, act
    for where in ("/send", "/campaigns/new", "/contacts/import", "/senders/new"):
        assert (await other_browser.get(where)).status == 403, where

    # It is the owners' decision: an admin sees no checkbox, and whatever they send changes nothing.
    await make_person(pool, tenant, "adm@example.com", "admin")
    other_browser.session.cookie_jar.clear()
    await other_browser.sign_in("adm@example.com")
    page = await other_browser.get("/settings")
    assert "developer_keys" not in page.text
    assert (await other_browser.submit(page, "/settings/security", reveals="yes")).status == 200
    assert await pool.fetchval("SELECT developer_keys FROM organizations WHERE id = $1", tenant.id)
    admin = msgspec.structs.replace(
        tenant.actor,
        by=Principal("person", await pool.fetchval("SELECT id FROM users WHERE email = 'adm@example.com'")),
    )
    async with pool.acquire() as conn:
        with pytest.raises(RoleRequired):
            await policy.configure(conn, admin, developer_keys=False)
