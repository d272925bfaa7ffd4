"""Messages without an organization: why, and assigning them to one; floods and keywords."""

from __future__ import annotations

import pytest

from heliograph.accounts import installation
from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.queue import timers
from heliograph.sms.received import inbound, inbox, newest, unassigned
from tests.api.conftest import Tenant
from tests.rules.factories import TO, organization, sender
from tests.rules.test_inbound import NUMBER, handset_message, receive_and_process, states, work

from .conftest import Browser, signed_in

HERE = "/console/inbound"
FREE = "258899999999"


async def begin(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)


async def test_one_of_any_state_is_found_by_its_id(pool: Pool, tenant: Tenant, root: Browser) -> None:
    await begin(pool)
    await sender(pool, tenant.actor, NUMBER)
    for text, to in (("first", FREE), ("ours", NUMBER), ("last", FREE)):
        await receive_and_process(pool, handset_message(text, to=to))
    await work(pool)
    rows = await pool.fetch("SELECT id, state, message_id FROM inbound_messages ORDER BY id")
    assert [row["state"] for row in rows] == ["unassigned", "received", "unassigned"]
    for number, id in enumerate((rows[0]["id"], rows[1]["message_id"], rows[2]["id"]), 1):
        page = await root.get(f"/console/go/{id}")
        assert page.path.startswith("/console/inbound?after=")
        # The list starts with it.
        latest = page.text.partition('id="latest"')[2]
        assert latest.count(f"…{TO[-4:]}") == number


async def test_a_number_that_nobody_has_is_given_to_an_organization(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    await begin(pool)
    assert "Every message has its organization" in (await root.get(HERE)).words
    one, other = await organization(pool), await organization(pool)
    shared = "258800005555"
    await sender(pool, one, shared)
    await sender(pool, other, shared)
    await sender(pool, one, "258800006666", status="pending")
    for text, to in (("my code is 4711", FREE), ("again", FREE), ("b", shared), ("c", "258800006666")):
        await receive_and_process(pool, handset_message(text, to=to))
    page = await root.get(HERE)
    for told in (
        f"{FREE} 2 just now from …{TO[-4:]} No organization has this number",
        "Several organizations have this number:",
        "pending or suspended, not approved:",
    ):
        assert told in page.words, page.words
    for hidden in ("my code", TO[1:]):
        assert hidden not in page.text
    async with pool.acquire() as conn:
        assert {one.recipient: one.why for one in await unassigned.listed(conn)} == {
            FREE: "nobody",
            shared: "several",
            "258800006666": "not_approved",
        }
    # Texts are shown only for a reason.
    assert (await root.submit(page, f"{HERE}/reveal", reason=" ")).status == 422
    shown = await root.submit(page, f"{HERE}/reveal", reason="ticket 815")
    assert "my code is 4711" in shown.words
    assert TO[1:] in shown.words
    reason = await pool.fetchval("SELECT reason FROM audit_log WHERE action = 'message.revealed'")
    assert reason == "ticket 815"
    for typed, told in (
        ({"recipient": FREE, "organization": "Nobody"}, "There is no organization"),
        ({"recipient": shared, "organization": "Acme"}, "suspend it there first"),
        ({"recipient": "1", "organization": "Acme"}, "No unassigned message"),
    ):
        wrong = await root.submit(page, f"{HERE}/assign", **typed)
        assert wrong.status == 422, typed
        assert told in wrong.words, wrong.words
    page = await root.submit(page, f"{HERE}/assign", recipient=FREE, organization=str(tenant.id))
    assert "It is theirs; 2 messages are checked again." in page.words
    await work(pool)
    assert await states(pool) == ["received", "received", "unassigned", "unassigned"]
    async with pool.acquire() as conn:
        found = await inbound.received(conn, organization_id=tenant.id, limit=9)
    assert sorted(one.text or "" for one in found) == ["again", "my code is 4711"]
    await sender(pool, other, "258800007777", status="pending")
    await receive_and_process(pool, handset_message("d", to="258800007777"))
    await pool.execute("UPDATE sender_ids SET status = 'approved' WHERE value = '258800007777'")
    assert "The number now belongs to an organization: check again." in (await root.get(HERE)).words
    async with pool.acquire() as conn:
        assert {one.why for one in await unassigned.listed(conn)} == {"several", "not_approved", "approved_since"}
    page = await root.submit(page, f"{HERE}/retry")
    assert "3 messages are checked again." in page.words
    # If two operators have to approve, the number belongs to nobody until the second one does.
    await receive_and_process(pool, handset_message("x", to="258866666666"))
    await work(pool)
    async with pool.acquire() as conn:
        await installation.change(conn, SYSTEM, {"four_eyes": "true"})
    page = await root.submit(
        await root.get(HERE), f"{HERE}/assign", recipient="258866666666", organization=str(tenant.id)
    )
    assert "It is theirs once another operator does so too." in page.words
    assert "258866666666" in page.words
    # Someone who may not approve is not offered it, and someone who may not look sees no text.
    await receive_and_process(pool, handset_message("x", to="258877777777"))
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    seen = await other_browser.get(HERE)
    assert "258877777777" in seen.words
    assert f'action="{HERE}' not in seen.text


async def test_floods_and_keywords(pool: Pool, root: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(pool)
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    await receive_and_process(pool, *(handset_message(f"message {n}") for n in range(unassigned.OFTEN)))
    await receive_and_process(
        pool, handset_message("STOP", by="+258847654321"), handset_message("hello", by="+258847654322")
    )
    page = await root.get(HERE)
    assert f"…{TO[-4:]} {NUMBER} {unassigned.OFTEN}" in page.words, page.words
    assert "STOP 1 1" in page.words
    assert f"no keyword {unassigned.OFTEN + 1} 1" in page.words
    assert "…4321" not in page.words.partition("Keywords of the last day")[0], "who wrote once is no flood"
    assert "there were more" not in page.words
    monkeypatch.setattr(unassigned, "KEYWORDS", 3)
    assert "Counted among 3 messages of the day; there were more." in (await root.get(HERE)).words


async def test_the_latest_are_listed_whoever_has_them(pool: Pool, tenant: Tenant, root: Browser) -> None:
    await begin(pool)
    assert "Nothing has arrived from a handset." in (await root.get(HERE)).words
    await sender(pool, tenant.actor, NUMBER)
    await receive_and_process(pool, handset_message("for Acme"))
    await receive_and_process(pool, handset_message("for nobody", to=FREE))
    page = await root.get(HERE)
    latest = page.words[page.words.index("Latest from handsets") :]
    assert f"…{TO[-4:]} {NUMBER} " in latest
    assert "Acme" in latest
    assert "nobody's" in latest
    assert f'href="/console/organizations/{tenant.id}"' in page.text
    for hidden in ("for Acme", TO[1:]):
        assert hidden not in page.text
    async with pool.acquire() as conn:
        first, second = await newest.list_parts(conn, limit=9)
        assert [one.id for one in await newest.list_parts(conn, after=first.id, limit=9)] == [second.id]
    assert "de ninguém" in (await root.get(HERE, accept_language="pt")).words
