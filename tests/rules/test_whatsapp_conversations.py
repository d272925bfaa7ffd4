"""Windows and conversations on a real database: in whatever order Meta's updates arrive, the result is the same."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.whatsapp import messages, reads
from heliograph.whatsapp.callbacks import conversations
from tests.rules.callback_factories import Meta, ago, call, message, stamp, status, wamid
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import Made, conversation, made
from tests.rules.whatsapp_factories import message as outbound

DAY = timedelta(days=1)


@pytest.fixture
async def acme(pool: Pool) -> Made:
    return await made(pool)


@pytest.fixture
def meta(pool: Pool) -> Meta:
    return Meta(pool)


async def window(pool: Pool, made: Made) -> tuple[datetime | None, datetime | None]:
    """(opened, expires) of the only conversation."""
    rows = await pool.fetch(
        "SELECT opened_at, expires_at FROM whatsapp_conversations WHERE organization_id = $1", made.organization_id
    )
    assert len(rows) == 1
    return rows[0]["opened_at"], rows[0]["expires_at"]


# -- what opens a window -----------------------------------------------------------------------------------------------


async def test_a_message_opens_the_window_for_a_day_from_when_it_was_written(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    at = ago(hours=3)
    await meta.say(acme, message(acme, "hello", at))
    assert await window(pool, acme) == (at, at + DAY)


OPEN = ["text", "button", "interactive", "image", "video", "audio", "document", "sticker", "location", "contacts"]


@pytest.mark.parametrize("type", [*OPEN, "order"])
async def test_types_that_open_it(pool: Pool, acme: Made, meta: Meta, type: str) -> None:
    await meta.say(acme, message(acme, type=type, **({} if type == "text" else {type: {}})))
    assert (await window(pool, acme))[1] is not None


@pytest.mark.parametrize("type", ["reaction", "system", "edit", "revoke", "unsupported", "unknown", "hologram"])
async def test_types_that_do_not(pool: Pool, acme: Made, meta: Meta, type: str) -> None:
    await meta.say(acme, message(acme, type=type))
    assert await window(pool, acme) == (None, None)
    at = ago(hours=1)
    await meta.say(acme, message(acme, "hello", at), message(acme, type=type))
    assert await window(pool, acme) == (at, at + DAY)


async def test_a_call_of_the_user_opens_it_and_is_no_message(pool: Pool, acme: Made, meta: Meta) -> None:
    wrote, called = ago(hours=30), ago(hours=2)
    await meta.say(acme, message(acme, "hello", wrote))
    ended = {"event": "terminate", "start_time": stamp(called), "status": "COMPLETED", "duration": 600}
    await meta.say(acme, call(acme, called), call(acme, called + timedelta(minutes=10), **ended))
    await meta.say(acme, call(acme, called))
    assert await window(pool, acme) == (called, called + DAY)
    assert await pool.fetchval("SELECT last_inbound_at FROM whatsapp_conversations") == wrote
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    # Nobody answered, or the organization called: that opens nothing.
    await meta.say(acme, call(acme, ago(hours=1), event="terminate", status="FAILED"),
                   call(acme, ago(hours=1), direction="BUSINESS_INITIATED"))  # fmt: skip
    assert await window(pool, acme) == (called, called + DAY)
    other = "+258841234568"
    await meta.say(acme, call(acme, called, **{"from": other[1:]}), call(acme, called, **{"from": "MZ.7"}))
    rows = await pool.fetch("SELECT recipient FROM whatsapp_conversations WHERE opened_at = $1", called)
    assert {row[0] for row in rows} == {TO, other, "MZ.7"}


async def test_the_newest_message_counts_in_whatever_order_they_come(pool: Pool, acme: Made, meta: Meta) -> None:
    old, new = ago(hours=30), ago(hours=2)
    for at in (new, old):
        await meta.say(acme, message(acme, "hello", at))
    assert await window(pool, acme) == (new, new + DAY)


async def test_tomorrows_message_counts_from_now(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "hello", clock.now() + timedelta(hours=20)))
    _, expires = await window(pool, acme)
    assert expires is not None
    assert expires <= clock.now() + DAY


async def test_neither_templates_nor_statuses_open_a_window(pool: Pool, acme: Made, meta: Meta) -> None:
    await conversation(pool, acme, opened=None)
    id = await outbound(pool, acme)
    for word in ("sent", "delivered", "read"):
        await meta.say(acme, status(acme, "wamid.X", word, biz_opaque_callback_data=str(id)))
    assert await window(pool, acme) == (None, None)


# -- what closes it ----------------------------------------------------------------------------------------------------

REFUSED = ago(hours=2)
BEFORE, AFTER = ago(hours=3), ago(hours=1)


async def test_a_refusal_and_messages_before_and_after_it_come_to_the_same_in_any_order(pool: Pool, meta: Meta) -> None:
    def wrote(one: Made, at: datetime) -> Callable[[], Awaitable[None]]:
        return lambda: meta.say(one, message(one, "hello", at))

    async def refuse(one: Made) -> None:
        async with pool.acquire() as conn:
            id = await conn.fetchval(
                "SELECT id FROM whatsapp_conversations WHERE organization_id = $1", one.organization_id
            )
            await conversations.close_windows(conn, {(one.organization_id, id): REFUSED})

    for times, expires in (((BEFORE,), REFUSED), ((BEFORE, AFTER), AFTER + DAY), ((AFTER,), AFTER + DAY)):
        for order in itertools.permutations([*times, None]):
            one = await made(pool)
            await conversation(pool, one, opened=None)
            for at in order:
                await (refuse(one) if at is None else wrote(one, at)())
            assert (await window(pool, one))[1] == expires, order


async def test_a_refusal_long_after_the_end_changes_nothing(pool: Pool, acme: Made, meta: Meta) -> None:
    at = ago(hours=40)
    await meta.say(acme, message(acme, "hello", at))
    (id,) = await pool.fetchrow("SELECT id FROM whatsapp_conversations")
    async with pool.acquire() as conn:
        await conversations.close_windows(conn, {(acme.organization_id, id): REFUSED})
    assert await window(pool, acme) == (at, at + DAY)


# -- whose conversation it is ------------------------------------------------------------------------------------------


async def test_who_is_answered_has_one_conversation(pool: Pool, acme: Made, meta: Meta) -> None:
    id = await conversation(pool, acme, opened=None)
    await meta.say(acme, message(acme), message(acme, user_id="MZ.1"))
    assert [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_conversations")] == [id]
    assert {row[0] for row in await pool.fetch("SELECT name FROM person_names")} == {TO, "MZ.1"}
    assert await pool.fetchval("SELECT user_id FROM whatsapp_conversations") == "MZ.1"


ORDERS = [*itertools.permutations(["hidden", "phone", "both"])]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("together", [True, False])
async def test_a_user_without_a_number_is_the_same_once_it_is_known(
    pool: Pool, acme: Made, meta: Meta, order: tuple[str, ...], together: bool
) -> None:
    says = {
        "hidden": message(acme, by=None, user_id="MZ.7"),
        "both": message(acme, by=TO, user_id="MZ.7"),
        "phone": message(acme, by=TO),
    }
    if together:
        await meta.say(acme, *(says[one] for one in order))
    else:
        for one in order:
            await meta.say(acme, says[one])
    rows = await pool.fetch("SELECT id, recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert [tuple(row)[1:] for row in rows] == [(TO, "MZ.7")]
    async with pool.acquire() as conn:
        found = await messages.list_page(conn, acme.actor, filters=messages.Filters())
        assert {one.conversation_id for one in found.messages} == {rows[0]["id"]}
        for recipient in (TO, "MZ.7"):
            filters = reads.ConversationFilters(recipient=recipient)
            (one,), _ = await reads.conversations(conn, acme.actor, filters=filters)
            assert one.id == rows[0]["id"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
async def test_of_several_user_ids_the_newest_is_the_users(
    pool: Pool, acme: Made, meta: Meta, order: list[int], together: bool
) -> None:
    says = [
        message(acme, "before", ago(hours=2), user_id="MZ.7"),
        message(acme, "since", ago(hours=1), user_id="MZ.8"),
    ]
    if together:
        await meta.say(acme, *(says[n] for n in order))
    else:
        for n in order:
            await meta.say(acme, says[n])
    rows = await pool.fetch("SELECT recipient, user_id FROM whatsapp_conversations WHERE merged_into IS NULL")
    assert [tuple(row) for row in rows] == [(TO, "MZ.8")]


async def test_two_numbers_have_two_conversations_with_one_user(pool: Pool, acme: Made, meta: Meta) -> None:
    other = await made(pool, app=acme.app)
    await meta.say(acme, message(acme), message(other))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 2


async def test_workers_that_meet_the_same_new_users_make_one_conversation_each(pool: Pool, acme: Made) -> None:
    workers = [Meta(pool) for _ in range(3)]
    users = [f"+2588412345{number:02d}" for number in range(20)]
    for worker in workers:
        await worker.post(acme, *(message(acme, by=user) for user in users))
    await asyncio.gather(*(worker.work() for worker in workers))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 20
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 60


# -- free entry --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_a_person_has_one_conversation_with_a_number_by_whatever_names_it_is_opened(
    pool: Pool, acme: Made, seed: int
) -> None:
    """Also if a batch contains the person twice, by different names, or some people who have one already."""
    pick = random.Random(seed)
    linked = [["MZ.1", "+258841234568"], ["+258841234569", "MZ.2"]]
    people = [["+258841234567"], ["+5511987654321", "+551187654321"], ["test:+258841234567"], *linked]
    for names in linked:
        await pool.execute(
            "INSERT INTO person_names (organization_id, name, person) SELECT $1, unnest($2::text[]), $3",
            acme.organization_id,
            names,
            uuid7(),
        )
    numbers = [uuid7(), uuid7()]
    expected: dict[tuple[UUID, int], UUID] = {}
    for _ in range(4):
        pairs = [(pick.choice(numbers), pick.randrange(len(people))) for _ in range(pick.randint(1, 6))]
        ids = [uuid7() for _ in pairs]
        opened = await pool.fetchval(
            f"SELECT whatsapp_{pick.choice(['open', 'ensure'])}_conversations(now(), $1, $2, $3, $4)",
            [acme.organization_id] * len(pairs),
            [number for number, _ in pairs],
            [pick.choice(people[person]) for _, person in pairs],
            ids,
        )
        assert opened == [expected.setdefault(pair, id) for pair, id in zip(pairs, ids, strict=True)]
    rows = await pool.fetch("SELECT id, number_id, mode, recipient FROM whatsapp_conversations")
    assert {row["id"]: row["number_id"] for row in rows} == {id: number for (number, _), id in expected.items()}
    for row in rows:
        person = next(person for (_, person), id in expected.items() if id == row["id"])
        assert (row["mode"], row["recipient"]) in [
            ("test", name[5:]) if name.startswith("test:") else ("live", name) for name in people[person]
        ]


@pytest.mark.parametrize("answered_first", [True, False])
async def test_an_answer_within_a_day_of_an_advertisement_begins_72_free_hours(
    pool: Pool, acme: Made, meta: Meta, answered_first: bool
) -> None:
    came, first, second = ago(hours=5), ago(hours=4), ago(hours=3)
    await conversation(pool, acme, opened=None)
    ids = [await outbound(pool, acme, age=timedelta(hours=4, minutes=1)) for _ in range(2)]
    referred = message(acme, "hello", came, referral={"source_type": "ad", "source_id": "1"})
    answers = [
        status(acme, wamid(), "sent", at, biz_opaque_callback_data=str(id))
        for id, at in zip(ids, (second, first), strict=True)
    ]
    for change in [*answers, referred] if answered_first else [referred, *answers]:
        await meta.say(acme, change)
    assert await pool.fetchval("SELECT free_until FROM whatsapp_conversations") == first + timedelta(hours=72)


@pytest.mark.parametrize(
    ("wrote", "answered"),
    [
        ({"by": "+5215512345678"}, "+525512345678"),
        ({"by": "+551187654321"}, "+5511987654321"),
        ({"by": "+5511987654321"}, "+551187654321"),
        ({"by": "+22507070707", "user_id": "CI.7"}, "+2250707070707"),
        ({"by": TO, "user_id": "MZ.7"}, "MZ.7"),
    ],
)
async def test_an_answer_to_any_name_of_the_user_begins_the_free_hours(
    pool: Pool, acme: Made, meta: Meta, wrote: dict[str, str], answered: str
) -> None:
    """In Mexico and Brazil, Meta's name of a user is often not the number that is dialed."""
    await meta.say(acme, message(acme, at=ago(hours=5), referral={"source_type": "ad"}, **wrote))
    (place,) = [row[0] for row in await pool.fetch("SELECT id FROM whatsapp_conversations")]
    id = await outbound(pool, acme, to=answered, age=timedelta(hours=4), conversation_id=place)
    sent = ago(hours=3)
    await meta.say(acme, status(acme, wamid(), "sent", sent, to=answered, biz_opaque_callback_data=str(id)))
    assert await pool.fetchval("SELECT free_until FROM whatsapp_conversations") == sent + timedelta(hours=72)


async def test_an_answer_in_a_conversation_that_was_merged_since_begins_the_free_hours(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """The user hid their number when they came."""
    kept = await conversation(pool, acme, opened=None)
    await meta.say(acme, message(acme, at=ago(hours=5), by=None, user_id="MZ.7", referral={"source_type": "ad"}))
    place = await pool.fetchval("SELECT id FROM whatsapp_conversations WHERE recipient = 'MZ.7'")
    id = await outbound(pool, acme, to="MZ.7", age=timedelta(hours=4), conversation_id=place)
    await meta.say(acme, message(acme, at=ago(hours=4), user_id="MZ.7"))
    sent = ago(hours=3)
    await meta.say(acme, status(acme, wamid(), "sent", sent, biz_opaque_callback_data=str(id)))
    free = await pool.fetchval(
        "SELECT free_until FROM whatsapp_conversations WHERE merged_into IS NULL AND id = $1", kept
    )
    assert free == sent + timedelta(hours=72)


async def test_an_answer_too_late_or_to_somebody_else_begins_none(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "hello", ago(hours=30), referral={"source_type": "ad"}))
    id = await outbound(pool, acme, age=timedelta(hours=3))
    other = await outbound(pool, acme, to="+258841234568", age=timedelta(hours=29))
    await meta.say(
        acme,
        status(acme, wamid(), "sent", ago(hours=2), biz_opaque_callback_data=str(id)),
        status(acme, wamid(), "sent", ago(hours=28), to="+258841234568", biz_opaque_callback_data=str(other)),
    )
    assert {row[0] for row in await pool.fetch("SELECT free_until FROM whatsapp_conversations")} == {None}
