"""Approvals: decided with the necessary information at hand, undone, and reported to the organization."""

from __future__ import annotations

import html
import re

import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.process.settings import Settings
from heliograph.overview.installation import approvals
from heliograph.sms.accepting import sender_ids, sender_questions
from heliograph.sms.accepting.sender_questions import NothingToAnswer
from tests.api.conftest import Tenant
from tests.pages.conftest import make_person

from . import test_suppliers
from .conftest import Browser, Page


@pytest.mark.parametrize(
    ("value", "brand"),
    [
        ("M0ZABANC0", "MozaBanco"),
        ("W-H4TSAPP", "WhatsApp"),
        ("WhatsApp ID", "WhatsApp"),
        ("G00GLE", "Google"),
        ("V15A", "Visa"),
        ("Padaria", ""),
        ("Visagismo", ""),
        ("84512", ""),
    ],
)
def test_names_that_read_alike(value: str, brand: str) -> None:
    assert approvals.brand(value) == brand


async def test_a_sender_is_approved_taken_back_and_rejected(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Banco do Sul")
        their = Actor(other.id, None, "live", frozenset(), "active")
        known = await sender_ids.request(conn, their, value="BancoSul")
        await sender_ids.review(conn, their, id=known.id, status="approved")
        asked = await sender_ids.request(conn, tenant.actor, value="BANC0-SUL")
    page = await root.get("/console/approvals")
    assert "BANC0-SUL" in page.words
    assert "Looks like “BancoSul” of Banco do Sul." in page.words
    assert "1 approved before" in page.words
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    page = await root.submit(page, f"{here}/approve")
    assert "“BANC0-SUL” is approved." in page.words
    assert "Nothing waits" in page.words
    page = await root.submit(page, undo_of(page))
    assert "undone" in page.words
    assert "BANC0-SUL" in page.words
    async with pool.acquire() as conn:
        (status,) = [one.status for one in await sender_ids.list_all(conn, tenant.actor) if one.id == asked.id]
    assert status == "pending"
    page = await root.get(f"{here}/reject")
    wrong = await root.submit(page, f"{here}/reject")
    assert wrong.status == 422
    assert "Choose a reason" in wrong.words
    page = await root.submit(page, f"{here}/reject", canned="imitates")
    assert "is rejected" in page.words
    async with pool.acquire() as conn:
        (one,) = [one for one in await sender_ids.list_all(conn, tenant.actor) if one.id == asked.id]
        told = await conn.fetch(
            "SELECT who FROM audit_log WHERE action = 'sender_id.reviewed' AND object_id = $1 ORDER BY id",
            str(asked.id),
        )
    assert (one.status, one.rejection_reason) == ("rejected", "This name could be mistaken for another company's.")
    assert {row["who"] for row in told} == {"operator"}


def undo_of(page: Page) -> str:
    """The address that the notice's Undo posts to."""
    found = re.search(r'action="([^"]+/undo\?[^"]+)"', page.text)
    assert found, page.words
    return html.unescape(found[1])


async def test_an_undo_is_of_its_own_decision(pool: Pool, tenant: Tenant, root: Browser) -> None:
    """That of a decision, or of one that only repeated it, took back what somebody else had decided."""
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    page = await root.get("/console/approvals")
    approve = f"/console/approvals/{tenant.id}/{asked.id}/approve"
    approved = await root.submit(page, approve)
    async with pool.acquire() as conn:
        await sender_ids.review(conn, tenant.actor, id=asked.id, status="rejected", reason="Send us your licence.")
    undone = await root.submit(approved, undo_of(approved))
    assert "It was decided again in the meantime, so nothing was undone." in undone.words
    async with pool.acquire() as conn:
        (one,) = [one for one in await sender_ids.list_all(conn, tenant.actor) if one.id == asked.id]
        assert (one.status, one.rejection_reason) == ("rejected", "Send us your licence.")
        await sender_ids.review(conn, tenant.actor, id=asked.id, status="approved")
    again = await root.submit(page, approve)
    assert ("“PADARIA” is approved." in again.words, "/undo" in again.text) == (True, False), again.words


async def test_a_number_that_another_organization_has_is_told(pool: Pool, tenant: Tenant, root: Browser) -> None:
    """Messages to it would belong to nobody."""
    names = ("90210", "Padaria")
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Banco do Sul")
        their = Actor(other.id, None, "live", frozenset(), "active")
        for name in names:
            known = await sender_ids.request(conn, their, value=name)
            await sender_ids.review(conn, their, id=known.id, status="approved")
        asked = [await sender_ids.request(conn, tenant.actor, value=name) for name in names]
    for one in asked:
        page = await root.submit(
            await root.get("/console/approvals"), f"/console/approvals/{tenant.id}/{one.id}/approve"
        )
        assert f"“{one.value}” is approved." in page.words
        assert ("Others have it too: Banco do Sul." in page.words) == (one.value == "90210")
    here = f"/console/organizations/{tenant.id}/senders/{asked[0].id}"
    page = await root.submit(await root.get(f"{here}/suspend"), f"{here}/suspend")
    assert "Others have it too" not in page.words
    assert "Others have it too: Banco do Sul." in (await root.submit(page, f"{here}/approve")).words


async def test_a_number_that_another_organization_has_in_another_form_is_told(
    pool: Pool, tenant: Tenant, root: Browser, settings: Settings
) -> None:
    """A supplier writes numbers of its country with or without the calling code: messages to this one would be of
    both."""
    await test_suppliers.add(pool, settings, settings=test_suppliers.SMPP | {"country": "MZ"})
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Banco do Sul")
        their = Actor(other.id, None, "live", frozenset(), "active")
        for name in ("841234567", "351841234567", "1234567"):
            known = await sender_ids.request(conn, their, value=name)
            await sender_ids.review(conn, their, id=known.id, status="approved")
    told = "Others have it too: Banco do Sul."
    for value, is_theirs in (("258841234567", True), ("841234567", True), ("27841234567", False)):
        async with pool.acquire() as conn:
            asked = await sender_ids.request(conn, tenant.actor, value=value)
        page = await root.submit(
            await root.get("/console/approvals"), f"/console/approvals/{tenant.id}/{asked.id}/approve"
        )
        assert (f"“{value}” is approved." in page.words, told in page.words) == (True, is_theirs), page.words
    # The form for a new organization approves one, too.
    typed = {"name": "Padaria Sol", "sender": "258841234567"}
    page = await root.submit(await root.get("/console/organizations/new"), "/console/organizations", **typed)
    assert "Padaria Sol is ready" in page.words
    assert re.search("Others have it too: (Banco do Sul, .+|.+, Banco do Sul)\\. What handsets", page.words), page.words


async def test_an_approval_in_use_is_not_taken_back(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    page = await root.submit(await root.get("/console/approvals"), f"{here}/approve")
    async with pool.acquire() as conn:
        await sender_ids.set_default(conn, tenant.actor, id=asked.id)
    page = await root.submit(page, undo_of(page))
    assert "It is in use already, so this decision cannot be undone." in page.words
    async with pool.acquire() as conn:
        (default,) = [one.value for one in await sender_ids.list_all(conn, tenant.actor) if one.is_default]
    assert default == "PADARIA"


@pytest.mark.parametrize("value", ["M0ZBANK", "MOZ BANK", "m0z-bank", "MOZ8ANK", "M0Z.8ANK"])
async def test_a_name_that_reads_like_a_banks_is_shown_with_the_bank(
    pool: Pool, tenant: Tenant, root: Browser, value: str
) -> None:
    async with pool.acquire() as conn:
        bank = await organizations.create(conn, name="Banco de Maputo")
        their = Actor(bank.id, None, "live", frozenset(), "active")
        known = await sender_ids.request(conn, their, value="MOZBANK")
        await sender_ids.review(conn, their, id=known.id, status="approved")
        for other in (value, "MOZTANK"):
            await sender_ids.request(conn, tenant.actor, value=other)
        waiting = {one.sender.value: one for one in await approvals.waiting(conn)}
    (one,) = waiting[value].alike
    assert (one.organization, one.value, one.status, one.is_near) == ("Banco de Maputo", "MOZBANK", "approved", False)
    assert [(one.value, one.is_near) for one in waiting["MOZTANK"].alike] == [("MOZBANK", True)]
    words = (await root.get("/console/approvals")).words
    assert words.count("Looks like “MOZBANK” of Banco de Maputo.") == 1
    assert words.count("One character away from “MOZBANK” of Banco de Maputo.") == 1


@pytest.mark.parametrize(
    ("one", "other", "is_near"),
    [
        ("mozbank", "moztank", True),
        ("mozbank", "mozbanks", True),
        ("mozbank", "mozank", True),
        ("mozbank", "xmozbank", True),
        ("mozbank", "mozbank", False),
        ("mozbank", "mozbnak", False),
        ("mozbank", "mozban", True),
        ("acme", "acne", False),
        ("sol", "sal", False),
    ],
)
def test_names_that_are_one_character_apart(one: str, other: str, is_near: bool) -> None:
    assert (approvals.is_near(one, other), approvals.is_near(other, one)) == (is_near, is_near)


async def test_names_that_wait_or_are_suspended_are_told_and_what_was_decided_before(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    async with pool.acquire() as conn:
        bank = await organizations.create(conn, name="Banco de Maputo")
        their = Actor(bank.id, None, "live", frozenset(), "active")
        for value, status in (("MOZBANK", "suspended"), ("M0ZBANKS", "pending"), ("XMOZBANK", "rejected")):
            known = await sender_ids.request(conn, their, value=value)
            if status != "pending":
                first = "approved" if status == "suspended" else status
                await sender_ids.review(conn, their, id=known.id, status=first, reason="too vague")
            if status == "suspended":
                await sender_ids.review(conn, their, id=known.id, status=status)
        await sender_ids.request(conn, tenant.actor, value="MOZBANK")
        (mine,) = [one for one in await approvals.waiting(conn) if one.organization_id == tenant.id]
        (theirs,) = [one for one in await approvals.waiting(conn) if one.organization_id == bank.id]
    assert [(one.value, one.status, one.is_near) for one in mine.alike] == [
        ("MOZBANK", "suspended", False),
        ("M0ZBANKS", "pending", True),
    ]
    assert {(one.value, one.status, one.reason) for one in theirs.decided} == {
        ("XMOZBANK", "rejected", "too vague"),
        ("MOZBANK", "suspended", None),
    }
    words = (await root.get("/console/approvals")).words
    assert "Decided before" in words
    assert "too vague" in words
    # Also if it is approved outside the queue.
    words = (await root.get(f"/console/organizations/{tenant.id}/keys")).words
    assert "Looks like “MOZBANK” of Banco de Maputo." in words
    assert "One character away from “M0ZBANKS” of Banco de Maputo." in words


async def test_a_near_name_is_found_among_many_that_begin_like_it(
    pool: Pool, tenant: Tenant, root: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the page says that not all were compared."""
    async with pool.acquire() as conn:
        bank = await organizations.create(conn, name="Banco de Maputo")
        their = Actor(bank.id, None, "live", frozenset(), "active")
        await sender_ids.request(conn, their, value="MOZBANKS")
        await sender_ids.request(conn, tenant.actor, value="MOZBANK")
        await conn.execute(
            "INSERT INTO sender_ids (organization_id, id, value, status, created_at)"
            " SELECT $1, gen_random_uuid(), 'MOZA ' || n, 'approved', now() FROM generate_series(1, 500) AS n",
            bank.id,
        )
    said = "Many names begin or end like this one; not all of them were compared."
    words = (await root.get("/console/approvals")).words
    assert ("“MOZBANKS” of Banco de Maputo." in words, said in words) == (True, False)
    monkeypatch.setattr(approvals, "LOOKED", 100)
    # A refresh uses the previous comparison; opening the page makes a new one.
    renewed = await root.get("/console/approvals", **{"HX-Request": "true"})
    assert ("“MOZBANKS” of Banco de Maputo." in renewed.words, said in renewed.words) == (True, False)
    for page in ("/console/approvals", f"/console/organizations/{tenant.id}/keys"):
        words = (await root.get(page)).words
        assert ("“MOZBANKS” of Banco de Maputo." in words, said in words) == (False, True), page


async def test_what_a_name_resembles_is_remembered_for_a_minute(pool: Pool, tenant: Tenant) -> None:
    at = 0.0
    resemblance = approvals.SimilarityCache(monotonic=lambda: at)
    asked = [(tenant.id, "MOZBANK")]
    async with pool.acquire() as conn:

        async def found(**how: bool) -> list[str]:
            (one,) = await resemblance.look(conn, asked, **{"bypass_cache": False} | how)
            return [name.value for name in one.names]

        assert await found() == []
        bank = await organizations.create(conn, name="Banco de Maputo")
        await sender_ids.request(conn, Actor(bank.id, None, "live", frozenset(), "active"), value="M0ZBANK")
        at = approvals.REMEMBERED - 1
        assert await found() == []
        at = approvals.REMEMBERED
        assert await found() == ["M0ZBANK"]
        await conn.execute("UPDATE sender_ids SET status = 'rejected' WHERE value = 'M0ZBANK'")
        assert await found() == ["M0ZBANK"]
        assert await found(bypass_cache=True) == []


async def test_how_much_they_send_and_where_to_stands_beside_it(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
        await organizations.configure(conn, id=tenant.id, country=None, allowed_countries=["MZ", "PT"])
    words = (await root.get("/console/approvals")).words
    assert "It has sent nothing in 30 days · may send to Mozambique, Portugal" in words
    async with pool.acquire() as conn:
        for ago, mode, country, count in ((2, "live", "MZ", 800), (2, "live", "PT", 40), (2, "test", "ZA", 5)):
            await conn.execute(
                "INSERT INTO traffic_days VALUES ($1, (now() AT TIME ZONE 'UTC')::date - $2::int, 'sms', $3, $4, 'A',"
                " 'delivered', $5, $5, '{}', '{}')",
                *(tenant.id, ago, mode, country, count),
            )
        for ago, count in ((2, 840), (20, 1000), (40, 9999)):
            await conn.execute(
                "INSERT INTO traffic_organizations VALUES ($1, (now() AT TIME ZONE 'UTC')::date - $2::int,"
                " 'delivered', $3)",
                *(tenant.id, ago, count),
            )
        await organizations.configure(conn, id=tenant.id, country=None, allowed_countries=None)
    words = (await root.get("/console/approvals")).words
    assert "Sent in 30 days: 1,840, in the last week to Mozambique (800), Portugal (40)" in words
    assert "may send to any country" in words
    assert "South Africa" not in words


async def test_a_rejection_is_read_before_it_is_made(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = f"/console/approvals/{tenant.id}/{asked.id}/reject"
    page = await root.get(here)
    assert "Choose a reason, or write one" in page.words
    page = await root.submit(page, here, reason="Send us <b>your</b> licence.", do="look")
    assert page.status == 200
    assert "The sender ID “PADARIA” was rejected." in page.words
    # in the field, and in the form in which it will be read
    assert page.text.count("Send us &lt;b&gt;your&lt;/b&gt; licence.") == 2
    part = await root.get(f"{here}?canned=generic", hx_request="true")
    assert "networks do not carry such names" in part.words
    assert "<html" not in part.text
    assert await pool.fetchval("SELECT status FROM sender_ids WHERE id = $1", asked.id) == "pending"
    page = await root.submit(page, here, canned="generic", reason="")
    assert await pool.fetchval("SELECT rejection_reason FROM sender_ids WHERE id = $1", asked.id) == (
        "This name does not say who the sender is: networks do not carry such names."
    )
    assert "is rejected" in page.words


async def test_what_is_not_there_and_what_is_too_late(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    page = await root.get("/console/approvals")
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    page = await root.submit(page, f"{here}/approve")
    async with pool.acquire() as conn:
        await conn.execute("UPDATE sender_ids SET reviewed_at = reviewed_at - interval '1 minute'")
    assert "too late" in (await root.submit(page, undo_of(page))).words
    token = (await root.get("/console/account")).form("/console/logout")["_token"]
    assert (await root.post(f"{here}/undo", {"_token": token})).status == 404
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Other")
    # Another organization's id with this sender.
    assert (await root.post(f"/console/approvals/{other.id}/{asked.id}/approve", {"_token": token})).status == 404
    assert (await root.get(f"/console/approvals/{other.id}/{asked.id}/reject")).status == 404


async def test_the_organization_is_asked_and_answers(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = f"/console/approvals/{tenant.id}/{asked.id}"
    page = await root.get(f"{here}/ask")
    wrong = await root.submit(page, f"{here}/ask", question=" ")
    assert wrong.status == 422
    page = await root.submit(page, f"{here}/ask", question="Which <company> is this?")
    assert "The question was sent to" in page.words
    assert "no answer yet" in page.words
    await make_person(pool, tenant, "ana@example.com")
    await other_browser.sign_in("ana@example.com")
    assert "The operator asks about the sender ID “PADARIA”." in (await other_browser.get("/notices")).words
    page = await other_browser.get("/senders")
    assert "Which &lt;company&gt; is this?" in page.text
    page = await other_browser.submit(page, f"/senders/{asked.id}/answer", answer="  ")
    assert "Enter an answer first." in page.words
    page = await other_browser.submit(page, f"/senders/{asked.id}/answer", answer="Padaria Central Lda")
    assert "is with the operator" in page.words
    page = await root.get("/console/approvals")
    assert "Padaria Central Lda" in page.words
    token = page.form(f"{here}/approve")["_token"]
    await root.submit(page, f"{here}/approve")
    # It is decided: nothing is asked any more, and nobody waits for an answer.
    assert (await root.post(f"{here}/ask", {"_token": token, "question": "Why?"})).status == 409
    page = await other_browser.get("/senders")
    assert "The operator asks" not in page.words
    async with pool.acquire() as conn:
        with pytest.raises(NothingToAnswer):
            await sender_questions.answer(conn, tenant.actor, id=asked.id, answer="Late")
        other = await organizations.create(conn, name="Other")
        with pytest.raises(NotFound):
            their = Actor(other.id, None, "live", frozenset(), "active")
            await sender_questions.answer(conn, their, id=asked.id, answer="Mine")
