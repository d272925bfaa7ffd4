"""Dispatch under routes: who is asked, and who is not."""

from __future__ import annotations

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.routes.lookup import Choice, Route
from tests.rules.dispatching import Bench
from tests.rules.factories import message, organization, supplier


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
