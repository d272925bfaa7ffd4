"""The audit log: written with the change or not at all, without secrets, and searchable."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations, plans, quota
from heliograph.accounts.api_keys import lifecycle
from heliograph.audit import exporting, reading, recording
from heliograph.audit.failures import MOST, OTHERS, Failures
from heliograph.audit.reading import AuditEntry, Filter
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.crypto import derive_key
from heliograph.base.database.migrate import make_partitions
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings, SettingsError
from heliograph.consent import optouts
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.retention import forgetting
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing, suppliers
from heliograph.webhooks import changing, endpoints
from tests.rules.factories import organization

SHELL = Principal("cli", name="alice", reason="ticket 7")
KEY = derive_key("k" * 32, "tests")


async def audit_entries(conn: Connection, action: str | None = None, **values: Any) -> list[dict[str, Any]]:
    """Entries as they are shown, oldest first."""
    wanted = Filter(action=action, **values)
    return [reading.as_values(one) async for page in reading.everything(conn, wanted) for one in page][::-1]


async def test_an_act_says_who_what_on_what_and_what_changed(pool: Pool) -> None:
    async with pool.acquire() as conn:
        made = await organizations.create(conn, name="Acme", by=SHELL)
        await organizations.rename(conn, id=made.id, name="Acme Lda", by=SHELL)
        await organizations.configure(conn, id=made.id, opt_out_words=["FORA"], by=SHELL)
        await organizations.set_state(conn, id=made.id, state="suspended", by=Principal("operator", uuid7(), "bob"))
        created, renamed, configured, suspended = await audit_entries(conn)
    assert (created["who"], created["who_name"], created["reason"]) == ("cli", "alice", "ticket 7")
    assert created["action"] == "organization.created"
    assert created["object_id"] == str(made.id)
    assert created["organization_id"] == made.id
    assert (renamed["before"], renamed["after"]) == ({"name": "Acme"}, {"name": "Acme Lda"})
    assert (configured["before"], configured["after"]) == ({"opt_out_words": []}, {"opt_out_words": ["FORA"]})
    assert (suspended["who"], suspended["who_name"]) == ("operator", "bob")
    assert (suspended["before"], suspended["after"]) == ({"state": "active"}, {"state": "suspended"})


async def test_what_is_undone_was_never_recorded(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await lifecycle.issue(conn, actor, name="ci", profile="sms")
                raise ZeroDivisionError
        assert await audit_entries(conn) == []


async def test_a_key_tells_who_made_it_and_never_its_secret(pool: Pool) -> None:
    actor = await organization(pool)
    by = Principal("key", uuid7(), address="203.0.113.7", device="curl/8", request_id="req-1")
    async with pool.acquire() as conn:
        asking = msgspec.structs.replace(actor, by=by)
        key, secret = await lifecycle.issue(conn, asking, name="ci", profile="sms_only")
        await lifecycle.suspend(conn, actor, id=key.id)
        await lifecycle.suspend(conn, actor, id=key.id)
        await lifecycle.resume(conn, actor, id=key.id)
        await lifecycle.revoke(conn, actor, id=key.id)
        await lifecycle.revoke(conn, actor, id=key.id)
        entries = await audit_entries(conn, "api_key")
        stored = [tuple(row) for row in await conn.fetch("SELECT * FROM audit_log ORDER BY id")]
    assert [one["action"].partition(".")[2] for one in entries] == ["created", "suspended", "resumed", "revoked"]
    made = entries[0]
    assert (made["who"], made["who_id"], made["address"], made["device"]) == ("key", by.id, "203.0.113.7", "curl/8")
    assert (made["request_id"], made["object_name"]) == ("req-1", "ci")
    assert made["after"]["scopes"] == ["sms:send"]
    assert secret not in str(stored)


async def test_money_and_plans_are_told_with_their_reason(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    async with pool.acquire() as conn:
        await quota.grant(conn, actor.organization_id, amount=5, reason="invoice 7", by=SHELL)
        start = datetime.now(UTC) - timedelta(days=40)
        await plans.subscribe(conn, actor.organization_id, plans.Terms("big", 7), now=start, by=SHELL)
        await plans.renew(conn)
        granted, planned, begun = await audit_entries(conn)
    assert (granted["before"], granted["after"], granted["reason"]) == ({"total": 10}, {"total": 15}, "invoice 7")
    assert planned["after"]["plan"] == "big"
    assert (begun["action"], begun["who"], begun["after"]["allowance"]) == ("organization.period_begun", "system", 7)


async def test_people_are_not_named(pool: Pool) -> None:
    """Entries outlive a person who asks to be erased."""
    actor = await organization(pool)
    async with pool.acquire() as conn:
        contact = await records.create(conn, actor, entry=Entry("+258841234567", "Maria Silva", tags=("vip",)))
        await records.delete(conn, actor, id=contact.id)
        await optouts.add(conn, actor, phone="+258841234567")
        await optouts.remove(conn, actor, phone="+258841234567")
        entries = await audit_entries(conn)
        stored = str([tuple(row) for row in await conn.fetch("SELECT * FROM audit_log ORDER BY id")])
    assert [one["action"] for one in entries] == [
        "contact.created",
        "contact.deleted",
        "opt_out.added",
        "opt_out.lifted",
    ]
    assert entries[0]["after"] == {"phone": "…4567", "tags": ["vip"]}
    assert "84123456" not in stored
    assert "Maria" not in stored


async def test_a_number_typed_into_a_reason_is_cut(pool: Pool) -> None:
    """Nothing can be removed from the log when its person is erased."""
    spelled = "ticket 2026112800001: +258841112233, also +258 84 111 (22-33), asked on 2026-11-28"
    id = (await organization(pool)).organization_id
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=id, name="Acme", by=Principal("cli", name="alice", reason=spelled))
        await recording.record(conn, SYSTEM, "organization.created", object_id=id, reason="+258841112233")
        (renamed,), created = (
            await audit_entries(conn, "organization.renamed"),
            await audit_entries(conn, "organization.created"),
        )
    assert renamed["reason"] == "ticket 2026112800001: …2233, also …2233), asked on 2026-11-28"
    assert created[-1]["reason"] == "…2233"


async def test_a_suppliers_password_is_blanked_and_its_settings_are_compared(pool: Pool) -> None:
    async with pool.acquire() as conn:
        id = await suppliers.add(
            conn, KEY, name="main", kind="smpp", settings={"host": "a", "rate": 5}, secret="geheim", by=SHELL
        )
        (before,) = await routing.load(conn)
        after = msgspec.structs.replace(before, settings={"host": "a", "rate": 50}, weight=3)
        await suppliers.change(conn, KEY, after, before=before, secret="neu-geheim", by=SHELL)
        await suppliers.set_state(conn, supplier="main", state="paused", by=SHELL)
        added, changed, paused = await audit_entries(conn, object=str(id))
        stored = str([tuple(row) for row in await conn.fetch("SELECT * FROM audit_log ORDER BY id")])
    assert added["after"]["settings"] == {"host": "a", "rate": 5}
    assert changed["before"] == {"weight": 1, "settings.rate": 5}
    assert changed["after"] == {"weight": 3, "settings.rate": 50, "password": recording.SECRET}
    assert paused["after"] == {"state": "paused"}
    assert "geheim" not in stored


async def test_a_webhooks_secret_and_the_query_of_its_address_are_blanked(pool: Pool) -> None:
    actor = await organization(pool)
    rules = endpoints.EndpointRules(allow_http=False, networks=(), seal_key=KEY)
    url = "https://example.com/in?token=sesame"
    async with pool.acquire() as conn:
        one, secret = await endpoints.create(conn, actor, url=url, subscribed_events=["message.failed"], rules=rules)
        _, second, _ = await endpoints.rotate_secret(conn, actor, id=one.id, rules=rules)
        await changing.disable(conn, actor, id=one.id)
        await changing.disable(conn, actor, id=one.id)
        created, rotated, disabled = await audit_entries(conn, "webhook")
        stored = str([tuple(row) for row in await conn.fetch("SELECT * FROM audit_log ORDER BY id")])
    assert created["after"]["url"] == "https://example.com/in?(secret)"
    assert rotated["after"]["signing_secret"] == recording.SECRET
    assert disabled["after"]["disabled_reason"] == "requested"
    assert not any(word in stored for word in ("sesame", secret, second))


async def test_entries_are_found_by_author_object_action_and_time(pool: Pool) -> None:
    one, other = await organization(pool), await organization(pool)
    person = Principal("person", uuid7(), "Ana")
    async with pool.acquire() as conn:
        asked = await sender_ids.request(conn, one, value="ACME")
        await sender_ids.review(conn, msgspec.structs.replace(one, by=person), id=asked.id, status="approved")
        await quota.grant(conn, other.organization_id, amount=1, reason="x", by=SHELL)

        async def actions(**values: Any) -> list[str]:
            return [entry["action"] for entry in await audit_entries(conn, **values)]

        everything = ["sender_id.requested", "sender_id.reviewed", "quota.changed"]
        assert await actions() == everything
        assert await actions(organization_id=one.organization_id) == everything[:2]
        assert await actions(who="person") == ["sender_id.reviewed"]
        assert await actions(who="Ana") == ["sender_id.reviewed"]
        assert await actions(who=str(person.id)) == ["sender_id.reviewed"]
        assert await actions(action="sender_id") == everything[:2]
        assert await actions(action="quota.changed") == ["quota.changed"]
        assert await actions(object="acme") == everything[:2]
        assert await actions(object=str(asked.id)) == everything[:2]
        assert await actions(object=str(asked.id), organization_id=other.organization_id) == []
        now = await conn.fetchval("SELECT now()")
        assert await actions(date_from=now - timedelta(hours=1), date_to=now + timedelta(hours=1)) == everything
        assert await actions(date_to=now - timedelta(hours=1)) == []
        with pytest.raises(Invalid, match="action"):
            await actions(action="nonsense")


async def test_pages_go_on_where_the_last_one_ended(pool: Pool) -> None:
    async with pool.acquire() as conn:
        entries = [recording.Entry(action="rates.imported", object_id=str(number)) for number in range(7)]
        await recording.record_many(conn, SYSTEM, entries)
        seen: list[str] = []
        after: UUID | None = None
        while True:
            looked = await reading.list_page(conn, Filter(), after=after, limit=3)
            seen += [one.object_id for one in looked.entries]
            if looked.seen is None:
                break
            after = looked.seen
        # A search that finds nothing in its stretch returns its position, and the next one continues from there.
        short = await reading.list_page(conn, Filter(object="0"), limit=3, look=4)
        rest = await reading.list_page(conn, Filter(object="0"), after=short.seen, limit=3, look=4)
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]
    assert short.entries == []
    assert [one.object_id for one in rest.entries] == ["0"]


async def test_an_export_is_an_entry_of_its_own(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=actor.organization_id, name="=cmd|' /C calc'!A0", by=SHELL)
        plain, lines = io.StringIO(), io.StringIO()
        wanted = Filter(organization_id=actor.organization_id)
        assert await exporting.write(conn, SHELL, wanted, file=plain) == 2
        assert await exporting.write(conn, SHELL, wanted, file=lines, as_json=True) == 3
    rows = list(csv.DictReader(io.StringIO(plain.getvalue())))
    assert tuple(rows[0]) == AuditEntry.__struct_fields__
    assert [row["action"] for row in rows] == ["audit.exported", "organization.renamed"]
    assert rows[1]["object_name"].startswith("'=")
    decoded = [msgspec.json.decode(line) for line in lines.getvalue().splitlines()]
    assert decoded[2]["after"] == {"name": "=cmd|' /C calc'!A0"}


async def test_failed_authentications_are_folded_by_address(pool: Pool) -> None:
    failures = Failures(pool)
    for _ in range(50):
        failures.note("203.0.113.7")
    failures.note("2001:db8::1")
    failures.note("2001:db8::2", door="dashboard")
    await failures.noted.write()
    async with pool.acquire() as conn:
        entries = await audit_entries(conn, "authentication.failed")
    assert sorted((one["object_id"], one["count"], one["after"]["door"]) for one in entries) == [
        ("2001:db8::/64", 1, "api"),
        ("2001:db8::/64", 1, "dashboard"),
        ("203.0.113.7", 50, "api"),
    ]
    assert {one["who"] for one in entries} == {"unknown"}
    await failures.noted.write()
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == 3


async def test_many_addresses_share_an_entry(pool: Pool) -> None:
    failures = Failures(pool)
    for number in range(3 * MOST):
        failures.note(f"10.0.{number // 256}.{number % 256}")
    await failures.noted.write()
    async with pool.acquire() as conn:
        counts = {one["object_id"]: one["count"] for one in await audit_entries(conn)}
    assert len(counts) == MOST + 1
    assert counts[OTHERS] == 2 * MOST


async def test_what_could_not_be_written_waits_for_the_database(pool: Pool, database_url: str) -> None:
    failures = Failures(pool)
    failures.note("203.0.113.7")
    pool.suspend()
    await failures.noted.write()
    pool.resume()
    failures.note("203.0.113.7")
    await failures.noted.write()
    assert await pool.fetchval("SELECT sum(count) FROM audit_log") == 2


async def test_as_many_addresses_wait_for_the_database_as_for_a_write(pool: Pool) -> None:
    failures = Failures(pool)
    pool.suspend()
    for minute in range(3):
        for number in range(MOST):
            failures.note(f"10.{minute}.0.{number}")
        await failures.noted.write()
    pool.resume()
    await failures.noted.write()
    rows = await pool.fetch("SELECT object_id, count FROM audit_log ORDER BY id")
    assert (len(rows), {row["object_id"]: row["count"] for row in rows}[OTHERS]) == (MOST + 1, 2 * MOST)


async def test_long_and_strange_words_are_kept_short(pool: Pool) -> None:
    by = Principal("key", uuid7(), device="x" * 5000 + "\0", reason="y" * 5000)
    values = {"note": "z" * 5000, "many": list(range(500)), "body": "secret text", "phone": "+258841234567"}
    async with pool.acquire() as conn:
        await recording.record(conn, by, "rates.imported", object_id="\ud800", after=values)
        (entry,) = await audit_entries(conn)
    assert len(entry["device"]) == recording.LONGEST_SAID
    assert len(entry["reason"]) == len(entry["after"]["note"]) == recording.LONGEST
    assert len(entry["after"]["many"]) == recording.MOST
    assert entry["after"]["body"] == recording.SECRET
    assert entry["after"]["phone"] == "…4567"


async def test_the_log_is_kept_for_thirteen_months_at_least(pool: Pool) -> None:
    with pytest.raises(SettingsError, match="AUDIT_RETENTION_MONTHS"):
        Settings(audit_retention_months=12)
    settings = Settings(audit_retention_months=13)
    async with pool.acquire() as conn:
        now = (await conn.fetchval("SELECT now()")).astimezone(UTC)
        for months in (15, 12):
            at = now - timedelta(days=31 * months)
            await make_partitions(conn, at.date(), ahead=0)
        await forgetting.forget(conn, settings)
        left = [row[0] for row in await conn.fetch("SELECT relid::text FROM pg_partition_tree('audit_log')")]
    assert f"audit_log_{now - timedelta(days=31 * 12):%Y_%m}" in left
    assert f"audit_log_{now - timedelta(days=31 * 15):%Y_%m}" not in left


def actor_of(one: Actor, by: Principal) -> Actor:
    return msgspec.structs.replace(one, by=by)


async def test_an_actor_is_named_by_what_is_known_of_it(pool: Pool) -> None:
    actor = await organization(pool)
    assert actor.principal == SYSTEM
    id = uuid7()
    assert msgspec.structs.replace(actor, key_id=id).principal == Principal("key", id)
    assert actor_of(actor, SHELL).principal == SHELL
