"""What people who send manually store: saved texts, and a number of their own to try messages on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from heliograph.accounts import organizations
from heliograph.base.database.pool import Pool
from heliograph.sms.by_hand import own_numbers, saved_texts
from heliograph.sms.by_hand.saved_texts import TooManySavedTexts
from tests.api.conftest import Api
from tests.rules.factories import losing_deadlocks

from .conftest import Browser, Tenant, make_person, make_tenant
from .test_sending import value

OWN, OTHER = "+258840000001", "+258841234567"


@pytest.fixture(autouse=True)
async def country(pool: Pool, tenant: Tenant) -> None:
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.actor.organization_id, country="MZ")


async def test_a_form_of_which_a_part_was_stored_is_not_made_again(
    pool: Pool, owner: Browser, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """It asks for a code, which counts, and takes it back if it cannot be sent: that is the victim of a deadlock."""
    await pool.execute("UPDATE quotas SET used = total")
    page = await owner.get("/account/number")
    await as_owner(losing_deadlocks("own_numbers", times=1, on="UPDATE"))
    answer = await owner.submit(page, "/account/number", phone="84 000 0001")
    assert (answer.status, answer.headers.get("retry-after")) == (503, "1"), answer.words
    assert await pool.fetchval("SELECT last_value FROM lost") == 1
    assert await pool.fetchval("SELECT codes FROM own_numbers") == 1


async def save(browser: Browser, name: str, body: str) -> str:
    """Save a text; returns its address."""
    page = await browser.submit(await browser.get("/texts/new"), "/texts", name=name, body=body)
    assert (page.status, page.path) == (200, "/texts"), page.words
    found = re.search(rf'href="(/texts/[0-9a-f-]+)"><bdi>{name}<', page.text)
    assert found is not None
    return found[1]


async def test_a_text_is_saved_chosen_changed_and_removed(pool: Pool, owner: Browser) -> None:
    assert "No text saved yet" in (await owner.get("/texts")).words
    address = await save(owner, "Reminder", "Olá {{first_name}}\r\nAté amanhã")
    id = address.rpartition("/")[2]
    assert await pool.fetchval("SELECT body FROM saved_texts") == "Olá {{first_name}}\nAté amanhã"
    page = await owner.get("/texts")
    assert ("never" in page.words, "{{first_name}}" in page.words) == (True, True)

    # Into the form of a send, with its placeholders as text, and into the form of a campaign.
    page = await owner.get(f"/send?saved={id}")
    assert value(page, "message") == "Olá {{first_name}}\nAté amanhã"
    page = await owner.post("/send/preview", page.form("/send") | {"to": OTHER, "message": "Olá {{first_name}}"})
    assert "These placeholders are filled in by campaigns only" in page.words
    assert "Olá {{first_name}}" in (await owner.get(f"/campaigns/new?saved={id}")).text
    # Chosen in the form, it leaves what else was typed.
    typed = {"to": OTHER, "message": "Ola", "day": "2036-01-02", "hour": "10:00", "reference": "order-7"}
    form = (await owner.get("/send")).form("/send")
    page = await owner.post("/send/preview", form | typed | {"choose": "yes", "other_text": id})
    kept = page.form("/send")
    assert kept["message"] == "Olá {{first_name}}\nAté amanhã"
    assert {name: kept[name] for name in ("to", "day", "hour", "reference", "saved")} == {
        "to": OTHER,
        "day": "2036-01-02",
        "hour": "10:00",
        "reference": "order-7",
        "saved": id,
    }
    page = await owner.post("/send/preview", form | typed | {"choose": "yes", "other_text": ""})
    assert page.form("/send")["message"] == "Ola"
    form = (await owner.get(f"/send?saved={id}")).form("/send") | {"to": OTHER, "message": "Olá Ana"}
    assert (await owner.post("/send", form)).status == 200
    assert await pool.fetchval("SELECT used_at IS NOT NULL FROM saved_texts")

    page = await owner.submit(await owner.get(address), address, name="Reminder 2", body="Olá")
    assert "Reminder 2" in page.words
    told = await pool.fetch("SELECT action, before, after FROM audit_log WHERE action LIKE 'saved_text%' ORDER BY at")
    assert [one["action"] for one in told] == ["saved_text.created", "saved_text.changed"]
    assert "Olá" not in str(told)
    assert f'href="{address}/remove"' in (await owner.get(address)).text
    page = await owner.get(f"{address}/remove")
    assert ("Olá" in page.words, "Last used:" in page.words) == (True, True)
    page = await owner.submit(page, address + "/remove")
    assert "No text saved yet" in page.words
    assert (await owner.get(address)).status == 404
    assert value(await owner.get(f"/send?saved={id}"), "message") == ""


async def test_what_is_wrong_with_a_text_is_said_and_keeps_what_was_typed(pool: Pool, owner: Browser) -> None:
    await save(owner, "Reminder", "Olá")
    await save(owner, "Caf\u00e9", "Olá")
    for name, body, said in (
        ("", "Olá", "A name must have 1 to 100 characters"),
        ("x" * 101, "Olá", "A name must have 1 to 100 characters"),
        ("a\u202eb", "Olá", "all of them visible"),
        ("New", "", "A text must have 1 to 1,600 characters."),
        ("New", "x" * 1601, "A text must have 1 to 1,600 characters."),
        ("REMINDER", "Olá", "There is a saved text with this name already."),
        ("Cafe\u0301", "Olá", "There is a saved text with this name already."),
    ):
        page = await owner.submit(await owner.get("/texts/new"), "/texts", name=name, body=body)
        assert (page.status, said in page.words) == (422, True), (name, page.words)
        assert value(page, "body") == body
    assert await pool.fetchval("SELECT count(*) FROM saved_texts") == 2
    # The form of a send passes its text on; nothing is stored before it has a name.
    page = await owner.post("/texts/new", (await owner.get("/send")).form("/send") | {"message": "Até\r\njá"})
    assert value(page, "body") == "Até\njá"
    assert await pool.fetchval("SELECT count(*) FROM saved_texts") == 2


async def test_an_organization_keeps_so_many_texts_of_its_own(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute(
        "INSERT INTO saved_texts SELECT $1, gen_random_uuid(), 'n' || n, 'Olá', now(), now()"
        " FROM generate_series(1, $2::int) n",
        tenant.id,
        saved_texts.MOST,
    )
    async with pool.acquire() as conn:
        with pytest.raises(TooManySavedTexts):
            await saved_texts.create(conn, tenant.actor, name="One more", body="Olá")
        stranger = await make_tenant(pool)
        theirs = await saved_texts.create(conn, stranger.actor, name="n1", body="Secret")
    assert (await owner.get(f"/texts/{theirs.id}")).status == 404
    assert "Secret" not in (await owner.get(f"/send?saved={theirs.id}")).text


async def test_a_number_is_ones_own_once_its_code_came_back(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    assert "Send to myself" not in (await owner.get("/send")).words
    page = await owner.submit(await owner.get("/account/number"), "/account/number", phone="12")
    assert (page.status, "This is not a phone number" in page.words) == (422, True)
    page = await owner.submit(await owner.get("/account/number"), "/account/number", phone="84 000 0001")
    assert f"Six digits, sent to {OWN}." in page.words
    body = await pool.fetchval("SELECT body FROM messages WHERE recipient = $1", OWN)
    code = body[: own_numbers.DIGITS]
    assert code.isdigit()
    # Six digits may stand in the number, in an id or in a time.
    (kept,) = await pool.fetch("SELECT * FROM own_numbers")
    assert ([one for one in kept.values() if isinstance(one, str)], len(kept["code_hash"])) == ([OWN], 32)

    wrong = f"{(int(code) + 1) % 10**own_numbers.DIGITS:06}"
    page = await owner.submit(page, "/account/number/code", code=wrong)
    assert "This is not the code that was sent." in page.words
    page = await owner.submit(page, "/account/number/code", code=f"{code[:3]} {code[3:]}")
    assert "This number is yours now." in page.words
    masked = await pool.fetchval("SELECT after FROM audit_log WHERE action = 'user.number_changed'")
    assert OWN not in masked

    # It is sent to the user's own number, and the form keeps its recipient.
    form = (await owner.get("/send")).form("/send") | {"to": OTHER, "message": "Olá"}
    page = await owner.post("/send", form | {"own": OWN})
    assert await pool.fetchval("SELECT recipient FROM messages WHERE body = 'Olá'") == OWN
    assert (page.form("/send")["to"], value(page, "message")) == (OTHER, "Olá")
    page = await owner.submit(await owner.get("/account/number"), "/account/number/remove")
    assert "The number was removed." in page.words
    assert "Send to myself" not in (await owner.get("/send")).words


@pytest.mark.parametrize(("hours", "is_sent"), [(-0.9, False), (-1.1, True), (24, True)])
async def test_codes_are_counted_by_the_hour_also_after_a_clock_was_set_back(
    pool: Pool, tenant: Tenant, owner: Browser, hours: float, is_sent: bool
) -> None:
    user = await pool.fetchval("SELECT id FROM users")
    async with pool.acquire() as conn:
        for _ in range(own_numbers.CODES):
            await own_numbers.ask(conn, user_id=user, phone=OWN)
        await conn.execute("UPDATE own_numbers SET codes_since = now() + $1::interval", timedelta(hours=hours))
        for _ in range(own_numbers.CODES if is_sent else 0):
            await own_numbers.ask(conn, user_id=user, phone=OWN)
        with pytest.raises(own_numbers.TooManyCodes):
            await own_numbers.ask(conn, user_id=user, phone=OWN)


async def test_codes_end_and_are_few(pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser) -> None:
    for _ in range(own_numbers.CODES):
        page = await owner.submit(await owner.get("/account/number"), "/account/number", phone=OWN)
        assert page.status == 200
    page = await owner.submit(await owner.get("/account/number"), "/account/number", phone=OWN)
    assert (page.status, "Three codes were sent within the last hour." in page.words) == (422, True)
    bodies = await pool.fetch("SELECT left(body, 6) AS code FROM messages ORDER BY id")
    assert len(bodies) == own_numbers.CODES
    await pool.execute("UPDATE own_numbers SET codes_since = now() - interval '61 minutes'")
    page = await owner.submit(await owner.get("/account/number"), "/account/number", phone=OWN)
    code = await pool.fetchval("SELECT left(body, 6) FROM messages ORDER BY id DESC LIMIT 1")
    wrong = f"{(int(code) + 1) % 10**own_numbers.DIGITS:06}"
    for _ in range(own_numbers.TRIES):
        page = await owner.submit(page, "/account/number/code", code=wrong)
    assert "/account/number/code" not in (await owner.get("/account/number")).text, "five tries are all"
    async with pool.acquire() as conn:
        user_id = await conn.fetchval("SELECT user_id FROM own_numbers")
        await conn.execute("UPDATE own_numbers SET tries = 0, asked_at = now() - interval '16 minutes'")
        assert await own_numbers.get(conn, user_id=user_id) == own_numbers.OwnNumber()
    # Whoever may not send has no use for one.
    await make_person(pool, tenant, "eva@example.com", "viewer")
    await other_browser.sign_in("eva@example.com")
    assert (await other_browser.get("/account/number")).status == 403
    assert "My number" not in (await other_browser.get("/account")).words


async def test_what_is_gone_is_said_in_the_readers_language(owner: Browser) -> None:
    """What a form was about is named on the page of the list where it was: in English, whatever the page was in."""
    where = await save(owner, "Horas", "Abrimos às 8.")
    form = (await owner.get(where)).form(where)
    await owner.submit(await owner.get(f"{where}/remove"), f"{where}/remove")
    page = await owner.post(where, form | {"body": "Abrimos às 9."}, Accept_Language="pt")
    assert page.status == 404
    assert "Isso mudou entretanto Não existe esse texto. Era aqui que estava." in page.words, page.words
