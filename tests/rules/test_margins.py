"""Margins: by whatever columns lines are split, and whatever part of them is folded, they are the sums of what became
due."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.prices import margins
from heliograph.prices.margins import PARTS, Due
from tests.rules.factories import organization

SEED = 20261123
FIRST = datetime(2026, 10, 30, 23, 59, tzinfo=UTC)


async def test_every_way_to_tell_lines_apart_adds_up_to_what_became_due(pool: Pool) -> None:
    chance = random.Random(SEED)
    owners = [(await organization(pool)).organization_id for _ in range(3)]
    names = {owner: await pool.fetchval("SELECT name FROM organizations WHERE id = $1", owner) for owner in owners}
    suppliers = {uuid7(): name for name in ("first", "second")}
    await pool.executemany(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
        list(suppliers.items()),
    )
    some = [
        Due(
            organization_id=chance.choice(owners),
            at=FIRST + timedelta(hours=chance.randrange(72)),
            supplier_id=chance.choice(list(suppliers)),
            country=(country := chance.choice(["MZ", "PT"])),
            network=chance.choice(["", "643-01"]) if country == "MZ" else "",
            route=chance.choice(["", "codes"]),
            messages=1,
            segments=chance.randint(1, 3),
            price=chance.randrange(100_000),
            price_currency=chance.choice(["EUR", "USD"]),
            cost=chance.randrange(100_000),
            cost_currency=chance.choice(["EUR", "USD"]),
        )
        for _ in range(400)
    ]
    first, last = FIRST.date() + timedelta(days=1), FIRST.date() + timedelta(days=3)
    counted = [one for one in some if first <= one.at.date() < last]
    assert 50 < len(counted) < 350

    def value(one: Due, part: str) -> object:
        return {
            "day": one.at.date(),
            "organization": names[one.organization_id],
            "supplier": suppliers[one.supplier_id] if one.supplier_id else "",
            "country": one.country,
            "network": one.network,
            "route": one.route,
        }[part]

    def wanted(by: tuple[str, ...], of: list[Due]) -> dict[tuple[object, ...], list[int]]:
        sums: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for one in of:
            key = (*(value(one, part) if part in by else None for part in PARTS), one.price_currency, one.cost_currency)
            for place, amount in enumerate((one.messages, one.segments, one.price, one.cost)):
                sums[key][place] += amount
        return dict(sums)

    async def found(by: tuple[str, ...], **filters: Any) -> dict[tuple[object, ...], list[int]]:
        async with pool.acquire() as conn:
            lines = await margins.read(conn, first=first, last=last, by=by, **filters)
        made = {
            (*(getattr(one, part) for part in PARTS), one.price_currency, one.cost_currency): [
                *(one.messages, one.segments, one.price, one.cost)
            ]
            for one in lines
        }
        assert len(made) == len(lines)
        return made

    def sided(some: list[Due], only: str) -> list[Due]:
        other = "cost" if only == "price" else "price"
        return [msgspec.structs.replace(one, **{other: 0, f"{other}_currency": ""}) for one in some]

    async def compare() -> None:
        for length in range(len(PARTS) + 1):
            for by in itertools.combinations(PARTS, length):
                assert await found(by) == wanted(by, counted), by
        mine = [one for one in counted if one.organization_id == owners[0]]
        for by in ((), ("organization",), ("day", "supplier")):
            for only in ("price", "cost"):
                assert await found(by, only=only) == wanted(by, sided(counted, only))
            assert await found(by, organization_id=owners[0]) == wanted(by, mine)
            assert await found(by, route="codes") == wanted(by, [one for one in counted if one.route == "codes"])

    async with pool.acquire() as conn:
        for number in range(0, 400, 50):
            await margins.record(conn, some[number : number + 50])
            if number == 150:
                await margins.fold(conn)
    await compare()
    async with pool.acquire() as conn:
        await margins.fold(conn)
    assert await pool.fetchval("SELECT count(*) FROM margin_deltas") == 0
    await compare()
