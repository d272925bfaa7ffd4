"""A number that several people had in turn: each person's export and erasure covers only their own data."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.privacy import erasure, holdings
from heliograph.queue import timers
from heliograph.sms.received import inbound, inbox
from heliograph.suppliers.contract import Inbound
from tests.processes import until
from tests.rules.callback_factories import Meta, ago, message
from tests.rules.factories import message as sms
from tests.rules.factories import sender
from tests.rules.whatsapp_factories import Made, made

NUMBER, SECOND, THIRD = "+258841234568", "+258847777777", "+258849999999"
OWN = {"message": 1, "message_received": 1, "whatsapp_message": 1}


class Owners:
    """What the owners of a number write, where they move, and what is stored about them."""

    def __init__(self, pool: Pool, made: Made) -> None:
        self.made = made
        self._pool, self._meta = pool, Meta(pool)

    async def write(self, *, hours: float, by: str = NUMBER, user_id: str | None = None) -> None:
        """A message on WhatsApp, this long ago."""
        await self._meta.say(self.made, message(self.made, "mine", ago(hours=hours), by=by, user_id=user_id))

    async def talk(self, *, hours: float, by: str = NUMBER) -> None:
        """The same, and an SMS in each direction."""
        await self.write(hours=hours, by=by)
        await sms(self._pool, self.made.actor, to=by)
        async with self._pool.acquire() as conn, conn.transaction():
            await timers.ensure(conn, inbox.TIMER)
            said = Inbound(by[1:], "258800001234", f"hello {uuid7()}", uuid7().bytes)
            await inbound.store(conn, UUID(int=1), [said])
        async with self._pool.acquire() as conn:
            await inbox.process_due(conn)

    async def move(self, to: str, *, hours: float, by: str = NUMBER) -> None:
        system = {"type": "user_changed_number", "body": "changed", "wa_id": to[1:]}
        await self._meta.say(self.made, message(self.made, type="system", by=by, at=ago(hours=hours), system=system))

    async def divide(self, *since: datetime) -> None:
        """Since when each owner but the first had their number, by the times at which this test stored messages."""
        owners = "SELECT ctid, row_number() OVER (PARTITION BY name ORDER BY left_at) AS n FROM former_names"
        await self._pool.execute(
            f"UPDATE former_names SET taken_at = ($1::timestamptz[])[n] FROM ({owners}) owner"
            " WHERE former_names.ctid = owner.ctid",
            since,
        )

    async def held(self, *addresses: str) -> list[dict[str, int]]:
        async with self._pool.acquire() as conn:
            found = [
                [row async for row in holdings.held(conn, self.made.actor, address=address)] for address in addresses
            ]
        return [dict(Counter(row["what"] for row in rows if row.get("body") or row.get("content"))) for rows in found]


async def between() -> datetime:
    """A time after all existing ids, and before all future ones: they count milliseconds."""
    last = clock.now()
    await until(lambda: clock.now() >= last + timedelta(milliseconds=2))
    return last + timedelta(milliseconds=1)


@pytest.fixture
async def owners(pool: Pool) -> Owners:
    acme = await made(pool)
    await sender(pool, acme.actor, "258800001234")
    return Owners(pool, acme)


@pytest.mark.parametrize("late", [True, False])
async def test_each_of_several_owners_has_what_was_said_in_their_time(pool: Pool, owners: Owners, late: bool) -> None:
    """`late`: their moves are reported when others have the number already, the last one first."""
    moves, since = [(SECOND, 50), (THIRD, 30)], []
    for to, hours in moves:
        await owners.talk(hours=hours + 5)
        if not late:
            await owners.move(to, hours=hours)
        since.append(await between())
    await owners.talk(hours=1)
    if late:
        for to, hours in reversed(moves):
            await owners.move(to, hours=hours)
    await owners.write(hours=54)
    await owners.divide(*since)
    # Each with their notice, and the first with what came late.
    moved = OWN | {"whatsapp_message": 2}
    assert await owners.held(NUMBER, SECOND, THIRD) == [OWN, OWN | {"whatsapp_message": 3}, moved]
    async with pool.acquire() as conn:
        await erasure.erase(conn, owners.made.actor, address=SECOND)
    assert await owners.held(NUMBER, SECOND, THIRD) == [OWN, {}, moved]


async def test_who_had_a_number_twice_has_what_was_said_in_both_times(owners: Owners) -> None:
    await owners.talk(hours=60)
    await owners.move(SECOND, hours=50)
    since = [await between()]
    await owners.talk(hours=45)
    await owners.move(THIRD, hours=40)
    since.append(await between())
    await owners.move(NUMBER, hours=30, by=SECOND)
    await owners.talk(hours=20)
    await owners.divide(*since)
    mine = {"message": 2, "message_received": 2, "whatsapp_message": 4}
    assert await owners.held(NUMBER, SECOND, THIRD) == [mine, mine, OWN | {"whatsapp_message": 2}]


async def test_a_number_that_was_left_goes_along_when_two_names_turn_out_to_be_one_persons(owners: Owners) -> None:
    await owners.write(hours=70, by=THIRD, user_id="MZ.1")
    await owners.talk(hours=60)
    await owners.move(SECOND, hours=50)
    since = await between()
    await owners.talk(hours=45)
    await owners.divide(since)
    await owners.write(hours=40, by=SECOND, user_id="MZ.1")
    assert await owners.held(NUMBER, "MZ.1") == [OWN, OWN | {"whatsapp_message": 4}]
