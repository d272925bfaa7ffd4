"""A message that fails a round of dispatch, or its own submission, delays no other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Connection, Pool
from heliograph.sending.dispatch import SET_ASIDE
from heliograph.suppliers.contract import Outcome, Part, Submission, Verdict
from heliograph.whatsapp.callbacks import expiry
from tests.rules import dispatching_whatsapp, whatsapp_factories
from tests.rules.dispatching import Bench, attempts, pause_of, queued
from tests.rules.factories import endpoint, events_of, message, organization, status_of


def stumble(bench: Bench, step: str, *over: UUID, error: type[Exception] = ValueError) -> None:
    """Make a step of the channel (`load`, `decide`) fail for these messages, as unexpected data would."""
    real = getattr(bench.channel, step)

    async def failing(conn: Connection, given: Sequence[Any]) -> Any:
        ids = {one.id if hasattr(one, "id") else one.lease.id for one in given}
        if ids.intersection(over):
            raise error("not for this one")
        return await real(conn, given)

    setattr(bench.channel, step, failing)


async def rounds(bench: Bench, times: int) -> int:
    """Dispatch like the worker's loop, which continues after a failed round. Returns how many failed."""
    failed = 0
    for _ in range(times):
        try:
            await bench.round()
        except Exception:
            failed += 1
    return failed


@pytest.mark.parametrize("step", ["load", "decide"])
async def test_the_others_go_out_in_the_next_round(pool: Pool, step: str) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(7)]
    bad = {ids[2], ids[5]}
    stumble(bench, step, *bad)
    with capture_logs() as said:
        assert await rounds(bench, 3) == 1, "the first fails, the second finds out why"
    assert {one["message_id"] for one in said if one["event"] == "message set aside"} == {str(id) for id in bad}
    assert [one.message_id for one in bench.only.submitted] == [id for id in ids if id not in bad]
    for id in bad:
        assert await status_of(pool, id) == "accepted"
        assert SET_ASIDE - 30 < await pause_of(pool, id) <= SET_ASIDE
        assert await attempts(pool, id) == []


async def test_it_is_tried_again_and_goes_out_once_it_can(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    stumble(bench, "decide", id)
    assert await rounds(bench, 3) == 1
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 3) == 1
    assert not bench.only.submitted
    bench.restart()
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 1) == 0
    assert await status_of(pool, id) == "sent"
    assert await attempts(pool, id) == [(1, "accepted")]


async def expire(pool: Pool, id: UUID, table: str = "messages", column: str = "expires_at") -> None:
    """Its validity ends now."""
    await pool.execute(f"UPDATE {table} SET {column} = accepted_at WHERE id = $1", id)


async def test_one_that_can_be_sent_only_after_its_validity_expires(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool), age=timedelta(hours=1))
    stumble(bench, "decide", id)
    assert await rounds(bench, 2) == 1
    bench.restart()
    await expire(pool, id)
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 1) == 0
    assert (await status_of(pool, id), bench.only.submitted, await queued(pool, id)) == ("expired", [], False)


@pytest.mark.parametrize("step", ["load", "decide"])
async def test_one_that_nobody_repairs_expires_with_its_validity(pool: Pool, step: str) -> None:
    """Otherwise its sender would wait for news for ever."""
    bench = Bench(pool)
    actor = await organization(pool)
    await endpoint(pool, actor)
    id = await message(pool, actor, age=timedelta(hours=1))
    stumble(bench, step, id)
    assert await rounds(bench, 2) == 1
    assert (await status_of(pool, id), await queued(pool, id)) == ("accepted", True)
    await expire(pool, id)
    await bench.later(seconds=SET_ASIDE)
    with capture_logs() as said:
        assert await rounds(bench, 2) == 1
    assert [one["event"] for one in said if one.get("message_id")] == ["message set aside"]
    assert (await status_of(pool, id), await queued(pool, id)) == ("expired", False)
    assert await events_of(pool, id) == ["message.failed"]


async def test_one_that_may_have_arrived_ends_as_unknown_once_no_news_is_expected(pool: Pool) -> None:
    """Otherwise it would be set aside for ever, and its campaign never completed."""
    bench = Bench(pool, grace=130.0)
    id = await message(pool, await organization(pool), age=timedelta(hours=1))
    bench.only.script = lambda submission: None
    assert await bench.round() == 1
    bench.restart()
    stumble(bench, "load", id)
    await expire(pool, id)
    for seconds in (61, SET_ASIDE):
        await bench.later(seconds=seconds)
        assert await rounds(bench, 2) == 1
        assert (await status_of(pool, id), await queued(pool, id)) == ("sending", True)
        assert await attempts(pool, id) == [(1, "unknown")]
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 2) == 1
    assert (await status_of(pool, id), await queued(pool, id)) == ("unknown", False)
    assert await pool.fetchval("SELECT failure_code FROM messages WHERE id = $1", id) == "outcome_unknown"


async def test_one_of_which_a_supplier_has_a_part_expires(pool: Pool) -> None:
    """As in an ordinary round."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool), text="x" * 200, segments=2, age=timedelta(hours=1))
    bench.only.script = lambda submission: Outcome(Verdict.BUSY, (Part(1, "A1", "A1"),))
    assert await bench.round() == 1
    assert (await attempts(pool, id), await queued(pool, id)) == ([(1, "busy")], True)
    bench.restart()
    stumble(bench, "load", id)
    await expire(pool, id)
    await bench.later(seconds=3600)
    assert await rounds(bench, 2) == 1
    assert (await status_of(pool, id), await queued(pool, id)) == ("expired", False)


async def test_one_that_has_ended_otherwise_leaves_the_queue(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool), age=timedelta(hours=1))
    bench.only.script = lambda submission: None
    assert await bench.round() == 1
    bench.restart()
    stumble(bench, "load", id)
    await bench.later(seconds=61)
    assert await rounds(bench, 2) == 1
    await pool.execute("UPDATE attempts SET state = 'accepted'")
    await pool.execute("UPDATE messages SET status = 'sent', sent_at = now() WHERE id = $1", id)
    await expire(pool, id)
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 2) == 1
    assert (await status_of(pool, id), await queued(pool, id)) == ("sent", False)


async def test_a_whatsapp_message_that_may_have_arrived_fails_at_its_deadline(pool: Pool) -> None:
    bench = await dispatching_whatsapp.Bench(pool).start()
    id = await whatsapp_factories.message(pool, await whatsapp_factories.made(pool), age=timedelta(hours=1))
    await bench.refresh()
    bench.only.script = lambda submission: dispatching_whatsapp.UNKNOWN
    assert await bench.round() == 1
    stumble(bench, "load", id)
    await expire(pool, id, "whatsapp_messages", "deadline_at")
    await bench.later(seconds=bench.grace)
    assert await rounds(bench, 2) == 1
    assert await queued(pool, id, kind="whatsapp"), "whoever ends messages without a status ends it"
    async with pool.acquire() as conn, conn.transaction():
        await expiry.sweep(conn, bench.rates)
    assert await dispatching_whatsapp.status_of(pool, id) == ("failed", "expired", "released")
    assert not await queued(pool, id, kind="whatsapp")


async def test_one_whose_end_fails_too_delays_no_other(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    bad = await message(pool, actor, age=timedelta(hours=1))
    good = await message(pool, actor)
    await expire(pool, bad)
    stumble(bench, "load", bad)

    async def failing(conn: Connection, lease: Any) -> None:
        raise ValueError("not for this one")

    bench.channel.expire_one = failing  # type: ignore[method-assign]
    assert await rounds(bench, 2) == 1
    assert (await status_of(pool, good), await status_of(pool, bad), await queued(pool, bad)) == (
        "sent",
        "accepted",
        True,
    )


async def test_a_whatsapp_message_that_nobody_repairs_expires_with_its_lifetime(pool: Pool) -> None:
    bench = await dispatching_whatsapp.Bench(pool).start()
    id = await whatsapp_factories.message(pool, await whatsapp_factories.made(pool), age=timedelta(hours=1))
    await bench.refresh()
    stumble(bench, "decide", id)
    assert await rounds(bench, 2) == 1
    assert await dispatching_whatsapp.status_of(pool, id) == ("accepted", None, "reserved")
    await expire(pool, id, "whatsapp_messages", "deadline_at")
    await bench.later(seconds=SET_ASIDE)
    assert await rounds(bench, 2) == 1
    assert await dispatching_whatsapp.status_of(pool, id) == ("failed", "expired", "released")
    assert not await queued(pool, id, kind="whatsapp")


async def test_an_attempt_that_was_under_way_is_not_forgotten(pool: Pool) -> None:
    """Otherwise the message would be sent again although it may have arrived."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    bench.only.script = lambda submission: None
    assert await bench.round() == 1
    bench.restart()
    await bench.later(seconds=61)
    stumble(bench, "load", id)
    assert await rounds(bench, 2) == 1
    assert await attempts(pool, id) == [(1, "unknown")]
    assert await queued(pool, id)


@pytest.mark.parametrize("error", [asyncpg.QueryCanceledError, OSError])
async def test_what_no_message_is_to_blame_for_sets_none_aside(pool: Pool, error: type[Exception]) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    stumble(bench, "decide", id, error=error)
    assert await rounds(bench, 3) == 3
    assert await pause_of(pool, id) <= 0


async def test_a_submission_that_fails_leaves_the_others(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    bad, good = await message(pool, actor), await message(pool, actor)

    def submit(submission: Submission) -> Any:
        if submission.message_id == bad:
            raise ValueError("not for this one")
        return taken(submission)

    taken = bench.only.script
    bench.only.script = submit
    with capture_logs() as said:
        assert await rounds(bench, 2) == 0
    assert [one["message_id"] for one in said if one["event"] == "attempt not handed over"] == [str(bad)]
    assert await status_of(pool, good) == "sent"
    assert bench.dispatcher.in_flight == 0, "nobody renews its lease"
    # Some of it may have been sent: a receipt is awaited before it is sent again.
    bench.restart()
    await bench.later(seconds=61)
    assert await rounds(bench, 1) == 0
    assert await attempts(pool, bad) == [(1, "unknown")]
