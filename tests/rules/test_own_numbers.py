"""People's own numbers: each is verified by its own code, and one that was typed and never verified is not kept."""

from __future__ import annotations

import pytest

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import Settings
from heliograph.people import users
from heliograph.retention import forgetting
from heliograph.sms.by_hand import own_numbers
from heliograph.sms.by_hand.own_numbers import CODES, OwnNumber, TooManyCodes
from tests.meanwhile import Meanwhile

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


async def test_a_code_verifies_only_the_number_that_it_was_sent_to(pool: Pool) -> None:
    """Somebody asks for another number in a second window while the code of the first is being checked."""
    async with pool.acquire() as conn, pool.acquire() as other:
        id = (await users.ensure(conn, SYSTEM, email="ana@example.com"))[0].id
        code = await own_numbers.ask(conn, user_id=id, phone=OWN)

        async def again() -> None:
            await own_numbers.ask(other, user_id=id, phone=OTHER)

        with pytest.raises(Invalid) as refused:
            checking = Meanwhile(conn, own_numbers.PROVE, again)
            await own_numbers.prove(checking, SYSTEM, user_id=id, code=code)  # type: ignore[arg-type]
        assert [(one["field"], one["issue"]) for one in refused.value.details["fields"]] == [("code", "ended")]
        assert await own_numbers.get(conn, user_id=id) == OwnNumber(None, OTHER)


async def test_a_number_stays_verified_after_a_second_click(pool: Pool) -> None:
    async with pool.acquire() as conn, pool.acquire() as other:
        id = (await users.ensure(conn, SYSTEM, email="ana@example.com"))[0].id
        code = await own_numbers.ask(conn, user_id=id, phone=OWN)

        async def faster() -> None:
            assert await own_numbers.prove(other, SYSTEM, user_id=id, code=code) == OWN

        checking = Meanwhile(conn, own_numbers.PROVE, faster)
        assert await own_numbers.prove(checking, SYSTEM, user_id=id, code=code) == OWN  # type: ignore[arg-type]
        assert await own_numbers.get(conn, user_id=id) == OwnNumber(OWN)
        assert await conn.fetchval("SELECT count(*) FROM audit_log WHERE action = 'user.number_changed'") == 1


async def test_nobody_guesses_at_more_codes_than_are_sent_because_theirs_are_refused(pool: Pool) -> None:
    async with pool.acquire() as conn:
        id = (await users.ensure(conn, SYSTEM, email="ana@example.com"))[0].id
        for _ in range(CODES + 1):  # as to a number that nothing may be sent to
            code = await own_numbers.ask(conn, user_id=id, phone=OWN)
            await own_numbers.take_back(conn, user_id=id, phone=OWN, code=code)
        for _ in range(CODES):  # with a guess before the refusal
            code = await own_numbers.ask(conn, user_id=id, phone=OWN)
            with pytest.raises(Invalid):
                await own_numbers.prove(conn, SYSTEM, user_id=id, code=f"{(int(code) + 1) % 10**6:06}")
            await own_numbers.take_back(conn, user_id=id, phone=OWN, code=code)
            assert await own_numbers.get(conn, user_id=id) == OwnNumber()
        with pytest.raises(TooManyCodes):
            await own_numbers.ask(conn, user_id=id, phone=OWN)


async def test_who_removes_their_number_gets_no_more_codes_than_others(pool: Pool) -> None:
    """Three codes could be asked for again after it, any number of times, and each guessed at."""
    async with pool.acquire() as conn:
        id = (await users.ensure(conn, SYSTEM, email="ana@example.com"))[0].id
        code = await own_numbers.ask(conn, user_id=id, phone=OWN)
        await own_numbers.prove(conn, SYSTEM, user_id=id, code=code)
        for _ in range(CODES - 1):
            await own_numbers.ask(conn, user_id=id, phone=OTHER)
        for _ in range(2):
            await own_numbers.forget(conn, SYSTEM, user_id=id)
        assert await own_numbers.get(conn, user_id=id) == OwnNumber()
        row = await conn.fetchrow("SELECT phone, asked, code_hash FROM own_numbers")
        assert tuple(row) == (None, None, None)
        assert await conn.fetchval("SELECT count(*) FROM audit_log WHERE action = 'user.number_changed'") == 2
        with pytest.raises(TooManyCodes):
            await own_numbers.ask(conn, user_id=id, phone=OTHER)
