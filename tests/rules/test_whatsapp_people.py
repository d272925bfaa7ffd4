"""One person on WhatsApp: spellings, user ids and changes of either lead to one window, consent and conversation."""

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
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TextReply, WindowClosed
from heliograph.whatsapp.callbacks import conversations
from tests.rules import factories
from tests.rules.callback_factories import Change, Meta, ago, call, message
from tests.rules.dispatching_whatsapp import Bench, status_item
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import Made, conversation, made, number
from tests.rules.whatsapp_factories import message as outbound

NEW = "+258849999999"


@pytest.fixture
async def acme(pool: Pool) -> Made:
    return await made(pool)


@pytest.fixture
def meta(pool: Pool) -> Meta:
    return Meta(pool)


async def reply(pool: Pool, made: Made, to: str) -> int:
    """Send a text to `to`; returns the status of the response."""
    acceptor = Acceptor(pool, settings=Settings())
    send = Send(actor=made.actor, to=to, number_id=made.number_id, content=TextReply("here you are"))
    return (await acceptor.accept(send)).status


def changed_number(made: Made, at: datetime | None = None) -> Change:
    system = {"type": "user_changed_number", "body": f"Ana changed from {TO} to {NEW}", "wa_id": NEW[1:]}
    return message(made, type="system", at=at, system=system)


def changed_user_id(
    made: Made, at: datetime | None = None, *, old: str = "MZ.1", new: str = "MZ.2", **names: str
) -> Change:
    system = {"type": "user_changed_user_id", "body": f"User Ana changed from {old} to {new}", "user_id": new, **names}
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
    # The message accepted before is sent as well.
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


@pytest.mark.parametrize("by", [None, TO])
async def test_a_conversation_has_the_user_id_that_can_be_answered(
    pool: Pool, acme: Made, meta: Meta, by: str | None
) -> None:
    """It kept the one that its user no longer has, or the number, and so did the inbox."""
    await meta.say(acme, message(acme, by=by, user_id="MZ.1", at=ago(minutes=3)))
    await meta.say(acme, changed_user_id(acme, ago(minutes=2)))
    for user_id, minutes in ((None, 0.0), ("MZ.1", 2.5), ("MZ.2", 1.0), ("MZ.1", 4.0)):
        if user_id is not None:
            await meta.say(acme, message(acme, by=None, user_id=user_id, at=ago(minutes=minutes)))
        rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
        assert [tuple(row) for row in rows] == [("MZ.2", "MZ.2")]
        assert await pool.fetchval("SELECT peer FROM inbox_threads") == "MZ.2"


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


@pytest.mark.parametrize(
    ("sent_to", "wrote"),
    [
        ("+551187654321", "+5511987654321"),
        ("+5511987654321", "+551187654321"),
        ("+5215512345678", "+525512345678"),
        ("+541123456789", "+5491123456789"),
        ("+5491123456789", "+541123456789"),
        ("+5511987654321", "BR.1"),
    ],
)
async def test_a_word_stops_after_a_campaign_to_any_of_a_persons_names(
    pool: Pool, acme: Made, meta: Meta, sent_to: str, wrote: str
) -> None:
    """It was neither an answer to the campaign nor a question, if Meta writes the number in another way."""
    id = await outbound(pool, acme, to=sent_to)
    await pool.execute("UPDATE whatsapp_messages SET campaign_id = id WHERE id = $1", id)
    async with pool.acquire() as conn, conn.transaction():
        await conversations.link(conn, [(acme.organization_id, "+551187654321", "BR.1")])
    by, user_id = (wrote, None) if wrote.startswith("+") else (None, wrote)
    await pool.execute("UPDATE organizations SET country = 'BR'")
    await meta.say(acme, message(acme, "Cancelar", by=by, user_id=user_id))
    async with pool.acquire() as conn:
        assert await optouts.current(conn, {(acme.organization_id, sent_to)})


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


# -- a number that somebody else has now -------------------------------------------------------------------------------


async def out(pool: Pool, made: Made, *names: str) -> list[bool]:
    async with pool.acquire() as conn:
        return [bool(await optouts.current(conn, {(made.organization_id, name)})) for name in names]


async def places(pool: Pool) -> dict[str, tuple[datetime | None, int]]:
    """The conversations by user: when the last window was opened, and how many messages the user wrote."""
    rows = await pool.fetch(
        "SELECT c.recipient, opened_at, (SELECT count(*) FROM whatsapp_messages m JOIN whatsapp_conversations of_it"
        " ON of_it.id = m.conversation_id WHERE coalesce(of_it.merged_into, of_it.id) = c.id AND m.type = 'text'"
        " AND direction = 'inbound')"
        " FROM whatsapp_conversations c WHERE merged_into IS NULL"
    )
    return {recipient: (opened_at, count) for recipient, opened_at, count in rows}


@pytest.mark.parametrize("together", [True, False])
async def test_whoever_writes_from_a_number_that_was_left_is_somebody_else(
    pool: Pool, acme: Made, meta: Meta, together: bool
) -> None:
    first, moved, later = ago(hours=60), ago(hours=50), ago(minutes=1)
    said = [message(acme, at=first, user_id="MZ.1"), changed_number(acme, moved),
            message(acme, "Good day", later, user_id="MZ.9"), message(acme, "Anybody?", later)]  # fmt: skip
    for some in [said] if together else [[one] for one in said]:
        await meta.say(acme, *some)
    assert await places(pool) == {NEW: (first, 1), TO: (later, 2)}
    with pytest.raises(WindowClosed):
        await reply(pool, acme, NEW)
    assert await reply(pool, acme, TO) == 202
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
        assert sorted(await people.names(conn, acme.organization_id, NEW)) == [NEW, "MZ.1"]
    assert sorted(row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")) == [TO, NEW]
    # The number's present user may leave it as well.
    last = "+258847777777"
    system = {"type": "user_changed_number", "body": "changed", "wa_id": last[1:]}
    await meta.say(acme, message(acme, type="system", system=system))
    assert await places(pool) == {NEW: (first, 1), last: (later, 2)}


@pytest.mark.parametrize("late", [True, False])
async def test_whoever_changes_to_a_number_that_somebody_left_is_not_joined_to_them(
    pool: Pool, acme: Made, meta: Meta, late: bool
) -> None:
    """`late`: somebody else already writes from their old number when the change is reported."""
    old = "+258847777777"
    first, wrote, last = ago(hours=60), ago(hours=30), ago(hours=10)
    await meta.say(acme, message(acme, "STOP", first, user_id="MZ.1"), changed_number(acme, ago(hours=50)),
                   message(acme, by=old, at=wrote, user_id="MZ.2"))  # fmt: skip
    if late:
        await meta.say(acme, message(acme, by=old, at=last))
    system = {"type": "user_changed_number", "body": "changed", "wa_id": TO[1:]}
    await meta.say(acme, message(acme, type="system", by=old, at=ago(hours=20), system=system))
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, NEW)) == [NEW, "MZ.1"]
        theirs = [TO] if late else [TO, old, "MZ.2"]
        assert sorted(await people.names(conn, acme.organization_id, TO)) == theirs
        owned = {one.name for one in await people.owned(conn, acme.organization_id, NEW)}
        assert owned == {NEW, "MZ.1", TO}
    await meta.say(acme, message(acme, "Late", ago(hours=55), by=old))
    assert (await places(pool))[NEW] == (first, 1)
    assert await out(pool, acme, TO, NEW, old) == [True, True, not late]
    await meta.say(acme, message(acme, "START", by=TO))
    assert await out(pool, acme, TO, NEW, old) == [False, True, False]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("told", [{"user_id": "MZ.3"}, {}])
async def test_who_changes_to_a_number_that_somebody_left_from_one_that_is_not_told_is_not_joined_to_them(
    pool: Pool, acme: Made, meta: Meta, together: bool, told: dict[str, str]
) -> None:
    """They were taken for who had left it, and got their conversation."""
    first, moved, last = ago(hours=60), ago(hours=50), ago(hours=20)
    system = {"type": "user_changed_number", "body": "changed", "wa_id": TO[1:], **told}
    said = [message(acme, "STOP", first, user_id="MZ.1"), changed_number(acme, moved),
            message(acme, at=ago(hours=40), by=None, user_id="MZ.2"),
            message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=30), system=system),
            message(acme, at=last, user_id="MZ.3")]  # fmt: skip
    for some in [said] if together else [[one] for one in said]:
        await meta.say(acme, *some)
    assert await places(pool) == {NEW: (first, 1), TO: (last, 2)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, NEW)) == [NEW, "MZ.1"]
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.2", "MZ.3"]
    await meta.say(acme, message(acme, "START", by=TO))
    assert await out(pool, acme, TO, NEW) == [False, True]


async def test_who_comes_back_to_their_number_from_one_that_is_not_told_is_known_by_the_user_id(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    last = ago(hours=30)
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, changed_user_id(acme, ago(hours=50)))
    system = {"type": "user_changed_number", "body": "changed", "wa_id": TO[1:], "user_id": "MZ.3"}
    await meta.say(acme, message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=40), system=system))
    await meta.say(acme, message(acme, at=last, user_id="MZ.3"))
    assert await places(pool) == {TO: (last, 2)}


@pytest.mark.parametrize(("stopped", "wrote", "silent"), [(55, TO, True), (55, "MZ.1", True), (45, NEW, False)])
async def test_an_opt_out_goes_along_and_the_number_keeps_what_was_said_before_the_move(
    pool: Pool, acme: Made, meta: Meta, stopped: int, wrote: str, silent: bool
) -> None:
    """`silent`: the old number is silent as well, until its new owner writes START."""
    name = {"by": None, "user_id": wrote} if wrote == "MZ.1" else {"by": wrote}
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"), changed_number(acme, ago(hours=50)),
                   message(acme, "STOP", ago(hours=stopped), **name))  # fmt: skip
    assert await out(pool, acme, TO, NEW, "MZ.1") == [True] * 3
    await meta.say(acme, message(acme, "Good day", ago(hours=2)))
    assert await out(pool, acme, TO, NEW, "MZ.1") == [silent, True, True]
    await meta.say(acme, message(acme, "START", ago(hours=1)))
    assert await out(pool, acme, TO, NEW, "MZ.1") == [False, True, True]
    await meta.say(acme, message(acme, "START", ago(minutes=50), by=NEW), message(acme, "STOP", ago(minutes=40)))
    assert await out(pool, acme, TO, NEW, "MZ.1") == [True, False, False]


async def test_an_opt_out_that_an_erasure_left_goes_along_too(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "STOP", at=ago(hours=60)), changed_number(acme, ago(hours=50)))
    await pool.execute("DELETE FROM consent_history")
    await meta.say(acme, message(acme, "Good day"))
    assert await out(pool, acme, TO, NEW) == [True, True]


@pytest.mark.parametrize("taken", [True, False])
async def test_what_was_written_before_the_move_is_theirs_who_moved_however_late_it_comes(
    pool: Pool, acme: Made, meta: Meta, taken: bool
) -> None:
    first, moved, later = ago(hours=60), ago(hours=50), ago(minutes=1)
    await meta.say(acme, message(acme, at=first), changed_number(acme, moved))
    if taken:
        await meta.say(acme, message(acme, "Good day", later))
    last = ago(hours=51)
    await meta.say(acme, message(acme, "STOP", last))
    assert (await places(pool))[NEW] == (last, 2)
    assert (await out(pool, acme, NEW, TO))[0]
    assert await pool.fetchval("SELECT peer FROM inbox_threads ORDER BY heard_at LIMIT 1") == NEW
    # Meta notifies each number of the organization.
    await meta.say(acme, changed_number(acme, moved))
    assert len(await places(pool)) == 1 + taken


@pytest.mark.parametrize("stood", [True, False])
async def test_a_notice_that_comes_after_the_new_owner_links_nobody(
    pool: Pool, acme: Made, meta: Meta, stood: bool
) -> None:
    """`stood`: the opt-out was recorded before the move; otherwise it is the new owner's, and the earlier one was
    lifted by a later keyword."""
    since, first = ago(hours=20), ago(hours=10)
    await meta.say(acme, message(acme, "STOP", ago(hours=60)), message(acme, "START", since))
    await meta.say(acme, message(acme, "Hello", first, by=NEW))
    async with pool.acquire() as conn:
        await optouts.add(conn, acme.actor, phone=TO)
    if stood:
        await pool.execute("UPDATE consent_history SET at = $1 WHERE ended_at IS NULL", ago(hours=40))
    for _ in range(2):  # Meta notifies each number of the organization.
        await meta.say(acme, changed_number(acme, ago(hours=30)))
        assert await places(pool) == {TO: (since, 2), NEW: (first, 1)}
        assert await out(pool, acme, TO, NEW) == [True, stood]
    # What they wrote before, and what arrives only now, is theirs.
    await meta.say(acme, message(acme, "Late", ago(hours=35)))
    assert await places(pool) == {TO: (since, 2), NEW: (first, 2)}


async def test_a_notice_that_comes_after_a_call_of_the_new_owner_links_nobody(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    wrote, called = ago(hours=40), ago(hours=10)
    await meta.say(acme, message(acme, by=NEW, at=wrote), call(acme, called))
    await meta.say(acme, changed_number(acme, ago(hours=30)))
    assert await places(pool) == {TO: (called, 0), NEW: (wrote, 1)}
    with pytest.raises(WindowClosed):
        await reply(pool, acme, NEW)
    assert await reply(pool, acme, TO) == 202


async def test_a_late_notice_says_nothing_about_others_of_its_batch(pool: Pool, acme: Made, meta: Meta) -> None:
    here, there = "+5511987654321", "+551187654321"
    await meta.say(acme, message(acme, at=ago(hours=20)))
    system = {"type": "user_changed_number", "body": "changed", "wa_id": there[1:]}
    await meta.say(acme, changed_number(acme, ago(hours=30)),
                   message(acme, type="system", by=here, at=ago(hours=29), system=system))  # fmt: skip
    rows = await pool.fetch("SELECT recipient FROM whatsapp_messages WHERE type = 'system' ORDER BY recipient")
    assert [row["recipient"] for row in rows] == [NEW, here]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_notice_older_than_a_known_change_links_no_two_people(
    pool: Pool, acme: Made, meta: Meta, taken: bool
) -> None:
    """Two successive owners of one number, reported in the wrong order; or a number that was used only in between."""
    other, last = "+258847777777", "+258848888888"

    def moved(old: str, new: str, hours: float) -> Change:
        system = {"type": "user_changed_number", "body": "changed", "wa_id": new[1:]}
        return message(acme, type="system", by=old, at=ago(hours=hours), system=system)

    async def names(of: str) -> list[str]:
        async with pool.acquire() as conn:
            return sorted(await people.names(conn, acme.organization_id, of))

    await meta.say(acme, message(acme, at=ago(hours=50), user_id="MZ.1"), moved(TO, NEW, 40))
    await meta.say(acme, moved(TO, other, 60))
    assert (await names(NEW), await names(other)) == (sorted([TO, NEW, "MZ.1"]), [other])
    # Of two changes the later one is reported first, and somebody else may have the number in between by now.
    await meta.say(acme, message(acme, by=last, at=ago(hours=35)), moved(NEW, last, 30))
    if taken:
        await meta.say(acme, message(acme, by=NEW, at=ago(hours=20)))
    await meta.say(acme, message(acme, by=other, at=ago(hours=45)), moved(other, NEW, 35))
    assert other in await names(last)
    await meta.say(acme, moved(other, NEW, 35))  # reported again, for another number of ours
    assert (await names(NEW) == [NEW]) is taken
    assert set(await places(pool)) == ({last, NEW} if taken else {last})


async def test_who_comes_back_to_their_old_number_is_known_by_the_user_id(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"), changed_number(acme, ago(hours=50)))
    last = ago(hours=1)
    await meta.say(acme, message(acme, "Me again", ago(hours=2), user_id="MZ.1"), message(acme, "I am", last))
    (place,) = (await places(pool)).values()
    assert place == (last, 3)


@pytest.mark.parametrize("together", [True, False])
async def test_whoever_gets_the_number_of_a_user_whose_new_one_is_not_told_is_somebody_else(
    pool: Pool, acme: Made, meta: Meta, together: bool
) -> None:
    """They were joined to the conversation of the user who had left it, with its texts and open window."""
    moved, late, later = ago(hours=50), ago(hours=55), ago(minutes=1)
    await meta.say(acme, message(acme, "STOP", at=ago(hours=60), user_id="MZ.1"))
    said = [changed_user_id(acme, moved), changed_user_id(acme, moved),
            message(acme, "Good day", later, user_id="MZ.9"), message(acme, "Late", late)]  # fmt: skip
    for some in [said] if together else [[one] for one in said]:
        await meta.say(acme, *some)
    assert await places(pool) == {"MZ.2": (late, 2), TO: (later, 1)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
        assert sorted(await people.names(conn, acme.organization_id, "MZ.2")) == ["MZ.1", "MZ.2"]
        owned = {one.name for one in await people.owned(conn, acme.organization_id, "MZ.2")}
        assert owned == {"MZ.1", "MZ.2", TO}
    assert sorted(row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")) == [TO, "MZ.2"]
    assert await out(pool, acme, TO, "MZ.2") == [True, True]
    await meta.say(acme, message(acme, "START", by=TO))
    assert await out(pool, acme, TO, "MZ.2") == [False, True]


async def test_who_writes_under_the_new_user_id_before_its_notice_has_left_the_number(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """That counted as a use of the number, whose next owner was joined to the user's conversation."""
    wrote, later = ago(hours=49), ago(minutes=1)
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, message(acme, "Me again", wrote, by=None, user_id="MZ.2"))
    await meta.say(acme, changed_user_id(acme, ago(hours=50)))
    await meta.say(acme, message(acme, "Good day", later, user_id="MZ.9"))
    assert await places(pool) == {TO: (later, 1), "MZ.2": (wrote, 2)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
    rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert {tuple(row) for row in rows} == {("MZ.2", "MZ.2"), (TO, "MZ.9")}
    assert {row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")} == {TO, "MZ.2"}


@pytest.mark.parametrize("is_hidden", [True, False])
async def test_who_writes_with_the_notice_of_a_new_name_is_shown_by_it(
    pool: Pool, acme: Made, meta: Meta, is_hidden: bool
) -> None:
    """The conversation kept the number that was left, which is somebody else's by then."""
    moved, wrote, later = ago(hours=50), ago(hours=49), ago(minutes=1)
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    notice = changed_user_id(acme, moved) if is_hidden else changed_number(acme, moved)
    mine = message(acme, "Me again", wrote, by=None if is_hidden else NEW, user_id="MZ.2")
    await meta.say(acme, notice, mine, message(acme, "Good day", later, user_id="MZ.9"))
    assert await places(pool) == {"MZ.2" if is_hidden else NEW: (wrote, 2), TO: (later, 1)}
    rows = await pool.fetch("SELECT user_id FROM whatsapp_conversations ORDER BY opened_at")
    assert [row[0] for row in rows] == ["MZ.2", "MZ.9"]


async def test_who_first_writes_in_the_batch_of_the_notice_has_left_the_number(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """As after an outage: the number was not known of them yet, and its next owner was joined to them."""
    wrote, later = ago(hours=60), ago(minutes=1)
    await meta.say(acme, message(acme, "STOP", wrote, user_id="MZ.1"), changed_user_id(acme, ago(hours=50)))
    await meta.say(acme, message(acme, "Good day", later, user_id="MZ.9"))
    assert await places(pool) == {"MZ.2": (wrote, 1), TO: (later, 1)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
        assert sorted(await people.names(conn, acme.organization_id, "MZ.2")) == ["MZ.1", "MZ.2"]
    assert await out(pool, acme, TO, "MZ.2") == [True, True]


@pytest.mark.parametrize("by", [TO, None])
async def test_a_late_notice_takes_nobody_s_number_whichever_name_finds_the_conversation(
    pool: Pool, acme: Made, meta: Meta, by: str | None
) -> None:
    """If it began under the user id, nobody seemed to have used the number, and its owners stayed joined for good."""
    last = ago(minutes=1)
    await meta.say(acme, message(acme, at=ago(hours=61), by=by, user_id="MZ.1"))
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, message(acme, "I am new", ago(hours=40), user_id="MZ.9"))
    await meta.say(acme, changed_number(acme, ago(hours=50)))
    await meta.say(acme, message(acme, "Good day", last, user_id="MZ.9"))
    assert await places(pool) == {NEW: (None, 0), TO: (last, 4)}
    async with pool.acquire() as conn:
        assert NEW not in await people.names(conn, acme.organization_id, TO)


@pytest.mark.parametrize("order", ["notice first again next", "notice next first again", "next notice again first",
                                   "again notice first next"])  # fmt: skip
async def test_who_first_wrote_before_a_notice_that_arrived_earlier_has_left_the_number(
    pool: Pool, acme: Made, meta: Meta, order: str
) -> None:
    """Callbacks arrive in any order, and the number's next owner was joined to the user, however much later."""
    wrote, last, later = ago(hours=60), ago(hours=49), ago(minutes=1)
    said = {
        "notice": changed_user_id(acme, ago(hours=50)),
        "first": message(acme, "STOP", wrote, user_id="MZ.1"),
        "again": message(acme, "Me again", last, by=None, user_id="MZ.2"),
        "next": message(acme, "Good day", later, user_id="MZ.9"),
    }
    for one in order.split():
        await meta.say(acme, said[one])
    assert await places(pool) == {"MZ.2": (last, 2), TO: (later, 1)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
        assert sorted(await people.names(conn, acme.organization_id, "MZ.2")) == ["MZ.1", "MZ.2"]
        assert TO in {one.name for one in await people.owned(conn, acme.organization_id, "MZ.2")}
    assert (await out(pool, acme, "MZ.2", "MZ.1")) == [True, True]
    assert sorted(row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")) == [TO, "MZ.2"]
    # What they wrote even earlier is theirs, too.
    await meta.say(acme, message(acme, "Hello", ago(hours=61), user_id="MZ.1"))
    assert await places(pool) == {"MZ.2": (last, 3), TO: (later, 1)}


@pytest.mark.parametrize("order", ["notice first next", "notice next first", "first notice next"])
async def test_a_notice_of_a_new_number_that_does_not_tell_the_old_one_counts_for_what_arrives_after_it(
    pool: Pool, acme: Made, meta: Meta, order: str
) -> None:
    """The number's next owner was joined to the user."""
    system = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.2"}
    said = {
        "notice": message(acme, type="system", by=None, user_id="MZ.1", at=ago(hours=50), system=system),
        "first": message(acme, "STOP", ago(hours=60), user_id="MZ.1"),
        "next": message(acme, "Good day", ago(minutes=1), user_id="MZ.9"),
    }
    for one in order.split():
        await meta.say(acme, said[one])
    assert {name: count for name, (_, count) in (await places(pool)).items()} == {NEW: 1, TO: 1}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]
        assert sorted(await people.names(conn, acme.organization_id, NEW)) == [NEW, "MZ.1", "MZ.2"]
    assert await out(pool, acme, NEW, "MZ.1", "MZ.2") == [True, True, True]
    await meta.say(acme, message(acme, "START", ago(minutes=1), by=NEW, user_id="MZ.2"))
    assert await out(pool, acme, NEW, "MZ.1", "MZ.2") == [False, False, False]
    # Back under the old user id, with a third number.
    back = {"type": "user_changed_number", "body": "changed", "wa_id": "258840000003", "user_id": "MZ.1"}
    await meta.say(acme, message(acme, type="system", by=None, user_id="MZ.2", at=ago(seconds=30), system=back))
    await meta.say(acme, message(acme, "STOP", by="+258840000004", user_id="MZ.1"))
    assert await out(pool, acme, "+258840000003", "+258840000004", "MZ.1") == [True, True, True]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("third", ["258840000003", None])
async def test_who_is_back_under_a_former_user_id_uses_it_though_both_notices_come_together(
    pool: Pool, acme: Made, meta: Meta, together: bool, third: str | None
) -> None:
    """A STOP from a number that they showed next did not apply to the user id, nor to the number known of it."""
    away = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.2"}
    back = {"type": "user_changed_number", "body": "changed", "wa_id": third, "user_id": "MZ.1"}
    notices = [
        message(acme, type="system", by=None, user_id="MZ.1", at=ago(hours=50), system=away),
        message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=40), system=back)
        if third
        else changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.1"),
    ]
    for said in [notices] if together else [[one] for one in notices]:
        await meta.say(acme, *said)
    await meta.say(acme, message(acme, "STOP", by=TO, user_id="MZ.1"))
    assert await out(pool, acme, TO, "MZ.1", f"+{third}" if third else TO) == [True, True, True]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_number_that_somebody_got_and_left_again_is_the_next_owner_s_though_both_notices_come_together(
    pool: Pool, acme: Made, meta: Meta, together: bool, is_told: bool
) -> None:
    """Its next owner got the conversation of who had had it in between."""
    got = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.2"}
    back = {"type": "user_changed_number", "body": "changed", "wa_id": TO[1:], "user_id": "MZ.3"}
    notices = [
        message(acme, type="system", by=None, user_id="MZ.1", at=ago(hours=50), system=got),
        message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=40), system=back)
        if is_told
        else changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.3"),
    ]
    wrote, last = ago(hours=60), ago(hours=30)
    await meta.say(acme, message(acme, by=None, user_id="MZ.1", at=wrote))
    for said in [notices] if together else [[one] for one in notices]:
        await meta.say(acme, *said)
    await meta.say(acme, message(acme, by=NEW, user_id="MZ.4", at=last))
    assert await places(pool) == {TO if is_told else "MZ.3": (wrote, 1), NEW: (last, 1)}


async def test_a_number_that_is_known_since_a_late_notice_of_a_user_id_is_not_kept_as_a_user_id(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    id, graph_id, digits = await number(pool, acme.organization_id, acme.account_id)
    other = msgspec.structs.replace(acme, number_id=id, graph_id=graph_id, digits=digits)
    await meta.say(other, message(other, at=ago(hours=60), by=None, user_id="MZ.1"))
    system = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.3"}
    await meta.say(acme, message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=40), system=system))
    await meta.say(other, changed_user_id(other, ago(hours=50)))
    rows = await pool.fetch(
        "SELECT recipient, user_id FROM whatsapp_conversations WHERE number_id = $1", other.number_id
    )
    assert [tuple(row) for row in rows] == [(NEW, "MZ.1")]


@pytest.mark.parametrize(("wrote", "by"), [(TO, TO), (TO, None), (None, TO), (None, None)])
@pytest.mark.parametrize("order", [*itertools.permutations(("stop", "change", "hidden"))])
async def test_a_stop_holds_for_a_user_who_got_and_left_a_number_in_whatever_order_it_is_told(
    pool: Pool, acme: Made, meta: Meta, order: tuple[str, ...], wrote: str | None, by: str | None
) -> None:
    """If they left it before they were known to have got it, their user id got messages, and the number's next owner
    the conversation."""
    system = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.2"}
    told = {
        "stop": message(acme, "STOP", ago(hours=60), by=wrote, user_id="MZ.1"),
        "change": message(acme, type="system", by=by, user_id="MZ.1", at=ago(hours=50), system=system),
        "hidden": changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.3"),
    }
    for one in order:
        await meta.say(acme, told[one])
    assert await out(pool, acme, wrote or by or NEW, NEW, "MZ.2", "MZ.3") == [True, True, True, True]
    await meta.say(acme, message(acme, by=NEW, user_id="MZ.9", at=ago(hours=30)))
    rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert {tuple(row) for row in rows} == {("MZ.3", "MZ.3"), (NEW, "MZ.9")}


async def test_a_stop_holds_for_a_user_who_had_a_number_twice_and_of_whose_first_time_is_told_last(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """The last notice was taken for one that repeats the second departure, and the old user id in it was lost."""
    last = "+258847777777"

    def changed(hours: int, to: str, user_id: str, old: str, by: str | None = None) -> Change:
        system = {"type": "user_changed_number", "body": "changed", "wa_id": to[1:], "user_id": user_id}
        return message(acme, type="system", by=by, user_id=old, at=ago(hours=hours), system=system)

    for one in (
        changed_user_id(acme, ago(hours=20), old="MZ.4", new="MZ.5"),
        changed_user_id(acme, ago(hours=50), old="MZ.1", new="MZ.2"),
        message(acme, "STOP", ago(hours=60), user_id="MZ.1"),
        changed(30, NEW, "MZ.4", "MZ.3"),
        changed(40, last, "MZ.3", "MZ.2", by=NEW),
    ):
        await meta.say(acme, one)
    assert await out(pool, acme, TO, "MZ.5") == [True, True]


async def test_a_user_id_that_is_known_since_a_late_notice_of_a_number_is_not_kept_as_a_number(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """The conversation and the inbox showed "+MZ.3", to which no reply can be sent."""
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, message(acme, at=ago(hours=45), by=NEW, user_id="MZ.2"))
    await meta.say(acme, changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.3"))
    system = {"type": "user_changed_number", "body": "changed", "wa_id": NEW[1:], "user_id": "MZ.2"}
    await meta.say(acme, message(acme, type="system", user_id="MZ.1", at=ago(hours=50), system=system))
    rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert [tuple(row) for row in rows] == [("MZ.3", "MZ.3")]
    assert {row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")} == {"MZ.3"}


@pytest.mark.parametrize("by", [TO, None])
@pytest.mark.parametrize("order", [*itertools.permutations(("stop", "change", "another"))])
async def test_a_stop_holds_for_a_user_whose_id_changed_twice_in_whatever_order_it_is_told(
    pool: Pool, acme: Made, meta: Meta, order: tuple[str, ...], by: str | None
) -> None:
    """The user id in between had been left, and was linked to nothing that was told afterwards."""
    said = {
        "stop": message(acme, "STOP", ago(hours=60), by=by, user_id="MZ.1"),
        "change": changed_user_id(acme, ago(hours=50)),
        "another": changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.3"),
    }
    for one in order:
        await meta.say(acme, said[one])
    assert await out(pool, acme, "MZ.1", "MZ.2", "MZ.3") == [True, True, True]
    assert [*await places(pool)] == ["MZ.3"]
    assert await pool.fetchval("SELECT user_id FROM whatsapp_conversations WHERE merged_into IS NULL") == "MZ.3"
    # Whoever has the number next is somebody else.
    await meta.say(acme, message(acme, "Good day", ago(hours=1), user_id="MZ.9"))
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.9"]


async def test_a_notice_that_is_repeated_once_its_user_is_back_does_not_part_them_from_their_user_id(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """A number that was shown next was not linked to it, so that a STOP from the number did not apply to the id."""
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, changed_user_id(acme, ago(hours=50)))
    await meta.say(acme, changed_user_id(acme, ago(hours=40), old="MZ.2", new="MZ.1"))
    await meta.say(acme, changed_user_id(acme, ago(hours=50)))
    assert [*await places(pool)] == ["MZ.1"]
    await meta.say(acme, message(acme, "STOP", ago(hours=30), by=NEW, user_id="MZ.1"))
    assert await out(pool, acme, "MZ.1", NEW) == [True, True]


@pytest.mark.parametrize("before", [True, False])
async def test_a_notice_of_a_hidden_number_that_comes_after_the_new_owner_links_nobody(
    pool: Pool, acme: Made, meta: Meta, before: bool
) -> None:
    """The user and the number's next owner shared a conversation. `before`: the user writes before the notice comes."""
    first, mine, last = ago(hours=40), ago(hours=30), ago(minutes=1)
    await meta.say(acme, message(acme, "STOP", at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, message(acme, "START", first, user_id="MZ.9"))
    said = [message(acme, "Me again", mine, by=None, user_id="MZ.2"), changed_user_id(acme, ago(hours=50))]
    for one in said if before else reversed(said):
        await meta.say(acme, one)
    await meta.say(acme, changed_user_id(acme, ago(hours=50)), message(acme, "Good day", last, user_id="MZ.9"))
    assert await places(pool) == {"MZ.2": (mine, 1), TO: (last, 3)}
    async with pool.acquire() as conn:
        assert await people.names(conn, acme.organization_id, "MZ.2") == ["MZ.2"]
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO, "MZ.1", "MZ.9"]
    assert sorted(row[0] for row in await pool.fetch("SELECT peer FROM inbox_threads")) == [TO, "MZ.2"]


async def test_an_opt_out_goes_along_with_a_hidden_number_though_its_notice_is_late(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    await meta.say(acme, message(acme, "STOP", at=ago(hours=60), user_id="MZ.1"))
    await meta.say(acme, message(acme, "I am new", ago(hours=40), user_id="MZ.9"))
    await meta.say(acme, changed_user_id(acme, ago(hours=50)))
    assert await out(pool, acme, TO, "MZ.2") == [True, True]
    await meta.say(acme, message(acme, "START", ago(hours=1)))
    assert await out(pool, acme, TO, "MZ.2") == [False, True]


async def test_a_notice_of_a_new_number_need_not_tell_the_old_one(pool: Pool, acme: Made, meta: Meta) -> None:
    """The next owner of the old number was joined to the user's conversation."""
    last, later = ago(hours=60), ago(minutes=1)
    await meta.say(acme, message(acme, at=last, user_id="MZ.1"))
    system = {"type": "user_changed_number", "wa_id": NEW[1:], "previous_user_id": "MZ.1", "user_id": "MZ.2"}
    notice = message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=50), system=system)
    for said in ([notice], [notice, message(acme, "Good day", later)]):
        await meta.say(acme, *said)
    assert await places(pool) == {NEW: (last, 1), TO: (later, 1)}
    async with pool.acquire() as conn:
        assert sorted(await people.names(conn, acme.organization_id, NEW)) == [NEW, "MZ.1", "MZ.2"]
        assert sorted(await people.names(conn, acme.organization_id, TO)) == [TO]


async def test_a_notice_without_the_old_user_id_says_nothing_about_the_number(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.2"))
    system = {"type": "user_changed_user_id", "body": "changed", "user_id": "MZ.2"}
    await meta.say(acme, message(acme, type="system", by=None, user_id="MZ.2", at=ago(hours=50), system=system))
    await meta.say(acme, message(acme, "Me again", at=(last := ago(minutes=1))))
    assert await places(pool) == {TO: (last, 2)}


async def test_who_has_a_new_user_id_with_the_old_number_is_known_by_it(pool: Pool, acme: Made, meta: Meta) -> None:
    last = ago(hours=1)
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"), changed_user_id(acme, ago(hours=50)))
    assert set(await places(pool)) == {"MZ.2"}
    await meta.say(acme, message(acme, "Me again", ago(hours=2), user_id="MZ.2"), message(acme, "I am", last))
    assert await places(pool) == {TO: (last, 3)}
    # A notice that arrives late says nothing about who uses the number now.
    await meta.say(acme, changed_user_id(acme, ago(hours=50)), message(acme, "Hm", last))
    assert await places(pool) == {TO: (last, 4)}


async def test_a_status_of_a_message_to_a_number_that_was_left_links_nobody(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, at=ago(hours=60), user_id="MZ.1"), changed_number(acme, ago(hours=50)))
    id = await outbound(pool, acme)
    bench = await Bench(pool).start()
    await bench.round()
    await bench.hear(acme, status_item(acme, id, "delivered", recipient=TO[1:], user_id="MZ.9"))
    await meta.say(acme, message(acme, "Good day", user_id="MZ.9"))
    assert set(await places(pool)) == {TO, NEW}
