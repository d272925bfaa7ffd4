"""Limits on the dashboard: of messages in a day, and the treatment of suspicious messages."""

from __future__ import annotations

from heliograph.accounts import spending
from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.guard import holds, rules
from heliograph.queue import timers
from heliograph.sms.accepting import sender_ids
from heliograph.sms.received import inbox as received
from tests.api.conftest import Api

from .conftest import Browser, Tenant, make_person
from .test_campaigns import look
from .test_inbox import first, write_sms

BLOCK = "25884123"


async def limits(pool: Pool, tenant: Tenant) -> list[tuple[bool, int, int]]:
    async with pool.acquire() as conn:
        found = await spending.limits(conn, tenant.id)
    return [(one.key_id is not None, one.segments, one.used) for one in found]


async def begin(pool: Pool, tenant: Tenant) -> None:
    async with pool.acquire() as conn:
        await holds.begin(conn, [holds.Found(tenant.id, BLOCK, "block", ("thousand_full",), 70)])


async def test_limits_of_the_day(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/settings/limits")
    assert "There is no limit." in page.words
    for typed in ("", "0", "-1", "many", "1" * 14, "٣"):
        page = await owner.submit(page, "/settings/limits", scope="", segments=typed)
        assert (page.status, "Enter a whole number of segments, 1 or more." in page.words) == (422, True), typed
    page = await owner.submit(page, "/settings/limits", scope="not-a-key", segments="5")
    assert (page.status, "Choose one of the keys." in page.words) == (422, True)
    page = await owner.submit(page, "/settings/limits", scope="", segments="2")
    key = await pool.fetchval("SELECT id FROM api_keys WHERE organization_id = $1", tenant.id)
    page = await owner.submit(page, "/settings/limits", scope=str(key), segments="1 900")
    headers = tenant.headers | {"Idempotency-Key": "one"}
    body = {"to": "+258841234567", "message": "x" * 200}
    assert (await api.ask("POST", "/sms/send", json=body, headers=headers))[0] == 202
    assert await limits(pool, tenant) == [(False, 2, 2), (True, 1_900, 2)]
    page = await owner.get("/settings/limits")
    assert "2 2" in page.words, page.words
    assert "2 of 1,900 segments today" in (await owner.get("/keys")).words
    assert "The daily limit of segments is used up" in (await owner.get("/")).words
    # The form says so before the button, and so does the button.
    page = await owner.get("/send")
    for path in ("/send/preview", "/send"):
        seen = await owner.post(path, page.form("/send") | {"to": "+258841234567", "message": "Olá"})
        assert "The organization's daily limit does not cover it." in seen.words, path
    # Only the operator can change the operator's limit.
    async with pool.acquire() as conn:
        await spending.limit(conn, tenant.id, segments=50, by=SYSTEM)
    page = await owner.get("/settings/limits")
    assert "set by the operator" in page.words
    page = await owner.submit(page, "/settings/limits", scope="", segments="900")
    assert (page.status, "only they can change it" in page.words) == (422, True)
    assert await limits(pool, tenant) == [(False, 50, 2), (True, 1_900, 2)]
    page = await owner.submit(await owner.get("/settings/limits"), "/settings/limits", scope=str(key), lift="1")
    assert await limits(pool, tenant) == [(False, 50, 2)]


async def test_what_is_done_with_suspicious_messages(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/settings/limits")
    for typed, said in (
        ({"policy": "forget"}, "Choose one of those that are offered."),
        ({"policy": "ask", "safe": "258"}, "Enter the 5 to 15 digits"),
        ({"policy": "ask", "safe": "x" * 9}, "Enter the 5 to 15 digits"),
    ):
        page = await owner.submit(page, "/settings/guard", **typed)
        assert (page.status, said in page.words) == (422, True), typed
    page = await owner.submit(page, "/settings/guard", policy="ask", safe="+25884000\r\n25885000")
    async with pool.acquire() as conn:
        kept = await rules.rules_of(conn, tenant.id)
    assert (kept.policy, kept.safe) == ("ask", ["25884000", "25885000"])
    for typed, said in ((" 500 ", {"otp": 500}), ("0", None), ("many", None), ("9" * 14, None), ("", {})):
        page = await owner.submit(await owner.get("/settings/limits"), "/settings/guard", policy="ask", limit_otp=typed)
        if said is None:
            assert (page.status, "Enter a whole number of messages" in page.words) == (422, True), typed
            continue
        async with pool.acquire() as conn:
            kept = await rules.rules_of(conn, tenant.id)
        assert (kept.limits, kept.safe) == (said, ["25884000", "25885000"])
    typed = {"safe": "258", "limit_otp": "many", "limit_marketing": "0"}
    page = await owner.submit(await owner.get("/settings/limits"), "/settings/guard", **typed)
    # Everything at once, and each limit by its name.
    for said in (
        "There are 3 problems",
        "One-time codes: Enter a whole",
        "Marketing messages: Enter a whole",
        "5 to 15 digits",
    ):
        assert said in page.words, (said, page.words)
    await begin(pool, tenant)
    page = await owner.get("/settings/limits")
    assert f"+{BLOCK}…" in page.words
    assert "thousand" not in page.text, "how it is decided is nobody's but the operator's"
    # Someone who sends manually is asked, too, and continues with a tick.
    page = await owner.get("/send")
    seen = await owner.post("/send/preview", page.form("/send") | {"to": f"+{BLOCK}0001", "message": "Olá"})
    assert "Make sure that a person asked for it." in seen.words
    assert 'name="challenged"' in seen.text
    sent = await owner.submit(page, "/send", to=f"+{BLOCK}0001", message="Olá", challenged="yes")
    assert (sent.status, "sent=" in sent.path) == (200, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_what_waits_is_said(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await rules.configure(conn, tenant.id, policy="hold")
    await begin(pool, tenant)
    page = await owner.get("/send")
    seen = await owner.post("/send/preview", page.form("/send") | {"to": f"+{BLOCK}0001", "message": "Olá"})
    assert "it would wait for the operator" in seen.words
    await owner.submit(page, "/send", to=f"+{BLOCK}0001", message="Olá")
    assert "Messages that wait because" not in (await owner.get("/")).words
    async with pool.acquire() as conn, conn.transaction():
        id = await conn.fetchval("SELECT id FROM messages")
        (hold,) = await holds.list_all(conn)
        assert await holds.meet(conn, [(tenant.id, id, f"+{BLOCK}0001", hold.id)]) == {id}
        await conn.execute("UPDATE queue SET line = $1", holds.GUARDED)
    assert "Messages that wait because unusually many go to numbers like theirs: 1." in (await owner.get("/")).words


async def test_who_may_not_change_settings_sees_no_limits(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "rui@example.com", role="viewer")
    await browser.sign_in("rui@example.com")
    assert (await browser.get("/settings/limits")).status == 403


async def test_a_limit_of_the_day_is_told_in_every_form_that_sends(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """The input is kept: it is not a separate page."""
    said = "The organization's daily limit does not cover it."
    async with pool.acquire() as conn:
        await timers.ensure(conn, received.TIMER)
        asked = await sender_ids.request(conn, tenant.actor, value="90210")
        await sender_ids.review(conn, tenant.actor, id=asked.id, status="approved")
    await write_sms(pool, "Is it late?")
    answered = f"/inbox/{await first(pool, 'sms')}"
    async with pool.acquire() as conn:
        await spending.limit(conn, tenant.id, segments=1, by=SYSTEM)
        await conn.execute("UPDATE spend_limits SET used = 1, day = (now() AT TIME ZONE 'UTC')::date")
    page = await owner.submit(await owner.get(answered), f"{answered}/reply", message="On its way.")
    assert (page.status, said in page.words, ">On its way.</textarea>" in page.text) == (422, True, True)
    page = await owner.submit(await owner.get("/account/number"), "/account/number", phone="+258840000001")
    assert (page.status, said in page.words) == (422, True)
    assert "/account/number/code" not in page.text, "no code was sent"
    assert await pool.fetchval("SELECT codes FROM own_numbers") == 0
    await pool.execute(
        "INSERT INTO own_numbers (user_id, phone, codes, codes_since) SELECT id, $1, 1, now() FROM users"
        " ON CONFLICT (user_id) DO UPDATE SET phone = excluded.phone",
        "+258840000001",
    )
    page = await look(owner, do="trial", to="numbers", numbers="+258841000001", text="Hello")
    assert (page.status, said in page.words, ">Hello</textarea>" in page.text) == (422, True, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
