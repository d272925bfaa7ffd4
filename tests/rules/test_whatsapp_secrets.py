"""Secrets of WhatsApp: sealed at rest, each bound to its place, and absent from everything that is logged."""

from __future__ import annotations

import msgspec
import pytest

from heliograph.base.crypto import Unsealable, derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.process.logs import clean
from heliograph.whatsapp.mirror import accounts, apps
from heliograph.whatsapp.mirror.apps import App
from tests.rules.callback_factories import Meta, message
from tests.rules.factories import organization
from tests.rules.test_whatsapp_retention import holding
from tests.rules.whatsapp_factories import APP_SECRET, KEY, TOKEN, VERIFY_TOKEN, account, made

OTHER = derive_key("another secret key", "whatsapp")


async def opened(pool: Pool) -> App:
    who = await made(pool)
    async with pool.acquire() as conn:
        return await apps.get_app(conn, KEY, who.app)


async def test_no_secret_stands_in_any_table(pool: Pool) -> None:
    who = await made(pool)
    async with pool.acquire() as conn:
        app = await apps.get_app(conn, KEY, who.app)
        await apps.change_app(conn, KEY, app_id=app.app_id, app_secret="the next secret")
    await Meta(pool).post(who, raw=b"what a user wrote")
    words = (APP_SECRET, VERIFY_TOKEN, TOKEN, "the next secret", "what a user wrote")
    for word in words:
        assert await holding(pool, word) | await holding(pool, word.encode().hex()) == set()


async def test_a_sealed_value_opens_in_its_own_place_alone(pool: Pool) -> None:
    actor = await organization(pool)
    who = await made(pool)
    other, _ = await account(pool, actor.organization_id, who.app)
    sealed = await pool.fetchval("SELECT token FROM whatsapp_accounts WHERE id = $1", who.account_id)
    assert accounts.open_token(KEY, who.account_id, sealed) == TOKEN
    for key, place in ((OTHER, who.account_id), (KEY, other)):
        with pytest.raises(Unsealable) as raised:
            accounts.open_token(key, place, sealed)
        assert TOKEN not in str(raised.value)
    await pool.execute("UPDATE whatsapp_apps SET verify_token = secret WHERE id = $1", who.app)
    async with pool.acquire() as conn:
        with pytest.raises(Unsealable):
            await apps.get_app(conn, KEY, who.app)


async def test_what_is_written_about_an_app_names_nothing_but_itself(pool: Pool) -> None:
    app = await opened(pool)
    assert APP_SECRET.encode() in app.secrets
    entry = clean(None, "info", {"event": "x", "app": app, "apps": [app]})
    for text in (repr(app), str(app), f"{app}", repr([app]), repr(entry), msgspec.json.encode(entry).decode()):
        assert APP_SECRET not in text
        assert VERIFY_TOKEN not in text


async def test_lines_and_accounts_hold_sealed_tokens_only(pool: Pool) -> None:
    who = await made(pool)
    async with pool.acquire() as conn:
        (line,) = await accounts.load_lines(conn)
        listed = await accounts.list_all(conn, who.organization_id)
    assert TOKEN not in repr([line, *listed])
    assert TOKEN.encode() not in line.token


async def test_users_texts_are_sealed_while_they_wait_and_as_dead_letters(pool: Pool) -> None:
    who = await made(pool)
    meta = Meta(pool)
    await meta.say(who, message(who, "a word in confidence", graph_id="999"))
    body, reason = await pool.fetchrow("SELECT body, reason FROM whatsapp_dead_letters")
    assert b"confidence" not in body
    assert "confidence" not in reason
