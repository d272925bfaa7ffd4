"""Attempts as they are read back, wherever they are stored: first successes share a row, all others have their own.

The model is a list of attempts for each event and endpoint. It is compared with the list of an endpoint's attempts in
pages of any length, the timeline of a message, and what a replay of failures would send again.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.queue.backlog import claim_once
from heliograph.queue.leases import Lease
from heliograph.webhooks import history, replays, timeline
from heliograph.webhooks.delivery import attempts
from heliograph.webhooks.delivery.attempts import Attempt, Ended
from heliograph.webhooks.history import Filters
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.results import Record
from tests.hooks import DATA, KIND, endpoint, organization, record
from tests.rules.machines import Machine, run_machine

URL = "http://127.0.0.1:9/"
#: Created once: they stay in a database whose other tables are emptied before each run.
STANDING: dict[str, tuple[Actor, list[UUID]]] = {}


class Attempts(Machine):
    tables = ("webhook_attempts", "webhook_successes", "events", "queue", "webhook_replays")

    @initialize()
    def begin(self) -> None:
        self.actor, self.endpoints = self.run(self._standing())
        self.made: list[UUID] = []
        self.known: dict[tuple[UUID, UUID], list[tuple[datetime, str]]] = {}
        self.held: list[Lease] = []
        self.ended: list[Ended] = []
        self.at = clock.now() - timedelta(minutes=20)
        self.ledger = Record(self.pool, disable_after=1e9, landed=lambda ended, disabled: None)

    async def _standing(self) -> tuple[Actor, list[UUID]]:
        url = str(await self.pool.fetchval("SELECT current_database()"))
        if url not in STANDING:
            actor = await organization(self.pool)
            STANDING[url] = actor, [(await endpoint(self.pool, actor, URL))[0] for _ in range(2)]
        return STANDING[url]

    @rule(count=st.integers(1, 5), seconds=st.sampled_from([0.0, 0.001, 0.4, 3.0]))
    def record(self, count: int, seconds: float) -> None:
        """Events close together in time, each queued for both endpoints."""
        new = []
        for _ in range(count):
            self.at += timedelta(seconds=seconds)
            id = UUID(int=uuid7_floor(self.at).int + len(self.made) + 1)
            self.made.append(id)
            new.append(events.Event(self.actor.organization_id, id, KIND, "r", DATA, self.at))

        async def store() -> None:
            async with self.pool.acquire() as conn:
                await events.record(conn, new)

        self.run(store())

    @rule(places=st.integers(1, 6))
    def claim(self, places: int) -> None:
        async def take() -> list[Lease]:
            async with self.pool.acquire() as conn:
                return await claim_once(conn, "webhook", dict.fromkeys(self.endpoints, places), seconds=3600)

        self.held += self.run(take())

    @rule(
        data=st.data(),
        outcomes=st.lists(
            st.tuples(st.sampled_from(["delivered", "delivered", "delivered", "refused"]), st.integers(0, 30_000)),
            max_size=8,
        ),
    )
    def end(self, data: st.DataObject, outcomes: list[tuple[str, int]]) -> None:
        """Attempts end, some successfully; they began up to half a minute after the last event."""
        batch = []
        for result, delay in outcomes:
            if not self.held:
                break
            lease = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            at = self.at.replace(microsecond=self.at.microsecond // 1000 * 1000) + timedelta(milliseconds=delay)
            good = result == "delivered"
            attempt = Attempt(at, 0.005, 200 if good else 500, result, "" if good else "no")
            batch.append(Ended(lease, None if good else 0.0, attempt))
        self._put(batch)

    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        """A commit whose response was lost: the very same results are written once more."""
        if self.ended:
            self._put(data.draw(st.lists(st.sampled_from(self.ended), max_size=3, unique_by=id)))

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Leases end, and another worker may claim the rows; the holder does not know."""
        if self.held:
            lost = data.draw(st.lists(st.sampled_from(self.held), max_size=3))
            self.run(
                self.pool.executemany(
                    "UPDATE queue SET lease_until = now() - interval '1 second' WHERE id = $1 AND line = $2",
                    [(lease.id, lease.line) for lease in lost],
                )
            )

    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        if self.made:
            event_id = data.draw(st.sampled_from(self.made))
            endpoint_id = data.draw(st.sampled_from(self.endpoints))

            async def again() -> None:
                async with self.pool.acquire() as conn:
                    await replays.resend(conn, self.actor, endpoint_id=endpoint_id, event_id=event_id)

            self.run(again())

    def _put(self, batch: list[Ended]) -> None:
        async def write() -> None:
            for one in batch:
                self.ledger.put(one)
            await self.ledger.drain()

        self.run(write())
        self.ended += batch
        # Within one statement they are numbered in the order in which they began.
        for one in sorted(batch, key=lambda one: one.attempt.started_at if one.attempt else self.at):
            assert one.attempt is not None
            made = self.known.setdefault((one.lease.id, one.lease.line), [])
            if one.attempt.started_at not in [at for at, _ in made]:
                made.append((one.attempt.started_at, one.attempt.result))

    @invariant()
    def all_is_listed(self) -> None:
        if self.known:
            self.run(self._compare())

    async def _compare(self) -> None:
        async with self.pool.acquire() as conn:
            for id in self.endpoints:
                wanted = sorted(
                    (
                        (at, event_id, number, result)
                        for (event_id, line), made in self.known.items()
                        for number, (at, result) in enumerate(made, 1)
                        if line == id
                    ),
                    reverse=True,
                )
                for limit in (1, 3, 50):
                    assert await self._pages(conn, id, limit) == wanted, limit
                middle = wanted[len(wanted) // 2][0] if wanted else self.at
                for filters in (
                    Filters(result=history.FAILED),
                    Filters(result=attempts.DELIVERED),
                    Filters(kind=KIND),
                    Filters(kind="message.read"),
                    Filters(result=history.FAILED, kind=KIND, date_from=middle),
                    Filters(date_from=middle),
                    Filters(kind=KIND, date_to=middle),
                ):
                    fit = [one for one in wanted if _fits(one, filters)]
                    for look in (1, 2, 50):
                        assert await self._pages(conn, id, 3, filters, look) == fit, (filters, look)
                looked = await conn.fetchrow(
                    replays.LOOK,
                    self.actor.organization_id,
                    UUID(int=self.made[0].int - 1),
                    uuid7_floor(clock.now()),
                    1000,
                    [KIND],
                    True,
                    id,
                    "live",
                    UUID(int=0),
                )
                delivered = {event_id for _, event_id, _, result in wanted if result == attempts.DELIVERED}
                assert looked is not None
                assert looked[2] == sorted(set(self.made) - delivered)
            told = await timeline.tried(conn, self.actor.organization_id, [{"id": id} for id in self.made])  # type: ignore[misc]
        shown = [
            (row["event_id"], row["endpoint_id"], row["attempt"], row["started_at"], row["result"]) for row in told
        ]
        assert sorted(shown) == sorted(
            (event_id, line, number, at, result)
            for (event_id, line), made in self.known.items()
            for number, (at, result) in enumerate(made, 1)
        )

    async def _pages(
        self, conn: object, id: UUID, limit: int, filters: Filters = Filters(), look: int = history.LOOK
    ) -> list[tuple[datetime, UUID, int, str]]:
        seen: list[tuple[datetime, UUID, int, str]] = []
        before = None
        while True:
            found = await history.attempts(
                conn,  # type: ignore[arg-type]
                self.actor,
                endpoint_id=id,
                filters=filters,
                before=before,
                limit=limit,
                look=look,
            )
            seen += [(one.started_at, one.event_id, one.attempt, one.result) for one in found.attempts]
            assert len(found.attempts) <= limit
            before = seen[-1][:3] if len(found.attempts) == limit else found.seen
            if before is None:
                return seen


def _fits(one: tuple[datetime, UUID, int, str], filters: Filters) -> bool:
    at, _, _, result = one
    return (
        (filters.result is None or (result == attempts.DELIVERED) == (filters.result == attempts.DELIVERED))
        and filters.kind in (None, KIND)
        and (filters.date_from is None or at >= filters.date_from)
        and (filters.date_to is None or at < filters.date_to)
    )


async def test_attempts_are_read_as_they_were_made(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Attempts, database_url)


async def test_what_was_delivered_and_is_sent_again_gets_the_next_number(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = [UUID(one) for one in await record(pool, actor)]
    ledger = Record(pool, disable_after=1e9, landed=lambda ended, disabled: None)
    at = clock.now()
    for number in (1, 2, 3):
        async with pool.acquire() as conn:
            (lease,) = await claim_once(conn, "webhook", {id: 1}, seconds=60)
            attempt = Attempt(at + timedelta(seconds=number), 0.1, 200, attempts.DELIVERED, "")
            ledger.put(Ended(lease, None, attempt))
            await ledger.drain()
            listed = (await history.attempts(conn, actor, endpoint_id=id)).attempts
            assert [one.attempt for one in listed] == list(range(number, 0, -1))
            await replays.resend(conn, actor, endpoint_id=id, event_id=event_id)
    assert await pool.fetchval("SELECT count(*) FROM webhook_successes") == 1


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a failure of another"])
async def test_a_success_ends_failures_that_another_worker_has_recorded_since_the_last_one(
    pool: Pool, beside: bool
) -> None:
    """Otherwise the endpoint would have failed since then, if this was the last delivery for long, and the next failure
    days later would disable it."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    neighbor, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, count=3)
    here, there = (Record(pool, disable_after=1e9, landed=lambda ended, disabled: None) for _ in range(2))

    async def end(by: Record, endpoint_id: UUID, result: str) -> None:
        async with pool.acquire() as conn:
            (lease,) = await claim_once(conn, "webhook", {endpoint_id: 1}, seconds=60)
        well = result == attempts.DELIVERED
        by.put(Ended(lease, None if well else 60.0, Attempt(clock.now(), 0.1, 200 if well else 500, result, "")))

    async def failing() -> bool:
        found: bool = await pool.fetchval("SELECT failing_since IS NOT NULL FROM webhook_endpoints WHERE id = $1", id)
        return found

    await end(here, id, attempts.DELIVERED)
    await here.drain()
    assert not await failing()
    await end(there, id, attempts.REFUSED)
    await there.drain()
    assert await failing()
    if beside:
        async with here.writing:  # so that they go into one batch
            await end(here, neighbor, attempts.REFUSED)
            await asyncio.sleep(0)
            await end(here, neighbor, attempts.REFUSED)
            await end(here, id, attempts.DELIVERED)
    else:
        await end(here, id, attempts.DELIVERED)
    await here.drain()
    assert not await failing()


async def test_410_disables_an_endpoint_although_others_of_its_batch_succeed(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, count=2)
    await pool.execute("UPDATE webhook_endpoints SET last_success_at = now()")
    async with pool.acquire() as conn:
        gone, well = await claim_once(conn, "webhook", {id: 2}, seconds=60)
    ledger = Record(pool, disable_after=1e9, landed=lambda ended, disabled: None)
    ledger.put(Ended(gone, 60.0, Attempt(clock.now(), 0.1, 410, attempts.GONE, "", None, URL)))
    ledger.put(Ended(well, None, Attempt(clock.now(), 0.1, 200, attempts.DELIVERED, "")))
    await ledger.drain()
    assert await pool.fetchval("SELECT status FROM webhook_endpoints") == "disabled"
