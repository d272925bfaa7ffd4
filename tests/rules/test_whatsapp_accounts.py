"""Apps and accounts: sealing, the owner of a callback, sending, and holds."""

from __future__ import annotations

import pytest

from heliograph.base.crypto import Unsealable
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, onboarding
from heliograph.whatsapp.mirror.accounts import AccountExists, Route, load_lines, open_token
from heliograph.whatsapp.mirror.apps import AppBook
from heliograph.whatsapp.mirror.numbers import NumberBook, PhoneNumberUnavailable
from tests.rules import whatsapp_account_factories as made
from tests.rules.factories import endpoint, organization


async def route_of(pool: Pool, waba_id: str) -> Route | None:
    """The owner of the account's callbacks."""
    async with pool.acquire() as conn:
        return (await accounts.routes(conn, [waba_id])).get(waba_id)


async def test_secrets_are_sealed_where_they_are_and_the_app_is_shared(pool: Pool) -> None:
    one, other = await organization(pool), await organization(pool)
    first = await made.account(pool, one)
    second = await made.account(pool, other, waba_id="900", app_secret=None, verify_token=None, token="EAAother")
    assert first.app == second.app
    book = AppBook(pool, made.KEY)
    app = await book.get(first.app)
    assert app is not None
    assert (app.app_id, app.secrets, app.verify_token) == (made.APP, (made.SECRET.encode(),), made.VERIFY)
    assert await book.get(uuid7()) is None
    assert open_token(made.KEY, second.id, second.token) == "EAAother"
    with pytest.raises(Unsealable):
        open_token(made.KEY, first.id, second.token)
    for table in ("whatsapp_apps", "whatsapp_accounts"):
        for row in await pool.fetch(f"SELECT * FROM {table}"):
            stored = b" ".join(value if isinstance(value, bytes) else str(value).encode() for value in row.values())
            assert not any(word.encode() in stored for word in (made.SECRET, made.VERIFY, made.TOKEN, "EAAother"))


async def test_an_account_has_one_owner_and_an_app_keeps_its_secret(pool: Pool) -> None:
    one, other = await organization(pool), await organization(pool)
    await made.account(pool, one)
    with pytest.raises(AccountExists):
        await made.account(pool, other)
    with pytest.raises(Invalid, match="app_secret"):
        await made.account(pool, other, waba_id="901", app_secret="guessed")
    with pytest.raises(Invalid, match="verify_token"):
        await made.account(pool, other, waba_id="901", app_id="661", verify_token=None)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_accounts") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("waba_id", "x1"),
        ("app_id", ""),
        ("currency", "eur"),
        ("base_url", "http://graph.example.com"),
        ("base_url", "https://user@graph.example.com"),
        ("base_url", "http://127.0.0.1.example.com"),
        ("api_version", "25"),
        ("token", "two words"),
        ("token", ""),
    ],
)
async def test_what_cannot_be_right_is_refused(pool: Pool, name: str, value: str) -> None:
    actor = await organization(pool)
    with pytest.raises(Invalid, match=name):
        await made.account(pool, actor, **{name: value})


async def test_the_simulator_on_this_machine_is_an_address(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor, base_url="http://127.0.0.1:8099/")
    assert account.base_url == "http://127.0.0.1:8099"


async def test_an_account_is_found_by_its_name_as_it_is_typed_and_by_nothing_less(pool: Pool) -> None:
    actor = await organization(pool)
    of = actor.organization_id
    one = await made.account(pool, actor, name="Cafe\u0301")
    other = await made.account(pool, actor, waba_id="901", name="")
    await made.number(pool, other, graph_id="557", digits="")
    await pool.execute("UPDATE whatsapp_numbers SET display_phone_number = ''")
    async with pool.acquire() as conn:
        for typed in ("Cafe\u0301", "Caf\u00e9", "CAF\u00c9 ", str(one.id).upper(), one.waba_id):
            assert (await onboarding.find_account(conn, of, typed)).id == one.id, typed
        for nothing in ("", " ", "Tea"):
            with pytest.raises(NotFound):
                await onboarding.find_account(conn, of, nothing)
            with pytest.raises(NotFound):
                await onboarding.find_number(conn, of, nothing)


async def test_a_removed_account_comes_back_as_what_it_was(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    await made.template(pool, account)
    async with pool.acquire() as conn:
        gone = await accounts.set_state(
            conn, organization_id=actor.organization_id, account_id=account.id, state="removed"
        )
        assert gone.token == b""
        assert await accounts.list_all(conn, actor.organization_id) == []
        assert await load_lines(conn) == []
        with pytest.raises(NotFound):
            await accounts.set_state(conn, organization_id=actor.organization_id, account_id=account.id, state="active")
    assert await route_of(pool, made.WABA) is None
    with pytest.raises(PhoneNumberUnavailable) as refused:
        await NumberBook(pool).resolve(actor, number)
    assert refused.value.details == {"phoneNumberId": str(number), "reason": "removed"}
    back = await made.account(pool, actor, token="EAAnew")
    assert back.id == account.id
    assert open_token(made.KEY, back.id, back.token) == "EAAnew"
    other = await organization(pool)
    with pytest.raises(AccountExists):
        await made.account(pool, other)


async def test_a_route_is_of_one_organization_and_one_app(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    await made.number(pool, account, graph_id="556", digits="2", state="removed")
    foreign = await made.account(pool, other, waba_id="901", app_id="661")
    await made.number(pool, foreign, graph_id="557")
    route = await route_of(pool, made.WABA)
    assert route is not None
    assert (route.organization_id, route.account_id, route.app) == (actor.organization_id, account.id, account.app)
    assert route.numbers == {made.GRAPH_ID: number}
    assert await route_of(pool, "999") is None
    assert foreign.app != account.app


async def test_holds_are_on_the_line_until_a_send_succeeds(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    await endpoint(pool, actor, "whatsapp.phone_number.updated")
    await pool.execute("UPDATE whatsapp_accounts SET credential_status = 'ok'")
    ids = (actor.organization_id, account.id)
    async with pool.acquire() as conn:
        (line,) = await load_lines(conn)
        assert (line.number_id, line.held_until, line.state) == (number, None, "active")
        assert open_token(made.KEY, line.account_id, line.token) == made.TOKEN
        await holds.hold_number(conn, actor.organization_id, number, seconds=600, reason="spam")
        assert await holds.hold_account(conn, *ids, seconds=60, reason="billing") == 0
        (line,) = await load_lines(conn)
        assert line.held_reason == "spam"
        assert line.held_until is not None
        assert await holds.hold_account(conn, *ids, seconds=900, reason="credential", credential_invalid=True) == 1
        (line,) = await load_lines(conn)
        assert line.held_reason == "credential"
        # A shorter hold does not shorten a longer one, and nothing has changed for customers.
        assert await holds.hold_account(conn, *ids, seconds=1, reason="credential", credential_invalid=True) == 0
        (again,) = await load_lines(conn)
        assert again.held_until == line.held_until
        assert await holds.answered(conn, *ids, number) == 1
        assert await holds.answered(conn, *ids, number) == 0
        (line,) = await load_lines(conn)
        assert (line.held_until, line.held_reason) == (None, None)
    seen = [data["phoneNumber"]["credentialStatus"] for _, data in await made.events_of(pool, actor)]
    assert seen == ["invalid", "ok"]


async def test_a_paused_account_takes_what_comes_in_but_sends_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    numbers = NumberBook(pool)
    assert (await numbers.resolve(actor, number)).currency == "EUR"
    async with pool.acquire() as conn:
        await accounts.set_state(conn, organization_id=actor.organization_id, account_id=account.id, state="paused")
        assert await load_lines(conn) == []
    assert await route_of(pool, made.WABA) is not None
    with pytest.raises(PhoneNumberUnavailable) as refused:
        await NumberBook(pool).resolve(actor, number)
    assert refused.value.details["reason"] == "paused"
    async with pool.acquire() as conn:
        await accounts.set_state(conn, organization_id=actor.organization_id, account_id=account.id, state="active")
    # A negative answer is never cached: the book reads again.
    assert (await numbers.resolve(actor, number)).sendable


async def test_a_new_token_lets_one_message_try(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    await made.number(pool, account)
    async with pool.acquire() as conn:
        await holds.hold_account(
            conn, actor.organization_id, account.id, seconds=900, reason="credential", credential_invalid=True
        )
        changed = await accounts.update(
            conn, made.KEY, organization_id=actor.organization_id, account_id=account.id, token="EAAnew"
        )
        assert changed.credential_status == "unknown"
        assert await conn.fetchval("SELECT held_until <= now() FROM whatsapp_accounts")
        (line,) = await load_lines(conn)
    assert open_token(made.KEY, line.account_id, line.token) == "EAAnew"


@pytest.mark.parametrize("is_invalid", [True, False])
@pytest.mark.parametrize("by", ["operator", "status"])
async def test_an_account_whose_token_was_refused_is_read_once_its_hold_is_over(
    pool: Pool, is_invalid: bool, by: str
) -> None:
    """It was said to be invalid for ten minutes more, while its messages were sent."""
    actor = await organization(pool)
    account = await made.account(pool, actor)
    ids = (actor.organization_id, account.id)
    later = "now() + interval '10 minutes'"
    due = "SELECT mirror_at <= now() AND numbers_at <= now() FROM whatsapp_accounts"
    async with pool.acquire() as conn:
        await holds.hold_account(conn, *ids, seconds=60, reason="refused", credential_invalid=is_invalid)
        await conn.execute(f"UPDATE whatsapp_accounts SET mirror_at = {later}, numbers_at = {later}")
        if by == "operator":
            assert await holds.release_account(conn, *ids)
        else:
            probe = uuid7()
            await holds.tries(conn, *ids, uuid7(), probe)
            await holds.sent(conn, actor.organization_id, [probe])
        assert await conn.fetchval(due) == is_invalid
        assert await conn.fetchval("SELECT held_until FROM whatsapp_accounts") is None


async def test_a_new_app_secret_lets_one_message_of_each_account_try(pool: Pool) -> None:
    """Calls prove the secret, so a wrong one stops all accounts of the app, and their readings."""
    held = []
    for waba_id, app_id in (("900", made.APP), ("901", made.APP), ("902", "999")):
        actor = await organization(pool)
        held.append(await made.account(pool, actor, waba_id=waba_id, app_id=app_id))
    mirror = (
        "SELECT id FROM whatsapp_accounts WHERE mirror_at <= now() AND numbers_at <= now() AND templates_at <= now()"
    )
    async with pool.acquire() as conn:
        for account in held:
            await holds.hold_account(conn, account.organization_id, account.id, seconds=900, reason="wrong proof")
        await conn.execute(
            "UPDATE whatsapp_accounts SET trying_at = now(), mirror_at = soon, numbers_at = soon, templates_at = soon"
            "  FROM (SELECT now() + interval '30 minutes' AS soon) pause"
        )
        await apps.change_app(conn, made.KEY, app_id=made.APP, verify_token="another")
        assert await conn.fetchval("SELECT bool_and(held_until > now()) FROM whatsapp_accounts")
        assert await conn.fetch(mirror) == []
        await apps.change_app(conn, made.KEY, app_id=made.APP, app_secret="new secret")
        freed = await conn.fetch("SELECT id FROM whatsapp_accounts WHERE held_until <= now() AND trying_at IS NULL")
        assert {row["id"] for row in freed} == {row["id"] for row in await conn.fetch(mirror)}
        assert {row["id"] for row in freed} == {held[0].id, held[1].id}


async def test_the_old_secret_is_taken_for_a_while(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    async with pool.acquire() as conn:
        # The second time, it is a form sent twice, or a script that runs again.
        for _ in range(2):
            await apps.change_app(conn, made.KEY, app_id=made.APP, app_secret="new secret")
        app = await apps.get_app(conn, made.KEY, account.app)
        assert app.secrets == (b"new secret", made.SECRET.encode())
        await apps.change_app(conn, made.KEY, app_id=made.APP, verify_token="another")
        await conn.execute("UPDATE whatsapp_apps SET old_secret_till = now()")
        app = await apps.get_app(conn, made.KEY, account.app)
        assert (app.secrets, app.verify_token) == ((b"new secret",), "another")
        with pytest.raises(NotFound):
            await apps.change_app(conn, made.KEY, app_id="999", app_secret="x")
        for given in ({"app_secret": "", "verify_token": "a\x07b"}, {"app_secret": "other", "verify_token": "other"}):
            changing = given["app_secret"] == ""
            with pytest.raises(Invalid) as refused:
                if changing:
                    await apps.change_app(conn, made.KEY, app_id=made.APP, **given)
                else:
                    await made.account(pool, actor, waba_id="900", **given)
            assert [one["field"] for one in refused.value.details["fields"]] == ["app_secret", "verify_token"]
        await apps.record_verified(conn, account.app)
        await apps.record_callbacks(conn, [account.app])
        app = await apps.get_app(conn, made.KEY, account.app)
    assert app.verified_at is not None
    assert app.last_callback_at is not None
