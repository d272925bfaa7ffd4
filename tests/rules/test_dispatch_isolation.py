"""A message that fails a round of dispatch, or its own submission, delays no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Connection, Pool
from heliograph.sending.dispatch import SET_ASIDE
from heliograph.suppliers.contract import Submission
from tests.rules.dispatching import Bench, attempts, pause_of, queued
from tests.rules.factories import message, organization, status_of


def stumble(bench: Bench, step: str, *over: UUID, error: type[Exception] = ValueError) -> None:
    """Have a step of the channel (`load`, `decide`) fail for these messages, as for data that nobody expected."""
    real = getattr(bench.channel, step)

    async def failing(conn: Connection, given: Sequence[Any]) -> Any:
        ids = {one.id if hasattr(one, "id") else one.lease.id for one in given}
        if ids.intersection(over):
            raise error("not for this one")
        return await real(conn, given)

    setattr(bench.channel, step, failing)


async def rounds(bench: Bench, times: int) -> int:
    """Dispatch as the worker's loop does, which goes on after a round that fails. Returns how many failed."""
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


async def test_an_attempt_that_was_under_way_is_not_forgotten(pool: Pool) -> None:
    """Or the message would be sent again although it may have arrived."""
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


@pytest.mark.parametrize("error", [asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, OSError])
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
    # Some of it may have left: news of it is waited for before it is sent again.
    bench.restart()
    await bench.later(seconds=61)
    assert await rounds(bench, 1) == 0
    assert await attempts(pool, bad) == [(1, "unknown")]
