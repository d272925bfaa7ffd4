"""O1, O10 and O11: the state of the installation, and what an operator can do about it."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest

from heliograph import __version__
from heliograph.base import sentences
from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import SECRETS, SOURCES, Settings, from_environment, in_force
from heliograph.base.sentences import Check, quoted
from heliograph.cli.traffic.queue import COLUMNS
from heliograph.console.engine import now, selecting
from heliograph.console.engine.console_cache import SHARED, ConsoleCache
from heliograph.health import database, findings
from heliograph.overview.installation import now as state
from heliograph.overview.installation import steps
from heliograph.overview.installation.now import Watch
from heliograph.pages.requests import Request
from heliograph.people import users
from heliograph.people.operators import accounts
from heliograph.queue import holds, waiting
from heliograph.queue.waiting import Waiting
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import suppliers
from heliograph.traffic.reconciliation import Line
from heliograph.worker import Worker
from tests.api.conftest import SECRET_KEY, Api, Tenant
from tests.journeys.test_cli import Cli
from tests.rules.factories import long_queue, organization

from .conftest import Browser, signed_in
from .test_suppliers import add

KEY = derive_key(SECRET_KEY, "suppliers")


async def test_now_names_what_is_wrong_with_its_remedy(pool: Pool, root: Browser) -> None:
    page = await root.get("/console/now")
    assert page.status == 200
    # No worker runs in this test, and there is no supplier.
    assert "wrong" in page.words
    assert "No worker is running: nothing is sent." in page.words
    assert "What to do" in page.words
    assert "No supplier yet" in page.words


async def test_what_is_wrong_is_told_since_when(pool: Pool) -> None:
    cache = ConsoleCache()
    failed = Check(quoted("workers"), "failed", quoted("none"), quoted("Start one."))
    warned = Check(quoted("backups"), "warning", quoted("old"), quoted("Take one."))
    fine = Check(quoted("database"), "ok", quoted("18"))
    first = cache.problems([fine, warned])
    second = cache.problems([fine, warned, failed])
    assert [one.check.check for one in second] == ["workers", "backups"], "failures come first"
    assert second[1].since == first[0].since
    assert cache.problems([fine]) == []
    assert cache.problems([warned])[0].since >= second[0].since, "what was well meanwhile is told anew"


async def test_of_many_findings_some_are_only_named(pool: Pool, root: Browser) -> None:
    """Failures are shown in full; warnings behind them only by name and time."""
    async with pool.acquire() as conn:
        for n in range(15):
            values = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
            id = await suppliers.add(conn, KEY, name=f"carrier-{n:02}", kind="smpp", settings=values, secret="s")
            if n != 7:
                await conn.execute("UPDATE suppliers SET state = 'paused' WHERE id = $1", id)
    page = await root.get("/console/now")
    said = re.findall(r'class="card trouble (failed|warning)">\s*<h2>.*?</svg> ([^<]*?) <', page.text)
    assert len(said) == 12
    assert ("failed", "supplier carrier-07") in said
    assert [state for state, _ in said] == sorted(state for state, _ in said), "failures come first"
    assert "more findings" in page.words
    for n in range(15):
        assert f"supplier carrier-{n:02}" in page.words.partition("Per second")[0]
    assert "ocorrências" in (await root.get("/console/now", accept_language="pt")).words


async def test_of_many_findings_that_say_the_same_some_are_named(pool: Pool, root: Browser) -> None:
    async with pool.acquire() as conn:
        for n in range(30):
            values = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
            id = await suppliers.add(conn, KEY, name=f"carrier-{n:02}", kind="smpp", settings=values, secret="s")
            await conn.execute("UPDATE suppliers SET state = 'paused' WHERE id = $1", id)
    page = await root.get("/console/now")
    listed = page.text.partition('aria-labelledby="more-of"')[2].partition("</section>")[0]
    assert listed.count(">supplier carrier-") == now.NAMED
    (others,) = re.findall(r'<a href="/console/health">and (\d+) more like these</a>', listed)
    whole = len(set(re.findall(r"supplier (carrier-\d+)", page.text.partition("Per second")[0])))
    assert whole + int(others) == 30, "each is shown, named or counted"
    health = await root.get("/console/health")
    assert all(f"supplier carrier-{n:02}" in health.words for n in range(30))


def test_that_no_worker_runs_comes_before_what_follows_from_it() -> None:
    """Missing supplier sessions are noticed some seconds before their worker is."""
    names = [sentences.said("supplier %(name)s", name=f"carrier-{n:02}") for n in range(20)]
    lost = [Check(name, "failed", sentences.said("no session bound"), quoted("Look.")) for name in names]
    paused = Check(sentences.said("supplier %(name)s", name="old"), "warning", quoted("paused"), quoted("Resume."))
    gone = Check(sentences.said("workers"), "failed", quoted("none"), sentences.said("Start `heliograph worker`."))
    cache = ConsoleCache()
    cache.problems([paused, *lost])
    found = [one.check for one in cache.problems([paused, *lost, gone])]
    assert found == [gone, *lost, paused]


async def test_what_was_counted_only_so_far_says_that_there_is_more(pool: Pool, root: Browser) -> None:
    async with pool.acquire() as conn:
        id = await suppliers.add(
            conn, KEY, name="main", kind="smpp", settings={"host": "127.0.0.1", "system_id": "a"}, secret="s"
        )
    queued = (
        "INSERT INTO queue (id, kind, line, organization_id, due_at)"
        " SELECT gen_random_uuid(), 'sms', $1, $1, now() + interval '1 day' FROM generate_series(1, $2::int)"
    )
    stored = (
        "INSERT INTO whatsapp_callbacks (id, app, body, received_at)"
        " SELECT gen_random_uuid(), $1, '', now() FROM generate_series(1, $2::int)"
    )
    pages = {
        "/console/now": ("SMS", "Callbacks"),
        "/console/suppliers": (),
        f"/console/suppliers/{id}": ("Waiting for it",),
        "/console/whatsapp/callbacks": ("Waiting",),
    }
    for more, said in ((state.COUNTED, "10,000"), (1, "more than 10,000")):
        await pool.execute(queued, id, more)
        await pool.execute(stored, id, more)
        for path, labels in pages.items():
            page = await root.get(path)
            for label in labels:
                assert f"{label} {said} " in page.words, (path, label)
            if path in ("/console/now", "/console/suppliers"):
                assert f'data-name="Waiting">{said}<' in page.text, path


class Asking:
    """The part of a request that a check needs."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self.services = pool, SimpleNamespace(settings=settings)

    def reading(self) -> Any:
        return self._pool.acquire()


async def test_those_who_look_at_once_share_a_look(pool: Pool, settings: Settings) -> None:
    looks, clock = 0, [100.0]
    settings = msgspec.structs.replace(settings, database_url="postgresql://far.example/x")

    async def examine(*_: object, **__: object) -> list[Check]:
        nonlocal looks
        looks += 1
        clock[0] += 0.4
        await asyncio.sleep(0)
        return []

    cache, asking = ConsoleCache(examine=examine, monotonic=lambda: clock[0]), cast("Request", Asking(pool, settings))
    await asyncio.gather(*(cache.refresh(asking, fresh=SHARED) for _ in range(5)))
    assert looks == 1
    clock[0] += SHARED - 0.5
    await cache.refresh(asking, fresh=SHARED)
    assert looks == 1, "what is known is as old as the beginning of its look"
    clock[0] += 0.2
    await cache.refresh(asking)
    assert looks == 1, "the bell is content with it"
    await cache.refresh(asking, fresh=SHARED)
    assert looks == 2


async def test_a_look_asks_the_same_once(pool: Pool, settings: Settings) -> None:
    asked: list[str] = []
    cache, settings = ConsoleCache(), msgspec.structs.replace(settings, database_url="postgresql://localhost/x")
    async with pool.acquire() as conn:
        with conn.query_logger(lambda query: asked.append(query.query)):
            await cache.look(conn, settings)
    assert asked.count(database.OFF) == 1
    assert asked.count(database.PLACE) == 1
    assert cache.database.room is not None, "the tests' database is on this machine"


@pytest.mark.fresh_database  # idle sessions report their last test's statistics late
async def test_rates_are_those_between_two_looks(pool: Pool, api: Api, tenant: Tenant) -> None:
    clock = [100.0]
    watch = Watch(monotonic=lambda: clock[0])
    async with pool.acquire() as conn:
        assert (await watch.read(conn)).rates is None
        clock[0] += 10
        seen = await watch.read(conn)
    assert seen.rates is not None
    assert seen.rates.accepted == 0
    status, _, _ = await api.ask(
        "POST",
        "/sms/send",
        json={"to": "+258841234567", "message": "Hello"},
        headers=tenant.headers | {"idempotency-key": "one"},
    )
    assert status == 202
    async with pool.acquire() as conn:
        assert (await watch.read(conn)).queued["sms"] == 1


async def test_now_names_what_is_missing_and_whose_quota_ends(pool: Pool, tenant: Tenant, root: Browser) -> None:
    words = (await root.get("/console/now")).words
    assert "Before others rely on it 2 of 6 done" in words, "an organization and its sender ID are there"
    assert "Look into it : workers" in words
    assert "Nearly out of quota" not in words
    await pool.execute("UPDATE quotas SET used = 899")
    assert "Nearly out of quota" not in (await root.get("/console/now")).words
    await pool.execute("UPDATE quotas SET used = 999")
    async with pool.acquire() as conn:
        await accounts.add(conn, SYSTEM, user_id=await second(pool), email="rui@example.com", role="root")
    page = await root.get("/console/now", accept_language="pt")
    assert "Perto do fim da quota Acme 99 %" in page.words
    assert "2 de 6" in page.words, "a second operator who was invited cannot sign in yet"
    await pool.execute("UPDATE users SET totp = 'sealed' WHERE email = 'rui@example.com'")
    assert "3 de 6" in (await root.get("/console/now", accept_language="pt")).words
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    assert "Perto do fim" not in (await root.get("/console/now", accept_language="pt")).words


async def test_workers_say_what_they_run_and_occupy(pool: Pool, root: Browser, settings: Settings) -> None:
    await Worker(settings, pool, channels={})._beat()
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'old', now(), now())", uuid4())
    # After a minute without a heartbeat, a worker is gone: none of these steps need be fast.
    await pool.execute("UPDATE workers SET seen_at = now() + interval '50 seconds'")
    async with pool.acquire() as conn:
        mine, old = sorted(await state.workers(conn), key=lambda one: one.name == "old")
    assert (mine.version, old.version, old.memory, mine.sessions) == (__version__, "", None, 0)
    assert mine.memory is None or mine.memory > 10_000_000
    for page in ("/console/now", "/console/queue"):
        words = (await root.get(page)).words
        assert f"works {__version__} 0 " in words, page
        assert "old ● works – 0 – " in words, page


async def second(pool: Pool) -> UUID:
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, SYSTEM, email="rui@example.com", name="Rui")
    return user.id


async def test_what_is_missing_is_looked_for_until_nothing_is(pool: Pool) -> None:
    clock = [100.0]
    watch = Watch(monotonic=lambda: clock[0])
    done = steps.Facts(steps.Setup(True, True, True, True, True), [], False, 0)
    async with pool.acquire() as conn:
        assert not (await watch.read(conn)).facts.setup.is_done
        watch._facts = (clock[0], done)
        assert (await watch.read(conn)).facts.setup.is_done, "it is as it was half a minute ago"
        clock[0] += 30
        assert not (await watch.read(conn)).facts.setup.is_done


def test_receipts_of_all_suppliers_are_added_up() -> None:
    def line(to_receipt: list[int], **counts: int) -> Line:
        return Line(
            supplier_id=uuid4(),
            at=None,
            country=None,
            counts=counts,
            segments={},
            amounts={},
            unpriced={},
            to_receipt=to_receipt,
        )

    none = now.reported([])
    assert (none.delivered, none.p95) == (None, None)
    # One of them had no receipt yet: its messages say nothing.
    seen = now.reported([line([0, 8], delivered=8, undelivered=1, never=1), line([], accepted=90)])
    assert seen.delivered == 0.8
    assert seen.p95 is not None


async def test_work_is_held_and_released(pool: Pool, tenant: Tenant, root: Browser, settings: Settings) -> None:
    # Messages for a held supplier go through others, which the page says before it is held.
    await add(pool, settings, "main")
    aside = "Only messages that no other supplier may carry wait"
    assert aside in (await root.get("/console/queue/hold?look=yes&supplier=main")).words
    page = await root.get("/console/queue/hold?look=yes")
    assert aside not in page.words
    for typed, said in (
        ({"reason": ""}, "Give a reason"),
        ({"reason": "x", "organization": "Nobody"}, "There is no organization"),
        ({"reason": "x", "supplier": "nothing"}, "There is no supplier"),
        ({"reason": "x", "kind": "carrier pigeons"}, "no such kind"),
        ({"reason": "x", "kind": "webhook", "supplier": "nothing"}, "Suppliers carry SMS only"),
        ({"reason": "x", "older_than": "yesterday"}, "Enter an age such as"),
        ({"reason": "x", "older_than": "999999d"}, "Enter an age such as"),
    ):
        wrong = await root.submit(page, "/console/queue/hold", **typed)
        assert wrong.status == 422, typed
        assert said in wrong.words
    wrong = await root.get("/console/queue/hold?look=yes&organization=Nobody&supplier=nothing&older_than=yesterday")
    for said in ("There is no organization", "There is no supplier", "Enter an age such as"):
        assert said in wrong.words, wrong.words
    page = await root.submit(
        page, "/console/queue/hold", kind="sms", organization="Acme", reason="the bill is disputed"
    )
    assert "It is held." in page.words
    assert "the bill is disputed" in page.words
    async with pool.acquire() as conn:
        (one,) = await holds.list_all(conn)
        who = await conn.fetchval("SELECT who FROM audit_log WHERE action = 'queue.held'")
    assert (one.kind, one.organization_id, who) == ("sms", tenant.id, "operator")
    page = await root.submit(page, f"/console/queue/holds/{one.id}/release")
    assert "Released" in page.words
    async with pool.acquire() as conn:
        assert await holds.list_all(conn) == []
    token = page.form("/console/logout")["_token"]
    assert (await root.post(f"/console/queue/holds/{one.id}/release", {"_token": token})).status == 404


async def test_what_was_restored_is_held_without_expiring(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get("/console/queue/hold?look=yes&kind=webhook")
    page = await root.submit(page, "/console/queue/hold", reason="looking")
    assert "none of it expires" not in page.words
    page = await root.get("/console/queue/hold?look=yes&kind=sms")
    wrong = await root.submit(page, "/console/queue/hold", reason="", restored="yes")
    assert (wrong.status, 'name="restored" value="yes" checked' in wrong.text) == (422, True)
    page = await root.submit(page, "/console/queue/hold", reason="pgBackRest", restored="yes")
    assert "pgBackRest It was restored from a backup: none of it expires, and retention is suspended" in page.words
    async with pool.acquire() as conn:
        assert [(one.kind, one.restored) for one in await holds.list_all(conn)] == [("webhook", False), ("sms", True)]


def test_settings_in_force_blank_what_is_secret() -> None:
    listed = {
        one.name: one.value for one in in_force(Settings(database_url="postgresql://a:b@c/d", secret_key="s" * 40))
    }
    assert listed["HELIOGRAPH_SECRET_KEY"] == listed["HELIOGRAPH_DATABASE_URL"] == "(set)"
    assert not any("s" * 40 in value for value in listed.values())
    assert {f"HELIOGRAPH_{name.upper()}" for name in SECRETS} <= set(listed)


async def test_health_shows_every_check_and_no_secret(pool: Pool, root: Browser, database_url: str) -> None:
    page = await root.get("/console/health")
    assert page.status == 200
    for check in ("database", "durability", "clocks", "migrations", "partitions", "workers", "mail"):
        assert check in page.words, check
    assert "No backup was taken" in page.words
    assert "Dropped next: the oldest part of" in page.words
    for table in ("messages", "audit_log", "requests"):
        assert f'<td class="mono">{table}</td>' in page.text, table
    assert database_url.partition("://")[2].partition("@")[0] not in page.text


async def test_health_tells_which_backup_was_brought_up_and_when(pool: Pool, root: Browser) -> None:
    async def taken(days: int, verified: str) -> None:
        await pool.execute(
            "INSERT INTO backups VALUES (gen_random_uuid(), 'dump', now() - make_interval(days => $1), now(), 2000000,"
            f" '/backups/' || $1, '', '', {verified})",
            days,
        )

    await taken(1, "NULL")
    assert "No restore has been tested yet" in (await root.get("/console/health")).words
    assert "2.0 MB never /backups/1" in (await root.get("/console/health")).words
    # The given one may not be among those listed.
    await taken(40, "now() - interval '2 hours'")
    page = await root.get("/console/health")
    assert "Restore last tested: 2 hours ago" in page.words
    assert "No restore has been tested yet" not in page.words
    assert "2.0 MB never /backups/1" in page.words
    assert "2.0 MB never /backups/40" not in page.words
    for days in range(2, 12):
        await taken(days, "NULL")
    page = await root.get("/console/health")
    assert "/backups/40" not in page.words
    assert "Restore last tested: 2 hours ago" in page.words


async def test_the_bell_tells_what_is_wrong_until_it_is_seen_and_what_waits(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    await signed_in(pool, browser, "auditor")
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
    state = await browser.get("/console/state", hx_request="true")
    assert 'data-now="bell"' in state.text
    assert " new" in state.words, "no worker runs in this test"
    assert '<span data-mark="/console/approvals"><span class="count" aria-hidden="true">1</span>' in state.text
    page = await browser.get("/console/notices")
    assert "1 sender ID waits for a decision." in page.words
    assert "workers: none seen" in page.words
    page = await browser.submit(page, "/console/notices/read")
    assert "Mark as read" not in page.words
    assert "workers: none seen" in page.words, "what is wrong stays until it is right"
    assert " new" not in (await browser.get("/console/state", hx_request="true")).words
    # What was read before the clock was set back is read once more.
    await pool.execute("UPDATE operators SET told_at = told_at + interval '1 day'")
    await signed_in(pool, browser, "auditor")
    assert " new" in (await browser.get("/console/state", hx_request="true")).words
    await browser.submit(await browser.get("/console/notices"), "/console/notices/read")
    assert " new" not in (await browser.get("/console/state", hx_request="true")).words
    # Whatever comes after it is news again.
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA 2")
    assert "Mark as read" in (await browser.get("/console/notices")).words


async def test_the_bell_is_silent_about_what_its_operator_chose(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
    here = "/console/notices/choices"
    page = await root.get(here)
    for said in ("A supplier has no session", "A sender ID waits for a decision", "sends no mails"):
        assert said in page.words, said
    # A form field that is left out counts as unticked.
    hidden = {name: value for name, value in page.form(here).items() if name.startswith("_")}
    page = await root.post(here, hidden | {"check.failed mail": "1"})
    assert (page.path, "Saved." in page.words) == (here, True)
    assert "Nothing to report" in (await root.get("/console/notices")).words
    assert " new" not in (await root.get("/console/state", hx_request="true")).words
    page = await root.submit(page, here, usual="1")
    assert "Back to the default" not in page.words
    page = await root.get("/console/notices")
    assert ("1 sender ID waits" in page.words, "workers: none seen" in page.words) == (True, True)
    assert "Como recebe os avisos" in (await root.get(here, accept_language="pt")).words


async def test_who_decides_nothing_is_not_told_of_what_waits(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await signed_in(pool, browser, "finance")
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
    page = await browser.get("/console/notices")
    assert "1 sender ID waits" not in page.words
    assert "workers: none seen" in page.words


async def test_work_is_withdrawn_and_hurried(pool: Pool, tenant: Tenant, api: Api, root: Browser) -> None:
    ids = []
    for number in range(3):
        status, _, answer = await api.ask(
            "POST",
            "/sms/send",
            json={"to": f"+25884123456{number}", "message": "Hello"},
            headers=tenant.headers | {"idempotency-key": f"n{number}"},
        )
        assert status == 202
        ids.append(answer["message"]["id"])
    await pool.execute("UPDATE queue SET tries = 2, due_at = now() + interval '1 hour' WHERE id = $1", UUID(ids[0]))
    page = await root.get("/console/queue")
    assert "Waiting for another try" in page.words
    # The rows match the selection, as the sums do.
    for chosen, is_shown in (("kind=sms", True), ("kind=webhook", False), ("older_than=2h", False)):
        listed = await root.get(f"/console/queue?{chosen}")
        for heading in ("Waiting for another try", "First in the queue"):
            assert (heading in listed.words) is is_shown, (chosen, heading)
    page = await root.submit(page, f"/console/queue/{ids[0]}/hurry")
    assert "It is being sent now." in page.words
    assert await pool.fetchval("SELECT due_at <= now() FROM queue WHERE id = $1", UUID(ids[0]))
    token = page.form("/console/logout")["_token"]
    again = await root.post(f"/console/queue/{ids[1]}/hurry", {"_token": token})
    assert ("It is not waiting" in again.words, again.is_refusal) == (True, True)
    page = await root.get("/console/queue/withdraw?look=yes")
    for typed, said in (
        ({"typed": ""}, "This is not the text that has to be typed."),
        ({"typed": "withdraw", "organization": "Nobody"}, "There is no organization"),
        ({"typed": "withdraw", "kind": "carrier pigeons"}, "no such kind"),
    ):
        wrong = await root.submit(page, "/console/queue/withdraw", **typed)
        assert (wrong.status, said in wrong.words) == (422, True), typed
    before = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id)
    # A phone begins what is typed with a capital.
    page = await root.submit(page, "/console/queue/withdraw", kind="sms", organization="Acme", typed="Withdraw")
    assert ("canceled or dropped" in page.words, page.is_refusal) == (True, False)
    # What was never tried is canceled, and refunded.
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'canceled'") >= 2
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id) <= before - 2
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'queue.withdrawn'") == 1


async def test_what_is_held_or_withdrawn_is_told_before(pool: Pool, tenant: Tenant, api: Api, root: Browser) -> None:
    beta = (await organization(pool)).organization_id
    await long_queue(pool, beta, 2)
    for number in range(3):
        status, _, _ = await api.ask(
            "POST",
            "/sms/send",
            json={"to": f"+25884123456{number}", "message": "Hello"},
            headers=tenant.headers | {"idempotency-key": f"n{number}"},
        )
        assert status == 202
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 hour' WHERE organization_id = $1", beta)
    page = await root.get("/console/queue/withdraw")
    assert "Show how much that is" in page.words
    assert 'name="typed"' not in page.text, "nothing is withdrawn that was not shown"
    for query, said, unsaid in (
        ("", ("5 rows wait", "2 rows are already with workers"), "Older than"),
        ("&organization=Acme&kind=sms", ("3 rows wait", "Change the selection"), "already with workers"),
        ("&older_than=3d", ("2 rows wait", "Older than: 3d"), "3 rows"),
    ):
        for act, field in (("withdraw", "typed"), ("hold", "reason")):
            page = await root.get(f"/console/queue/{act}?look=yes{query}")
            assert f'name="{field}"' in page.text
            assert all(one in page.words for one in said), page.words
            assert unsaid not in page.words
    wrong = await root.get("/console/queue/withdraw?look=yes&organization=Nobody")
    assert (wrong.status, "There is no organization" in wrong.words) == (422, True)
    page = await root.get("/console/queue/withdraw?look=yes&older_than=3d")
    page = await root.submit(page, "/console/queue/withdraw", typed="withdraw")
    assert ("0 canceled or dropped" in page.words, page.is_refusal) == (True, True)
    assert await pool.fetchval("SELECT count(*) FROM queue") == 5
    page = await root.get("/console/queue/hold?look=yes&kind=sms&older_than=2h")
    await root.submit(page, "/console/queue/hold", reason="an old storm")
    async with pool.acquire() as conn:
        (one,) = await holds.list_all(conn)
        assert one.before is not None
        assert abs((await holds.ago(conn, timedelta(hours=2)) - one.before).total_seconds()) < 600


async def test_what_waits_is_filtered_and_summed(pool: Pool, tenant: Tenant, root: Browser) -> None:
    beta = (await organization(pool)).organization_id
    for of, count in ((tenant.id, 30), (beta, 2)):
        await long_queue(pool, of, count)
    page = await root.get("/console/queue?organization=Acme")
    name = await pool.fetchval("SELECT name FROM organizations WHERE id = $1", beta)
    assert "Acme" in page.words
    assert name not in page.words
    link = "/console/queue/withdraw?kind=sms&amp;organization=Acme&amp;look=yes"
    assert link in page.text
    assert "30 rows wait" in (await root.get(link.replace("&amp;", "&"))).words
    assert "Nothing that matches is waiting." in (await root.get("/console/queue?kind=webhook")).words
    assert "data-live=" in page.text
    for age in ("old", "999999d", "3651d"):
        wrong = await root.get(f"/console/queue?older_than={age}")
        assert (wrong.status, "Enter an age such as" in wrong.words) == (422, True), age
        assert "data-live=" not in wrong.text, "what is refused once is refused again"
    assert (await root.get("/console/queue?older_than=3650d")).status == 200


def test_sums_are_of_kinds_and_of_their_lines() -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)

    def line(kind: str, name: str | None, organization: str, rows: int, *, is_more: bool = False) -> Waiting:
        values = {"kind": kind, "line": name, "organization": organization, "rows": rows, "is_more": is_more}
        counted = dict.fromkeys((name for name, one in Waiting.__annotations__.items() if one == "int"), 1)
        return Waiting(**(counted | values), oldest_at=at)

    found = selecting.by_kind_and_line(
        [
            line("webhook", "https://acme.example", "Acme", 9),
            line("sms", "main", "Acme", 5, is_more=True),
            line("sms", "main", "Beta", 4),
            line("sms", None, "Acme", 3),
        ]
    )
    assert [(one.who, one.lines, one.rows, one.is_more, one.held) for one in found] == [
        (("sms",), 3, 12, True, 3),
        (("sms", "main"), 2, 9, True, 2),
        (("sms", ""), 1, 3, False, 1),
        (("webhook", "https://acme.example"), 1, 9, False, 1),
    ]


async def test_a_small_share_of_what_waits_is_not_called_none(pool: Pool, tenant: Tenant, root: Browser) -> None:
    beta = (await organization(pool)).organization_id
    for of, count in ((tenant.id, 400), (beta, 1)):
        await long_queue(pool, of, count)
    page = await root.get("/console/queue")
    assert re.findall(r"(\d+) (\S+) % 1 Jan 1970", page.words) == [("400", "100"), ("1", "<1")]


async def test_a_long_queue_is_told_as_far_as_it_was_counted(pool: Pool, tenant: Tenant, root: Browser) -> None:
    beta = (await organization(pool)).organization_id
    for of, count in ((tenant.id, waiting.PAGE_LOOK + 100), (beta, 10)):
        await long_queue(pool, of, count)
    page = await root.get("/console/queue")
    assert f"at least {waiting.PAGE_LOOK - 9:,}" in page.words, "what the other left of its share is for the long one"
    assert "At most 4,000 rows are counted" in page.words
    assert "Shares are shown where all rows are counted." in page.words
    page = await root.get("/console/queue", accept_language="pt")
    assert "pelo menos" in page.words
    assert "Contam-se no máximo" in page.words
    await pool.execute("DELETE FROM queue WHERE organization_id = $1", tenant.id)
    page = await root.get("/console/queue")
    assert "at least" not in page.words.lower()


async def test_the_console_and_the_command_line_tell_the_same_of_what_waits(
    pool: Pool, database_url: str, tenant: Tenant, api: Api, root: Browser
) -> None:
    ids = []
    for number in range(5):
        status, _, answer = await api.ask(
            "POST",
            "/sms/send",
            json={"to": f"+25884123456{number}", "message": "Hello"},
            headers=tenant.headers | {"idempotency-key": f"n{number}"},
        )
        assert status == 202
        ids.append(UUID(answer["message"]["id"]))
    assert "What is past its validity" not in (await root.get("/console/queue")).words
    await pool.execute("UPDATE queue SET tries = 2, due_at = now() + interval '1 hour' WHERE id = $1", ids[0])
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 hour' WHERE id = $1", ids[1])
    await pool.execute("UPDATE messages SET expires_at = now() - interval '1 minute' WHERE id = ANY ($1)", ids[1:4])
    page = await root.get("/console/queue")
    row = page.text.partition('<caption class="unseen">Waiting</caption>')[2].partition("</table>")[0]
    # Beside the count of affected rows, only existing kinds are named.
    cells = dict(re.findall(r'data-name="([^"]*)">([^<]*)<', row)) | dict(re.findall(r">([^<>:]+): ([0-9]+)<", row))
    names = {
        "Rows": "rows",
        "With workers": "leased",
        "Due later": "later",
        "Held": "held",
        "Retrying": "retrying",
        "Past validity": "expired",
    }
    told = {name: int(cells.get(label, 0)) for label, name in names.items()}
    assert told == {"rows": 5, "leased": 1, "later": 1, "held": 0, "retrying": 1, "expired": 2}
    assert "What is past its validity is no longer sent" in page.words
    (listed,) = (await Cli(HELIOGRAPH_DATABASE_URL=database_url)("queue", "list", "--json")).data
    assert {name: listed[name] for name in told} == told
    counted = {name for name, one in Waiting.__annotations__.items() if one == "int"}
    assert counted == told.keys() <= set(COLUMNS), "what is counted is shown in both places"
    page = await root.get("/console/queue", accept_language="pt")
    assert "Fora da validade" in page.words


async def test_a_worker_is_drained_and_resumed(pool: Pool, root: Browser) -> None:
    id, other = uuid4(), uuid4()
    insert = "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, $2, now(), now() + interval '50 seconds')"
    await pool.execute(insert, id, "host:1")
    page = await root.get("/console/queue")
    assert f'href="/console/queue/workers/{id}/drain"' in page.text
    form = await root.get(f"/console/queue/workers/{id}/drain")
    assert "No other worker is running" in form.words
    await pool.execute(insert, other, "host:2")
    form = await root.get(f"/console/queue/workers/{id}/drain")
    assert "1 other worker carries on." in form.words
    page = await root.submit(form, f"/console/queue/workers/{id}/drain", then="stay")
    assert "host:1 finishes what it holds." in page.words
    assert "host:1 ◔ draining" in page.words
    assert await pool.fetchval("SELECT drain FROM workers WHERE id = $1", id) == "stay"
    await pool.execute("UPDATE workers SET drained_at = now() WHERE id = $1", id)
    page = await root.get("/console/queue")
    assert "host:1 ◔ drained" in page.words
    page = await root.submit(page, f"/console/queue/workers/{id}/resume")
    assert "host:1 takes work again." in page.words
    assert await pool.fetchval("SELECT drain FROM workers WHERE id = $1", id) is None
    # One that was told to stop is stopping.
    await root.submit(form, f"/console/queue/workers/{id}/drain", then="end")
    assert (
        await root.post(f"/console/queue/workers/{id}/resume", form.form(f"/console/queue/workers/{id}/drain"))
    ).status == 404
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action LIKE 'worker.%'") == 3
    assert "Drain" not in (await root.get(f"/console/queue/workers/{uuid4()}/drain")).words


async def test_now_tells_of_web_processes_durability_and_the_disk(pool: Pool, root: Browser) -> None:
    await pool.execute(
        "INSERT INTO web_processes VALUES ($1, 'web:7', now(), now() + interval '50 s', '0.9', 123000000, '', $2)",
        uuid4(),
        [0, 0, 0, 0, 0, 100] + [0] * 26,
    )
    page = await root.get("/console/now")
    assert "web:7 ● answers 0.9 123 MB" in page.words
    # All between 32 and 64 ms; the requests of this test's own server do not change that.
    assert "95 of 100 accepted within 0.06 s" in page.words
    off = [
        name
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if await pool.fetchval(f"SHOW {name}") == "off"
    ]
    assert ("a crash can lose what was accepted" if off else "what was accepted survives a power cut") in page.words
    assert re.search(r"Free on its disk ([\d.,]+ GB \d+ % of [\d,]+ GB|– not visible from here)", page.words)
    words = (await root.get("/console/now", accept_language="pt")).words
    assert "95 de 100 aceites em 0,06 s" in words
    assert "Processos web" in words
    assert "Livre no seu disco" in words


async def test_health_tells_what_was_found_and_where_settings_come_from(pool: Pool, root: Browser) -> None:
    broken = Check(
        sentences.said("supplier %(name)s", name="main"), "failed", sentences.said("no session bound"), quoted("Look.")
    )
    async with pool.acquire() as conn:
        await findings.keep(conn, [broken])
        await findings.keep(conn, [])
    page = await root.get("/console/health")
    found = page.words.partition("What was found")[2]
    assert "supplier main ✕ error" in found
    assert "no session bound" in found.partition("Backups")[0]
    assert "ongoing" not in found.partition("Backups")[0]
    assert "Estimated from the size and age of what is kept." in page.words
    await pool.execute(
        "INSERT INTO database_sizes SELECT current_date - n, 1000000000 - n * 1000000, 1 FROM generate_series(0, 9) n"
    )
    page = await root.get("/console/health")
    assert "It grows by 1.0 MB a day. " in page.words
    assert "Measured over 9 days." in page.words
    assert "HELIOGRAPH_METRICS_LISTEN is not set" in page.words
    assert "deploy/grafana/heliograph.json" in page.words
    assert re.search(r"HELIOGRAPH_CLAIM_LIMIT \d+ default", page.words)
    portuguese = (await root.get("/console/health", accept_language="pt")).words
    assert "fornecedor main" in portuguese
    assert "Cresce 1,0 MB por dia." in portuguese


async def test_what_is_wrong_is_told_since_it_was_written_down(pool: Pool) -> None:
    cache = ConsoleCache()
    wrong = Check(quoted("workers"), "failed", quoted("none"), quoted("Start one."))
    earlier = clock.now() - timedelta(hours=2)
    (one,) = cache.problems([wrong], {("workers", "failed"): earlier})
    assert one.since == earlier
    (one,) = cache.problems([wrong], {("workers", "failed"): clock.now()})
    assert one.since == earlier, "it does not begin anew"


def test_settings_say_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "heliograph_secret_key").write_text("k" * 40)
    (tmp_path / "smtp").write_text("smtp://mail.example.com")
    environment = {
        "HELIOGRAPH_CLAIM_LIMIT": "500",
        "HELIOGRAPH_PUBLIC_URL": "https://sms.example.com",
        "HELIOGRAPH_SMTP_URL_FILE": str(tmp_path / "smtp"),
        "HELIOGRAPH_MAIL_FROM": "a@example.com",
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    known = from_environment(environment, database_url="postgresql://a@b/c")
    found = {one.name.removeprefix("HELIOGRAPH_"): one.source for one in in_force(known, environment)}
    assert {name: found[name] for name in ("CLAIM_LIMIT", "SMTP_URL", "SECRET_KEY", "DATABASE_URL", "LOG_LEVEL")} == {
        "CLAIM_LIMIT": "environment",
        "SMTP_URL": "file",
        "SECRET_KEY": "credential",
        "DATABASE_URL": "start",
        "LOG_LEVEL": "default",
    }
    assert set(found.values()) == set(SOURCES)
