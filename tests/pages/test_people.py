"""Contacts on pages: found, created, changed, tagged, deleted, restored and exported."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.consent import optouts
from heliograph.consent.history import Statement
from heliograph.consent.optouts import OptOut
from heliograph.contacts import marked, records, tags
from heliograph.contacts.records import Entry
from heliograph.inbox import threads
from heliograph.inbox.threads import InboundMessage
from heliograph.overview.exports import jobs, kinds
from tests.rules.test_recency import read, sent_message

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant
from .exported import fetch, write
from .test_messages import send


async def add(pool: Pool, tenant: Tenant, *entries: Entry) -> None:
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=entries)


def people(count: int, *tags: str) -> list[Entry]:
    return [Entry(f"+25884{1_000_000 + n}", f"Person {n}", tags=tags) for n in range(count)]


def ids(page: Page) -> list[str]:
    return re.findall(r'name="ids" value="([^"]+)"', page.text)


async def test_somebody_is_made_changed_and_found(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    assert "Nobody yet" in (await owner.get("/contacts")).words
    form = (await owner.get("/contacts/new")).form("/contacts")
    typed = form | {"first_name": "Ana", "last_name": "Silva", "phone": "84 123 4567", "tags": "VIP, Maputo"}
    page = await owner.post("/contacts", typed)
    assert "The contact is created." in page.words
    assert all(said in page.words for said in ("Ana Silva", "+258841234567", "vip", "maputo", "May be messaged"))
    # The same form again creates nobody twice; a different one says whose number it is.
    assert (await owner.post("/contacts", typed)).path == page.path
    again = await owner.post("/contacts", typed | {"_once": "other"})
    assert (again.status, "already exists" in again.words, again.form("/contacts")["tags"]) == (
        422,
        True,
        "VIP, Maputo",
    )
    assert f'href="{page.path}"' in again.text
    edit = await owner.get(f"{page.path}/edit")
    page = await owner.submit(edit, page.path, name="Ana Souza", first_name="", last_name="", tags="vip")
    assert ("Saved." in page.words, "Ana Souza" in page.words, "maputo" in page.words) == (True, True, False)
    for query in ("q=souza", "q=84+123+4567", "q=%2B258841234567", "tag=vip", "country=MZ", "opted=no", "tag=vip,x"):
        assert "Ana Souza" in (await owner.get(f"/contacts?{query}")).words, query
    for query in ("written=never", "written=7", "written=never&tag=vip", "delivered=nonsense"):
        assert "Ana Souza" in (await owner.get(f"/contacts?{query}")).words, query
    wrong = ("q=silva", "q=841234568", "tag=vip,x&match=all", "country=PT", "opted=yes", "tag=maputo")
    for query in (*wrong, "delivered=2026-01-01"):
        assert "Nobody matches" in (await owner.get(f"/contacts?{query}")).words, query


async def test_what_is_wrong_is_said_at_its_field(owner: Browser) -> None:
    form = (await owner.get("/contacts/new")).form("/contacts")
    page = await owner.post("/contacts", form | {"name": "", "phone": "84 123 4567", "tags": "x" * 65})
    assert page.status == 422
    for field in ("name", "phone", "tags"):
        assert f'href="#{field}"' in page.text
    assert page.form("/contacts")["phone"] == "84 123 4567"
    hostile = await owner.post("/contacts", form | {"name": "<img onerror=x>", "phone": "+258841234567"})
    assert "<img" not in hostile.text
    assert "&lt;img onerror=x&gt;" in hostile.text


async def test_several_tags_do_not_become_one_with_commas(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Campaigns to either of them would not find these people. One with a comma is written as in lists of tags."""
    await add(pool, tenant, *people(2))
    page = await owner.get("/contacts")
    marked_ids = ",".join(ids(page))
    for do in ("tag", "untag"):
        page = await owner.submit(page, "/contacts/marked", ids=marked_ids, tag="vip, spring", do=do)
        assert "Enter one tag at a time" in page.words, page.words
        refused = await owner.post("/contacts/all", page.form("/contacts/marked") | {"tag": "a, b", "do": do})
        assert (refused.status, "Enter one tag at a time" in refused.words) == (422, True), refused.words
    assert await pool.fetchval("SELECT count(*) FROM contact_tags") == 0
    page = await owner.submit(page, "/contacts/marked", ids=marked_ids, tag='"Rua A, Maputo"', do="tag")
    assert "2 contacts now have the tag “rua a, maputo”." in page.words, page.words


async def test_marked_people_are_tagged_deleted_and_brought_back(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(3), Entry("+351912345678", "Rui", tags=("vip",)))
    page = await owner.get("/contacts?country=MZ")
    marked_ids = ",".join(ids(page))
    assert len(ids(page)) == 3
    page = await owner.submit(page, "/contacts/marked", ids=marked_ids, tag="  VIP ", do="tag")
    assert "3 contacts now have the tag “vip”." in page.words
    assert "country=MZ" in page.path
    page = await owner.submit(page, "/contacts/undo")
    assert "Undone: 3 contacts are as before." in page.words
    assert await pool.fetchval("SELECT count(*) FROM contact_tags") == 1
    page = await owner.submit(page, "/contacts/marked", ids=marked_ids, do="delete")
    assert "3 contacts deleted." in page.words
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 1
    undo = page.form("/contacts/undo")
    # A contact whose number somebody else created meanwhile stays as created.
    await add(pool, tenant, Entry("+258841000000", "Another"))
    page = await owner.post("/contacts/undo", undo)
    assert "Undone: 2 contacts are as before." in page.words
    names = await pool.fetch("SELECT name FROM contacts ORDER BY phone")
    assert [row["name"] for row in names] == ["Another", "Person 1", "Person 2", "Rui"]
    page = await owner.post("/contacts/undo", undo | {"_once": "later"})
    assert "This can no longer be undone." in page.words
    assert "Select at least one person" in (await owner.submit(page, "/contacts/marked", do="delete")).words
    actions = await pool.fetch("SELECT action, count(*)::int FROM audit_log GROUP BY action")
    counts = {row["action"]: row["count"] for row in actions}
    assert (counts["contact.deleted"], counts["contact.changed"], counts["contact.created"]) == (3, 6, 2)


async def test_an_undo_ends_with_its_hour(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(1))
    page = await owner.get("/contacts")
    page = await owner.submit(page, "/contacts/marked", ids=ids(page)[0], do="delete")
    form = page.form("/contacts/undo")
    await pool.execute("UPDATE contact_changes SET changed_at = now() - $1::interval", marked.UNDONE_FOR)
    assert "contact deleted" not in (await owner.get(page.path)).words
    assert "can no longer be undone" in (await owner.post("/contacts/undo", form)).words


async def test_pages_go_on_where_the_last_one_ended(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(60, "a"), Entry("+351912345678", "Rui", tags=("b",)))
    for query in ("limit=25", "limit=25&tag=a,b", "limit=25&q=e"):
        seen: list[str] = []
        page = await owner.get(f"/contacts?{query}")
        while True:
            seen += ids(page)
            older = re.search(r'rel="next" href="([^"]+)"', page.text)
            if not older:
                break
            page = await owner.get(older[1].replace("&amp;", "&"))
        assert len(seen) == len(set(seen)) == (60 if "q=e" in query else 61), query


async def test_an_export_has_what_the_list_has(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(2, "a"), Entry("+351912345678", "=1+1", tags=("b",)))
    page = await owner.get("/contacts?country=PT")
    file = await fetch(pool, owner, page, "/contacts/export", format="csv")
    assert file.text.startswith("\ufeffname,first_name,last_name,phone")
    assert "'=1+1,,,+351912345678,b,no," in file.text
    assert "Person" not in file.text
    page = await owner.get("/contacts")
    lines = (await fetch(pool, owner, page, "/contacts/export", format="json")).text.splitlines()
    assert len(lines) == 3
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'contacts.exported'") == 2


async def test_tags_are_renamed_merged_and_removed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(2, "vip", "old"), Entry("+351912345678", "Rui", tags=("gold",)))
    page = await owner.get("/contacts/tags")
    assert re.findall(r'row-link" href="[^"]*"><bdi>([^<]+)<', page.text) == ["gold", "old", "vip"]
    assert page.words.count("no campaign") == 3
    assert "whose audience had this tag, among the latest 1,000." in page.words
    async with pool.acquire() as conn:
        spec = SmsCampaignSpec(name="Sale", message_template="Hello", audience_tags=["old"])
        campaign = await campaigns.create(conn, tenant.actor, spec=spec, request_id="one")
    page = await owner.get("/contacts/tags")
    assert page.words.count("no campaign") == 2
    assert f'href="/campaigns/{campaign.id}"' in page.text
    edit = await owner.get("/contacts/tags/edit?tag=vip")
    assert "2 people" in edit.words
    wrong = await owner.submit(edit, "/contacts/tags/rename", becomes="VIP")
    assert (wrong.status, "It already has this name." in wrong.words) == (422, True)
    page = await owner.submit(edit, "/contacts/tags/rename", becomes="Gold")
    assert "2 people changed." in page.words
    assert await pool.fetchval("SELECT count(*) FROM contact_tags WHERE tag = 'gold'") == 3
    page = await owner.submit(await owner.get("/contacts/tags/edit?tag=old"), "/contacts/tags/remove")
    assert "2 people changed." in page.words
    assert (await pool.fetchval("SELECT string_agg(DISTINCT tags::text, ' ') FROM contacts")) == "{gold}"
    assert (await owner.get("/contacts/tags/edit?tag=old")).status == 404


async def test_a_tag_with_a_comma_stays_one(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, *people(1, "lisbon, pt"), Entry("+351912345678", "Rui", tags=("lisbon", "pt")))
    for page in ("/contacts", "/contacts/tags"):
        links = re.findall(r'href="(/contacts[?]tag=[^"]*lisbon[^"]*pt[^"]*)"', (await owner.get(page)).text)
        found = await owner.get(links[0].replace("&amp;", "&"))
        assert ("Person 0" in found.words, "Rui" in found.words) == (True, False), page
    (link,) = re.findall(r'href="(/campaigns/new[?]people=[^"]*)"', found.text)
    form = (await owner.get(link.replace("&amp;", "&"))).form("/campaigns")
    typed = form | {"name": "Sale", "text": "Hello", "to": "tags", "when": "now"}
    checked = (await owner.post("/campaigns", typed | {"do": "preview"})).form("/campaigns")
    await owner.post("/campaigns", checked | {"to": "tags", "when": "now", "do": "create"})
    campaign = await pool.fetchrow("SELECT id, audience_tags FROM campaigns")
    assert campaign["audience_tags"] == ["lisbon, pt"]
    assert (await owner.get(f"/campaigns/new?copy={campaign['id']}")).form("/campaigns")["tags"] == form["tags"]
    id = await pool.fetchval("SELECT id FROM contacts WHERE name = 'Person 0'")
    where = f"/contacts/{id}"
    await owner.submit(await owner.get(f"{where}/edit"), where, name="Ana")
    assert await pool.fetchval("SELECT tags FROM contacts WHERE name = 'Ana'") == ["lisbon, pt"]


async def test_opt_outs_are_added_found_lifted_and_exported(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, Entry("+258841234567", "Ana"))
    page = await owner.get("/contacts/opt-outs")
    assert "Nobody has opted out" in page.words
    page = await owner.submit(page, "/contacts/opt-outs/add", phone="+258 84 123 4567", reason="By telephone")
    assert all(said in page.words for said in ("They get no more messages.", "added by your organization"))
    blank = await owner.submit(page, "/contacts/opt-outs/add", phone="+258 84 123 4568", reason="\u200b")
    assert (blank.status, "contains nothing readable" in blank.words) == (422, True)
    wrong = await owner.submit(page, "/contacts/opt-outs/add", phone="84", reason="By letter")
    assert (wrong.status, wrong.form("/contacts/opt-outs/add")["reason"]) == (422, "By letter")
    wrong = await owner.submit(page, "/contacts/opt-outs/add", phone="84", reason="x" * 201)
    assert ("Enter the number with +" in wrong.words, "at most 200 characters" in wrong.words) == (True, True)
    assert "Not opted out" in (await owner.get("/contacts/opt-outs?q=%2B258841234568")).words
    person = await owner.get("/contacts/" + str(await pool.fetchval("SELECT id FROM contacts")))
    assert "Opted out" in person.words
    file = await fetch(pool, owner, page, "/contacts/opt-outs/export", format="csv")
    assert "+258841234567," in file.text
    line = (await fetch(pool, owner, page, "/contacts/opt-outs/export", format="json")).text
    assert msgspec.json.decode(line)["source"] == "organization"
    assert "Give a reason" in (await owner.submit(person, "/contacts/opt-outs/lift")).words
    page = await owner.submit(person, "/contacts/opt-outs/lift", reason="Asked for them again")
    assert ("They can be messaged again." in page.words, "May be messaged" in page.words) == (True, True)
    reasons = await pool.fetch("SELECT reason FROM audit_log WHERE action LIKE 'opt_out.%' ORDER BY id")
    assert [row["reason"] for row in reasons] == ["By telephone", "Asked for them again"]


async def test_a_person_has_the_history_of_what_they_said(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, Entry("+258841234567", "Ana"), Entry("+258841234568", "Bia"))
    ana, bia = [row["id"] for row in await pool.fetch("SELECT id FROM contacts ORDER BY phone")]
    here = f"/contacts/{ana}"
    page = await owner.submit(await owner.get(here), "/contacts/opt-outs/add", reason="By telephone")
    page = await owner.submit(page, "/contacts/opt-outs/lift", reason="A mistake")
    async with pool.acquire() as conn, conn.transaction():
        by_key = msgspec.structs.replace(tenant.actor, key_id=tenant.key_id)
        await optouts.add(conn, by_key, phone="+258841234567")
        at, said = clock.now(), (tenant.id, "+258841234567")
        await optouts.suppress(conn, [OptOut(*said, at, optouts.KEYWORD, "parar", uuid7())])
        await optouts.lift(conn, [Statement(*said, at, optouts.KEYWORD, "start", uuid7())])
    page = await owner.get(here)
    told = page.words[page.words.index("What was said") : page.words.index("Notes")]
    for line in (
        "Opted in: wrote “start”",
        "Opted out: wrote “parar”",
        "Lifted Ana · a person",
        "Opted out Ana · a person",
    ):
        assert told.count(line) == 1, (line, told)
    assert (told.count("test · an API key"), told.count("until")) == (1, 3)
    assert told.index("“start”") < told.index("“parar”") < told.index("an API key") < told.index("Lifted")
    assert "What was said" not in (await owner.get(f"/contacts/{bia}")).words


async def test_who_wrote_stop_is_not_lifted_on_a_page(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source, keyword)"
        " VALUES ($1, '+258841234567', now(), 'keyword', 'stop')",
        tenant.id,
    )
    page = await owner.get("/contacts/opt-outs")
    assert ("wrote “stop”" in page.words, "only by writing START" in page.words) == (True, True)
    token = page.form("/contacts/opt-outs/add") | {"reason": "because"}
    page = await owner.post("/contacts/opt-outs/lift", token | {"phone": "+258841234567"})
    assert "only they can lift it" in page.words
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1


async def test_words_and_replies_are_shown_as_a_handset_gets_them(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/contacts/opt-outs/words")
    assert "Acme: you will get no more messages from us." in page.words
    action = "/contacts/opt-outs/words"
    own = {"stop_how": "own", "stop_reply": "Olá não", "help_how": "none", "start_how": "default"}
    other = await owner.submit(page, action, reply_language="fr", do="preview")
    assert "Acme: vous ne recevrez plus nos messages." in other.words
    assert "Saved." in (await owner.submit(page, action, reply_language="pt")).words
    page = await owner.get("/contacts/opt-outs/words")
    assert "Acme: deixa de receber mensagens nossas." in page.words
    assert page.form(action)["reply_language"] == "pt"
    wrong = await owner.submit(page, action, reply_language="xx")
    assert (wrong.status, "Choose one of the languages that are offered." in wrong.words) == (422, True)
    shown = await owner.submit(page, action, opt_out_words="fora\nsair", do="preview", **own)
    assert ("Olá não" in shown.words, "nothing" in shown.words) == (True, True)
    assert await pool.fetchval("SELECT stop_reply FROM organizations WHERE id = $1", tenant.id) is None
    wrong = await owner.submit(page, action, opt_out_words="!!", **own)
    assert (wrong.status, "each with a letter or digit" in wrong.words) == (422, True)
    assert "Saved." in (await owner.submit(page, action, opt_out_words="fora\nsair", **own)).words
    row = await pool.fetchrow("SELECT opt_out_words, stop_reply, help_reply, start_reply FROM organizations")
    assert tuple(row) == (["fora", "sair"], "Olá não", "", None)
    assert await pool.fetchval("SELECT who FROM audit_log WHERE action = 'organization.configured'") == "person"


@pytest.mark.parametrize("role", ["viewer", "sender", "developer"])
async def test_a_role_sees_and_does_what_it_may(pool: Pool, tenant: Tenant, browser: Browser, role: str) -> None:
    await add(pool, tenant, Entry("+258841234567", "Ana"))
    await make_person(pool, tenant, "someone@example.com", role)
    await browser.sign_in("someone@example.com")
    page = await browser.get("/contacts")
    writes = role == "sender"
    assert ("+258841234567" in page.text, "New contact" in page.words) == (writes, writes)
    assert ("••• 4567" in page.words) != writes
    person = await browser.get("/contacts/" + str(await pool.fetchval("SELECT id FROM contacts")))
    assert ("+258841234567" in person.text, "Opt them out" in person.words) == (writes, writes)


async def test_whoever_sees_whole_numbers_searches_by_parts_of_them(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await add(pool, tenant, Entry("+258841234567", "Zita", tags=()))
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    for browser, is_found in ((owner, True), (other_browser, False)):
        assert (
            "4567" in (await browser.get("/contacts")).words,
            "+258841234567" in (await browser.get("/contacts")).text,
        ) == (True, is_found)
        assert ("Zita" in (await browser.get("/contacts?q=84+12")).words.split()) is is_found
        assert "Zita" in (await browser.get("/contacts?q=zi")).words.split()


async def test_another_organizations_people_are_nobodys(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    other = await make_tenant(pool)
    await add(pool, other, Entry("+258841234567", "Theirs", tags=("theirs",)))
    id = await pool.fetchval("SELECT id FROM contacts")
    form = (await owner.get("/contacts/new")).form("/contacts")
    for path in (f"/contacts/{id}", f"/contacts/{id}/edit", "/contacts/tags/edit?tag=theirs"):
        assert (await owner.get(path)).status == 404, path
    changed = await owner.post(f"/contacts/{id}", form | {"name": "Mine", "phone": "+258841234567"})
    assert changed.status == 404
    page = await owner.post("/contacts/marked", form | {"ids": str(id), "do": "delete"})
    assert "Nothing had to be changed." in page.words
    assert (await owner.post("/contacts/undo", form | {"change": str(uuid.uuid4())})).status == 200
    assert "Theirs" not in (await owner.get("/contacts?q=theirs")).text.replace('value="theirs"', "")
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 1


async def test_files_take_turns_and_leave_pages_a_connection(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports of one organization used both connections that pages have: others' pages got 503, and files broke off."""
    await add(pool, tenant, *people(5))
    other = await make_tenant(pool)
    await make_person(pool, other, "rui@example.com")
    await other_browser.sign_in("rui@example.com")
    async with pool.acquire() as conn, conn.transaction():
        since = clock.now()
        silent = [OptOut(tenant.id, f"+25884000{n:04}", since, "keyword", "stop") for n in range(5)]
        await optouts.suppress(conn, silent)
    await owner.submit(await owner.get("/contacts/opt-outs"), "/contacts/opt-outs/export", format="csv")
    monkeypatch.setattr(kinds, "PAGE", 2)  # several pages
    await write(pool)
    read, reading, go_on = jobs.pieces, asyncio.Event(), asyncio.Event()

    async def slow(connect: Any, actor: Actor, **options: Any) -> AsyncIterator[bytes]:
        async with connect():
            reading.set()
            await go_on.wait()
        async for piece in read(connect, actor, **options):
            yield piece

    page = await owner.get("/exports")
    (path,) = set(re.findall(r'action="(/exports/[0-9a-f-]+/file)"', page.text))
    monkeypatch.setattr(jobs, "pieces", slow)
    files = [asyncio.create_task(owner.post(path, page.form(path))) for _ in range(6)]
    await reading.wait()
    for _ in range(12):
        assert (await other_browser.get("/contacts")).status == 200
    go_on.set()
    assert {(one.status, one.text.count("keyword,stop")) for one in await asyncio.gather(*files)} == {(200, 5)}


async def test_changes_of_tags_that_wait_are_few(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(pool, tenant, *people(2, "a", "b"))
    await pool.execute(
        "INSERT INTO tag_changes (organization_id, mode, id, tag) SELECT $1, 'live', gen_random_uuid(), 'x'"
        " FROM generate_series(1, $2::int)",
        tenant.id,
        tags.MOST_OPEN,
    )
    edit = await owner.get("/contacts/tags/edit?tag=a")
    for action, typed in (("rename", {"becomes": "c"}), ("remove", {})):
        page = await owner.submit(edit, f"/contacts/tags/{action}", **typed)
        assert "Twenty tag changes are in progress." in page.words
    await pool.execute("UPDATE tag_changes SET finished_at = now()")
    page = await owner.submit(await owner.get("/contacts/tags/edit?tag=a"), "/contacts/tags/rename", becomes="c")
    assert "2 people changed." in page.words


async def test_words_for_stop_are_for_those_who_answer_for_the_organization(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com", "sender")
    await browser.sign_in("rui@example.com")
    assert "Keywords and replies" not in (await browser.get("/contacts/opt-outs")).words
    assert (await browser.get("/contacts/opt-outs/words")).status == 403
    form = (await browser.get("/account")).form("/account")
    assert (await browser.post("/contacts/opt-outs/words", form | {"opt_out_words": "HELLO"})).status == 403


async def test_notes_go_with_their_contact(pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser) -> None:
    await add(pool, tenant, *people(1))
    id = await pool.fetchval("SELECT id FROM contacts")
    place = f"/contacts/{id}"
    page = await owner.get(place)
    page = await owner.submit(page, f"{place}/notes", notes="Calls after six.\r\n<b>Never</b> on Sundays.")
    assert "Saved." in page.words
    assert "Calls after six.\n&lt;b&gt;Never&lt;/b&gt; on Sundays." in page.text
    refused = await owner.submit(page, f"{place}/notes", notes="x" * 2_001)
    assert (refused.status, "Notes can have at most 2,000 characters." in refused.words) == (422, True)
    assert "x" * 2_001 in refused.text  # what was typed is kept
    # The log says that they changed, not what they say.
    entry = await pool.fetchrow("SELECT after FROM audit_log WHERE action = 'contact.changed'")
    assert entry is not None
    assert ("(changed)" in entry["after"], "Sundays" in entry["after"]) == (True, False)
    # Someone who may not write reads them; nobody of another organization does.
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    seen = await other_browser.get(place)
    assert ("Calls after six." in seen.words, f"{place}/notes" in seen.text) == (True, False)
    assert (await other_browser.post(f"{place}/notes", {"notes": "mine"})).status == 403
    # Deleting a contact deletes them, and restoring it restores them.
    page = await owner.submit(await owner.get(place), "/contacts/marked", do="delete")
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    await owner.submit(page, "/contacts/undo")
    assert "Calls after six." in (await owner.get(place)).words


async def test_a_persons_page_leads_to_their_conversations_and_campaigns(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await add(pool, tenant, *people(2))
    first, second = (f"/contacts/{row['id']}" for row in await pool.fetch("SELECT id FROM contacts ORDER BY phone"))
    page = await owner.get(first)
    assert ("they wrote last" in page.words, "Campaigns sent to them" in page.words) == (False, False)
    phone = people(1)[0].phone
    heard = InboundMessage(tenant.id, "sms", uuid.uuid4(), phone, uuid7(), clock.now())
    async with pool.acquire() as conn:
        await threads.note(conn, [heard])
    await send(api, tenant, to=phone)
    body = {"name": "Spring sale", "content": "Hello", "recipients": [phone]}
    status, _, made = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    assert status == 201, made
    campaign = uuid.UUID(made["campaign"]["id"])
    await pool.execute("UPDATE messages SET campaign_id = $1", campaign)
    page = await owner.get(first)
    assert f'href="/inbox/{threads.id_of(heard.line_id, phone)}"' in page.text
    assert f'href="/campaigns/{campaign}"' in page.text
    assert "Spring sale" in page.words
    other = await owner.get(second)
    assert ("they wrote last" in other.words, "Spring sale" in other.words) == (False, False)


async def test_a_list_becomes_the_audience_of_a_campaign(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await add(pool, tenant, *people(2, "vip"), Entry("+351912345678", "Rui", tags=("vip",)))
    assert "Write to these" not in (await owner.get("/contacts")).words  # "everybody" is never an accident

    async def followed(query: str) -> Page:
        (link,) = re.findall(r'href="(/campaigns/new[?]people=[^"]*)"', (await owner.get(f"/contacts?{query}")).text)
        return await owner.get(link.replace("&amp;", "&"))

    by_tag = await followed("tag=vip&match=all")
    form = by_tag.form("/campaigns")
    assert (form["tags"], form["match"]) == ("vip", "all")
    assert re.search(r'value="tags" checked', by_tag.text)
    listed = (await followed("tag=vip&country=PT")).text
    assert re.search(r'value="numbers" checked', listed)
    assert re.search(r"<textarea[^>]*>\+351912345678</textarea>", listed)
    # Who was not written to when the list was made may have been since, when it is sent.
    for chosen, days in (("country=PT", ""), ("country=PT&written=30", "30"), ("country=PT&written=never", "365")):
        page = await followed(chosen)
        assert (page.form("/campaigns")["unwritten"], "+351912345678" in page.text) == (days, True), chosen
    # Part of a list would be an audience that nobody chose.
    for start in range(0, 10_000, 2_500):
        await add(pool, tenant, *(Entry(f"+25882{2_000_000 + start + n}", "Many") for n in range(2_500)))
    page = await followed("country=MZ")
    assert page.path.startswith("/contacts?")
    assert "More than 10,000 people match these filters." in page.words
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert "Write to these" not in (await other_browser.get("/contacts?tag=vip")).words


async def test_a_contact_opens_beside_the_list(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        ana = await records.create(conn, tenant.actor, entry=Entry("+258841000001", "Ana Silva"))
    page = await owner.get(f"/contacts?open={ana.id}")
    assert ('class="beside is-open"' in page.text, "Notes" in page.words) == (True, True)
    assert "is-open" not in (await owner.get("/contacts")).text
    beside = await owner.get(f"/contacts/{ana.id}", HX_Request="true")
    assert ("<html" in beside.text, "<h2><bdi>Ana Silva</bdi></h2>" in beside.text) == (False, True)
    assert (
        await owner.get(f"/contacts/{ana.id}", HX_Request="true", If_None_Match=beside.headers["etag"])
    ).status == 304
    for wrong in (str(tenant.id), "x"):
        assert (await owner.get(f"/contacts?open={wrong}")).status == 404


async def test_the_last_message_stands_in_the_list_with_its_status(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await add(pool, tenant, Entry("+258841000001", "Ana"), Entry("+258841000002", "Bo"))
    for status in ("undelivered", "delivered"):
        id = await sent_message(
            pool, tenant.actor, "+258841000001", age=timedelta(days=9 if status == "undelivered" else 2)
        )
        await pool.execute("UPDATE messages SET status = $2 WHERE id = $1", id, status)
    await read(pool, back=timedelta(days=30))

    async def told() -> list[str]:
        page = await owner.get("/contacts")
        return re.findall(r'href="/messages/([^"]+)"><span class="status \w+"><span[^>]*>.</span> ([^<]+)', page.text)

    assert await told() == [(str(id), "Delivered")]
    # The status is the message's current one.
    await pool.execute("UPDATE messages SET status = 'undelivered' WHERE id = $1", id)
    assert await told() == [(str(id), "Undelivered")]


async def test_contacts_of_a_time_are_found_and_taken_away(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """By when they became contacts, and by when the last message was sent to them."""
    await add(pool, tenant, Entry("+258841000001", "Ana"), Entry("+258841000002", "Bo"), Entry("+258841000003", "Caio"))
    made, written = datetime(2026, 3, 10, 12, tzinfo=UTC), datetime(2026, 4, 1, 8, tzinfo=UTC)
    old = uuid.UUID(int=uuid7_floor(made).int + 1)
    await pool.execute("UPDATE contacts SET id = $1, created_at = $2 WHERE name = 'Ana'", old, made)
    await pool.execute("UPDATE contacts SET written_at = $1 WHERE name = 'Bo'", written)

    async def named(query: str) -> list[str]:
        page = await owner.get(f"/contacts?{query}")
        return sorted(re.findall(r'class="row-link" href="[^"]*"><bdi>([^<]*)', page.text))

    assert await named("range=24h") == ["Bo", "Caio"]
    assert await named("from=2026-03-10&to=2026-03-10") == ["Ana"]
    assert await named("from=2026-03-10&to=2026-04-02&times=written") == ["Bo"]
    assert await named("range=24h&times=written") == []
    assert await named("times=written") == ["Ana", "Bo", "Caio"]
    assert await named("from=2026-03-10&to=2026-04-02&times=written&q=%2B258841000002") == ["Bo"]
    page = await owner.get("/contacts?from=2026-03-10&to=2026-03-10")
    file = await fetch(pool, owner, page, "/contacts/export", format="csv")
    assert ("Ana" in file.text, "Bo" in file.text) == (True, False)
