"""A process whose clock is wrong still decides, stores and generates ids by the database's time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph import doctor
from heliograph.base.database import clock, pulse
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.ids import time_of, uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.queue.backlog import claim_once
from heliograph.queue.leases import BULK, GUARDED, PARKED, SINGLE, UNROUTED
from heliograph.serve import serve
from heliograph.sms.accepting.accept import Acceptor
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor
from heliograph.whatsapp.accepting.accept import Send as WhatsAppSend
from heliograph.whatsapp.accepting.accept import TemplateSend
from heliograph.worker import work
from tests.processes import until
from tests.rules.factories import TO, message, organization, send
from tests.rules.whatsapp_factories import made

HOUR, YEARS = timedelta(hours=1), timedelta(days=400)
SHIFTS = (HOUR, -HOUR, YEARS, -YEARS)
#: The cost of an estimate on a loaded machine; far less than any shift.
NEAR = timedelta(seconds=60)
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
QUEUED = """
INSERT INTO queue (id, kind, line, lane, organization_id, due_at, tries, lease_until)
VALUES ($1, 'sms', $2, $3, $1, $4, $5, $6)
"""
CAMPAIGN = """
INSERT INTO campaigns (organization_id, id, channel, name, status, mode, message_template, sender_id, audience_tags,
                       audience_tag_match_mode, request_id, created_at, step_at, due_at)
VALUES ($1, $2, 'sms', 'Sale', $3, 'live', 'hi', $2, $4, 'any', 'r', now(), $5, $6)
"""
# $1: an organization or any id, $2: an id, $3: when it was stored, $4: until when it waits.
PUT_OFF = {
    "campaign_chunks.count_at": """
INSERT INTO campaign_chunks (organization_id, campaign_id, first_id, last_id, queued, staged_at, changed_at, count_at)
VALUES ($1, $2, $2, $2, 1, $3, $3, $4)
""",
    "inbound_messages.due_at": """
INSERT INTO inbound_messages (organization_id, supplier_id, id, sender, recipient, concatenation, body, raw,
                              received_at, state, due_at)
VALUES ($1, $2, $2, '258841234567', '90210', '{1,2,1}', 'x', 'x', $3, 'waiting', $4)
""",
    "receipts.next_try_at": """
INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at,
                      next_try_at)
VALUES (($3::timestamptz AT TIME ZONE 'UTC')::date, $1, $2, '{x}', 'delivered', '', '1', '1', $3, $4)
""",
    "number_lookups.asked_at": """
INSERT INTO number_lookups (supplier_id, number, asked_on, state, asked_at, taken_until)
VALUES ($1, hashtext($2::uuid::text), ($3::timestamptz AT TIME ZONE 'UTC')::date, 'asked', $3, $4)
""",
    "contact_imports.lease_until": """
INSERT INTO contact_imports (organization_id, id, file, started_at, lease_until) VALUES ($1, $2, 'a.csv', $3, $4)
""",
    "exports.lease_until": """
INSERT INTO exports (organization_id, id, mode, kind, user_id, author, wanted, created_at, lease_until)
VALUES ($1, $2, 'live', 'messages', $2, '', '{}', $3, $4)
""",
}


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    """Reset the clock afterwards."""
    yield
    clock.arm("")


@pytest.fixture(params=SHIFTS, ids=str)
async def wrong(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Pool]:
    """The pool of a process whose clock is wrong, and which has read the database's."""
    clock.arm(str(request.param.total_seconds()))
    pool = await open_pool(database_url, size=2)
    try:
        yield pool
    finally:
        pool.terminate()


async def present(pool: Pool) -> datetime:
    at: datetime = await pool.fetchval("SELECT clock_timestamp()")
    return at


async def test_times_and_ids_are_the_databases(wrong: Pool) -> None:
    assert abs(clock.now() - await present(wrong)) < NEAR
    assert abs(time_of(uuid7()) - await present(wrong)) < NEAR
    assert abs(timedelta(seconds=clock.ahead())) > HOUR - NEAR
    with pytest.raises(clock.ClockDiffers, match="NTP"):
        clock.demand()

    # An SMS is due and expires by the database's clock, is stored in its month, and a worker finds it at once.
    actor = await organization(wrong)
    answer = await Acceptor(wrong).accept(send(actor, validity_seconds=600))
    row = await wrong.fetchrow(
        "SELECT id, accepted_at, expires_at, due_at, messages.tableoid::regclass::text AS place, now()"
        " FROM messages JOIN queue USING (id)"
    )
    assert row is not None
    assert UUID(msgspec.json.decode(answer.body)["message"]["id"]) == row["id"]
    assert row["due_at"] == row["accepted_at"] <= row["now"]
    assert row["now"] - row["accepted_at"] < NEAR
    assert row["expires_at"] == row["accepted_at"] + timedelta(seconds=600)
    assert row["place"] == f"messages_{row['now']:%Y_%m}"
    async with wrong.acquire() as conn:
        (lease,) = await claim_once(conn, "sms", {UNROUTED: 10}, seconds=60)
    assert lease.id == row["id"]

    # So is a WhatsApp message.
    one = await made(wrong)
    content = TemplateSend("order_shipped", "en", "utility", ("Ana", "7"))
    acceptor = WhatsAppAcceptor(wrong, settings=Settings(secret_key="s" * 32))
    await acceptor.accept(WhatsAppSend(actor=one.actor, to=TO, number_id=one.number_id, content=content))
    row = await wrong.fetchrow(
        "SELECT accepted_at, deadline_at, due_at, now() FROM whatsapp_messages JOIN queue USING (id)"
    )
    assert row is not None
    assert row["due_at"] == row["accepted_at"] <= row["now"]
    assert row["now"] - row["accepted_at"] < NEAR
    assert row["deadline_at"] > row["now"]


def test_ids_do_not_stay_where_a_wrong_clock_had_led_them() -> None:
    right = time_of(uuid7())
    clock.arm(str(YEARS.total_seconds()))
    assert time_of(uuid7()) - right > HOUR
    clock.arm("")
    assert abs(time_of(uuid7()) - right) < NEAR


@pytest.mark.parametrize("seconds", ["6", "-6"])
async def test_a_process_whose_clock_differs_does_not_start(database_url: str, seconds: str) -> None:
    settings = Settings(database_url=database_url, secret_key="s" * 32, clock_shift=seconds)
    with pytest.raises(clock.ClockDiffers):
        await serve(settings, port=0, own_process=False)
    with pytest.raises(clock.ClockDiffers):
        await work(settings, stop=asyncio.Event())


async def test_a_clock_that_goes_wrong_later_is_said(pool: Pool) -> None:
    clock.arm("3600:running")
    with capture_logs() as logs:
        task = asyncio.create_task(pulse.watch(pool))
        try:
            clock.running()
            await until(clock.differs)
            await until(lambda: any(line["event"].startswith("clock differs") for line in logs))
            clock.arm("")
            await until(lambda: any(line["event"].startswith("clock agrees") for line in logs))
        finally:
            task.cancel()
    said = next(line for line in logs if line["event"].startswith("clock differs"))
    assert said["log_level"] == "warning"
    assert said["ahead_seconds"] == pytest.approx(3600, abs=60)


def test_days_are_those_of_utc() -> None:
    here = timezone(timedelta(hours=2))
    assert clock.midnight(date(2027, 1, 31)) == datetime(2027, 1, 31, tzinfo=UTC)
    assert clock.midnight(datetime(2027, 1, 31, 23, 59, tzinfo=UTC)) == datetime(2027, 1, 31, tzinfo=UTC)
    assert clock.midnight(datetime(2027, 1, 31, 1, 59, tzinfo=here)) == datetime(2027, 1, 30, tzinfo=UTC)
    assert clock.midnight(clock.BEGINNING.replace(tzinfo=here)) == clock.BEGINNING


def test_a_slow_round_trip_accuses_nobody() -> None:
    """Within the time that a question took, neither the time followed so far nor this machine's clock is wrong."""
    clock.arm("")
    own, asked = clock.reading()
    second = 1_000_000_000
    there = clock.EPOCH + timedelta(microseconds=(own + 8 * second) // 1000)
    assert clock.note(there, own=own, asked=asked, answered=asked + 9 * second) == 0
    assert not clock.differs()
    assert clock.note(there, own=own, asked=asked, answered=asked + 2 * second) == pytest.approx(-6, abs=0.01)
    assert clock.differs()


async def test_doctor_names_the_machines_whose_clocks_differ(pool: Pool) -> None:
    for name, ahead in (("fine:1", 0.2), ("wrong:1", -3600.0)):
        await pool.execute("INSERT INTO workers VALUES ($1, $2, now(), now(), $3)", uuid7(), name, ahead)
    async with pool.acquire() as conn:
        (found,) = await doctor._workers(conn, Settings())
        assert found.state == "failed"
        assert "wrong:1 by -3600 s" in found.detail
        assert "fine:1" not in found.detail
        assert doctor._clock().state == "ok"
    own, asked = clock.reading()
    there = clock.EPOCH + timedelta(hours=1, microseconds=own // 1000)
    clock.note(there, own=own, asked=asked, answered=asked)  # however long a question takes on a loaded machine
    found = doctor._clock()
    assert found.state == "failed"
    assert "3,600.0 s behind" in found.detail
    assert "NTP" in found.remedy


async def test_the_runbooks_statements_bring_forward_what_a_clock_that_was_ahead_has_put_off(pool: Pool) -> None:
    found = re.search(r"```sql\n(.*?)```", RUNBOOK.read_text().partition("## Check: clocks")[2], re.DOTALL)
    assert found is not None
    now = await present(pool)
    ahead, minute = now + timedelta(days=3), timedelta(minutes=1)

    async def put(at: datetime, due: datetime, *, line: UUID = UNROUTED, lane: int = SINGLE, tries: int = 0) -> UUID:
        id = UUID(int=uuid7_floor(at).int + uuid7().int % 2**60)
        await pool.execute(QUEUED, id, line, lane, due, tries, ahead + minute if tries else None)
        return id

    wanted = {
        await put(ahead, ahead): now,
        await put(now - HOUR, ahead + HOUR, tries=1): now + HOUR,
        await put(now - HOUR, now - HOUR, tries=1): now - HOUR,
        await put(ahead, ahead + HOUR, lane=BULK): now + HOUR,
        # Of a campaign staged before the clock went wrong, a message held by the guard, and one of a paused campaign.
        await put(now - HOUR, now + HOUR, lane=BULK): now + HOUR,
        await put(now - HOUR, now + PARKED, line=GUARDED): now + PARKED,
        await put(ahead, ahead + 100 * YEARS, lane=BULK): ahead + 100 * YEARS,
    }
    actor = await organization(pool)
    scheduled = await message(pool, actor)
    await pool.execute("UPDATE messages SET send_at = $2 WHERE id = $1", scheduled, ahead)
    await pool.execute("UPDATE queue SET due_at = $2 WHERE id = $1", scheduled, ahead)
    running, canceled, paused, later = (uuid7() for _ in range(4))
    for id, status, step, due in (
        (running, "running", ahead, ahead + HOUR),
        (canceled, "canceled", ahead, None),  # its messages are yet to be withdrawn
        (paused, "paused", None, ahead + HOUR),
        (later, "scheduled", ahead, None),
    ):
        await pool.execute(CAMPAIGN, actor.organization_id, id, status, ["a"], step, due)

    await pool.execute(found[1])
    rows = await pool.fetch("SELECT id, due_at, lease_until FROM queue")
    off = {row["id"]: abs(row["due_at"] - ({scheduled: ahead} | wanted)[row["id"]]) for row in rows}
    assert len(off) == len(wanted) + 1
    assert max(off.values()) < NEAR, off
    assert max(row["lease_until"] for row in rows if row["lease_until"]) < now + NEAR
    steps = {row["id"]: (row["step_at"], row["due_at"]) for row in await pool.fetch("SELECT * FROM campaigns")}
    assert steps[later] == (ahead, None)
    assert max(abs(steps[id][0] - now) for id in (running, canceled)) < NEAR
    assert steps[running][1] == now + HOUR
    assert steps[paused] == (None, now + HOUR)


async def test_the_runbooks_statements_bring_forward_what_other_tables_keep_for_later(pool: Pool) -> None:
    found = re.search(r"```sql\n(.*?)```", RUNBOOK.read_text().partition("## Check: clocks")[2], re.DOTALL)
    assert found is not None
    actor, now = await organization(pool), await present(pool)
    patience = timedelta(minutes=10)
    stored = now + timedelta(days=3)
    for insert in PUT_OFF.values():
        await pool.execute(insert, actor.organization_id, uuid7(), stored, stored + patience)
    account = await made(pool)
    await pool.execute("UPDATE whatsapp_accounts SET mirror_at = $1, numbers_at = $1, templates_at = $1", stored)
    # A user written to while the clock was ahead, and one before.
    await pool.execute("INSERT INTO whatsapp_reached VALUES ('p', '1', $1), ('p', '2', $2)", stored - HOUR, now - HOUR)
    await pool.execute("INSERT INTO whatsapp_portfolios VALUES ('p', 2, $1)", stored)
    # A part that arrived after the clock was corrected.
    await pool.execute(PUT_OFF["inbound_messages.due_at"], actor.organization_id, uuid7(), now, now + patience)

    await pool.execute(found[1])
    for place in PUT_OFF:
        table, _, column = place.partition(".")
        latest = await pool.fetchval(f"SELECT max({column}) FROM {table}")
        waits = patience if table in ("inbound_messages", "receipts") else timedelta()
        assert abs(latest - now - waits) < NEAR, place
    assert await pool.fetchval("SELECT count(*) FROM number_lookups WHERE taken_until IS NULL") == 1
    is_read = "SELECT greatest(mirror_at, numbers_at, templates_at) <= now() FROM whatsapp_accounts WHERE id = $1"
    assert await pool.fetchval(is_read, account.account_id)
    assert {row["reached_at"] for row in await pool.fetch("SELECT reached_at FROM whatsapp_reached")} == {now - HOUR}
    assert await pool.fetchval("SELECT frees_at <= now() FROM whatsapp_portfolios")
    # Missing parts of a message are waited for from its arrival on.
    parts = await pool.fetch("SELECT received_at, due_at FROM inbound_messages")
    assert all(abs(row["received_at"] - now) < NEAR and row["due_at"] - row["received_at"] == patience for row in parts)
