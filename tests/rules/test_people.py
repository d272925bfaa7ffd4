"""People rather than spellings: after STOP under any name, nothing is sent to any of the person's names."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise, permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.campaigns import audience
from heliograph.consent import optouts, people
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.contacts import records, suggesting
from heliograph.contacts.records import Entry
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import Acceptor
from tests.rules.dispatching import Bench
from tests.rules.factories import blocked, endpoint, organization, send

#: Spellings of one number each: Brazil, Mexico, Argentina, national numbers with their 0, and from before and after
#: renumbering in Côte d'Ivoire and Benin.
SPELLINGS = [
    ("+5511987654321", "+551187654321"),
    ("+525512345678", "+5215512345678"),
    ("+5491123456789", "+541123456789"),
    ("+27821234567", "+270821234567"),
    ("+2250707123456", "+22507123456"),
    ("+2290197123456", "+22997123456"),
]
BOTH_WAYS = [pair for one in SPELLINGS for pair in permutations(one)]


@pytest.fixture
async def acme(pool: Pool) -> Actor:
    return await organization(pool)


async def stop(pool: Pool, actor: Actor, *numbers: str) -> None:
    async with pool.acquire() as conn:
        for number in numbers:
            await optouts.add(conn, actor, phone=number)


async def linked(pool: Pool, actor: Actor, *names: str) -> None:
    """Each name linked with the next one."""
    async with pool.acquire() as conn, conn.transaction():
        await people.link(conn, [(actor.organization_id, *pair) for pair in pairwise(names)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.from_regex(
            r"\+(5[245][0-9]{9,12}|22[59][0-9]{7,10}|[1-9][0-9]{1,2}0[0-9]{5,11}|[1-9][0-9]{6,14})", fullmatch=True
        ),
        min_size=20,
        max_size=50,
    )
)
async def test_python_and_postgresql_agree_on_the_key(pool: Pool, numbers: list[str]) -> None:
    rows = await pool.fetch("SELECT n, person_of(n) AS key FROM unnest($1::text[]) AS given (n)", numbers)
    assert {row["n"]: row["key"] for row in rows} == {number: phones.person(number) for number in numbers}


@pytest.mark.parametrize(
    "spelled",
    [
        ("+551187654321", "+5511987654321"),
        ("+551172345678", "+5511972345678"),
        ("+551133334444",),
        ("+525512345678", "+5215512345678"),
        ("+541123456789", "+5491123456789"),
        ("+2290161234567", "+22961234567"),
        ("+2250101123456", "+22501123456"),
        ("+221771234567",),
        ("+258841234567",),
        ("+5411",),
        ("MZ.1349",),
    ],
)
async def test_postgresql_knows_the_spellings_in_which_a_number_may_be_a_contact(
    pool: Pool, spelled: tuple[str, ...]
) -> None:
    """Those that Python knows, without the 0 of national numbers."""
    found = await pool.fetchval("SELECT spellings_of(person_of($1))", spelled[-1])
    assert tuple(found) == spelled
    known = phones.spellings(spelled[0])
    assert [one for one in known if one in found] == list(spelled)
    assert all(phones.normalize(one) in (None, *spelled) for one in known if one.startswith("+"))


@pytest.mark.parametrize(("said", "other"), BOTH_WAYS)
async def test_a_stop_in_one_spelling_holds_for_the_others(pool: Pool, acme: Actor, said: str, other: str) -> None:
    await endpoint(pool, acme, "contact.opted_out")
    acceptor = Acceptor(pool)
    before = await acceptor.accept(send(acme, to=other))
    assert before.status == 202
    async with pool.acquire() as conn:
        await records.create(conn, acme, entry=Entry(other))
    await stop(pool, acme, said, other, said)
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1
    assert await pool.fetchval("SELECT count(*) FROM events WHERE kind = 'contact.opted_out'") == 1
    with pytest.raises(RecipientOptedOut):
        await acceptor.accept(send(acme, to=other))
    async with pool.acquire() as conn:
        with pytest.raises(RecipientOptedOut):
            await preview.preview(conn, acceptor, send(acme, to=other))
        assert not await audience.anybody(conn, acme, tags=None, match_mode="any", without=[], numbers=[other])
        (contact,) = await records.list_page(conn, acme, limit=1)
    assert contact.opted_out
    bench = Bench(pool)
    await bench.round()
    assert bench.only.submitted == []
    assert await pool.fetchval("SELECT failure_code FROM messages") == "opted_out"
    async with pool.acquire() as conn:
        assert phones.person((await optouts.remove(conn, acme, phone=other)).recipient) == phones.person(said)
        with pytest.raises(NotFound):
            await optouts.remove(conn, acme, phone=said)
    assert (await acceptor.accept(send(acme, to=said))).status == 202


async def test_names_that_are_linked_in_any_order_are_one_person(pool: Pool, acme: Actor) -> None:
    names = ["+258841234567", "MZ.1", "+258849999999", "MZ.2"]
    for order in permutations([(0, 1), (1, 2), (2, 3)]):
        other = await organization(pool)
        for one, two in order:
            await linked(pool, other, names[one], names[two])
        async with pool.acquire() as conn:
            for name in names:
                assert sorted(await people.names(conn, other.organization_id, name)) == sorted(names)
            assert await people.link(conn, [(other.organization_id, names[1], names[0])]) == people.Linked([])
    async with pool.acquire() as conn:
        assert await people.names(conn, acme.organization_id, names[0]) == names[:1]


async def test_a_stop_by_one_of_a_persons_names_holds_for_all_until_any_asks_again(pool: Pool, acme: Actor) -> None:
    await linked(pool, acme, "+258841234567", "MZ.1", "+258849999999")
    acceptor = Acceptor(pool)
    for said in ("+258841234567", "+258849999999"):
        await stop(pool, acme, said)
        for to in ("+258841234567", "+258849999999"):
            with pytest.raises(RecipientOptedOut):
                await acceptor.accept(send(acme, to=to))
        async with pool.acquire() as conn:
            assert await optouts.current(conn, {(acme.organization_id, "MZ.1")}) == {(acme.organization_id, "MZ.1")}
            await optouts.remove(conn, acme, phone="+258841234567")
        assert (await acceptor.accept(send(acme, to="+258849999999"))).status == 202


async def test_links_of_one_batch_join_the_same_people_as_one_by_one(pool: Pool) -> None:
    chance = random.Random(5)
    together, apart = await organization(pool), await organization(pool)
    for _ in range(4):
        links = [chance.sample("abcdefghijklmnopqrst", 2) for _ in range(5)]
        for one, other in links:
            await linked(pool, apart, one, other)
        async with pool.acquire() as conn, conn.transaction():
            await people.link(conn, [(together.organization_id, one, other) for one, other in links])
        groups = [
            await pool.fetch(
                "SELECT array_agg(name ORDER BY name) AS names FROM person_names WHERE organization_id = $1"
                " GROUP BY person ORDER BY 1",
                actor.organization_id,
            )
            for actor in (together, apart)
        ]
        assert groups[0] == groups[1]


async def test_links_of_strangers_come_to_the_same_as_those_that_look_for_groups(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names that nobody has, in one new link each, are linked by `link_strangers`; all other links by groups."""
    chance = random.Random(7)
    quick, slow = await organization(pool), await organization(pool)

    async def none(conn: Any, new: Any, often: Any) -> Any:
        await conn.execute(people.TURN, [str(slow.organization_id)])
        return new

    for count in (1, 1, 2, 3, 6, 6):
        batch = [chance.sample("abcdefghijklmnopqrstuvwxyz", 2) for _ in range(count)]
        found = []
        for actor in (quick, slow):
            async with pool.acquire() as conn, conn.transaction():
                with monkeypatch.context() as patched:
                    if actor is slow:
                        patched.setattr(people, "_link_strangers", none)
                    made = await people.link(conn, [(actor.organization_id, *pair) for pair in batch])
            groups = await pool.fetch(
                "SELECT array_agg(name ORDER BY name) AS names FROM person_names WHERE organization_id = $1"
                " GROUP BY person ORDER BY 1",
                actor.organization_id,
            )
            found.append((made.is_complete, [(one.one, one.other, one.strange) for one in made.new], groups))
        assert found[0] == found[1]


async def test_strangers_who_were_linked_while_their_turn_was_waited_for_are_found(pool: Pool, acme: Actor) -> None:
    async with pool.acquire() as one, pool.acquire() as two:
        first = one.transaction()
        await first.start()
        await people.link(one, [(acme.organization_id, "b", "c")])
        links = [(acme.organization_id, "a", "b"), (acme.organization_id, "d", "e")]
        waiting = asyncio.create_task(people.link(two, links))
        await blocked(pool)
        await first.commit()
        made = await waiting
        assert [(link.one, link.strange) for link in made.new] == [("a", ("a",)), ("d", ("d", "e"))]
        assert sorted(await people.names(one, acme.organization_id, "a")) == ["a", "b", "c"]
        assert sorted(await people.names(one, acme.organization_id, "d")) == ["d", "e"]


async def test_a_number_that_was_left_is_linked_to_nobody_and_that_is_told(pool: Pool, acme: Actor) -> None:
    left, moved_to = "+258841234567", "+258849999999"
    await linked(pool, acme, left, moved_to)
    links = [(acme.organization_id, left, "MZ.1"), (acme.organization_id, "+258847777777", "MZ.2")]
    async with pool.acquire() as conn, conn.transaction():
        await people.leave(conn, [people.Departure(acme.organization_id, left, moved_to, clock.now())])
        made = await people.link(conn, links)
        assert (made.is_complete, [link.other for link in made.new]) == (False, ["MZ.2"])
        assert (await people.link(conn, links)).is_complete is False
        assert (await people.link(conn, [*links[1:], (acme.organization_id, left, moved_to)])) == people.Linked([])
        assert await people.names(conn, acme.organization_id, "MZ.1") == ["MZ.1"]


class Compared(UUID):
    """An id that counts comparisons."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = UUID.__hash__


async def test_a_link_costs_the_same_however_many_come_with_it(pool: Pool, acme: Actor) -> None:
    """Each new one used to be searched for in the list of all."""
    count, Compared.times = 500, 0
    links = [(Compared(str(acme.organization_id)), f"MZ.{n}", f"+25884{n:07}") for n in range(count)]
    async with pool.acquire() as conn, conn.transaction():
        made = (await people.link(conn, links)).new
    assert [(one.one, one.other) for one in made] == sorted((f"+25884{n:07}", f"MZ.{n}") for n in range(count))
    assert Compared.times < 30 * count


def test_a_chain_of_merges_is_followed_once() -> None:
    class Looked(dict[Any, Any]):
        times = 0

        def get(self, key: Any, default: Any = None) -> Any:
            Looked.times += 1
            return super().get(key, default)

    whose, persons = UUID(int=1), [UUID(int=n) for n in range(1, 501)]
    groups = people._Groups({(whose, f"n{one.int}"): one for one in persons})
    groups._same = Looked()
    for other, one in pairwise(reversed(persons)):
        groups.join(whose, f"n{other.int}", f"n{one.int}")
    assert groups.joined() == [(whose, one, persons[0]) for one in persons[1:]]
    assert Looked.times < 10 * len(persons)


async def test_a_link_made_after_the_stop_holds_as_well(pool: Pool, acme: Actor) -> None:
    await stop(pool, acme, "+258841234567")
    await linked(pool, acme, "+258841234567", "+258849999999")
    with pytest.raises(RecipientOptedOut):
        await Acceptor(pool).accept(send(acme, to="+258849999999"))


async def test_who_links_and_who_joins_groups_at_the_same_time_end_in_one_group(pool: Pool, acme: Actor) -> None:
    async with pool.acquire() as one, pool.acquire() as two:
        await linked(pool, acme, "a", "b")
        await linked(pool, acme, "d", "e")
        first = one.transaction()
        await first.start()
        await people.link(one, [(acme.organization_id, "b", "c")])
        waiting = asyncio.create_task(people.link(two, [(acme.organization_id, "c", "d")]))
        await blocked(pool)
        await first.commit()
        await waiting
        assert sorted(await people.names(one, acme.organization_id, "a")) == ["a", "b", "c", "d", "e"]


async def test_others_have_their_turn_however_many_lists_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phones, "SLICE", 0.0)
    read: list[str] = []
    counted: list[int] = []

    async def other() -> None:
        while True:
            counted.append(len(read))
            await asyncio.sleep(0)

    beating = asyncio.create_task(other())
    lists = [[f"{name}{n}" for n in range(20)] for name in "abc"]
    found = await asyncio.gather(*(phones.in_turns(lambda text: read.append(text) or text, one) for one in lists))
    beating.cancel()
    assert found == lists
    assert max(later - earlier for earlier, later in pairwise(counted)) == 1
    assert [text[0] for text in read[:6]] == ["a", "b", "c"] * 2


async def test_others_have_their_turn_while_the_inbox_looks_up_names(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spellings of all numbers that a search looks at took up to 40 ms at once."""
    monkeypatch.setattr(phones, "SLICE", 0.0)
    spelled: list[str] = []
    counted: list[int] = []
    monkeypatch.setattr(suggesting, "spellings", lambda number: spelled.append(number) or [number])

    async def other() -> None:
        while True:
            counted.append(len(spelled))
            await asyncio.sleep(0)

    async with pool.acquire() as conn:
        beating = asyncio.create_task(other())
        await asyncio.sleep(0)
        await suggesting.names(conn, acme, phones=[f"+55119876{n:05d}" for n in range(20)])
        beating.cancel()
    assert len(spelled) == 20
    assert max(later - earlier for earlier, later in pairwise(counted)) == 1


async def test_a_person_who_is_listed_in_two_spellings_gets_a_campaign_once() -> None:
    found = await audience.numbers(["+551187654321", "+5511987654321", "5511987654321", "+258841234567", "nobody"])
    assert found == audience.ListedNumbers(["+5511987654321", "+258841234567"], ["nobody"])
    found = await audience.numbers(["+270821234567", "+27 82 123 4567", "+27(0)821234567"])
    assert found == audience.ListedNumbers(["+27821234567"], [])
