"""One person by WhatsApp: spellings, user ids and changes of either lead to one window, one word, one conversation."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.consent import optouts, people
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.sms.accepting import accept, preview
from heliograph.whatsapp import messages
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TextReply
from heliograph.whatsapp.callbacks import conversations
from tests.rules import factories
from tests.rules.callback_factories import Change, Meta, ago, message
from tests.rules.dispatching_whatsapp import Bench
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import Made, conversation, made
from tests.rules.whatsapp_factories import message as outbound

NEW = "+258849999999"


@pytest.fixture
async def acme(pool: Pool) -> Made:
    return await made(pool)


@pytest.fixture
def meta(pool: Pool) -> Meta:
    return Meta(pool)


async def reply(pool: Pool, made: Made, to: str) -> int:
    """A text to `to`; returns the status of its answer."""
    acceptor = Acceptor(pool, settings=Settings())
    send = Send(actor=made.actor, to=to, number_id=made.number_id, content=TextReply("here you are"))
    return (await acceptor.accept(send)).status


def changed_number(made: Made, at: datetime | None = None) -> Change:
    system = {"type": "user_changed_number", "body": f"Ana changed from {TO} to {NEW}", "wa_id": NEW[1:]}
    return message(made, type="system", at=at, system=system)


def changed_user_id(made: Made, at: datetime | None = None, **names: str) -> Change:
    system = {"type": "user_changed_user_id", "body": "User Ana changed from MZ.1 to MZ.2", "user_id": "MZ.2", **names}
    return message(made, type="system", by=None, at=at, system=system)


@pytest.mark.parametrize(
    ("wrote", "answered"),
    [
        ("+551187654321", "+5511987654321"),
        ("+5511987654321", "+551187654321"),
        ("+5215512345678", "+525512345678"),
        ("+541123456789", "+5491123456789"),
    ],
)
async def test_a_window_opened_in_one_spelling_is_open_in_the_others(
    pool: Pool, acme: Made, meta: Meta, wrote: str, answered: str
) -> None:
    await meta.say(acme, message(acme, by=wrote))
    assert await reply(pool, acme, answered) == 202
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 1


@pytest.mark.parametrize("first", [TO, NEW])
async def test_two_conversations_that_are_one_persons_are_merged_and_the_open_window_counts(
    pool: Pool, acme: Made, meta: Meta, first: str
) -> None:
    other = NEW if first == TO else TO
    await conversation(pool, acme, to=first, opened=timedelta(hours=40))
    open_one = await conversation(pool, acme, to=other, opened=timedelta(hours=1))
    waiting = await outbound(pool, acme, to=other, type="text", conversation_id=open_one)
    await meta.say(acme, changed_number(acme))
    rows = await pool.fetch("SELECT id, recipient, expires_at FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert [(row["recipient"], row["expires_at"] > clock.now() + timedelta(hours=22)) for row in rows] == [(NEW, True)]
    assert rows[0]["id"] != open_one
    async with pool.acquire() as conn:
        assert (await messages.get(conn, acme.actor, id=waiting)).conversation_id == rows[0]["id"]
    for to in (TO, NEW):
        assert await reply(pool, acme, to) == 202
    # The one that was accepted before goes out as well.
    bench = await Bench(pool).start()
    await bench.round()
    assert len(bench.only.submitted) == 3


async def test_a_stop_before_a_change_of_number_or_id_holds_after_it(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "STOP", ago(minutes=5), by=None, user_id="MZ.1"))
    assert await pool.fetchval("SELECT recipient FROM opt_outs") == "MZ.1"
    await meta.say(acme, changed_user_id(acme), message(acme, by=TO, user_id="MZ.2"), changed_number(acme))
    async with pool.acquire() as conn:
        for name in ("MZ.1", "MZ.2", TO, NEW):
            pair = (acme.organization_id, name)
            assert await optouts.current(conn, {pair}) == {pair}
        with pytest.raises(RecipientOptedOut):
            await preview.preview(conn, accept.Acceptor(pool), factories.send(acme.actor, to=NEW))
    with pytest.raises(RecipientOptedOut):
        await reply(pool, acme, "MZ.2")
    await meta.say(acme, message(acme, "START", by=NEW))
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0


async def test_a_change_of_user_id_is_read_whether_or_not_it_says_who(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, by=None, user_id="MZ.1"))
    await meta.say(acme, changed_user_id(acme, wa_id=TO[1:]))
    rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert [tuple(row) for row in rows] == [(TO, "MZ.2")]
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, "MZ.1")) == [TO, "MZ.1", "MZ.2"]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
async def test_words_of_one_person_by_several_names_come_to_the_same_in_any_order(
    pool: Pool, acme: Made, meta: Meta, order: tuple[int, ...]
) -> None:
    await meta.say(acme, message(acme, by=TO, user_id="MZ.1"))
    words = [("stop", TO, 3), ("start", None, 2), ("stop", TO, 1)]
    for text, by, hours in (words[one] for one in order):
        await meta.say(acme, message(acme, text, ago(hours=hours), by=by, user_id="MZ.1" if by is None else None))
    async with pool.acquire() as conn:
        assert await optouts.current(conn, {(acme.organization_id, TO)})
    await meta.say(acme, message(acme, "start", ago(minutes=30), by=None, user_id="MZ.1"))
    await meta.say(acme, message(acme, "stop", ago(minutes=40)))
    async with pool.acquire() as conn:
        assert not await optouts.current(conn, {(acme.organization_id, TO)})


async def test_a_user_who_hides_the_number_can_be_answered(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, by=None, user_id="MZ.1"))
    assert await reply(pool, acme, "MZ.1") == 202
    bench = await Bench(pool).start()
    await bench.round()
    (submission,) = bench.only.submitted
    assert msgspec.json.decode(submission.body)["recipient"] == "MZ.1"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 1


@pytest.mark.parametrize("campaign", [True, False])
async def test_a_word_with_another_meaning_stops_only_after_a_campaign(
    pool: Pool, acme: Made, meta: Meta, campaign: bool
) -> None:
    id = await outbound(pool, acme)
    if campaign:
        await pool.execute("UPDATE whatsapp_messages SET campaign_id = id WHERE id = $1", id)
    await meta.say(acme, message(acme, "Sair"))
    async with pool.acquire() as conn:
        assert bool(await optouts.current(conn, {(acme.organization_id, TO)})) is campaign
    await meta.say(acme, message(acme, "parar, por favor"))
    async with pool.acquire() as conn:
        assert await optouts.current(conn, {(acme.organization_id, TO)})


async def test_names_that_meet_by_a_third_that_is_new_merge_their_conversations(pool: Pool, acme: Made) -> None:
    """A new name alone has no conversation, but it may be what makes two others one person."""
    await conversation(pool, acme, to=TO)
    await conversation(pool, acme, to=NEW)
    async with pool.acquire() as conn, conn.transaction():
        await conversations.link(conn, [(acme.organization_id, TO, "MZ.7"), (acme.organization_id, NEW, "MZ.7")])
    open_ones = "SELECT count(*) FROM whatsapp_conversations WHERE merged_into IS NULL"
    assert await pool.fetchval(open_ones) == 1
    other = "+258847777777"
    await conversation(pool, acme, to="MZ.8")
    async with pool.acquire() as conn, conn.transaction():
        await conversations.link(conn, [(acme.organization_id, TO, "MZ.9")])
        await conversations.link(conn, [(acme.organization_id, TO, other), (acme.organization_id, other, "MZ.8")])
    assert await pool.fetchval(open_ones) == 1
