"""The guard in the console: what it holds and why, releasing and withdrawing, and each organization's rules."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.guard import holds, rules
from heliograph.guard.holds import Found
from heliograph.queue.leases import GUARDED
from tests.api.conftest import Tenant
from tests.rules.factories import message

from .conftest import Browser, signed_in

BLOCK, HERE = "25884123", "/console/guard"


async def hold(pool: Pool, tenant: Tenant, kind: str = "block", of: str = BLOCK, waiting: int = 2) -> UUID:
    """A held range, with messages that wait for it."""
    async with pool.acquire() as conn, conn.transaction():
        await rules.configure(conn, tenant.id, policy="hold")
        found = Found(tenant.id, of, kind, ("thousand", "neighbours"), 80)
        ((_, id),) = (await holds.begin(conn, [found])).items()
    for n in range(waiting):
        to = f"+{BLOCK}{n:04}"
        one = await message(pool, tenant.actor, to=to)
        async with pool.acquire() as conn, conn.transaction():
            assert await holds.meet(conn, [(tenant.id, one, to, id)]) == {one}
            await conn.execute("UPDATE queue SET line = $2 WHERE id = $1", one, GUARDED)
    return id


async def test_what_is_held_stands_there_with_its_reason_and_is_released(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    assert "Nothing suspicious in the last 30 days" in (await root.get(HERE)).words
    id = await hold(pool, tenant)
    await hold(pool, tenant, "number", "258841239999", waiting=0)
    page = await root.get(HERE)
    why = "five or more numbers of one block of 1,000 within ten minutes"
    for said in (f"+{BLOCK}…", "…9999", "Acme", why, "Let them wait", "Held now 2", "Messages that wait 2"):
        assert said in page.words, said
    assert "25884123999" not in page.text
    portuguese = await root.get(HERE, Cookie="hg-language=pt")
    assert ("Retidas agora 2" in portuguese.words, why in portuguese.words) == (True, False)
    page = await root.submit(page, f"{HERE}/holds/{id}/release")
    assert "2 messages are being sent now." in page.words
    assert f"{HERE}/holds/{id}/release" not in page.text
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE line = $1", GUARDED) == 0
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'guard.released'") == 1
    assert (await root.get(f"{HERE}/holds/{tenant.id}/withdraw")).status == 404


async def test_what_is_only_noted_is_not_said_to_be_held(pool: Pool, tenant: Tenant, root: Browser) -> None:
    id = await hold(pool, tenant, waiting=0)
    assert "Held now 1" in (await root.get(HERE)).words
    # It follows the organization's latest choice, as messages do.
    async with pool.acquire() as conn:
        await rules.configure(conn, tenant.id, policy="monitor")
    page = await root.get(HERE)
    for said in ("Held now 0", "Found today 1", "Only note it"):
        assert said in page.words, said
    page = await root.submit(page, f"{HERE}/holds/{id}/release")
    assert "Nothing was waiting because of it. The range is left alone for a day." in page.words


async def test_what_is_held_is_taken_out_once_the_word_is_typed(pool: Pool, tenant: Tenant, root: Browser) -> None:
    id = await hold(pool, tenant)
    here = f"{HERE}/holds/{id}/withdraw"
    page = await root.get(here)
    assert "2 messages wait for it." in page.words
    wrong = await root.submit(page, here, typed="no")
    assert (wrong.status, await pool.fetchval("SELECT count(*) FROM queue WHERE line = $1", GUARDED)) == (422, 2)
    page = await root.submit(wrong, here, typed="withdraw")
    assert "2 messages are canceled and refunded." in page.words
    assert {row["status"] for row in await pool.fetch("SELECT status FROM messages")} == {"canceled"}
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'guard.withdrawn'") == 1


async def test_an_organizations_rules_are_seen_and_changed(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"{HERE}/rules/{tenant.id}"
    assert "No organization has chosen anything" in (await root.get(HERE)).words
    page = await root.get(here)
    assert page.status == 200
    assert here in (await root.get(f"/console/organizations/{tenant.id}/limits")).text
    wrong = await root.submit(page, here, policy="refuse", safe="123", limit_otp="500")
    assert (wrong.status, "5 to 15 digits" in wrong.words) == (422, True)
    wrong = await root.submit(page, here, safe="123", limit_otp="many", limit_marketing="x")
    # Everything at once, and each limit by its name.
    for said in (
        "There are 3 problems",
        "One-time codes: Enter a number",
        "Marketing messages: Enter a number",
        "5 to 15 digits",
    ):
        assert (wrong.status, said in wrong.words) == (422, True), (said, wrong.words)
    wrong = await root.submit(page, here, safe="123", limit_otp="0", limit_marketing="10000001")
    for name in ("One-time codes", "Marketing messages"):
        assert f"{name}: Enter a whole number of messages, from 1 to 10,000,000." in wrong.words, wrong.words
    assert ("There are 3 problems" in wrong.words, "5 to 15 digits" in wrong.words) == (True, True)
    typed = {"policy": "refuse", "safe": "25884\n25885, 25886", "limit_otp": "1 500", "event": "3"}
    page = await root.submit(page, here, **typed)
    assert ("Saved." in page.words, "ten times as many messages are usual." in page.words) == (True, True)
    async with pool.acquire() as conn:
        known = await rules.rules_of(conn, tenant.id)
    assert (known.policy, known.safe, known.limits) == ("refuse", ["25884", "25885", "25886"], {"otp": 1500})
    assert known.event_until is not None
    assert timedelta(days=2.9) < known.event_until - clock.now() < timedelta(days=3.1)
    listed = await root.get(HERE)
    for said in ("Refuse them", "One-time codes 1,500", "3 ranges"):
        assert said in listed.words, said
    # Saving it again changes nothing; an event can be ended by choice, and `usual` is a policy too.
    page = await root.submit(page, here, policy="refuse")
    async with pool.acquire() as conn:
        assert await rules.rules_of(conn, tenant.id) == known
    await root.submit(page, here, event="", policy="", limit_otp="")
    async with pool.acquire() as conn:
        after = await rules.rules_of(conn, tenant.id)
    assert (after.by_default, after.event_until, after.limits) == (True, None, {})


@pytest.mark.parametrize("role", ["support", "auditor"])
async def test_who_may_only_look_sees_no_button(pool: Pool, tenant: Tenant, browser: Browser, role: str) -> None:
    id = await hold(pool, tenant)
    await signed_in(pool, browser, role)
    page = await browser.get(HERE)
    assert (page.status, f"+{BLOCK}…" in page.words) == (200, True)
    assert f"{HERE}/holds/{id}" not in page.text
    page = await browser.get(f"{HERE}/rules/{tenant.id}")
    assert ("Let them wait" in page.words, "<textarea" in page.text) == (True, False)
