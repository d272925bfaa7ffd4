"""`heliograph queue` and `hold` as an operator uses it, beside a worker and a supplier."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Pool
from heliograph.queue import timers, waiting
from heliograph.sms.dispatch import held
from tests.journeys.test_cli import Cli
from tests.load import Client
from tests.processes import installation, until_true
from tests.rules.factories import long_queue, message, organization, status_of, tried


async def test_what_is_held_waits_across_restarts_until_it_is_released_or_withdrawn(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    async with installation(database_url, tmp_path) as made, made.serving(), Client(made.base_url, made.key) as client:
        other = await organization(pool)
        made_hold = await cli("hold", "add", "--org", "acme", "--reason", "what is this?", "--json")
        assert {one["organization"] for one in made_hold.data} == {"Acme"}
        waiting = [UUID(await client.send("+258841230001")), UUID(await client.send("+258841230002"))]
        for _ in range(2):  # a worker, and its successor
            async with made.working():
                # The messages that go through were queued after the held ones, in the same line and lane.
                passing = await message(pool, other)
                await until_true(lambda passing=passing: _is(pool, passing, "delivered"))
        assert [await status_of(pool, id) for id in waiting] == ["accepted", "accepted"]

        listed = (await cli("queue", "list", "--kind", "sms", "--json")).data
        assert [(one["organization"], one["rows"], one["held"]) for one in listed] == [("Acme", 2, 2)]
        assert [one["reason"] for one in (await cli("hold", "list", "--json")).data] == ["what is this?"] * 3
        table = await cli("queue", "list")
        assert ("Acme" in table.out, "3 holds are in force" in table.err) == (True, True)
        tabbed = await cli("hold", "list", "-o", "tsv")
        assert [line.split("\t")[5] for line in tabbed.out.splitlines()] == ["what is this?"] * 3
        doctor = await cli("doctor", "--url", made.base_url, "--json")
        checks = {one["check"]: one for one in msgspec.json.decode(doctor.out)}
        assert (checks["holds"]["state"], "what is this?" in checks["holds"]["detail"]) == ("warning", True)
        assert checks["queue"]["state"] == "ok"
        # Held work is not late; anything else that waits is.
        await pool.execute("UPDATE queue SET due_at = due_at - interval '1 hour'")
        doctor = await cli("doctor", "--url", made.base_url, "--json")
        assert "queue" not in [one["check"] for one in msgspec.json.decode(doctor.out) if one["state"] != "ok"]
        forgotten = await message(pool, other)
        await pool.execute("UPDATE queue SET due_at = due_at - interval '1 hour' WHERE id = $1", forgotten)
        doctor = await cli("doctor", "--url", made.base_url, "--json")
        checks = {one["check"]: one for one in msgspec.json.decode(doctor.out)}
        assert (checks["holds"]["state"], checks["queue"]["state"]) == ("warning", "failed")
        await pool.execute("DELETE FROM queue WHERE id = $1", forgotten)

        nothing = await cli("queue", "hurry", str(forgotten), "--json")
        assert (nothing.status, msgspec.json.decode(nothing.out)) == (1, {"hurried": False})
        assert "nothing with this id is waiting" in nothing.err
        await cli("queue", "withdraw", "--older-than", "1d", "--yes")
        await tried(pool, waiting[1])
        unsure = await cli("queue", "withdraw", "--kind", "sms")
        assert (unsure.status, "permanently?" in unsure.err) == (1, True), "nobody said yes"
        done = await cli("queue", "withdraw", "--kind", "sms", "--org", "Acme", "--yes", "--json")
        assert done.data == [{"kind": "sms", "canceled": 1, "ended": 0, "left": 1}]
        assert [await status_of(pool, id) for id in waiting] == ["canceled", "sending"]

        nobody = await cli("hold", "release")
        assert (nobody.status, "--all" in nobody.err) == (2, True)
        assert len((await cli("hold", "release", "--org", "Acme", "--json")).data) == 3
        async with made.working():
            await until_true(lambda: _is(pool, waiting[1], "delivered"))
        assert [await status_of(pool, id) for id in waiting] == ["canceled", "delivered"]
    for wrong, word in (("x", "--older-than"), ("5", "15m"), ("-1h", "--older-than")):
        refused = await cli("queue", "list", "--older-than", wrong)
        assert (refused.status, word in refused.err) == (2, True)
    assert "no supplier 'none'" in (await cli("hold", "add", "--supplier", "none")).err


async def test_of_a_long_queue_it_says_how_far_it_was_counted(pool: Pool, database_url: str) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    long, short = (await organization(pool)).organization_id, (await organization(pool)).organization_id
    await long_queue(pool, long, waiting.LOOK + 100)
    await long_queue(pool, short, 10)
    counted = waiting.LOOK - 9
    listed = (await cli("queue", "list", "--json")).data
    assert [(one["rows"], one["is_more"]) for one in listed] == [(counted, True), (10, False)]
    assert f"at least {counted}" in (await cli("queue", "list")).out
    tabbed = (await cli("queue", "list", "-o", "tsv")).out.splitlines()
    assert [(line.split("\t")[3], line.split("\t")[-1]) for line in tabbed] == [(str(counted), "yes"), ("10", "no")]
    # The rows to be withdrawn are counted as a whole.
    assert f"{waiting.LOOK + 110:,} rows" in (await cli("queue", "withdraw")).err


async def test_what_was_restored_by_other_tools_can_be_held_without_expiring(pool: Pool, database_url: str) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    id = await message(pool, await organization(pool), age=timedelta(days=2))
    await cli("hold", "add", "--reason", "looking")
    await cli("hold", "add", "--restored", "--reason", "pgBackRest")
    listed = (await cli("hold", "list", "--json")).data
    assert [(one["reason"], one["restored"]) for one in listed] == [("looking", False)] * 3 + [("pgBackRest", True)] * 3
    async with pool.acquire() as conn:
        await timers.ensure(conn, held.TIMER)
        await held.expire_stalled(conn)
        assert await _is(pool, id, "accepted")
        await cli("hold", "release", "--all")
        await cli("hold", "add", "--reason", "looking")
        await held.expire_stalled(conn)
    assert await _is(pool, id, "expired")


async def _is(pool: Pool, id: UUID, status: str) -> bool:
    return await status_of(pool, id) == status
