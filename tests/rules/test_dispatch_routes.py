"""Dispatch with routes: which suppliers are tried, and which are not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.networks import learned
from heliograph.networks.learned import LearnedNetwork
from heliograph.overview import messages
from heliograph.prices import rows, tariffs
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.sending.attempts import Attempt
from heliograph.sms import retention, timeline
from heliograph.sms.dispatch import explaining
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.suppliers.contract import Outcome, Scope, Verdict
from tests.rules.dispatching import Bench, attempts
from tests.rules.factories import TO, blocked, message, organization, supplier


async def test_a_route_chooses_and_what_it_does_not_name_is_not_asked(pool: Pool) -> None:
    organization_id = await organization(pool)
    first, second = supplier("first", id=uuid7(), priority=1), supplier("second", id=uuid7(), priority=2)
    routes = [Route(id=uuid7(), name="codes", prefix="25884", traffic_class="otp", choices=(Choice(second.id),))]
    bench = Bench(pool, first, second, routes=routes)
    plain, code = await message(pool, organization_id), await message(pool, organization_id)
    await pool.execute("UPDATE messages SET class = 'otp' WHERE id = $1", code)
    await bench.round()
    assert [one.message_id for one in bench.connectors[first.id].submitted] == [plain]
    assert [one.message_id for one in bench.connectors[second.id].submitted] == [code]
    later = await message(pool, organization_id)
    await pool.execute("UPDATE messages SET class = 'otp' WHERE id = $1", later)
    bench.connectors[second.id].sessions = 0
    await bench.round()
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", later) == second.id
    assert len(bench.connectors[first.id].submitted) == 1


@pytest.mark.parametrize("waits_for", ["queue", "messages"])
async def test_a_supplier_removed_during_a_round_fails_no_message(pool: Pool, waits_for: str) -> None:
    # The pool drops a removed supplier at once, while a round waits for the database.
    organization_id = await organization(pool)
    first, second = supplier("first", id=uuid7(), priority=1), supplier("second", id=uuid7(), priority=2)
    bench = Bench(pool, first, second)
    gone = Outcome(Verdict.UNREACHABLE, counts=False, scope=Scope.PROCESS)
    bench.connectors[first.id].script = lambda _: gone
    id = await message(pool, organization_id)
    async with pool.acquire() as conn:
        async with conn.transaction():
            await conn.execute(f"LOCK TABLE {waits_for}")
            under_way = asyncio.create_task(bench.dispatcher.round())
            await blocked(pool)
            del bench.accounts[first.id]
        assert await under_way == 1
    await bench.settle()
    await bench.later(minutes=1)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]
    assert [one and one.rpartition(": ")[2] for one in await because(pool, id)] == ["first before second", "second"]


async def because(pool: Pool, id: UUID) -> list[str | None]:
    """The reason stored with each attempt of a message."""
    async with pool.acquire() as conn:
        told = await timeline.of_message(conn, id=id)
    return [entry.detail.get("because") for entry in told.entries if entry.what == "attempt"]


async def test_why_a_supplier_was_chosen_is_kept_in_the_words_of_that_moment(pool: Pool) -> None:
    organization_id = await organization(pool)
    async with pool.acquire() as conn:
        await conn.execute("DELETE FROM route_decisions")
    main, backup = supplier("main", id=uuid7()), supplier("backup", id=uuid7())
    routes = [Route(id=uuid7(), name="mz", prefix="258", choices=(Choice(main.id, 1), Choice(backup.id, 2)))]
    bench = Bench(pool, main, backup, routes=routes)
    bench.connectors[main.id].script = lambda _: Outcome(Verdict.REFUSED, code="0x0A", failover=True)
    id = await message(pool, organization_id)
    await bench.round(2)
    assert await attempts(pool, id) == [(1, "refused"), (2, "accepted")]
    first = "prefix 258 (route mz): main before backup"
    second = "prefix 258 (route mz): backup; main skipped: it refused the message"
    assert await because(pool, id) == [first, second]
    bench.accounts[main.id].breaker.trip()
    other = await message(pool, organization_id)
    await bench.round()
    (said,) = await because(pool, other)
    assert said is not None
    assert re.fullmatch(r"prefix 258 \(route mz\): backup; main skipped: circuit open since \d\d:\d\d UTC", said)
    # Many messages, one stored text.
    more = [await message(pool, organization_id) for _ in range(3)]
    await bench.round()
    assert {tuple(await because(pool, one)) for one in more} <= {(said,), tuple(await because(pool, more[0]))}
    assert await pool.fetchval("SELECT count(*) FROM route_decisions") <= 4


async def test_words_of_a_transaction_that_was_rolled_back_are_stored_by_the_next(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a round without any of these messages, whose commit does not store the text."""
    bench = Bench(pool, supplier("main", id=uuid7()))
    id = await message(pool, await organization(pool))
    begun = bench.channel.begun

    async def lost(conn: Connection, begins: Sequence[Attempt[ClaimedMessage]]) -> None:
        await begun(conn, begins)
        raise asyncpg.DeadlockDetectedError

    monkeypatch.setattr(bench.channel, "begun", lost)
    await bench.round()
    monkeypatch.undo()
    for due in ("now() + interval '1 hour'", "now()"):
        await pool.execute(f"UPDATE queue SET due_at = {due}")
        await bench.round()
    assert await because(pool, id) == ["no route: the suppliers' own prefixes, priorities and weights: main"]


async def test_what_is_kept_names_price_and_quality_where_they_are_known(pool: Pool) -> None:
    organization_id = await organization(pool)
    main, backup, cheap = (supplier(name, id=uuid7()) for name in ("main", "backup", "cheap"))
    choices = tuple(Choice(one.id, place) for place, one in enumerate((cheap, main, backup)))
    route = Route(id=uuid7(), name="mz", prefix="258", traffic_class="transactional", choices=choices)
    bench = Bench(pool, main, backup, cheap, routes=[route])
    plain = await message(pool, organization_id)
    bench.accounts[cheap.id].breaker.trip()
    await bench.round()
    (said,) = await because(pool, plain)
    assert said is not None
    open_since = re.search(r"circuit open since \d\d:\d\d UTC$", said)
    assert open_since is not None
    head = "prefix 258, class transactional (route mz): "
    assert said == f"{head}main before backup; cheap skipped: {open_since[0]}"
    async with pool.acquire() as conn:
        for id, price in ((main.id, "0.021"), (backup.id, "0.034")):
            await conn.execute(
                "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
                " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
                id,
                str(id),
            )
            given = rows.read(["country,price,currency\n", f"MZ,{price},USD\n"])
            await tariffs.import_rates(conn, given, kind="cost", name=str(id), supplier_id=id, whole=True)
        # Too few of the backup's messages were measured for a quality.
        for id, count, delivered in ((main.id, 200, 194), (backup.id, 49, 49)):
            for what, number in (("accepted", count), ("delivered", delivered)):
                histogram = [0] * 12 + [number] if what == "delivered" else []
                await conn.execute(
                    "INSERT INTO reconciliation (day, hour, supplier_id, country, network, what, count, segments,"
                    " to_receipt) SELECT (at AT TIME ZONE 'UTC')::date, at, $1, 'MZ', '', $2, $3, $3, $4"
                    " FROM date_trunc('hour', $5::timestamptz, 'UTC') AS at",
                    id,
                    what,
                    number,
                    histogram,
                    clock.now() - timedelta(hours=3),
                )
    await bench.charges.refresh(pool)
    await bench.channel.measure(pool)
    id = await message(pool, organization_id)
    await bench.round()
    (said,) = await because(pool, id)
    assert said is not None
    assert re.fullmatch(
        re.escape(f"{head}main (0.021 USD, 97 % in 8 s) before backup (0.034 USD); cheap skipped: circuit open since ")
        + r"\d\d:\d\d UTC",
        said,
    )
    # Customers see none of this.
    async with pool.acquire() as conn:
        seen = repr(await messages.get(conn, organization_id, id=id))
    assert "USD" not in seen
    assert "backup" not in seen


async def test_a_route_may_ask_only_those_who_have_a_price_there(pool: Pool) -> None:
    actor = await organization(pool)
    main, cheap = (supplier(name, id=uuid7()) for name in ("main", "cheap"))
    choices = tuple(Choice(one.id, place) for place, one in enumerate((cheap, main)))
    route = Route(id=uuid7(), name="mz", prefix="258", rated=True, choices=choices)
    bench = Bench(pool, main, cheap, routes=[route])
    nowhere = await message(pool, actor)
    await bench.round()
    # Nobody has a price there: the message ends, and no supplier was asked.
    assert await pool.fetchrow("SELECT status, failure_code FROM messages WHERE id = $1", nowhere) == (
        "failed",
        "destination_unreachable",
    )
    assert await attempts(pool, nowhere) == []
    async with pool.acquire() as conn:
        await conn.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
            " VALUES ($1, 'main', 'smpp', '{}', '', now(), now())",
            main.id,
        )
        given = rows.read(["country,price,currency\n", "MZ,0.021,USD\n"])
        await tariffs.import_rates(conn, given, kind="cost", name="main", supplier_id=main.id, whole=True)
    bench.charges._refreshed_at = float("-inf")
    await bench.charges.refresh(pool)
    id = await message(pool, actor)
    await bench.round()
    (said,) = await because(pool, id)
    assert said is not None
    assert said.startswith("prefix 258 (route mz): main")
    assert said.endswith("cheap skipped: it has no rate there")


async def test_one_that_is_lost_keeps_its_reason_and_old_words_go(pool: Pool) -> None:
    main = supplier("main", id=uuid7())
    bench = Bench(pool, main)
    bench.connectors[main.id].script = lambda _: None
    id = await message(pool, await organization(pool))
    await bench.round()
    said = "no route: the suppliers' own prefixes, priorities and weights: main"
    assert await because(pool, id) == [said]
    await bench.later(seconds=61)
    bench.restart()
    await bench.round()
    assert (await attempts(pool, id), await because(pool, id)) == ([(1, "unknown")], [said])
    async with pool.acquire() as conn:
        await conn.execute("INSERT INTO route_decisions VALUES (7, '', now()::date - 9), (8, '', now()::date - 1)")
        await conn.execute(retention.DELETE_DECISIONS, clock.now(), 100)
        left = {row["id"] for row in await conn.fetch("SELECT id FROM route_decisions")}
    assert (7 in left, 8 in left) == (False, True)


async def test_a_network_that_was_learned_of_the_number_goes_before_a_prefix_and_a_guessed_one_behind(
    pool: Pool,
) -> None:
    movitel, other = supplier("movitel", id=uuid7()), supplier("other", id=uuid7())
    routes = [
        Route(id=uuid7(), name="network", network="643-03", choices=(Choice(movitel.id),)),
        Route(id=uuid7(), name="prefix", prefix="25886000", choices=(Choice(other.id),)),
        Route(id=uuid7(), name="rest", choices=(Choice(other.id),)),
    ]
    bench = Bench(pool, movitel, other, routes=routes)
    directory = bench.charges.directory
    organization_id = await organization(pool)
    ported, plain, prefixed = "+258841230001", "+258861230001", "+258860001234"
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(int(ported[1:]), "643-03", learned.RECEIPT)])
    await directory.refresh(pool)
    assert directory.place(plain).network == directory.place(prefixed).network == "643-03"
    for to in (ported, plain, prefixed):
        await message(pool, organization_id, to=to)
    await bench.round()
    assert {one.to for one in bench.connectors[movitel.id].submitted} == {ported[1:], plain[1:]}
    assert {one.to for one in bench.connectors[other.id].submitted} == {prefixed[1:]}


async def test_a_name_that_is_taken_is_no_error_in_the_databases_log(pool: Pool) -> None:
    id = uuid7()
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, 'a', 'smpp', '{}', '', now(), now())",
        id,
    )
    route = Route(id=uuid7(), name="Ported", network="643-03", choices=(Choice(id),))
    failures: list[object] = []
    async with pool.acquire() as conn:
        await rules.add(conn, route)
        with conn.query_logger(lambda query: failures.append(query.exception)), pytest.raises(Invalid) as refused:
            await rules.add(conn, msgspec.structs.replace(route, name="ported"))
    assert refused.value.details["fields"][0]["issue"] == "taken"
    assert failures
    assert not any(failures)


async def test_r8_and_r9_a_ported_number_goes_by_its_network_and_by_its_prefix_once_that_is_stale(pool: Pool) -> None:
    a, b = supplier("a", id=uuid7()), supplier("b", id=uuid7())
    for one in (a, b):
        await pool.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
            " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
            one.id,
            one.name,
        )
    async with pool.acquire() as conn:
        routes = [
            await rules.add(conn, Route(id=uuid7(), name="ported", network="643-03", choices=(Choice(a.id),))),
            await rules.add(conn, Route(id=uuid7(), name="range", prefix="25884", choices=(Choice(b.id),))),
        ]
        await learned.learn(conn, [LearnedNetwork(int(TO[1:]), "643-03", learned.LOOKUP)])
    actor = await organization(pool)

    async def goes() -> tuple[str, str, str]:
        """Which supplier gets the message, by which route, and what is known about its network."""
        bench = Bench(pool, a, b, routes=routes)
        await bench.charges.directory.refresh(pool)
        await message(pool, actor, to=TO)
        await bench.round()
        (name,) = [one.name for one in (a, b) if bench.connectors[one.id].submitted]
        async with pool.acquire() as conn:
            said = await explaining.explain(
                conn,
                TO,
                organization_id=actor.organization_id,
                organization="acme",
                sender="ACME",
                traffic_class="transactional",
            )
        return name, said.route or "", said.network or ""

    assert await goes() == ("a", "ported", "643-03 (known from a look-up)")
    # The learned network is too old, and the look-up failed.
    await pool.execute(
        "UPDATE number_networks SET learned_at = learned_at - $1::interval", learned.KEPT + timedelta(days=1)
    )
    day = await pool.fetchval("SELECT to_char(max(learned_at AT TIME ZONE 'UTC'), 'YYYY-MM-DD') FROM number_networks")
    assert await goes() == ("b", "range", f"643-04 (by its range, stale: 643-03 on {day}, too long ago)")
