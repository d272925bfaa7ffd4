"""Adaptive routes on a real database: measured from sums, priced from cards, and followed by every worker's table."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.prices import rows, tariffs
from heliograph.routes import rules, words
from heliograph.routes.lookup import Choice, Route, Table
from heliograph.senders import numbers
from heliograph.senders import rules as sender_rules
from heliograph.senders.book import NumberRule, SenderRule
from heliograph.sms.dispatch import adapting, explaining, routing
from tests.house.project import ROOT
from tests.rules.factories import organization

DEAR, CHEAP = UUID(int=1), UUID(int=2)


async def supplied(pool: Pool, id: UUID, price: str, *, currency: str = "EUR", **columns: str) -> None:
    """Add a supplier with a rate; `columns`: further columns of the rate."""
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
        id,
        "dear" if id == DEAR else "cheap",
    )
    names, values = (",".join(some) for some in (("", *columns), ("", *columns.values())))
    given = rows.read([f"country,price,currency{names}\n", f"MZ,{price},{currency}{values}\n"])
    async with pool.acquire() as conn:
        await tariffs.import_rates(conn, given, kind="cost", name=str(id), supplier_id=id)


async def handed(
    pool: Pool,
    id: UUID,
    count: int,
    delivered: int,
    *,
    recipient: int = 0,
    hours: int = 2,
    country: str = "MZ",
    network: str = "",
    segments: int = 1,
) -> None:
    """This many messages in the full hour that began `hours` or less ago. `recipient`: failures for reasons on the
    recipient's side."""
    for what, number in (("accepted", count), ("delivered", delivered), ("recipient", recipient)):
        await pool.execute(
            "INSERT INTO reconciliation (day, hour, supplier_id, country, network, what, count, segments, to_receipt)"
            " SELECT (at AT TIME ZONE 'UTC')::date, at, $1, $2, $3, $4, $5::bigint, $5::bigint * $7::int, '{}'"
            " FROM (SELECT date_trunc('hour', now() - $6::interval, 'UTC') AS at) one",
            *(id, country, network, what, number, timedelta(hours=hours), segments),
        )


async def routed(
    pool: Pool,
    *,
    adaptive: bool = True,
    name: str = "moz",
    network: str | None = None,
    prefix: str | None = None,
    sender: str | None = None,
) -> Route:
    route = Route(
        id=uuid7(),
        name=name,
        country=None if network or prefix else "MZ",
        network=network,
        prefix=prefix,
        sender=sender,
        traffic_class="marketing",
        adaptive=adaptive,
        choices=(Choice(DEAR, 1, 1), Choice(CHEAP, 2, 1)),
    )
    async with pool.acquire() as conn:
        return await rules.add(conn, route)


async def step(pool: Pool, times: int) -> None:
    for _ in range(times):
        async with pool.acquire() as conn, conn.transaction():
            await adapting.step(conn)


async def evaluated(pool: Pool, times: int = 1) -> list[dict[UUID, int]]:
    seen = []
    for _ in range(times):
        async with pool.acquire() as conn, conn.transaction():
            await adapting.step(conn)
        async with pool.acquire() as conn:
            (route,) = await rules.active(conn)
        seen.append({one.supplier_id: one.weight for one in route.choices})
    return seen


async def measured(pool: Pool) -> None:
    # Marketing is judged an hour after its hour: which hour that is depends on the minute.
    for hours in (1, 2):
        await handed(pool, DEAR, 500, 480, hours=hours)
        await handed(pool, CHEAP, 500, 470, hours=hours)


async def test_shares_move_gradually_to_the_cheaper_one(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await measured(pool)
    await routed(pool)
    async with pool.acquire() as conn:
        before = await rules.version(conn)
    seen = await evaluated(pool, 5)
    assert [one[CHEAP] for one in seen] == [5, 5, 15, 25, 35]
    assert all(sum(one.values()) == 100 for one in seen)
    async with pool.acquire() as conn:
        assert await rules.version(conn) != before
        stored = await rules.find(conn, route="moz")
        assert "cheaper 3 of 3 times in a row" in stored.shares[CHEAP].reason
        # An operator changes what was configured, not the shares.
        assert [one.weight for one in stored.route.choices] == [1, 1]


@pytest.mark.parametrize(("segments", "points"), [(1, 15), (3, 5)])
async def test_what_is_priced_by_the_message_is_compared_at_the_length_that_messages_have(
    pool: Pool, segments: int, points: int
) -> None:
    """0.05 a message is more than 0.03 a segment, and less than three of them."""
    await supplied(pool, DEAR, "0.05", unit="message")
    await supplied(pool, CHEAP, "0.03")
    for hours in (1, 2):
        for id in (DEAR, CHEAP):
            await handed(pool, id, 500, 480, hours=hours, segments=segments)
    await routed(pool)
    assert [one[CHEAP] for one in await evaluated(pool, 3)] == [5, 5, points]


@pytest.mark.parametrize("sender", [None, "258841112222"])
async def test_prices_for_a_kind_of_sender_are_found(pool: Pool, sender: str | None) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03", sender_type="numeric")
    await measured(pool)
    await routed(pool, sender=sender)
    assert [one[CHEAP] for one in await evaluated(pool, 3)] == [5, 5, 15]


@pytest.mark.parametrize("to", [{"prefix": "1416"}, {"network": "302-720"}])
async def test_a_route_within_a_shared_code_is_judged_by_the_rates_of_its_own_country(
    pool: Pool, to: dict[str, str]
) -> None:
    """As its messages are charged: +1 416 and 302-720 are in Canada, although messages count as the United States'."""
    for id, price in ((DEAR, "0.05"), (CHEAP, "0.03")):
        await supplied(pool, id, "1")
        given = rows.read(["country,price,currency\n", "US,0.01,EUR\n", f"CA,{price},EUR\n"])
        async with pool.acquire() as conn:
            await tariffs.import_rates(conn, given, kind="cost", name=str(id), supplier_id=id)
        for hours in (1, 2):
            await handed(pool, id, 500, 480, hours=hours, country="US", network=to.get("network", ""))
    await routed(pool, **to)
    assert [one[CHEAP] for one in await evaluated(pool, 3)] == [5, 5, 15]


async def test_a_price_for_another_kind_of_sender_than_the_routes_is_none(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03", sender_type="numeric")
    await measured(pool)
    await routed(pool, sender="ACME")
    assert [one[CHEAP] for one in await evaluated(pool, 3)] == [5, 5, 5]
    async with pool.acquire() as conn:
        assert "prices of two suppliers are needed" in (await rules.find(conn, route="moz")).shares[CHEAP].reason


async def hour(pool: Pool, cheap: int, dear: int = 480) -> None:
    """Forget all measurements except the week before, and measure again: this many of 500 were delivered."""
    await pool.execute("DELETE FROM reconciliation WHERE hour > now() - interval '3 hours'")
    for hours in (1, 2):
        await handed(pool, CHEAP, 500, cheap, hours=hours)
        await handed(pool, DEAR, 500, dear, hours=hours)


async def test_shares_leave_a_supplier_whose_receipts_say_failure_and_come_back(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    for id in (DEAR, CHEAP):
        await handed(pool, id, 20_000, 19_200, hours=48)
    await hour(pool, 475)
    await routed(pool)
    table = {"before": [one[CHEAP] for one in await evaluated(pool, 12)]}
    await hour(pool, 5)
    table["fails"] = [one[CHEAP] for one in await evaluated(pool, 10)]
    await hour(pool, 475)
    table["fixed"] = [one[CHEAP] for one in await evaluated(pool, 12)]
    assert table == {
        "before": [5, 5, 15, 25, 35, 45, 55, 65, 75, 85, 95, 95],
        "fails": [85, 75, 65, 55, 45, 35, 25, 15, 5, 5],
        "fixed": [5, 5, 15, 25, 35, 45, 55, 65, 75, 85, 95, 95],
    }
    shown = (ROOT / "docs" / "suppliers.md").read_text()
    for phase in ("fails", "fixed"):
        assert f"{phase:<7} {' '.join(f'{one}/{100 - one}' for one in table[phase])}\n" in shown


async def test_what_recipients_cause_is_not_held_against_a_supplier(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    for hours in (1, 2):
        await handed(pool, DEAR, 500, 480, hours=hours)
        # Half of its numbers do not exist: of the others it delivers more than the expensive one.
        await handed(pool, CHEAP, 500, 248, recipient=250, hours=hours)
    await routed(pool)
    assert [one[CHEAP] for one in await evaluated(pool, 3)] == [5, 5, 15]
    async with pool.acquire() as conn:
        stored = await rules.find(conn, route="moz")
    assert "248 of 250 delivered in the hour" in stored.shares[CHEAP].reason


async def test_a_route_to_a_network_is_judged_by_that_network(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    for hours in (1, 2):
        for id in (DEAR, CHEAP):
            await handed(pool, id, 5000, 4900, hours=hours, network="643-01")
        await handed(pool, DEAR, 500, 480, hours=hours, network="643-04")
        await handed(pool, CHEAP, 500, 100, hours=hours, network="643-04")
        await handed(pool, DEAR, 9, 9, hours=hours, network="643-03")
        await handed(pool, CHEAP, 9, 0, hours=hours, network="643-03")
    for network in ("643-04", "643-03"):
        await routed(pool, name=network, network=network)
    await step(pool, 3)
    async with pool.acquire() as conn:
        vodacom, movitel = [await rules.find(conn, route=one) for one in ("643-04", "643-03")]
    assert "100 of 500 delivered in the hour" in vodacom.shares[CHEAP].reason
    assert vodacom.shares[CHEAP].points == 5
    # Too few messages went to this one to say anything: the country's figures count.
    assert "5,000 of 5,509 delivered in the hour" in movitel.shares[CHEAP].reason
    assert movitel.shares[CHEAP].points == 15


async def test_that_none_is_within_its_bounds_is_said_with_the_decision(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    for hours in (1, 2):
        await handed(pool, DEAR, 500, 250, hours=hours)
        await handed(pool, CHEAP, 500, 200, hours=hours)
    await routed(pool)
    async with pool.acquire() as conn:
        before = await rules.version(conn)
    await step(pool, 1)
    async with pool.acquire() as conn:
        # Workers are told although no point moved: the expensive one has them all.
        assert await rules.version(conn) != before
        (route,) = await rules.active(conn)
        said = words.explained(
            Table(await routing.load(conn), [route]).candidates(
                "+258841234567", organization_id=UUID(int=9), sender="ACME", traffic_class="marketing"
            ),
            names={DEAR: "dear", CHEAP: "cheap"},
        )
    assert route.degraded
    assert said.endswith("; degraded: no supplier is within the bounds of its class")


async def test_r10_where_only_what_is_outside_of_the_bounds_is_left_that_is_said(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.02")
    await supplied(pool, CHEAP, "0.012")
    for hours in (1, 2):
        await handed(pool, DEAR, 1000, 940, hours=hours)
        await handed(pool, CHEAP, 1000, 850, hours=hours)
    await routed(pool)
    await pool.execute("UPDATE routes SET class = 'otp'")
    await step(pool, 1)

    async def decided(**skipped: str) -> str:
        async with pool.acquire() as conn:
            (route,) = await rules.active(conn)
            found = Table(await routing.load(conn), [route]).candidates(
                "+258841234567", organization_id=UUID(int=9), sender="ACME", traffic_class="otp"
            )
        names = {DEAR: "dear", CHEAP: "cheap"}
        return str(
            words.explained(
                found, names=names, skipped={id: skipped[name] for id, name in names.items() if name in skipped}
            )
        )

    degraded = "degraded: no available supplier is within the bounds of its class"
    assert "degraded" not in await decided()
    assert "degraded" not in await decided(cheap="paused")
    open_circuit = "circuit open since 10:02 UTC"
    said = await decided(dear=open_circuit)
    assert said.endswith(f": cheap; {degraded}; dear skipped: {open_circuit}")
    assert "degraded" not in await decided(dear=open_circuit, cheap="paused"), "nobody is asked at all"
    # Whatever was judged good enough may stand in.
    await pool.execute("UPDATE routes SET class = 'marketing'")
    await step(pool, 1)
    assert "degraded" not in await decided(dear=open_circuit)
    async with pool.acquire() as conn:
        (route,) = await rules.active(conn)
    assert (route.stand_ins, route.outside) == ((CHEAP, DEAR), ())


async def test_messages_are_shared_by_these_points_and_why_is_said(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await measured(pool)
    await routed(pool)
    await evaluated(pool, 8)
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    async with pool.acquire() as conn:
        table = Table(await routing.load(conn), await rules.active(conn))
        said = await explaining.explain(
            conn,
            "+258841234567",
            organization_id=actor.organization_id,
            organization="acme",
            sender="ACME",
            traffic_class="marketing",
        )
    found = table.candidates(
        "+258841234567", organization_id=actor.organization_id, sender="ACME", traffic_class="marketing"
    )
    ids = [uuid7() for _ in range(2000)]
    share = sum(found.first(id) == CHEAP for id in ids) / len(ids)
    assert 0.5 < share < 0.8  # 65 points
    assert [found.first(id) for id in ids] == [found.first(id) for id in ids]
    assert "of 500 delivered in the hour" in said.decision


async def test_explain_says_since_when_a_circuit_is_open(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await routed(pool, adaptive=False)
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    at = await pool.fetchval(
        "INSERT INTO supplier_health (supplier_id, opened_at) VALUES ($1, now()) RETURNING opened_at", CHEAP
    )
    async with pool.acquire() as conn:
        said = await explaining.explain(
            conn,
            "+258841234567",
            organization_id=actor.organization_id,
            organization="acme",
            sender="ACME",
            traffic_class="marketing",
        )
    assert "dear (0.05 EUR)" in said.decision
    async with pool.acquire() as conn:
        stored = await rules.lock(conn, route="moz")
        await rules.change(conn, stored, msgspec.structs.replace(stored.route, country="PT", rated=True))
        abroad = await explaining.explain(
            conn,
            "+351912345678",
            organization_id=actor.organization_id,
            organization="acme",
            sender="ACME",
            traffic_class="marketing",
        )
    assert "dear skipped: it has no rate there" in abroad.decision
    assert abroad.suppliers == []
    assert f"cheap skipped: circuit open since {at:%H:%M} UTC" in said.decision
    assert said.suppliers == ["dear"]


async def test_explain_says_what_becomes_of_sender_and_number_and_what_waits(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await routed(pool, adaptive=False)
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    hour = clock.now().astimezone(ZoneInfo("Africa/Maputo")).hour
    await pool.execute(
        "UPDATE organizations SET quiet_hours = $2 WHERE id = $1",
        actor.organization_id,
        f"{(hour - 2) % 24:02}:00-{(hour + 2) % 24:02}:00",
    )
    at = await pool.fetchval(
        "INSERT INTO supplier_health (supplier_id, throttled_at) VALUES ($1, now()) RETURNING throttled_at", DEAR
    )

    async def explained(traffic_class: str) -> explaining.Explanation:
        async with pool.acquire() as conn:
            return await explaining.explain(
                conn,
                "+258841234567",
                organization_id=actor.organization_id,
                organization="acme",
                sender="ACME",
                traffic_class=traffic_class,
            )

    async with pool.acquire() as conn:
        for supplier_id, action, replacement in ((DEAR, "replace", "90210"), (CHEAP, "register", None)):
            rule = SenderRule(id=uuid7(), supplier_id=supplier_id, country="MZ", action=action, replacement=replacement)
            await sender_rules.put(conn, rule)
        await numbers.put(conn, NumberRule(id=uuid7(), supplier_id=DEAR, prefix="258", strip="258", numbering=(2, 1)))
    said = await explained("marketing")
    assert said.suppliers == ["dear"]
    assert f"dear (0.05 EUR, throttled at {at:%H:%M} UTC)" in said.decision
    assert "cheap skipped: its rules refuse the sender there (registration: nobody asked)" in said.decision
    assert said.changes == ["dear sends it as 90210", "dear gets 841234567", "dear gets TON 2, NPI 1"]
    assert said.quiet_until is not None
    assert said.quiet_until > clock.now()
    assert (await explained("transactional")).quiet_until is None


async def test_a_route_that_is_not_adaptive_stays_as_it_is(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await measured(pool)
    await routed(pool, adaptive=False)
    assert await evaluated(pool, 4) == [{DEAR: 1, CHEAP: 1}] * 4


async def test_switched_off_a_route_is_as_configured_at_once(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await measured(pool)
    await routed(pool)
    await evaluated(pool, 4)
    async with pool.acquire() as conn, conn.transaction():
        before = await rules.lock(conn, route="moz")
        await rules.change(conn, before, msgspec.structs.replace(before.route, adaptive=False))
    assert await evaluated(pool) == [{DEAR: 1, CHEAP: 1}]


async def test_prices_of_two_currencies_move_nothing(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03", currency="USD")
    await measured(pool)
    await routed(pool)
    assert [one[CHEAP] for one in await evaluated(pool, 4)] == [5] * 4
    async with pool.acquire() as conn:
        stored = await rules.find(conn, route="moz")
    assert "prices of two suppliers are needed" in stored.shares[CHEAP].reason


async def test_another_countrys_messages_prove_nothing(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    for hours in (1, 2):
        for id in (DEAR, CHEAP):
            await handed(pool, id, 500, 480, hours=hours, country="PT")
    await routed(pool)
    assert [one[CHEAP] for one in await evaluated(pool, 4)] == [5] * 4


async def failing_for_one_network(pool: Pool, *, cheap_there: tuple[int, int], dear_there: int = 500) -> None:
    """Both deliver to 643-01; to 643-04 the expensive one does, and the cheap one as given (handed over, delivered)."""
    for hours in (1, 2):
        for id in (DEAR, CHEAP):
            await handed(pool, id, 5000, 4900, hours=hours, network="643-01")
        await handed(pool, DEAR, dear_there, dear_there * 96 // 100, hours=hours, network="643-04")
        await handed(pool, CHEAP, *cheap_there, hours=hours, network="643-04")


async def points(pool: Pool, network: str | None = None) -> int:
    async with pool.acquire() as conn:
        stored = await rules.find(conn, route="moz")
    share = stored.shares[CHEAP]
    return share.networks.get(network, share).points if network else share.points


@pytest.mark.parametrize("cheap_there", [(500, 100), (30, 3)])
async def test_who_fails_for_one_network_loses_shares_of_this_network_only(
    pool: Pool, cheap_there: tuple[int, int]
) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await failing_for_one_network(pool, cheap_there=cheap_there)
    await routed(pool)
    seen = []
    for _ in range(6):
        await step(pool, 1)
        seen.append((await points(pool, "643-01"), await points(pool, "643-04")))
    assert seen == [(5, 5), (5, 5), (15, 5), (25, 5), (35, 5), (45, 5)]
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    async with pool.acquire() as conn:
        table = Table(await routing.load(conn), await rules.active(conn))
        told = [
            await explaining.explain(
                conn,
                "+258841234567",
                organization_id=actor.organization_id,
                organization="acme",
                sender="ACME",
                traffic_class="marketing",
                network=network,
            )
            for network in ("643-04", "643-01")
        ]
    assert "country MZ, class marketing (route moz), shares of network 643-04: dear" in told[0].decision
    assert "cheap" in told[0].decision
    assert " 5 %" in told[0].decision
    assert told[0].passed_over == []
    assert "shares of network" not in told[1].decision
    assert " 45 %" in told[1].decision

    def cheaps(network: str | None, *, is_certain: bool) -> float:
        found = table.candidates(
            "+258841234567",
            organization_id=actor.organization_id,
            sender="ACME",
            traffic_class="marketing",
            network=network,
            is_certain=is_certain,
        )
        return sum(found.first(UUID(int=n)) == CHEAP for n in range(2000)) / 2000

    assert cheaps("643-04", is_certain=True) == cheaps("643-04", is_certain=False) < 0.1
    assert cheaps("643-01", is_certain=True) == cheaps(None, is_certain=False) > 0.35


async def test_a_network_of_which_too_little_is_known_goes_back_to_its_countrys_shares(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await failing_for_one_network(pool, cheap_there=(500, 100))
    await routed(pool)
    await step(pool, 6)
    assert (await points(pool), await points(pool, "643-04")) == (45, 5)
    await pool.execute("DELETE FROM reconciliation WHERE network = '643-04'")
    seen = []
    for _ in range(7):
        async with pool.acquire() as conn:
            before = await rules.version(conn)
        await step(pool, 1)
        seen.append((await points(pool), await points(pool, "643-04")))
        async with pool.acquire() as conn:
            assert await rules.version(conn) != before, "workers are told"
    assert seen == [(55, 15), (65, 25), (75, 35), (85, 45), (95, 55), (95, 65), (95, 75)]
    await step(pool, 3)
    async with pool.acquire() as conn:
        stored = await rules.find(conn, route="moz")
        (route,) = await rules.active(conn)
    assert (stored.shares[CHEAP].networks, route.apart) == ({}, ())


async def test_who_delivers_to_one_network_keeps_it_where_the_country_is_lost(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.03")
    await supplied(pool, CHEAP, "0.05")
    for hours in (1, 2):
        await handed(pool, DEAR, 5000, 500, hours=hours, network="643-01")
        await handed(pool, CHEAP, 5000, 4900, hours=hours, network="643-01")
        for id in (DEAR, CHEAP):
            await handed(pool, id, 500, 480, hours=hours, network="643-04")
    await routed(pool)
    await step(pool, 3)
    assert (await points(pool), await points(pool, "643-01"), await points(pool, "643-04")) == (35, 35, 5)


async def test_a_change_of_the_route_forgets_its_networks(pool: Pool) -> None:
    await supplied(pool, DEAR, "0.05")
    await supplied(pool, CHEAP, "0.03")
    await failing_for_one_network(pool, cheap_there=(500, 100))
    await routed(pool)
    await step(pool, 4)
    async with pool.acquire() as conn, conn.transaction():
        before = await rules.lock(conn, route="moz")
        assert before.shares[CHEAP].networks
        await rules.change(conn, before, msgspec.structs.replace(before.route, country=None, network="643-04"))
    async with pool.acquire() as conn:
        (route,) = await rules.active(conn)
    assert (route.apart, {one.weight for one in route.choices}) == ((), {1})
    told = await pool.fetchval("SELECT before::text || after::text FROM audit_log WHERE action = 'route.changed'")
    assert "apart" not in told
    assert "shared_for" not in told
