"""People's own numbers: one that was typed and never verified is not kept."""

from __future__ import annotations

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.people import users
from heliograph.retention import forgetting
from heliograph.sms.by_hand import own_numbers

SETTINGS = Settings(secret_key="a secret key for tests, long enough")
OWN, OTHER = "+258841234567", "+258841234568"


async def test_a_number_that_was_not_verified_in_time_goes(pool: Pool) -> None:
    async with pool.acquire() as conn:
        ana, bia, cleo = [
            (await users.ensure(conn, SYSTEM, email=f"{name}@example.com"))[0].id for name in ("ana", "bia", "cleo")
        ]
        code = await own_numbers.ask(conn, user_id=ana, phone=OWN)
        assert await own_numbers.prove(conn, SYSTEM, user_id=ana, code=code) == OWN
        for one in (ana, bia):
            await own_numbers.ask(conn, user_id=one, phone=OTHER)
        await conn.execute("UPDATE own_numbers SET asked_at = asked_at - interval '16 minutes'")
        await own_numbers.ask(conn, user_id=cleo, phone=OTHER)
        await forgetting.forget(conn, SETTINGS)
        rows = await conn.fetch("SELECT user_id, phone, asked, code_hash IS NULL AS is_over, codes FROM own_numbers")
    found = {row["user_id"]: tuple(row)[1:] for row in rows}
    # How many codes were sent within the hour still counts.
    assert found == {ana: (OWN, None, True, 2), bia: (None, None, True, 1), cleo: (None, OTHER, False, 1)}
