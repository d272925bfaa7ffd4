"""Erasing a person on a real database: under every name, everything that they and others wrote, and nobody else's
data."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import idempotency
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import plan, record
from heliograph.campaigns.filling import Filling
from heliograph.campaigns.record import Counts
from heliograph.campaigns.staging import Stager
from heliograph.consent import optouts, people
from heliograph.contacts import notes, records
from heliograph.contacts.imports import running
from heliograph.contacts.records import Entry
from heliograph.contacts.sheets import Row
from heliograph.privacy import answers, erasure, holdings
from heliograph.queue import timers
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.received import inbound, inbox
from heliograph.suppliers.contract import Inbound
from tests.rules import test_campaigns as campaigns
from tests.rules import test_whatsapp_campaigns as whatsapp_campaigns
from tests.rules.callback_factories import Change, Meta, ago, message
from tests.rules.factories import check_books, check_ledger, key, organization, send, sender
from tests.rules.factories import message as sms
from tests.rules.whatsapp_factories import PRICES, Made, check_wallets, made
from tests.rules.whatsapp_factories import message as whatsapp

ANA, ANA_8, BIA = "+5511987654321", "+551187654321", "+258841234568"
CLEO = "+61412345678"


async def rows_of(pool: Pool, table: str, actor: Actor) -> int:
    count: int = await pool.fetchval(f"SELECT count(*) FROM {table} WHERE organization_id = $1", actor.organization_id)
    return count


async def texts(pool: Pool, actor: Actor) -> int:
    """How many texts of an organization's SMS are left, in either direction."""
    found: int = await pool.fetchval(
        "SELECT (SELECT count(body) FROM messages WHERE organization_id = $1)"
        "     + (SELECT count(body) FROM received_messages WHERE organization_id = $1)",
        actor.organization_id,
    )
    return found


async def test_a_person_is_erased_by_any_of_their_names_and_bills_stay(pool: Pool) -> None:
    acme = await made(pool)
    actor, other = acme.actor, await organization(pool)
    await sender(pool, actor, "258800001234")
    acceptor = Acceptor(pool)
    for who in (actor, other):
        for to in (ANA, ANA_8, BIA):
            assert (await acceptor.accept(send(who, to=to))).status == 202
            async with pool.acquire() as conn:
                contact = await records.create(conn, who, entry=Entry(to, "Somebody", tags=("vip",)))
                await notes.write(conn, who, id=contact.id, notes=f"Calls after six: {to}")
    async with pool.acquire() as conn, conn.transaction():
        await timers.ensure(conn, inbox.TIMER)
        said = [Inbound(by[1:], "258800001234", "hello", b"raw") for by in (ANA, BIA)]
        await inbound.store(conn, UUID(int=1), said)
        await optouts.add(conn, actor, phone=ANA_8)
    async with pool.acquire() as conn:
        assert (await inbox.process_due(conn)).rows == 2
        await people.link(conn, [(actor.organization_id, ANA, "BR.1")])
    await Meta(pool).say(acme, message(acme, "hi", by=None, user_id="BR.1"), message(acme, "hi", by=BIA))

    async with pool.acquire() as conn:
        listed = [row async for row in holdings.held(conn, actor, address=ANA_8)]
        assert {row["notes"] for row in listed if row["what"] == "contact"} == {
            f"Calls after six: {one}" for one in (ANA, ANA_8)
        }
        held = Counter(row["what"] for row in listed)
        assert held == {
            "contact": 2,
            "opt_out": 1,
            "consent": 1,
            "name": 2,
            "message": 2,
            "message_received": 1,
            "whatsapp_message": 1,
            "whatsapp_conversation": 1,
            "conversation": 2,
        }
        done = await erasure.erase(conn, actor, address="BR.1")
        assert done.erased == {
            "contacts": 2,
            "sms_sent": 2,
            "sms_received": 1,
            "parts_as_delivered": 1,
            "whatsapp_messages": 1,
            "texts_in_events": 2,
            "conversations": 2,
            "consent_history": 1,
        }
        assert done.withdrawn == {"sms": 2}
        assert done.kept == {"messages_without_text": 4, "opt_outs": 1, "linked_names": 2}
        again = await erasure.erase(conn, actor, address=ANA_8)
        assert (again.erased, again.kept, again.id != done.id) == ({}, done.kept, True)
        shown = [row async for row in holdings.held(conn, actor, address="BR.1")]
        assert not [
            row for row in shown if row.get("body") or row.get("content") or row["what"] in ("contact", "consent")
        ]
    # The log keeps the receipt, which does not name the person.
    logged = await pool.fetch("SELECT action, object_id, after FROM audit_log WHERE action LIKE 'person.%' ORDER BY id")
    assert [row["action"] for row in logged] == [
        *("person.exported", "person.erasing", "person.erased", "person.erasing", "person.erased", "person.exported")
    ]
    assert msgspec.json.decode(logged[2]["after"]) == msgspec.to_builtins(done)
    assert not [row for row in logged for name in (ANA, ANA_8) if name in str(tuple(row))]
    left = await pool.fetch("SELECT phone FROM contacts WHERE organization_id = $1", actor.organization_id)
    assert [row[0] for row in left] == [BIA]
    assert (await rows_of(pool, "contact_notes", actor), await rows_of(pool, "contact_notes", other)) == (1, 3)
    for table, count in (("messages", 3), ("received_messages", 2), ("whatsapp_messages", 2), ("opt_outs", 1)):
        assert (
            await pool.fetchval(f"SELECT count(*) FROM {table} WHERE organization_id = $1", actor.organization_id)
            == count
        )
    assert await texts(pool, actor) == 2
    assert await pool.fetchval("SELECT count(content) FROM whatsapp_messages") == 1
    told = await pool.fetch("SELECT data FROM events WHERE kind = 'message.received' AND data LIKE '%\"text\":\"%'")
    assert len(told) == 2
    assert not [row for row in told if ANA in row["data"] or "BR.1" in row["data"]]
    assert await pool.fetchval("SELECT count(*) FROM inbound_messages WHERE raw = ''") == 1
    assert await texts(pool, other) == 3
    await check_books(pool, [other.organization_id])


async def answer(pool: Pool, who: Actor, name: str, body: str) -> None:
    """Store the response to a request under the key `name`."""

    async def run() -> tuple[int, bytes]:
        return 200, body.encode()

    async with pool.acquire() as conn:
        await idempotency.once(conn, who, key=key(name), request=bytes(32), hours=72, wait_seconds=1, run=run)


async def test_stored_answers_that_name_a_person_go(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is used again would return the name and the number."""
    monkeypatch.setattr(erasure, "STEP", 2)
    actor, other = await organization(pool), await organization(pool)

    for n, (who, phone) in enumerate(
        [(actor, ANA), (actor, BIA), (actor, ANA_8), (actor, ANA + "0"), (actor, BIA), (other, ANA)]
    ):
        await answer(pool, who, f"c{n}", f'{{"contact":{{"name":"Somebody","phone":"{phone}"}}}}')
    async with pool.acquire() as conn:
        done = await erasure.erase(conn, actor, address=ANA)
    assert done.erased == {"stored_answers": 2}
    left = await pool.fetch("SELECT organization_id, key_hash FROM idempotency")
    assert {row["key_hash"] for row in left} == {key("c1"), key("c3"), key("c4"), key("c5")}


@pytest.mark.parametrize(
    ("number", "typed"), [("+2389911234", "991 12 34"), ("+258841234567", "84 123-4567"), ("+298212345", "21 23 45")]
)
async def test_rejected_rows_go_that_have_the_number_as_it_is_written_at_home(
    pool: Pool, number: str, typed: str
) -> None:
    actor = await organization(pool)
    rows = [Row(1, ["Ana", typed]), Row(2, ["Bia", typed[:-1]])]
    async with pool.acquire() as conn:
        await running.keep_rejects(conn, actor, id=uuid7(), rejected=[(row, "why") for row in rows])
        done = await erasure.erase(conn, actor, address=number)
    assert done.erased == {"rejected_rows": 1}
    assert await pool.fetchval("SELECT array_agg(row) FROM contact_import_rejects") == [2]


WRITTEN = """
INSERT INTO receipt_bytes (received_on, id, fingerprints, raw, received_at)
VALUES ((now() AT TIME ZONE 'UTC')::date, $1, $2, $3, now())
"""
LATER = """
INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at,
                      organization_id, message_id)
VALUES ((now() AT TIME ZONE 'UTC')::date, $2, $1, '{x}', 'delivered', '', '1', '1', now(), $3, $2)
"""
ANSWERED = """
INSERT INTO webhook_attempt_evidence (organization_id, begun_on, event_id, endpoint_id, started_at, url, sent, head,
                                      body)
VALUES ($1, (now() AT TIME ZONE 'UTC')::date, $2, $3, now(), '', '', '', $4)
"""


async def test_what_suppliers_and_receivers_wrote_of_a_persons_messages_goes(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts repeat the beginning of a text, and a receiver may respond with everything it got."""
    monkeypatch.setattr(answers, "STEP", 1)
    actor, other = await organization(pool), await organization(pool)
    fingerprints = [uuid7() for _ in range(4)]
    for who, to, (first, *later) in (
        (actor, ANA_8, fingerprints[:2]),
        (actor, BIA, fingerprints[2:3]),
        (other, ANA, fingerprints[3:]),
    ):
        id = await sms(pool, who, to=to, status="delivered", queued=False)
        await pool.execute("UPDATE messages SET receipt = $2, receipt_at = now() WHERE id = $1", id, first)
        for fingerprint in later:
            await pool.execute(LATER, fingerprint, id, who.organization_id)
    await pool.execute(WRITTEN, uuid7(), fingerprints, [f"text:hi {n}".encode() for n in range(4)])
    event = uuid7()
    for who, its, body in (
        (actor, event, f"debug: to={ANA[1:]}"),
        (actor, event, f"debug: to=%2B{ANA_8[1:]}"),
        (actor, uuid7(), f"debug: to={BIA}"),
        (actor, uuid7(), f'{{"got":{{"to":"{ANA}"}}}}'),
        (other, uuid7(), f"debug: to={ANA}"),
    ):
        await pool.execute(ANSWERED, who.organization_id, its, uuid7(), body.encode())
    async with pool.acquire() as conn:
        done = await erasure.erase(conn, actor, address=ANA)
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {}
    assert done.erased == {"sms_sent": 1, "receipts_as_written": 1, "answers_of_receivers": 3}
    assert await pool.fetchval("SELECT raw FROM receipt_bytes") == [b"", b"", b"text:hi 2", b"text:hi 3"]
    left = await pool.fetch("SELECT body FROM webhook_attempt_evidence ORDER BY event_id")
    assert [row["body"].decode() for row in left] == [f"debug: to={BIA}", f"debug: to={ANA}"]


async def counts_of(pool: Pool, id: UUID) -> tuple[str, Counts]:
    row = await pool.fetchrow(f"SELECT status, {record.COUNTS} FROM campaigns WHERE id = $1", id)
    return row[0], Counts(*row[1:])


async def listed_for(pool: Pool, who: Made | Actor, **values: Any) -> UUID:
    """A campaign to BIA, to ANA under one of her spellings, and to CLEO, in this order; on WhatsApp for a `Made`."""
    listed = [ANA_8, BIA, CLEO]
    if isinstance(who, Made):
        filled = (Filling(text="Ana"), Filling(text="4471"))
        await pool.execute("UPDATE whatsapp_templates SET category = 'utility'")
        return (
            await whatsapp_campaigns.create(
                pool, who, audience_tags=None, recipients=listed, parameters=filled, **values
            )
        ).id
    return (await campaigns.create(pool, who, recipients=listed, **values)).id


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
@pytest.mark.parametrize("when", ["scheduled", "running", "read ahead"])
async def test_a_campaign_writes_to_nobody_who_was_erased_before_their_turn(
    pool: Pool, channel: str, when: str
) -> None:
    """Not by a campaign with only the number, either: an erased person is not messaged, and the campaign's counts say
    so."""
    known = await made(pool)
    who = known if channel == "whatsapp" else known.actor
    later = {"scheduled_at": datetime.now(UTC) + timedelta(hours=1)} if when == "scheduled" else {}
    id = await listed_for(pool, who, **later)
    stager = Stager(pool, chunk=1)
    if when != "scheduled":
        while not await pool.fetchval("SELECT queued FROM campaigns"):
            await stager.round()
        assert stager._ahead is not None
        await stager._ahead.task
    if when == "running":
        stager = Stager(pool, chunk=1)
    async with pool.acquire() as conn:
        held = [
            row["phone"] async for row in holdings.held(conn, known.actor, address=ANA_8) if row["what"] == "campaign"
        ]
        assert held == [ANA]
        receipt = await erasure.erase(conn, known.actor, address=ANA_8)
        assert (receipt.erased, receipt.withdrawn) == ({"recipients_of_campaigns": 1}, {})
        again = await erasure.erase(conn, known.actor, address=ANA_8)
        assert (again.erased, again.withdrawn) == ({}, {})
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE status = 'scheduled'")
    while await stager.round():
        pass
    assert await counts_of(pool, id) == ("running", campaigns.counts(queued=2))
    table = "messages" if channel == "sms" else "whatsapp_messages"
    assert await pool.fetchval(f"SELECT array_agg(recipient ORDER BY id) FROM {table}") == [BIA, CLEO]


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
@pytest.mark.parametrize("paused", [False, True])
async def test_what_waits_for_a_person_who_is_erased_is_withdrawn_and_costs_nothing(
    pool: Pool, channel: str, paused: bool
) -> None:
    known = await made(pool)
    actor = known.actor
    id = await listed_for(pool, known if channel == "whatsapp" else actor)
    await campaigns.run(pool)
    if channel == "sms":
        assert (await Acceptor(pool).accept(send(actor, to=ANA))).status == 202
    if paused:
        async with pool.acquire() as conn, conn.transaction():
            await plan.pause(conn, actor, id=id, channel=channel)
        await campaigns.run(pool)
    async with pool.acquire() as conn:
        receipt = await erasure.erase(conn, actor, address=ANA)
    if channel == "sms":
        assert receipt.withdrawn == {"sms": 2}
        assert receipt.erased == {"sms_sent": 2}
        assert await pool.fetchval("SELECT used FROM quotas") == 2
    else:
        assert receipt.withdrawn == {"whatsapp_messages": 1}
        assert receipt.erased == {"whatsapp_messages": 1}
        assert await pool.fetchval("SELECT reserved FROM wallets") == PRICES["utility", "MZ"] + PRICES["utility", "*"]
    table = "messages" if channel == "sms" else "whatsapp_messages"
    statuses = await pool.fetch(f"SELECT DISTINCT recipient IN ($1, $2), status FROM {table} ORDER BY 1", BIA, CLEO)
    assert [tuple(row) for row in statuses] == [(False, "canceled"), (True, "accepted")]
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = $1", channel) == 2
    await campaigns.count(pool)
    assert (await counts_of(pool, id))[1] == campaigns.counts(queued=2, canceled=1)
    await check_ledger(pool, [actor.organization_id])
    await check_wallets(pool, [actor.organization_id])


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_a_worker_is_handing_over_stays_with_it(pool: Pool, channel: str) -> None:
    """It may have been sent: nobody says that it was withdrawn, and it ends with its outcome."""
    known = await made(pool)
    await listed_for(pool, known if channel == "whatsapp" else known.actor)
    await campaigns.run(pool)
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute', lease_token = gen_random_uuid()")
    async with pool.acquire() as conn:
        receipt = await erasure.erase(conn, known.actor, address=ANA)
    assert receipt.withdrawn == {}
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = $1", channel) == 3


async def test_a_number_that_somebody_else_has_now_is_each_owners_for_their_time(pool: Pool) -> None:
    """Somebody who moved is erased with what is stored under the old number; its present owner sees nothing of that."""
    acme, meta = await made(pool), Meta(pool)
    there, last = "+258847777777", "+258849999999"
    await sender(pool, acme.actor, "258800001234")

    def moved(old: str, new: str, hours: float) -> Change:
        system = {"type": "user_changed_number", "body": "changed", "wa_id": new[1:]}
        return message(acme, type="system", by=old, at=ago(hours=hours), system=system)

    async def held(address: str) -> dict[str, int]:
        async with pool.acquire() as conn:
            rows = [row async for row in holdings.held(conn, acme.actor, address=address)]
        texts = [row["what"] for row in rows if row.get("body") or row.get("content")]
        return dict(Counter(texts))

    async def former(address: str) -> list[tuple[str, str]]:
        async with pool.acquire() as conn:
            rows = [row async for row in holdings.held(conn, acme.actor, address=address)]
        return [(row["name"], row["moved_to"]) for row in rows if row["what"] == "former_number"]

    async def write(number: str) -> None:
        await sms(pool, acme.actor, to=number)
        await whatsapp(pool, acme, to=number)
        async with pool.acquire() as conn, conn.transaction():
            await timers.ensure(conn, inbox.TIMER)
            said = Inbound(number[1:], "258800001234", f"hello {uuid7()}", uuid7().bytes)
            await inbound.store(conn, UUID(int=1), [said])
        async with pool.acquire() as conn:
            await inbox.process_due(conn)

    await meta.say(acme, message(acme, "mine", ago(hours=60), by=BIA))
    await write(BIA)
    await meta.say(acme, moved(BIA, there, 50), moved(there, last, 40))
    since = clock.now()
    for number in (BIA, there):
        await meta.say(acme, message(acme, "a stranger's", by=number))
        await write(number)
    await pool.execute("UPDATE former_names SET taken_at = $1", since)
    own = {"message": 1, "message_received": 1, "whatsapp_message": 2}
    theirs = own | {"whatsapp_message": 4}
    assert [await held(one) for one in (BIA, there, last)] == [own, own, theirs]
    assert [await former(one) for one in (BIA, there, last)] == [[], [], [(BIA, there), (there, last)]]
    waiting = {"sms": 1, "whatsapp_messages": 1}
    # What repeats the old number is not only the new owner's.
    await answer(pool, acme.actor, "c1", f'{{"contact":{{"phone":"{BIA}"}}}}')
    await pool.execute(ANSWERED, acme.organization_id, uuid7(), uuid7(), f"debug: to={BIA}".encode())
    async with pool.acquire() as conn:
        done = await erasure.erase(conn, acme.actor, address=last)
        assert [await held(one) for one in (BIA, there, last)] == [own, own, {}]
        assert (await erasure.erase(conn, acme.actor, address=BIA)).withdrawn == waiting
    assert done.withdrawn == waiting
    assert (done.erased["whatsapp_messages"], done.erased["sms_sent"], done.erased["sms_received"]) == (4, 1, 1)
    assert (done.erased["stored_answers"], done.erased["answers_of_receivers"]) == (1, 1)
    assert done.names == 3
    # Without these, the texts of the next owners would be theirs, and their opt-out would not apply under every name.
    assert done.kept["linked_names"] == 3
    assert [await held(one) for one in (BIA, there, last)] == [{}, own, {}]
