"""O4 and O15: a message of any organization, its text behind a reason, and the log that says so."""

from __future__ import annotations

from heliograph.base.database.pool import Pool
from tests.api.conftest import Api, Tenant

from .conftest import Browser, signed_in

TEXT = "The code of your door is 4711"


async def sent(api: Api, tenant: Tenant) -> str:
    status, _, answer = await api.ask(
        "POST",
        "/sms/send",
        json={"to": "+258841234567", "message": TEXT},
        headers=tenant.headers | {"idempotency-key": "one"},
    )
    assert status == 202
    id: str = answer["message"]["id"]
    return id


async def test_text_and_number_stand_behind_a_reason(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    id = await sent(api, tenant)
    page = await root.get(f"/console/messages/{id}")
    assert page.status == 200
    assert "Acme" in page.words
    assert TEXT not in page.words
    assert "841234567" not in page.text
    here = f"/console/messages/{id}/reveal"
    wrong = await root.submit(page, here, reason=" ")
    assert wrong.status == 422
    assert TEXT not in wrong.words
    page = await root.submit(page, here, reason="ticket 815: wrong code")
    assert TEXT in page.words
    assert "+258841234567" in page.words
    async with pool.acquire() as conn:
        told = await conn.fetch("SELECT * FROM audit_log WHERE action = 'message.revealed'")
    assert [(row["who"], row["organization_id"], row["reason"]) for row in told] == [
        ("operator", tenant.id, "ticket 815: wrong code")
    ]
    page = await root.get("/console/audit?action=message.revealed")
    assert "ticket 815" in page.words


async def test_a_message_is_found(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    id = await sent(api, tenant)
    assert (await root.get(f"/console/messages?id={id}")).path == f"/console/messages/{id}"
    page = await root.get("/console/messages?organization=acme&recipient=%2B258841234567")
    assert f"/console/messages/{id}" in page.text
    assert "841234567" not in page.words
    for query, said in (
        ("id=nothing", "An id looks like"),
        ("organization=acme&recipient=12", "country code"),
        ("organization=nobody", "There is no organization"),
    ):
        wrong = await root.get(f"/console/messages?{query}")
        assert wrong.status == 422, query
        assert said in wrong.words
    assert "No message fits" in (await root.get("/console/messages?organization=acme&channel=whatsapp")).words
    assert (await root.get("/console/messages/00000000-0000-0000-0000-000000000000")).status == 404


async def test_who_may_not_see_all_of_the_log_sees_their_own(pool: Pool, root: Browser, other_browser: Browser) -> None:
    await signed_in(pool, other_browser, "support", "rui@example.com")
    page = await other_browser.get("/console/audit")
    assert "What you did." in page.words
    assert "rui@example.com" in page.words
    assert "eva@example.com" not in page.words
    # Not even by asking for it.
    assert "eva@example.com" not in (await other_browser.get("/console/audit?who=Eva")).words
    page = await root.get("/console/audit?who=Eva&action=operator.signed_in")
    assert "Operator signed in to the console" in page.words


async def test_a_message_that_waits_is_given_up_for_a_reason(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    before = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id)
    page, here = await root.get(f"/console/messages/{id}"), f"/console/messages/{id}/give-up"
    wrong = await root.submit(page, here, given_up=" ")
    assert (wrong.status, "Say why" in wrong.words) == (422, True)
    page = await root.submit(page, here, given_up="asked for by phone")
    assert page.path == f"/console/messages/{id}"
    assert await pool.fetchval("SELECT status FROM messages") == "canceled"
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id) == before - 1
    assert here not in page.text, "what has ended is not ended again"
    told = await pool.fetchrow("SELECT who, organization_id, reason FROM audit_log WHERE action = 'message.given_up'")
    assert tuple(told) == ("operator", tenant.id, "asked for by phone")
    token = page.form(f"/console/messages/{id}/reveal")["_token"]
    # A second form that was open meanwhile changes and records nothing.
    again = await root.post(here, {"_token": token, "given_up": "once more"})
    assert again.status == 200
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'message.given_up'") == 1
    await pool.execute("UPDATE messages SET status = 'sent'")
    late = await root.post(here, {"_token": token, "given_up": "too late"})
    assert (late.status, "can no longer be canceled" in late.words) == (422, True)
    assert (
        await root.post(
            "/console/messages/0199c0de-0000-7000-8000-000000000000/give-up", {"_token": token, "given_up": "x"}
        )
    ).status == 404
