"""Settings: shown in both apps, checked, and two operators for a sender ID."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from heliograph.accounts import installation
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.people.mailing import texts
from heliograph.people.operators import accounts
from heliograph.sms.accepting import sender_ids
from tests.api.conftest import Tenant
from tests.processes import until_true

from .conftest import Browser, signed_in

SHELL = Principal("cli", name="eva")


async def test_what_is_set_is_shown_in_both_apps(pool: Pool, root: Browser, other_browser: Browser) -> None:
    page = await root.get("/console/settings")
    assert "By invitation only" in page.words
    fields = {"name": "Acme Messaging", "announcement": "Back on <Sunday>", "terms_url": "https://acme.test/terms"}
    page = await root.submit(page, "/console/settings", **fields, new_quota="500")
    assert "The settings are saved." in page.words
    assert "Back on <Sunday>" in page.words
    assert "Acme Messaging" in page.words
    assert "500" in (await root.get("/console/organizations/new")).text
    # Somebody who is not signed in sees it too.
    page = await other_browser.get("/login")
    assert "Acme Messaging" in page.words
    assert "Back on &lt;Sunday&gt;" in page.text
    assert 'href="https://acme.test/terms"' in page.text
    async with pool.acquire() as conn:
        (told,) = await conn.fetch("SELECT who, after FROM audit_log WHERE action = 'installation.changed' ORDER BY id")
    assert told["who"] == "operator"
    assert "Acme Messaging" in told["after"]


async def test_what_is_wrong_is_named_and_nothing_is_set(pool: Pool, root: Browser) -> None:
    page = await root.get("/console/settings")
    page = await root.submit(page, "/console/settings", name="Acme", terms_url="javascript:alert(1)", new_quota="many")
    assert page.status == 422
    assert "Enter an address that begins with http:// or https://, of at most 300 characters." in page.words
    assert "Enter a number of messages of at most 9 digits." in page.words
    for name, longest in (
        ("name", "A name can have at most 40"),
        ("announcement", "An announcement can have at most 300"),
    ):
        wrong = await root.submit(page, "/console/settings", **{name: "x" * 301})
        assert longest in wrong.words
    assert 'value="many"' in page.text
    late = {"announcement_until": "9999-99-99T00:00", "privacy_url": "x", "new_quota": "many"}
    wrong = await root.submit(page, "/console/settings", **late)
    assert "This is not a date and time." in wrong.words
    assert set(re.findall(r'href="#(\w+)"', wrong.text)) >= late.keys()
    assert await installation.load(pool) == installation.Installation()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "x" * 41),
        ("announcement", "x" * 301),
        ("announcement_until", "2027-01-31T18:00"),
        ("announcement_until", "soon"),
        ("four_eyes", "yes"),
        ("receipts_mail", "on"),
        ("new_quota", "-1"),
        ("new_quota", "1" * 10),
        ("privacy_url", "acme.test"),
        ("colour", "red"),
    ],
)
async def test_values_that_are_refused(pool: Pool, name: str, value: str) -> None:
    async with pool.acquire() as conn:
        with pytest.raises(Invalid) as refused:
            await installation.change(conn, SHELL, {"terms_url": "https://acme.test", name: value})
        assert [one["field"] for one in refused.value.details["fields"]] == [name]
        assert await installation.load(conn) == installation.Installation()


async def test_an_announcement_ends_by_itself_and_empty_values_restore(pool: Pool) -> None:
    async with pool.acquire() as conn:
        given = {"announcement": "Maintenance", "announcement_until": "2999-01-31T18:00Z", "name": "Acme"}
        set_ = await installation.change(conn, SHELL, given)
        end = datetime(2999, 1, 31, 18, tzinfo=UTC)
        assert set_.announced(end - timedelta(seconds=1)) == "Maintenance"
        assert set_.announced(end) == ""
        set_ = await installation.change(conn, SHELL, {"announcement": "", "announcement_until": "", "name": ""})
        assert set_ == installation.Installation()


async def test_an_announcement_does_not_end_before_it_is_made(pool: Pool, root: Browser) -> None:
    path, past = "/console/settings", "2020-01-31T18:00"
    page = await root.submit(await root.get(path), path, announcement="Maintenance", announcement_until=past)
    assert (page.status, "Choose a time in the future." in page.words) == (422, True)
    # One that has ended stays as it is, whatever else is changed.
    await pool.execute(
        "INSERT INTO installation_settings VALUES ('announcement_until', '2020-01-31T18:00:00+00:00', now())"
    )
    async with pool.acquire() as conn:
        given = {"announcement": "Over", "announcement_until": "2020-01-31T18:00Z"}
        assert (await installation.change(conn, SHELL, given)).announcement == "Over"


async def test_a_mail_to_oneself(pool: Pool, root: Browser) -> None:
    """Without a server there is no button, and the page says why; actual sending is covered by the tests of mails."""
    page = await root.get("/console/settings")
    assert "HELIOGRAPH_SMTP_URL is not set" in page.words
    token = page.form("/console/settings")["_token"]
    page = await root.post("/console/settings/mail", {"_token": token})
    assert "No mails are sent" in page.words
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM mails") == 0


def test_a_mail_to_oneself_is_in_ones_language() -> None:
    """It was in English whatever the operator reads."""
    assert texts.test("pt", to="rui@example.com").subject == "E-mail de teste do Heliograph"
    assert texts.test("en", to="rui@example.com").subject == "Test mail from Heliograph"


async def test_two_operators_approve_a_sender_id(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        await installation.change(conn, SHELL, {"four_eyes": "true"})
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    page = await root.submit(await root.get("/console/approvals"), f"{here}/approve")
    assert "It is approved once another operator does so too." in page.words
    assert "It waits for another operator." in page.words
    assert f"{here}/approve" not in page.text
    # Again by the same operator, from a page opened earlier: it still waits.
    page = await root.post(f"{here}/approve", {"_token": page.form("/console/logout")["_token"]})
    assert "PADARIA" in page.words
    await signed_in(pool, other_browser, "operator", "rui@example.com")
    page = await other_browser.get("/console/approvals")
    assert "Eva approved it" in page.words
    page = await other_browser.submit(page, f"{here}/approve")
    assert "“PADARIA” is approved." in page.words
    async with pool.acquire() as conn:
        (one,) = [one for one in await sender_ids.list_all(conn, tenant.actor) if one.id == asked.id]
        told = await conn.fetch(
            "SELECT action FROM audit_log WHERE object_id = $1 AND who = 'operator' ORDER BY id", str(asked.id)
        )
    assert one.status == "approved"
    assert [row["action"] for row in told] == ["sender_id.seconded", "sender_id.reviewed"]


async def test_where_two_approve_no_page_says_that_one_did(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    here, first = f"/console/organizations/{tenant.id}", "It is approved once another operator does so too."
    async with pool.acquire() as conn:
        await installation.change(conn, SHELL, {"four_eyes": "true"})

    async def knows() -> bool:
        # Pages cache these settings for two seconds.
        return "Waits for another operator's approval" in (await root.get("/console/organizations/new")).words

    await until_true(knows)
    page = await root.get(f"{here}/keys")
    assert "another operator has to approve it too" in page.words
    page = await root.submit(page, f"{here}/senders", value="PADARIA", approved="yes")
    assert f"You approved “PADARIA”. {first}" in page.words
    assert await pool.fetchval("SELECT status FROM sender_ids WHERE value = 'PADARIA'") == "pending"
    made = await root.submit(
        await root.get("/console/organizations/new"), "/console/organizations", name="Sol", sender="SOL"
    )
    assert f"You approved “SOL”. {first}" in made.words
    # One that was suspended: the page that lists it says the same, and the second operator's says that it is done.
    async with pool.acquire() as conn:
        id = await conn.fetchval("UPDATE sender_ids SET status = 'suspended' WHERE value = 'SOL' RETURNING id")
        sol = await conn.fetchval("SELECT id FROM organizations WHERE name = 'Sol'")
        await conn.execute("UPDATE sender_ids SET first_by = NULL")
    keys = f"/console/organizations/{sol}/keys"
    approve = f"/console/organizations/{sol}/senders/{id}/approve"
    assert first in (await root.submit(await root.get(keys), approve)).words
    await signed_in(pool, other_browser, "operator", "rui@example.com")
    assert "The sender ID is approved." in (await other_browser.submit(await other_browser.get(keys), approve)).words


async def test_the_approval_of_a_former_operator_does_not_count(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        await installation.change(conn, SHELL, {"four_eyes": "true"})
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    approve = f"{here}/approve"
    await signed_in(pool, other_browser, "operator", "rui@example.com")
    await other_browser.submit(await other_browser.get("/console/approvals"), approve)
    assert " approved it" in (await root.get("/console/approvals")).words
    # Another role would do the same as leaving.
    rui = await pool.fetchval("SELECT id FROM users WHERE email = 'rui@example.com'")
    async with pool.acquire() as conn:
        await accounts.change_role(conn, SHELL, user_id=rui, email="rui@example.com", role="finance")
    page = await root.get("/console/approvals")
    assert " approved it" not in page.words
    page = await root.submit(page, approve)
    assert "It is approved once another operator does so too." in page.words
    async with pool.acquire() as conn:
        await accounts.change_role(conn, SHELL, user_id=rui, email="rui@example.com", role="root")
        eva = await pool.fetchval("SELECT id FROM users WHERE email = 'eva@example.com'")
        await accounts.remove(conn, SHELL, user_id=eva, email="eva@example.com")
        by_rui = msgspec.structs.replace(tenant.actor, by=Principal("operator", rui, "Rui"))
        assert (await sender_ids.review(conn, by_rui, id=asked.id, status="approved")).status == "pending"
        by_shell = msgspec.structs.replace(tenant.actor, by=SHELL)
        assert (await sender_ids.review(conn, by_shell, id=asked.id, status="approved")).status == "approved"


async def test_two_shells_and_a_rejection(pool: Pool, tenant: Tenant) -> None:
    def by(name: str) -> Actor:
        return Actor(tenant.id, None, "live", frozenset(), "active", by=Principal("cli", name=name))

    async with pool.acquire() as conn:
        await installation.change(conn, SHELL, {"four_eyes": "true"})
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
        first = await sender_ids.review(conn, by("eva"), id=asked.id, status="approved")
        assert first.status == "pending"
        # A rejection needs no second operator, and the next request starts again.
        rejected = await sender_ids.review(conn, by("eva"), id=asked.id, status="rejected", reason="No.")
        assert rejected.status == "rejected"
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
        assert (await sender_ids.review(conn, by("rui"), id=asked.id, status="approved")).status == "pending"
        person = Actor(tenant.id, None, "live", frozenset(), "active", by=Principal("operator", uuid7(), "Ana"))
        assert (await sender_ids.review(conn, person, id=asked.id, status="approved")).status == "approved"
