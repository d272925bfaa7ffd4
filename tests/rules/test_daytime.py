"""Marketing waits for the end of the recipient's quiet hours; nothing else does, and nothing expires because of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from heliograph.accounts import send_defaults
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.overview import messages as overview
from heliograph.sms import messages, timeline
from heliograph.sms.accepting.accept import Acceptor
from tests.rules.dispatching import Bench, pause_of
from tests.rules.factories import message, organization, send, supplier

#: Mozambique's time zone, which has no summer time.
AHEAD = timedelta(hours=2)


async def quiet(pool: Pool, actor: Actor, *, before: float = 1.0, after: float = 1.5) -> datetime:
    """Set quiet hours in Mozambique from this many hours ago until this many from now; returns their end."""
    now: datetime = await pool.fetchval("SELECT now()")
    first, last = now - timedelta(hours=before), (now + timedelta(hours=after)).replace(second=0, microsecond=0)
    hours = f"{first + AHEAD:%H:%M}-{last + AHEAD:%H:%M}"
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=actor.organization_id, quiet_hours=hours)
    return last


async def classed(pool: Pool, actor: Actor, traffic_class: str, **values: object) -> UUID:
    id = await message(pool, actor, **values)  # type: ignore[arg-type]
    await pool.execute("UPDATE messages SET class = $2 WHERE id = $1", id, traffic_class)
    return id


async def test_marketing_waits_and_nothing_else_does(pool: Pool) -> None:
    actor = await organization(pool)
    ends = await quiet(pool, actor)
    bench = Bench(pool)
    ids = {one: await classed(pool, actor, one) for one in ("otp", "transactional", "marketing")}
    abroad = await classed(pool, actor, "marketing", to="+818012345678")  # seven hours ahead of Mozambique
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == {ids["otp"], ids["transactional"], abroad}
    waits = await pause_of(pool, ids["marketing"])
    now = await pool.fetchval("SELECT now()")
    assert abs(waits - (ends - now).total_seconds()) < 60
    # In the morning it goes.
    await pool.execute("UPDATE queue SET due_at = now() WHERE id = $1", ids["marketing"])
    await bench.round()
    assert len(bench.only.submitted) == 3, "the hour decides, not the queue"
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=actor.organization_id, quiet_hours="off")
    await pool.execute("UPDATE queue SET due_at = now() WHERE id = $1", ids["marketing"])
    await bench.round()
    assert bench.only.submitted[-1].message_id == ids["marketing"]


async def test_its_validity_stands_still_meanwhile(pool: Pool) -> None:
    actor = await organization(pool)
    ends = await quiet(pool, actor)
    now = await pool.fetchval("SELECT now()")
    short = await classed(pool, actor, "marketing", expires_at=now + timedelta(minutes=30))
    usual = await classed(pool, actor, "marketing")
    bench = Bench(pool)
    await bench.round()
    rows = dict(await pool.fetch("SELECT id, expires_at - quiet_until FROM messages"))
    assert timedelta(minutes=29) < rows[short] <= timedelta(minutes=30)
    assert timedelta(hours=23, minutes=59) < rows[usual] <= timedelta(days=1)
    assert set(await pool.fetch("SELECT quiet_until FROM messages")) == {(ends,)}
    # Looked at again meanwhile, it stands still no longer than that.
    await pool.execute("UPDATE queue SET due_at = now()")
    assert await bench.round() == 2
    assert dict(await pool.fetch("SELECT id, expires_at - quiet_until FROM messages")) == rows
    assert set(await pool.fetch("SELECT quiet_until FROM messages")) == {(ends,)}


async def test_a_simulator_wakes_nobody(pool: Pool) -> None:
    actor = await organization(pool)
    await quiet(pool, actor)
    simulated = Bench(pool, supplier(simulated=True))
    id = await classed(pool, actor, "marketing")
    await simulated.round()
    assert [one.message_id for one in simulated.only.submitted] == [id]


async def test_everybody_reads_why_it_waits(pool: Pool) -> None:
    actor = await organization(pool)
    ends = await quiet(pool, actor)
    id = await classed(pool, actor, "marketing")
    await Bench(pool).round()
    async with pool.acquire() as conn:
        told = await timeline.of_message(conn, id=id)
        shown = await messages.get(conn, actor, id=id)
        listed = await overview.get(conn, actor, id=id)
    (waits,) = [one for one in told.entries if one.what == "waits for the end of quiet hours"]
    assert waits.detail == {"until": ends}
    assert shown.message.quiet_until == listed.message.quiet_until == ends
    assert [(one.status, one.quiet_until) for one in shown.steps] == [("accepted", None), ("accepted", ends)]


async def test_operators_read_until_when_a_message_without_a_validity_is_tried(pool: Pool) -> None:
    actor = await organization(pool)
    id = await classed(pool, actor, "transactional")
    assert await pool.fetchval("SELECT expires_at FROM messages") is None
    async with pool.acquire() as conn:
        told = (await timeline.of_message(conn, id=id)).message
        shown = (await messages.get(conn, actor, id=id)).message
    assert told["expires_at"] == shown.expires_at == told["accepted_at"] + timedelta(days=1)


async def test_a_code_is_not_worth_delivering_for_a_day(pool: Pool) -> None:
    actor = await organization(pool, validity_seconds=7_200)
    acceptor = Acceptor(pool)
    for traffic_class in ("otp", "transactional", "marketing"):
        await acceptor.accept(send(actor, traffic_class=traffic_class))
    await acceptor.accept(send(actor, traffic_class="otp", validity_seconds=3_600))
    await acceptor.drain()
    rows = await pool.fetch("SELECT class, expires_at - accepted_at FROM messages ORDER BY id")
    assert [(name, lasts.total_seconds()) for name, lasts in rows] == [
        ("otp", 600),
        ("transactional", 7_200),
        ("marketing", 7_200),
        ("otp", 3_600),
    ]


async def test_the_setting_is_checked_and_in_the_audit_log(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        for wrong in ("never", "25:00-08:00", "08:00-08:00"):
            with pytest.raises(Invalid) as caught:
                await send_defaults.change(conn, organization_id=actor.organization_id, quiet_hours=wrong)
            assert caught.value.details["fields"][0]["field"] == "quiet_hours"
        await send_defaults.change(conn, organization_id=actor.organization_id, quiet_hours="21:00-09:00")
        assert (await send_defaults.get(conn, organization_id=actor.organization_id)).quiet_hours == "21:00-09:00"
    after = await pool.fetchval("SELECT after FROM audit_log WHERE action = 'organization.configured'")
    assert "21:00-09:00" in after
