"""Replays: a request gets its first response again for 72 hours, whatever the time and the settings are by then."""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts.requests import Answer, IdempotencyConflict
from heliograph.base.database import clock
from heliograph.base.database.migrate import day_name, make_days
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import Settings
from heliograph.sms.accepting.accept import Acceptor
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor
from tests.rules import whatsapp_factories
from tests.rules.factories import check_books, organization, send
from tests.rules.test_whatsapp_accept import send as send_whatsapp

AGE = """
UPDATE send_keys SET created_at = now() - $1::interval, made_on = ((now() - $1::interval) AT TIME ZONE 'UTC')::date
"""


async def test_a_send_whose_time_has_passed_is_replayed_and_not_judged_again(pool: Pool) -> None:
    actor = await organization(pool)
    past = clock.now() - timedelta(hours=3)
    asked = send(actor, key_name="k", send_at=clock.now() + timedelta(hours=1))
    first = await Acceptor(pool).accept(asked)
    # The same payload, three hours later.
    assert await Acceptor(pool).accept(msgspec.structs.replace(asked, send_at=past)) == Answer(202, first.body, True)
    with pytest.raises(IdempotencyConflict):
        await Acceptor(pool).accept(msgspec.structs.replace(asked, send_at=past, request_hash=bytes(32)))
    with pytest.raises(Invalid, match="sendAt"):
        await Acceptor(pool).accept(send(actor, key_name="another", send_at=past))
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    await check_books(pool, [actor.organization_id])


async def test_a_long_text_is_replayed_once_smart_encoding_is_off(pool: Pool) -> None:
    smart = await organization(pool, smart_encoding=True)
    plain = msgspec.structs.replace(smart, smart_encoding=False)
    text = "“Quoted” " + "x" * 900
    first = await Acceptor(pool).accept(send(smart, text, key_name="k"))
    assert await Acceptor(pool).accept(send(plain, text, key_name="k")) == Answer(202, first.body, True)
    with pytest.raises(Invalid, match="segments"):
        await Acceptor(pool).accept(send(plain, text, key_name="another"))


async def test_a_text_is_replayed_once_its_accents_are_kept_again(pool: Pool) -> None:
    spare = await organization(pool, replace_accents=True)
    keep = msgspec.structs.replace(spare, replace_accents=False)
    text = "Amanhã " + "x" * 900
    first = await Acceptor(pool).accept(send(spare, text, key_name="k"))
    assert await Acceptor(pool).accept(send(keep, text, key_name="k")) == Answer(202, first.body, True)
    with pytest.raises(Invalid, match="segments"):
        await Acceptor(pool).accept(send(keep, text, key_name="another"))


async def test_a_time_at_the_end_of_all_time_is_refused_alone(pool: Pool) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    for far in (clock.BEGINNING, clock.END):
        with pytest.raises(Invalid, match="sendAt"):
            await acceptor.accept(send(actor, key_name="k", send_at=far, validity_seconds=60))


async def test_an_sms_key_ends_after_72_hours_without_a_worker(pool: Pool) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    first = await acceptor.accept(send(actor, key_name="k"))
    await pool.execute(AGE, timedelta(hours=71, minutes=59))
    assert (await acceptor.accept(send(actor, key_name="k"))).replayed
    await pool.execute(AGE, timedelta(hours=72))
    second = await acceptor.accept(send(actor, "another payload", key_name="k"))
    assert not second.replayed
    assert second.body != first.body
    assert (await acceptor.accept(send(actor, "another payload", key_name="k"))).body == second.body
    assert await pool.fetchval("SELECT count(*) FROM send_keys WHERE created_at > now() - interval '1 hour'") == 1
    await check_books(pool, [actor.organization_id])


async def test_a_whatsapp_key_ends_after_72_hours_without_a_worker(pool: Pool) -> None:
    one = await whatsapp_factories.made(pool)
    acceptor = WhatsAppAcceptor(pool, settings=Settings())
    await acceptor.accept(send_whatsapp(one, key_name="k"))
    await pool.execute(AGE, timedelta(hours=71, minutes=59))
    assert (await acceptor.accept(send_whatsapp(one, key_name="k"))).replayed
    await pool.execute(AGE, timedelta(hours=72))
    assert not (await acceptor.accept(send_whatsapp(one, key_name="k"))).replayed
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2
    assert await pool.fetchval("SELECT count(*) FROM send_keys WHERE created_at > now() - interval '1 hour'") == 1
    await whatsapp_factories.check_wallets(pool, [one.organization_id])


@pytest.mark.parametrize("days", [-3, -1])
async def test_a_key_holds_across_midnight(pool: Pool, days: int) -> None:
    """It is of an earlier day than the one on which this test began. `test_accept.py` has one of the next day."""
    actor, one = await organization(pool), await whatsapp_factories.made(pool)
    sms, whatsapp = Acceptor(pool), WhatsAppAcceptor(pool, settings=Settings())
    first = await sms.accept(send(actor, key_name="k")), await whatsapp.accept(send_whatsapp(one, key_name="k"))
    await pool.execute("UPDATE send_keys SET made_on = made_on + $1::int", days)
    again = await sms.accept(send(actor, key_name="k")), await whatsapp.accept(send_whatsapp(one, key_name="k"))
    assert [(answer.body, answer.replayed) for answer in again] == [(answer.body, True) for answer in first]
    assert await pool.fetchval("SELECT count(*) FROM send_keys") == 2


async def test_a_key_that_is_kept_for_an_hour_is_free_on_the_same_day(pool: Pool) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool, keys_kept=timedelta(hours=1))
    await acceptor.accept(send(actor, key_name="k"))
    await pool.execute("UPDATE send_keys SET created_at = now() - interval '61 minutes'")
    second = await acceptor.accept(send(actor, "another payload", key_name="k"))
    assert not second.replayed
    assert (await acceptor.accept(send(actor, "another payload", key_name="k"))).body == second.body
    assert await pool.fetchval("SELECT count(*) FROM send_keys") == 1


@pytest.mark.fresh_database
async def test_a_look_up_of_a_key_opens_no_other_day_than_those_that_count(pool: Pool) -> None:
    """Four days for 72 hours, and tomorrow; regardless of other partitions."""
    async with pool.acquire() as conn:
        today = (await conn.fetchval("SELECT now()")).astimezone(UTC).date()
        await make_days(conn, today - timedelta(days=9), ahead=10)
        await conn.execute(
            "PREPARE known (uuid, uuid, date, date) AS SELECT FROM send_keys"
            " WHERE organization_id = $1 AND key_hash = $2 AND made_on BETWEEN $3 AND $4 LIMIT 1"
        )
        await conn.execute("SET plan_cache_mode = force_generic_plan")
        rows = await conn.fetch(
            "EXPLAIN EXECUTE known"
            f" ('{UUID(int=1)}', '{UUID(int=2)}', '{today - timedelta(days=3)}', '{today + timedelta(days=1)}')"
        )
        await conn.execute("DEALLOCATE known")
        await conn.execute("RESET plan_cache_mode")
    opened = set(re.findall(r"on (send_keys_\w+)", "\n".join(row[0] for row in rows)))
    assert opened == {day_name("send_keys", today + timedelta(days=number)) for number in range(-3, 2)}


async def test_what_is_refused_takes_an_old_key_from_nobody(pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    acceptor = Acceptor(pool)
    await acceptor.accept(send(actor, key_name="k"))
    await pool.execute(AGE, timedelta(hours=72))
    with pytest.raises(Exception, match="quota"):
        await acceptor.accept(send(actor, "another", key_name="k"))
    with pytest.raises(Exception, match="quota"):
        await acceptor.accept(send(actor, key_name="k"))
