"""Marked rows, and all that match: canceled, sent again, exported and tagged, with progress and a way to stop."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import re
import uuid
from uuid import UUID

import pytest
from asyncpg import DeadlockDetectedError

from heliograph.base.database.pool import Pool
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.overview.exports import changes, jobs, work
from heliograph.overview.exports.kinds import Cancel
from heliograph.overview.exports.work import ExportWork
from heliograph.overview.messages import Filters
from heliograph.sms import messages as sms
from tests.rules.factories import blocked

from .conftest import Api, Browser, Page, Tenant, make_person
from .exported import fetch, write
from .test_messages import send


def boxes(page: Page) -> list[str]:
    """Ids that can be marked."""
    return re.findall(r'form="marks" name="id" value="([^"]+)"', page.text)


def boxes_asked(page: Page) -> list[str]:
    """Ids that a page asks about before it acts."""
    return re.findall(r'type="hidden" name="id" value="([^"]+)"', page.text)


async def marked(browser: Browser, page: Page, ids: list[str], **button: str) -> Page:
    return await browser.submit(page, "/messages/marked?channel=sms", id=",".join(ids), **button)


async def test_the_marked_ones_are_canceled_together(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    ids = [await send(api, tenant) for _ in range(3)]
    await pool.execute("UPDATE messages SET status = 'sent', sent_at = now() WHERE id = $1", UUID(ids[0]))
    page = await owner.get("/messages?channel=sms")
    assert boxes(page) == [*reversed(ids)]
    used = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id)
    page = await marked(owner, page, [*ids, str(uuid.uuid4())], do="cancel")
    said = "2 SMS are not sent and are refunded. 2 messages can no longer be canceled. This cannot be undone."
    assert said in page.words
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'canceled'") == 0
    fields = page.form("/messages/marked/cancel?channel=sms") | {"id": ",".join(boxes_asked(page))}
    page = await owner.post("/messages/marked/cancel?channel=sms", fields)
    assert page.path == "/messages?channel=sms"
    assert "2 messages canceled. 2 messages can no longer be canceled." in page.words
    assert '<div class="notice" role="status">' in page.text
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id) == used - 2
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 1
    late = await marked(owner, await owner.get("/messages?channel=sms"), [ids[0]], do="cancel")
    assert "0 messages canceled. 1 can no longer be canceled." in late.words
    # Rows that were not changed do not look as if they were.
    assert late.is_refusal
    assert "Select the messages first." in (await marked(owner, page, [], do="cancel")).words
    assert (await marked(owner, page, ["x"], do="cancel")).status == 400


async def test_the_marked_ones_are_canceled_although_their_change_is_the_victim_of_a_deadlock(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """As with an open session of the operator's. The page said that something had failed here."""
    ids = [await send(api, tenant) for _ in range(2)]
    page = await marked(owner, await owner.get("/messages?channel=sms"), ids, do="cancel")
    fields = page.form("/messages/marked/cancel?channel=sms") | {"id": ",".join(ids)}
    async with pool.acquire() as open_session:
        transaction = open_session.transaction()
        await transaction.start()
        await open_session.execute("SELECT FROM quotas FOR UPDATE")
        canceling = asyncio.create_task(owner.post("/messages/marked/cancel?channel=sms", fields))
        await blocked(pool)
        with contextlib.suppress(DeadlockDetectedError):
            await open_session.execute("SELECT FROM messages FOR UPDATE")
        await transaction.rollback()
    assert "2 messages canceled." in (await canceling).words


async def tried(pool: Pool, tenant: Tenant, id: str, state: str) -> None:
    """Tried once, with this result, and waiting for its next attempt."""
    await pool.execute("UPDATE queue SET attempt = 1, target_id = id WHERE id = $1", UUID(id))
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 1, $2, $3, now(), now())",
        tenant.id,
        UUID(id),
        state,
    )


async def test_what_suppliers_put_off_is_canceled_on_pages_as_by_the_api(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    put_off, marked_one, listed, lost = [await send(api, tenant, clientReference="batch") for _ in range(4)]
    for id, state in ((put_off, "busy"), (marked_one, "unreachable"), (listed, "refused"), (lost, "unknown")):
        await tried(pool, tenant, id, state)
    page = await owner.get(f"/messages/{lost}")
    assert f"/messages/{lost}/cancel" not in page.text, "a supplier may have it"
    page = await owner.get(f"/messages/{put_off}")
    assert f"/messages/{put_off}/cancel" in page.text
    page = await owner.submit(await owner.get(f"/messages/{put_off}/cancel"), f"/messages/{put_off}/cancel")
    assert "The message is canceled and refunded." in page.words
    page = await marked(owner, await owner.get("/messages?channel=sms"), [marked_one, lost], do="cancel")
    assert "1 SMS is not sent and is refunded. 1 can no longer be canceled." in page.words
    fields = page.form("/messages/marked/cancel?channel=sms") | {"id": ",".join(boxes_asked(page))}
    assert "1 message canceled." in (await owner.post("/messages/marked/cancel?channel=sms", fields)).words
    page = await owner.get("/messages?q=batch&status=sending")
    assert "/messages/all?" in page.text
    page = await owner.get("/messages/all?q=batch")
    assert "1 SMS of these filters has not left yet." in page.words
    await owner.submit(page, "/messages/all?q=batch")
    await ExportWork(pool).round()
    rows = {str(row["id"]): row["status"] for row in await pool.fetch("SELECT id, status FROM messages")}
    assert rows == {put_off: "canceled", marked_one: "canceled", listed: "canceled", lost: "accepted"}
    page = await owner.get("/messages/all?q=batch")
    assert "0 SMS of these filters have not left yet." in page.words
    assert 'action="/messages/all' not in page.text, "a button that cancels nothing"


async def test_one_that_is_canceled_already_stays_so_in_a_batch(pool: Pool, api: Api, tenant: Tenant) -> None:
    ids = [UUID(await send(api, tenant)) for _ in range(2)]
    async with pool.acquire() as conn:
        await sms.cancel(conn, tenant.actor, id=ids[0])
        for _ in range(2):
            assert await sms.cancel_many(conn, tenant.actor, ids=[*ids, uuid.uuid4()]) == dict.fromkeys(ids, True)
        assert await sms.cancel_many(conn, tenant.actor, ids=[]) == {}
    refunds = await pool.fetchval("SELECT count(*) FROM usage_ledger WHERE reason = 'canceled'")
    assert refunds == 2


async def test_marked_messages_are_sent_again_never_silently(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    ids = [
        await send(
            api,
            tenant,
            to=f"+25884100000{n}",
            clientReference=f"order-{n}",
            deliveryGuarantee="at_most_once",
            **{"class": "marketing"},
        )
        for n in range(3)
    ]
    await pool.execute("UPDATE messages SET body = NULL WHERE id = $1", UUID(ids[2]))
    page = await owner.get("/messages?channel=sms")
    one = await marked(owner, page, ids[:1], do="again")
    assert (one.path, one.form("/send")["guarantee"]) == (f"/send?again={ids[0]}", "at_most_once")
    preview = await owner.post("/send/preview", one.form("/send"), HX_Request="true")
    assert "&#34;class&#34;: &#34;marketing&#34;" in preview.text
    page = await marked(owner, page, ids, do="again")
    assert ("Send 2 messages" in page.words, "1 of the selected messages cannot" in page.words) == (True, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 3
    listed = await owner.get("/contacts/opt-outs")
    await owner.submit(listed, "/contacts/opt-outs/add", phone="+258841000001", reason="By telephone")
    form = page.form("/messages/again") | {"id": ",".join(ids)}
    for _ in range(2):  # a double click sends once
        page = await owner.post("/messages/again", form)
        assert "1 message sent again. 1 was refused: This person opted out" in page.words
    row = await pool.fetchrow("SELECT * FROM messages ORDER BY id DESC LIMIT 1")
    same = ("recipient", "client_reference", "body", "guarantee", "class")
    wanted = ("+258841000000", "order-0", "Your code is 4711", "at_most_once", "marketing")
    assert tuple(row[name] for name in same) == wanted
    assert await pool.fetchval("SELECT count(*) FROM messages") == 4
    await owner.post("/send", one.form("/send"))
    row = await pool.fetchrow("SELECT * FROM messages ORDER BY id DESC LIMIT 1")
    assert tuple(row[name] for name in same) == wanted, "one as several"
    assert await pool.fetchval("SELECT count(*) FROM messages") == 5
    # Someone who does not see other people's texts sends none of them.
    await make_person(pool, tenant, "rui@example.com", "sender")
    await other_browser.sign_in("rui@example.com")
    page = await other_browser.submit(
        await other_browser.get("/messages"), "/messages/marked", id=",".join(ids), do="again"
    )
    assert ("Your code is 4711" in page.words, "3 of the selected messages cannot" in page.words) == (False, True)


async def test_marked_rows_are_taken_away_as_a_file(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    ids = [await send(api, tenant) for _ in range(3)]
    page = await owner.get("/messages")
    file = await fetch(pool, owner, page, "/messages/export", format="csv", id=f"{ids[2]},{ids[0]}")
    assert [row["id"] for row in csv.DictReader(io.StringIO(file.text.lstrip("\ufeff")))] == [ids[2], ids[0]]
    async with pool.acquire() as conn:
        await records.create_many(
            conn, tenant.actor, entries=[Entry(f"+25884000{n:04}", f"Person {n}") for n in range(3)]
        )
    one = str(await pool.fetchval("SELECT id FROM contacts ORDER BY id LIMIT 1"))
    file = await fetch(pool, owner, await owner.get("/contacts"), "/contacts/export", format="csv", ids=one)
    assert [row["id"] for row in csv.DictReader(io.StringIO(file.text.lstrip("\ufeff")))] == [one]


async def test_all_that_fit_are_canceled_step_by_step_and_a_stop_stops(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "STEP", 2)
    monkeypatch.setattr(work, "STEPS", 1)
    ids = [await send(api, tenant, clientReference="batch") for _ in range(5)]
    other = await send(api, tenant)
    page = await owner.get("/messages?q=batch")
    assert 'href="/messages/all?q=batch"' in page.text
    page = await owner.get("/messages/all?q=batch")
    assert "5 SMS of these filters have not left yet." in page.words
    page = await owner.submit(page, "/messages/all?q=batch")
    assert (page.path, "Under way" in page.words) == ("/exports", True)
    await ExportWork(pool).round()
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'canceled'") == 2
    page = await owner.get("/exports")
    assert "back to" in page.words
    stop = re.search(r'action="(/exports/[0-9a-f-]+/stop)"', page.text)
    assert stop
    await owner.submit(page, stop[1])
    assert await ExportWork(pool).round() == 0
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'canceled'") == 2
    # Started again, it processes the rest; the file shows the result of each row.
    file = await fetch(pool, owner, await owner.get("/messages/all?q=batch"), "/messages/all?q=batch")
    rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    assert [(row["id"], row["result"]) for row in rows] == [(id, "canceled") for id in reversed(ids[:3])]
    states = dict(await pool.fetch("SELECT id::text, status FROM messages"))
    assert states == dict.fromkeys(ids, "canceled") | {other: "accepted"}
    told = await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'messages.canceling'")
    assert told == 2


async def test_who_no_longer_may_changes_nothing_more(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await send(api, tenant)
    rui = await make_person(pool, tenant, "rui@example.com", "sender")
    await other_browser.sign_in("rui@example.com")
    await other_browser.submit(await other_browser.get("/messages/all"), "/messages/all")
    await pool.execute("UPDATE memberships SET role = 'viewer' WHERE user_id = $1", rui.id)
    await write(pool)
    assert await pool.fetchval("SELECT state FROM exports") == "failed"
    assert await pool.fetchval("SELECT status FROM messages") == "accepted"


async def test_all_contacts_that_fit_are_tagged_and_untagged(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "STEP", 2)
    async with pool.acquire() as conn:
        entries = [Entry(f"+25884000{n:04}", f"Person {n}") for n in range(5)]
        await records.create_many(conn, tenant.actor, entries=[*entries, Entry("+258840009999", "Somebody")])
    page = await owner.get("/contacts/all?q=Person")
    assert "5 contacts match these filters." in page.words
    action = re.search(r'action="(/contacts/all[^"]*)"', page.text)
    assert action
    where = action[1].replace("&amp;", "&")
    refused_page = await owner.submit(page, where, tag=" ", do="tag")
    assert (refused_page.status, "A tag must have 1 to 64 characters." in refused_page.words) == (422, True)
    file = await fetch(pool, owner, page, where, tag="Spring", do="tag")
    rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    assert [row["result"] for row in rows] == ["changed"] * 5
    tagged = "SELECT count(*) FROM contacts WHERE tags = '{spring}'"
    assert await pool.fetchval(tagged) == 5
    file = await fetch(pool, owner, await owner.get("/contacts/all"), "/contacts/all", tag="spring", do="tag")
    assert file.text.count("unchanged") == 5
    await fetch(pool, owner, await owner.get("/contacts/all?q=Person"), where, tag="spring", do="untag")
    assert await pool.fetchval(tagged) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        *("tag=" + "x" * 65, "from=yesterday", "delivered=soon"),
        # Not offered by the lists from which these are chosen.
        *("country=mz", "opted=maybe", "written=120", "range=2d", "match=ALL", "times=sent"),
    ],
)
async def test_nothing_is_done_to_whoever_matches_a_filter_that_is_not_understood(
    pool: Pool, tenant: Tenant, owner: Browser, wrong: str
) -> None:
    """Without it, everybody matched: all got the tag, the campaign or into the file."""
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258840000001", "Ana")])
    form = (await owner.get("/contacts/all?country=MZ")).form("/contacts/all?country=MZ")
    listed = (await owner.get("/contacts")).form("/contacts/export")
    field, _, value = wrong.partition("=")
    filters = {"country": wrong, "match": f"tag=vip,spring&{wrong}"}.get(field, f"country=MZ&{wrong}")
    for page in (
        await owner.get(f"/contacts/all?{filters}"),
        await owner.post(f"/contacts/all?{filters}", form | {"tag": "spring", "do": "tag"}),
        await owner.get(f"/campaigns/new?people=1&{filters}"),
        await owner.post("/contacts/export", listed | {"format": "csv", "country": "MZ"} | {field: value}),
    ):
        assert (page.path.partition("?")[0], '<div class="notice"' in page.text) == ("/contacts", False), page.words
        assert f"{field}={value}" in page.path
    assert await pool.fetchval("SELECT count(*) FROM exports") == 0


@pytest.mark.parametrize("wrong", ["status=waiting", "status=accepted,waits", "channel=SMS", "reason=x", "range=2d"])
async def test_no_message_is_canceled_for_a_filter_that_is_not_offered(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, wrong: str
) -> None:
    """Without it, all that waited were canceled; the list says what is wrong."""
    await send(api, tenant)
    form = (await owner.get("/messages/all")).form("/messages/all")
    said = "Choose one of the filters that are offered."
    for page in (await owner.get(f"/messages/all?{wrong}"), await owner.post(f"/messages/all?{wrong}", form)):
        assert (page.path.partition("?")[0], said in page.words) == ("/messages", True), page.words
    page = await owner.get(f"/messages?{wrong}")
    assert (said in page.words, "/messages/all" in page.text) == (True, False)
    assert await pool.fetchval("SELECT count(*) FROM exports") == 0


async def test_a_step_and_how_far_it_came_are_one_commit(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is stopped between a step's changes and its commit, nothing of the step is done."""
    await send(api, tenant)
    await owner.submit(await owner.get("/messages/all"), "/messages/all")
    step = changes.step

    async def late(*given: object, **more: object) -> object:
        found = await step(*given, **more)  # type: ignore[arg-type]
        await pool.execute("UPDATE exports SET state = 'stopped', lease_until = NULL")
        return found

    monkeypatch.setattr(changes, "step", late)
    await ExportWork(pool).round()
    assert await pool.fetchval("SELECT status FROM messages") == "accepted"
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 1
    async with pool.acquire() as conn:
        (listed,) = await jobs.list_all(conn, tenant.actor, of_everybody=True)
    assert listed.wanted == Cancel(form="csv", filters=Filters())
