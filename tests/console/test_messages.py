"""A message of any organization: its text only for a stated reason, which the audit log records."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.campaigns import pausing
from heliograph.queue import holds as queue_holds
from heliograph.queue.holds import Selection
from heliograph.queue.leases import GUARDED, new_token
from heliograph.sms import refunds
from heliograph.sms.dispatch import suppliers
from heliograph.sms.reports import receipts
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.sms.status import Move, move_many
from heliograph.suppliers.contract import ReceiptState
from heliograph.why.words import why
from tests.api.conftest import SECRET_KEY, Api, Tenant, make_tenant
from tests.rules import factories, whatsapp_factories
from tests.rules.callback_factories import Meta
from tests.rules.callback_factories import message as callback

from .conftest import Browser, signed_in

#: Version and variant of a UUIDv7.
SEVEN = 0x7 << 76 | 0x2 << 62
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
    assert f'href="/console/organizations/{tenant.id}">Acme' in page.text
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
        told = await conn.fetch("SELECT * FROM audit_log WHERE action = 'message.revealed' ORDER BY id")
    assert [(row["who"], row["organization_id"], row["reason"]) for row in told] == [
        ("operator", tenant.id, "ticket 815: wrong code")
    ]
    page = await root.get("/console/audit?action=message.revealed")
    assert "ticket 815" in page.words


async def test_receipts_stand_as_they_came_behind_a_reason(pool: Pool, tenant: Tenant, root: Browser) -> None:
    supplier, other = UUID(int=101), UUID(int=102)
    id = await factories.sent(pool, tenant.actor, supplier, "7")
    raw = b"id:7 sub:001 dlvrd:001 stat:EXPIRD err:042 text:Your code is 47\x00<b>"
    first = msgspec.structs.replace(factories.receipt("7", state=ReceiptState.EXPIRED), raw=raw)
    second = msgspec.structs.replace(factories.receipt("7"), raw=b"\xff\x01 id:7 stat:DELIVRD")
    foreign = msgspec.structs.replace(factories.receipt("8"), raw=b"of another message")
    async with pool.acquire() as conn:
        for one, by in ((first, supplier), (foreign, other), (second, supplier)):
            async with conn.transaction():
                await receipts.store(conn, [ReceivedReceipt(by, one)], policies={by: "all"})
    page = await root.get(f"/console/messages/{id}")
    for hidden in ("Your code is 47", "69 64 3a 37", "stat:"):
        assert hidden not in page.words, hidden
    page = await root.submit(page, f"/console/messages/{id}/reveal", reason="ticket 816")
    assert f"written {raw[:-4].decode()}·<b>" in page.words
    assert raw.hex(" ") in page.words
    assert "ff 01 20 69 64 3a 37" in page.words
    assert "<b>" not in page.text, "what a supplier writes stays text"
    assert "of another message" not in page.words


async def test_submits_stand_with_their_fields_and_behind_a_reason_with_their_octets(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id, supplier = await sent(api, tenant), uuid7()
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        """ VALUES ($1, 'main', 'smpp', '{"host": "h", "port": 1, "system_id": "s"}', '', now(), now())""",
        supplier,
    )
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, reference)"
        " VALUES ($1, $2, 1, $3, 'accepted', now(), now(), 4711)",
        tenant.id,
        UUID(id),
        supplier,
    )
    page = await root.get(f"/console/messages/{id}")
    assert "submit, reconstructed" in page.words
    for said in ("data_coding=0x00", "registered_delivery=0x01", "destination_addr=…4567", "short_message=(29)"):
        assert said in page.words, said
    octets = TEXT.encode().hex(" ")
    for hidden in (octets, TEXT.encode().hex(), "841234567", "??"):
        assert hidden not in page.text.partition("What happened</h2>")[2].replace("“??”", ""), hidden
    page = await root.submit(page, f"/console/messages/{id}/reveal", reason="ticket 817")
    assert f"?? ?? ?? ?? 00 05 00 {b'HELIOGRAPH'.hex(' ')}" in page.words, page.words
    assert octets in page.words
    assert "destination_addr=258841234567" in page.words
    assert "submissão, escrita de novo" in (await root.get(f"/console/messages/{id}", accept_language="pt")).words


async def test_a_message_that_was_received_is_not_called_delivered(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    await make_tenant(pool)
    await sent(api, tenant)  # the sender of a message is found as well
    made, user = await whatsapp_factories.made(pool, organization_id=tenant.id), "+258842222222"
    for text in ("Where is my order?", "Hello?"):
        await Meta(pool).say(made, callback(made, text, clock.now() - timedelta(hours=1), by=user))
    id = await pool.fetchval("SELECT id FROM whatsapp_messages LIMIT 1")
    page = await root.get(f"/console/messages/{id}")
    assert "data-final" in page.text
    assert "after it was accepted" not in page.words
    # Nor does its page tell of a delivery and its cause, or of an event before the message: that has the time at which
    # the callback arrived.
    steps = re.findall(r"<strong>([^<]*)</strong>", page.text.partition('class="timeline"')[2].partition("</ol>")[0])
    assert steps[:2] == ["received", "event"]
    assert not {"Delivered", "Why"} & set(re.findall(r"\w+", page.words)), page.words
    search = f"/console/messages?recipient=%2B{user[1:]}"
    for found in (page, await root.get(search), await root.get(f"{search}&organization={tenant.id}")):
        shown = re.findall(r'<span class="status[^"]*">.*?</span>([^<]*)</span>', found.text, re.S)
        assert [one.strip() for one in shown] == ["Received", "Received"]


async def test_a_message_is_found(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    id = await sent(api, tenant)
    assert (await root.get(f"/console/messages?id={id}")).path == f"/console/messages/{id}"
    page = await root.get("/console/messages?organization=acme&recipient=%2B258841234567")
    assert f"/console/messages/{id}" in page.text
    assert "841234567" not in page.words
    # As people write it, and as the palette passes it on.
    for written in ("%2B258+84+123+4567", "00258-84.123.4567", "258841234567"):
        page = await root.get(f"/console/messages?organization=acme&recipient={written}")
        assert f"/console/messages/{id}" in page.text, written
        assert ("Read as" in page.words) == (written == "258841234567"), written
    # A national number belongs to the organization's country; for every number without a +, the page says how it was
    # read.
    national = "/console/messages?organization=acme&recipient=84+123+4567"
    page = await root.get(national)
    assert ("No message matches" in page.words, "Read as +84 1234567." in page.words) == (True, True), page.words
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    page = await root.get(national)
    assert f"/console/messages/{id}" in page.text
    assert "Read as +258 84 123 4567. Write + and the country code to mean another." in page.words
    for query, said in (
        ("id=nothing", "No message has this id"),
        ("organization=acme&recipient=12", "country code"),
        ("organization=nobody", "There is no organization"),
    ):
        wrong = await root.get(f"/console/messages?{query}")
        assert wrong.status == 422, query
        assert said in wrong.words
    assert "No message matches" in (await root.get("/console/messages?organization=acme&channel=whatsapp")).words
    assert (await root.get("/console/messages/00000000-0000-0000-0000-000000000000")).status == 404


async def test_a_message_is_found_by_the_id_of_who_carried_it(pool: Pool, tenant: Tenant, root: Browser) -> None:
    id = await factories.sent(pool, tenant.actor, UUID(int=101), "7f3a")
    for written in ("7f3a", "7F3A"):
        assert (await root.get(f"/console/messages?id={written}")).path == f"/console/messages/{id}", written
    made = await whatsapp_factories.made(pool)
    of, number = await pool.fetchrow("SELECT organization_id, id FROM whatsapp_numbers LIMIT 1")
    theirs = await whatsapp_factories.message(pool, made)
    await pool.execute(
        "INSERT INTO whatsapp_wamids VALUES ((now() AT TIME ZONE 'UTC')::date, $1, 'wamid.OURS', $2, $3, now())",
        number,
        of,
        theirs,
    )
    await pool.execute("UPDATE whatsapp_messages SET pricing = 'regular/utility', priced_by = 'delivered'")
    page = await root.get(f"/console/messages/{theirs}")
    assert "Price as Meta reported it regular/utility · Delivered" in page.words
    assert (await root.get("/console/messages?id=wamid.OURS")).path == f"/console/messages/{theirs}"
    assert (await root.get("/console/go?q=wamid.OURS")).path == f"/console/messages/{theirs}"


async def test_a_message_that_waits_says_what_for(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    id = await sent(api, tenant)
    here = f"/console/messages/{id}"
    page = await root.get(here)
    assert "It is due, and waits for its turn or for a supplier." in page.words
    assert "No supplier is available; the message waits." in page.words
    key = suppliers.seal_key(Settings(secret_key=SECRET_KEY))
    async with pool.acquire() as conn:
        smpp = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
        line = await suppliers.add(conn, key, name="main", kind="smpp", settings=smpp, secret="s")
    # The supplier that would be asked has no session.
    page = await root.get(here)
    assert "Where it would go now: " in page.words
    assert "main skipped: no session bound" in page.words, page.words
    async with pool.acquire() as conn:
        which = Selection(kinds=("sms",), organization_id=tenant.id)
        (held, *_), _ = await queue_holds.hold(conn, which, reason="the bill is disputed", by=SYSTEM)
    assert "An operator holds it back: the bill is disputed" in (await root.get(here)).words
    await pool.execute("DELETE FROM queue_holds WHERE id = $1", held.id)
    for change, told in (
        ("due_at = now() + interval '1 hour', tries = 2", "could not be handed over yet and is tried again at"),
        ("tries = 0", "It waits for its time"),
        (f"due_at = now(), line = '{GUARDED}'", "The guard holds it"),
        ("lease_until = now() + interval '1 hour'", "A worker has it and hands it over."),
    ):
        await pool.execute(f"UPDATE queue SET {change} WHERE id = $1", UUID(id))
        assert told in (await root.get(here)).words, told
    await pool.execute("UPDATE messages SET campaign_id = $1 WHERE id = $1", UUID(id))
    await pool.execute("UPDATE queue SET lease_until = NULL, line = $2, due_at = now() + $1", pausing.AWAY, line)
    assert "Its campaign is paused." in (await root.get(here)).words
    until = clock.now() + timedelta(hours=5)
    await pool.execute(
        "UPDATE queue SET lease_until = NULL, line = $2, due_at = $3 WHERE id = $1", UUID(id), line, until
    )
    await pool.execute("UPDATE messages SET quiet_since = now(), quiet_until = $2 WHERE id = $1", UUID(id), until)
    assert "Quiet hours where the recipient is" in (await root.get(here)).words
    await pool.execute("DELETE FROM queue WHERE id = $1", UUID(id))
    assert "What it waits for" not in (await root.get(here)).words


async def test_a_whatsapp_message_that_waits_says_what_for(pool: Pool, root: Browser) -> None:
    made = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, made)
    here = f"/console/messages/{id}"
    assert "It is due, and waits for its turn at its number." in (await root.get(here)).words
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 250")
    await pool.execute("INSERT INTO whatsapp_portfolios SELECT portfolio, 250, now() FROM whatsapp_accounts")
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 minute'")
    words = (await root.get(here)).words
    assert "The messaging limit of its portfolio is reached: 250 people in 24 hours." in words
    assert "It waits for its time" not in words
    await pool.execute(whatsapp_factories.RESTRICT)
    assert "Meta lets its account only answer users until" in (await root.get(here)).words
    await pool.execute("UPDATE queue SET line = $1", made.template_id)
    assert "It waits until Meta has confirmed its template." in (await root.get(here)).words
    await pool.execute("UPDATE whatsapp_templates SET status = 'in_appeal'")
    assert "It waits for its template: In appeal." in (await root.get(here)).words
    await pool.execute("UPDATE queue SET line = $1", made.number_id)
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now() + interval '1 hour', held_reason = 'credential'")
    assert "Its number is held at Meta until" in (await root.get(here)).words


async def test_what_happens_is_seen_live_with_who_has_it(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    earlier, id = [await send_over_api(api, tenant, to="+258841234567") for _ in range(2)]
    here = f"/console/messages/{id[1]}"
    worker = uuid7()
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'north:17', now(), now()),"
        " ($2, 'south:4', now(), now())",
        worker,
        uuid7(),
    )
    await pool.execute(
        "UPDATE queue SET lease_token = $2, begun_at = now(), lease_until = now() + interval '1 minute' WHERE id = $1",
        UUID(id[1]),
        new_token(worker),
    )
    page = await root.get(here)
    assert 'id="live" class="stack" data-live' in page.text
    assert f'href="/console/messages/{earlier[1]}"' in page.text, "what else went to the same person"
    assert f"request_id={id[0]}" in page.text
    for said in ("○ Accepted", "being handed over since", "worker north:17", "Waiting; given up at"):
        assert said in page.words, said
    assert "south:4" not in page.words
    assert "Opted out" not in page.words
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source)"
        " VALUES ($1, '+258841234567', '2026-03-04 10:00Z', 'operator')",
        tenant.id,
    )
    assert "Opted out 4 Mar 2026, 10:00" in (await root.get(here, HX_Request="true")).words
    await pool.execute("DELETE FROM queue")
    # With the network, it is not given up when it expires: three days later, it counts as unknown.
    sent_at = "UPDATE messages SET status = 'sent', sent_at = '2026-03-04 10:00Z' WHERE id = $1"
    await pool.execute(sent_at, UUID(id[1]))
    told = (await root.get(here, HX_Request="true")).words
    assert "Without a report, it counts as unknown from 7 Mar 2026, 10:00." in told, told
    assert "given up at" not in told
    await pool.execute(
        "UPDATE messages SET status = 'delivered', sent_at = accepted_at + interval '2 s',"
        " delivered_at = accepted_at + interval '5 s' WHERE id = $1",
        UUID(id[1]),
    )
    part = await root.get(here, HX_Request="true")
    assert "<html" not in part.text
    for said in ("Delivered 5.0 s after it was accepted", "+3.0 s", "+2.0 s"):
        assert said in part.words, said
    assert 'gap gap-10"' in part.text, "the longest gap"
    assert "data-final" in part.text
    assert "Waiting" not in part.words
    assert "data-live" not in (await root.get(here)).text.partition("</main>")[0].partition("<main")[2]
    # Until its event is delivered, it is renewed.
    await pool.execute(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ('webhook', $1, $2, now(), $3)",
        uuid7(),
        tenant.id,
        UUID(id[1]),
    )
    assert 'id="live" class="stack" data-live' in (await root.get(here)).text
    assert "data-final" not in (await root.get(here, HX_Request="true")).text


async def test_cost_and_price_are_told_in_their_currency(pool: Pool, tenant: Tenant, root: Browser) -> None:
    id = await factories.sent(pool, tenant.actor, UUID(int=101), "7")
    await pool.execute(
        "UPDATE messages SET price = 31000, price_currency = 'EUR', price_due = 'delivered', cost = 12500,"
        " cost_currency = 'USD', cost_due = 'submit' WHERE id = $1",
        id,
    )
    page = await root.get(f"/console/messages/{id}")
    assert "Price €0.031 due only if it arrives Cost US$0.0125 Text and number" in page.words, page.words
    assert "0.031000" in page.words
    assert " 31000 " not in page.words
    # What was due is taken back with the refund.
    await pool.execute("UPDATE messages SET price_due = 'submit', sent_at = accepted_at WHERE id = $1", id)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"undelivered": True})
        async with conn.transaction():
            await move_many(conn, [Move(tenant.id, id, "undelivered", clock.now(), "undelivered")])
    page = await root.get(f"/console/messages/{id}")
    assert "Price €0.031 not charged Cost US$0.0125 Text and number" in page.words, page.words
    await pool.execute("DELETE FROM usage_ledger WHERE message_id = $1", id)
    page = await root.get(f"/console/messages/{id}")
    assert "Price €0.031 Cost US$0.0125 Text and number" in page.words, page.words


async def send_over_api(api: Api, tenant: Tenant, **body: str) -> tuple[str, str]:
    """(id of the request, id of its message or code of its refusal)"""
    headers = tenant.headers | {"idempotency-key": uuid7().hex}
    _, headers, answer = await api.ask("POST", "/sms/send", json={"message": TEXT} | body, headers=headers)
    return headers["x-request-id"], answer["message"]["id"] if "message" in answer else ""


async def test_messages_are_found_by_reference_and_by_request(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    other = await make_tenant(pool)
    _, theirs = await send_over_api(api, other, to="+258841234567", clientReference="order-7")
    request, ours = await send_over_api(api, tenant, to="+258841234567", clientReference="order-7")
    here = "/console/messages"
    # Several organizations may use the same reference: it is searched for among all that were sent.
    page = await root.get(f"{here}?reference=order-7")
    assert (ours in page.text, theirs in page.text, "Acme" in page.words) == (True, True, True)
    assert "Everything that organizations sent" in page.words, "how far it looked"
    assert "Everything that organizations sent" in (await root.get(f"{here}?reference=order-8")).words
    page = await root.get(f"{here}?recipient=%2B258+84+123+4567")
    assert (ours in page.text, theirs in page.text, "841234567" in page.words) == (True, True, False)
    assert "among their contacts" not in page.words
    page = await root.get(f"{here}?reference=order-7&organization=acme")
    assert (ours in page.text, theirs in page.text) == (True, False)
    assert "order-7" in page.words
    assert "No message matches" in (await root.get(f"{here}?reference=order-8&organization=acme")).words
    # The id of a request contains its time, and leads to its organization.
    page = await root.get(f"{here}?request_id={request}")
    assert (ours in page.text, theirs in page.text) == (True, False)
    assert f'href="/console/organizations/{tenant.id}"' in page.text
    # An id that does not exist, also with times that no clock has.
    for unknown in (uuid7(), UUID(int=SEVEN), UUID(int=(2**48 - 1 << 80) | SEVEN)):
        page = await root.get(f"{here}?request_id={unknown}")
        assert page.status in (200, 422), unknown
        assert ours not in page.text
    # An id chosen by a program is searched for in its organization.
    chosen = {"x-request-id": "job.17", "idempotency-key": "one"}
    body = {"to": "+258841234567", "message": TEXT}
    status, _, answer = await api.ask("POST", "/sms/send", json=body, headers=tenant.headers | chosen)
    for where in ("&organization=acme", ""):
        page = await root.get(f"{here}?request_id=job.17{where}")
        assert (status, f'href="/console/messages/{answer["message"]["id"]}"' in page.text) == (202, True)
        assert ours not in page.text
    assert "Referência do cliente" in (await root.get(here, accept_language="pt")).words


async def test_a_request_that_was_refused_is_found(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    request, _ = await send_over_api(api, tenant, to="12")
    while not await pool.fetchval("SELECT count(*) FROM requests"):  # noqa: ASYNC110 - the log is written once a second
        await asyncio.sleep(0.05)
    page = await root.get(f"/console/messages?request_id={request}")
    assert "POST /sms/send" in page.words
    assert "400 validation_error" in page.words
    assert "No message matches" not in page.words
    page = await root.get(f"/console/go?q={request}")
    assert page.path == f"/console/messages?request_id={request}"
    assert "POST /sms/send" in page.words


async def test_who_may_not_see_all_of_the_log_sees_their_own(pool: Pool, root: Browser, other_browser: Browser) -> None:
    await signed_in(pool, other_browser, "support", "rui@example.com")
    page = await other_browser.get("/console/audit")
    assert "What you did." in page.words
    assert "rui@example.com" in page.words
    assert "eva@example.com" not in page.words
    # Not even by requesting it.
    assert "eva@example.com" not in (await other_browser.get("/console/audit?who=Eva")).words
    page = await root.get("/console/audit?who=Eva&action=operator.signed_in")
    assert "Operator signed in to the console" in page.words


async def test_the_log_is_narrowed_and_tells_changes_in_words(pool: Pool, tenant: Tenant, root: Browser) -> None:
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=tenant.id, name="Acme of the north")
        await organizations.rename(conn, id=other.id, name="Acme of the south")
    here = "/console/audit?action=organization.renamed"
    page = await root.get(here)
    assert ("Acme of the north" in page.words, "Acme of the south" in page.words) == (True, True)
    page = await root.get(f"{here}&organization=acme%20of%20the%20north")
    assert ("Acme of the north" in page.words, "Acme of the south" in page.words) == (True, False)
    assert f'href="/console/organizations/{tenant.id}"' in page.text
    assert ("<ins>Acme of the north</ins>" in page.text, '"name":' in page.words) == (True, False)
    # Whoever has no name is described, and an id is as short as everywhere else.
    async with pool.acquire() as conn:
        await audit.record(
            conn, Principal("key", id=uuid7()), "webhook.created", object_id=tenant.id, organization_id=tenant.id
        )
    words = (await root.get("/console/audit?action=webhook.created", Accept_Language="pt")).words
    assert "uma chave da API" in words
    assert (str(tenant.id) in words, f"{str(tenant.id)[:8]}…{str(tenant.id)[-4:]}" in words) == (False, True)
    assert "Nothing matches" in (await root.get(f"{here}&from=2020-01-01&to=2020-01-02")).words
    for query, said in (
        ("organization=nobody", "There is no organization of this name or id."),
        ("action=dancing", "Choose one of the actions that are offered."),
        ("from=yesterday", "Enter a time as"),
    ):
        wrong = await root.get(f"/console/audit?{query}")
        assert (wrong.status, said in wrong.words) == (422, True), query


async def test_the_log_is_taken_away_as_it_was_narrowed(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=tenant.id, name="Acme of the north")
        await organizations.rename(conn, id=other.id, name="Acme of the south")
    page = await root.get("/console/audit?action=organization.renamed&organization=acme%20of%20the%20north")
    export = "/console/audit/export?action=organization.renamed&organization=acme+of+the+north"
    file = await root.submit(page, export, format="csv")
    assert "attachment" in file.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    assert [(row["action"], row["object_name"]) for row in rows] == [("organization.renamed", "Acme of the north")]
    history = f"/console/organizations/{other.id}/history"
    file = await root.submit(await root.get(history), f"/console/audit/export?organization={other.id}", format="json")
    lines = [json.loads(line) for line in file.text.splitlines()]
    assert {line["organization_id"] for line in lines} == {str(other.id)}
    # The acceptance is an entry, which the file contains.
    assert lines[0]["action"] == "audit.exported"
    told = await pool.fetch("SELECT who, organization_id FROM audit_log WHERE action = 'audit.exported' ORDER BY id")
    assert [tuple(row) for row in told] == [("operator", tenant.id), ("operator", other.id)]
    wrong = await root.post("/console/audit/export?action=dancing", page.form(export))
    assert (wrong.status, "Choose one of the actions" in wrong.words) == (422, True)
    # Someone who sees only their own actions sees only that.
    rui = await signed_in(pool, other_browser, "support", "rui@example.com")
    file = await other_browser.submit(await other_browser.get("/console/audit"), "/console/audit/export", format="json")
    lines = [json.loads(line) for line in file.text.splitlines()]
    assert {line["who_id"] for line in lines} == {str(rui.id)}
    assert lines[0]["action"] == "audit.exported"


async def test_a_message_that_waits_is_given_up_for_a_reason(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    before = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id)
    page, here = await root.get(f"/console/messages/{id}"), f"/console/messages/{id}/give-up"
    wrong = await root.submit(page, here, given_up=" ")
    assert (wrong.status, "Give a reason" in wrong.words) == (422, True)
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


async def test_a_message_that_its_supplier_put_off_is_given_up(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    await pool.execute("UPDATE queue SET attempt = 1, target_id = id WHERE kind = 'sms'")
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 1, $2, 'busy', now(), now())",
        tenant.id,
        UUID(id),
    )
    page = await root.get(f"/console/messages/{id}")
    await root.submit(page, f"/console/messages/{id}/give-up", given_up="asked for by phone")
    assert await pool.fetchval("SELECT status FROM messages") == "canceled"


async def test_a_message_that_is_stuck_goes_elsewhere_or_is_said_to_have_ended(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    one, two = uuid7(), uuid7()
    for supplier, name, priority in ((one, "main", 1), (two, "backup", 2)):
        await pool.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, priority, created_at, changed_at)"
            " VALUES ($1, $2, 'smpp', '{}', '', $3, now(), now())",
            supplier,
            name,
            priority,
        )
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 minute', true, true FROM suppliers",
        uuid7(),
    )
    # It waits in the first one's line, and its response was lost there.
    await pool.execute("UPDATE queue SET line = $1, attempt = 1, target_id = $1 WHERE kind = 'sms'", one)
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 1, $3, 'unknown', now(), now())",
        tenant.id,
        UUID(id),
        one,
    )
    here = f"/console/messages/{id}"
    page = await root.get(here)
    assert f"{here}/give-up" not in page.text, "its supplier may have it"
    wrong = await root.submit(page, f"{here}/elsewhere", elsewhere=" ")
    assert (wrong.status, "Give a reason" in wrong.words) == (422, True)
    wrong = await root.submit(page, f"{here}/elsewhere", elsewhere="main is slow")
    assert (wrong.status, "Confirm that it may arrive twice, or wait" in wrong.words) == (422, True)
    assert "main is slow" in wrong.text, "what was typed is kept"
    done = await root.submit(wrong, f"{here}/elsewhere", elsewhere="main is slow", may_arrive_twice="yes")
    assert "main is skipped; the message goes to backup." in done.words
    assert await pool.fetchval("SELECT passed FROM queue WHERE kind = 'sms'") == [one]

    wrong = await root.submit(done, f"{here}/decide", decided="their ticket", status="read")
    assert (wrong.status, "do not end that way" in wrong.words) == (422, True)
    done = await root.submit(wrong, f"{here}/decide", decided="their ticket", status="delivered")
    assert "Its outcome is set" in done.words
    assert await pool.fetchval("SELECT status FROM messages") == "delivered"
    assert f"{here}/decide" not in done.text
    # Both audit logs say so, and the organization's does not name suppliers.
    rows = await pool.fetch(
        "SELECT action, reason, before, after FROM audit_log WHERE organization_id = $1 ORDER BY id", tenant.id
    )
    told = {row["action"]: row["reason"] for row in rows}
    assert told["message.sent_elsewhere"] == "main is slow"
    assert told["message.decided"] == "their ticket"
    assert not any("backup" in str(row["after"]) for row in rows)
    assert "their ticket" in (await root.get("/console/audit?action=message.decided")).words


async def test_a_whatsapp_message_that_waits_is_given_up(pool: Pool, root: Browser) -> None:
    who = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, who)
    page = await root.get(f"/console/messages/{id}")
    page = await root.submit(page, f"/console/messages/{id}/give-up", given_up="asked for by phone")
    assert "It has been given up" in page.words
    assert await pool.fetchval("SELECT status FROM whatsapp_messages") == "canceled"
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def test_what_meta_answered_is_told_with_its_meaning_and_in_metas_words(pool: Pool, root: Browser) -> None:
    who = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, who)
    here = f"/console/messages/{id}"
    answers = ((1, "131026", "Message undeliverable."), (2, "139999", "Something new"), (3, "http 500", ""))
    for attempt, code, detail in answers:
        await pool.execute(
            "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, code,"
            " detail) VALUES ($1, $2, $3, $4, 'refused', now(), now(), $5, $6)",
            who.organization_id,
            id,
            attempt,
            uuid7(),
            code,
            detail,
        )
    page = await root.get(here)
    assert "code 131026 · means undeliverable · in Meta's words Message undeliverable." in page.words
    assert "means Meta's error 139999, about which nothing more is known here" in page.words
    assert "in Meta's words Something new" in page.words
    assert "code http 500 · means" not in page.words
    page = await root.get(here, accept_language="pt")
    assert "significa não pode ser entregue · nas palavras da Meta Message undeliverable." in page.words
    assert "significa o erro 139999 da Meta" in page.words


async def test_the_words_of_why_stand_above_in_the_language_of_whoever_reads(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    await pool.execute("UPDATE messages SET status = 'rejected', failure_code = 'opted_out'")
    known = why("sms_failure", "opted_out")
    assert known is not None
    for language in ("en", "pt"):
        page, said = await root.get(f"/console/messages/{id}", accept_language=language), known.words(language)
        for one in (said.operator, said.cause, said.remedy):
            assert one in page.words, (language, one)
    await pool.execute("UPDATE messages SET status = 'delivered', failure_code = NULL")
    known = why("status", "delivered")
    assert known is not None
    assert known.en.operator in (await root.get(f"/console/messages/{id}", accept_language="en")).words


async def test_whatsapp_messages_of_test_mode_are_listed_with_those_of_live_mode(pool: Pool, root: Browser) -> None:
    who = await whatsapp_factories.made(pool)
    live, tried = [str(await whatsapp_factories.message(pool, who, mode=mode)) for mode in ("live", "test")]
    name = await pool.fetchval("SELECT name FROM organizations WHERE id = $1", who.organization_id)
    for asked_for in ("channel=whatsapp", "recipient=%2B258841234567", "request_id=nothing"):
        page = await root.get(f"/console/messages?organization={name}&{asked_for}")
        is_listed = "nothing" not in asked_for
        assert (live in page.text, tried in page.text) == (is_listed, is_listed), asked_for
        assert ('<span class="tag">Test</span>' in page.text) == is_listed
