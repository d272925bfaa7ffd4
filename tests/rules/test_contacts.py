"""Contacts on a real database: one per number under concurrency, and tags that agree in both tables."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.contacts import importing, records, search, sheets, undoing
from heliograph.contacts import tags as tag_changes
from heliograph.contacts.records import MAX_TAGS, ContactAlreadyExists, Entry, OnDuplicate, Written
from tests.meanwhile import Meanwhile
from tests.rules.factories import blocked, organization

ANA = Entry("+258841234567", "Ana Silva", "Ana", "Silva", ("vip",))

APART = """
SELECT count(*) FROM (SELECT organization_id, unnest(tags) AS tag, id FROM contacts) c
  FULL JOIN contact_tags t ON (t.organization_id, t.tag, t.contact_id) = (c.organization_id, c.tag, c.id)
 WHERE c.id IS NULL OR t.contact_id IS NULL
"""


async def write(pool: Pool, actor: Actor, *entries: Entry, on_duplicate: OnDuplicate = "update") -> Written:
    async with pool.acquire() as conn:
        written = await records.create_many(conn, actor, entries=entries, on_duplicate=on_duplicate)
    assert await pool.fetchval(APART) == 0
    assert (len(written.created_ids), len(written.updated_ids)) == (written.created, written.updated)
    return Written(written.created, written.updated, written.overfull)


async def contact(pool: Pool, actor: Actor, phone: str = ANA.phone) -> records.Contact:
    async with pool.acquire() as conn:
        (found,) = [each for each in await records.list_page(conn, actor, limit=200) if each.phone == phone]
    return found


async def test_entries_are_created_updated_or_left(pool: Pool) -> None:
    actor = await organization(pool)
    assert await write(pool, actor, ANA, Entry("+258841234568")) == Written(1 + 1, 0, [])
    before = await contact(pool, actor)
    assert (await contact(pool, actor, "+258841234568")).name == "+258841234568"
    assert await write(pool, actor, ANA) == Written(0, 0, [])
    assert await contact(pool, actor) == before

    assert await write(pool, actor, Entry(ANA.phone, tags=("maputo", "vip"))) == Written(0, 1, [])
    after = await contact(pool, actor)
    assert (after.id, after.name, after.first_name, after.tags) == (before.id, "Ana Silva", "Ana", ["vip", "maputo"])
    assert after.created_at == before.created_at < after.updated_at
    # The parts of a name that is replaced are removed with it.
    await write(pool, actor, Entry(ANA.phone, "Ana Souza"))
    after = await contact(pool, actor)
    assert (after.name, after.first_name, after.last_name) == ("Ana Souza", None, None)
    assert await write(pool, actor, ANA, Entry("+258841234569"), on_duplicate="skip") == Written(1, 0, [])
    assert (await contact(pool, actor)).name == "Ana Souza"


async def test_no_contact_gets_more_tags_than_it_may_have(pool: Pool) -> None:
    actor = await organization(pool)
    full = tuple(f"tag {one}" for one in range(MAX_TAGS))
    await write(pool, actor, Entry(ANA.phone, "Ana", tags=full))
    written = await write(pool, actor, Entry(ANA.phone, "Eva", tags=("one more",)), Entry("+258841234568"))
    assert written == Written(1, 0, [ANA.phone])
    assert (await contact(pool, actor)).name == "Ana"
    # Contacts that already have the tag are not counted twice.
    assert await write(pool, actor, Entry(ANA.phone, "Eva", tags=full[:3])) == Written(0, 1, [])


async def test_a_contact_without_a_name_is_listed_by_its_new_number(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made = [
            await records.create(conn, actor, entry=Entry(f"+25884123456{n}", name))
            for n, name in ((7, None), (8, "Ana"))
        ]
        new = records.Changes(phone="+258841234570")
        assert (await records.change(conn, actor, id=made[0].id, changes=new)).name == "+258841234570"
        # As a form sends it, with all fields.
        whole = records.Changes(phone="+258841234571", names=("+258841234570", None, None))
        assert (await records.change(conn, actor, id=made[0].id, changes=whole)).name == "+258841234571"
        assert (await records.change(conn, actor, id=made[1].id, changes=new)).name == "Ana"


async def test_entries_keep_their_order(pool: Pool) -> None:
    actor = await organization(pool)
    phones = ["+258841234569", "+258841234561", "+258841234565"]
    await write(pool, actor, *(Entry(phone) for phone in phones))
    async with pool.acquire() as conn:
        listed = await records.list_page(conn, actor, limit=10)
    assert [each.phone for each in listed] == phones[::-1]


async def test_two_who_write_the_same_numbers_in_other_orders(pool: Pool) -> None:
    actor = await organization(pool)
    entries = [Entry(f"+25884{number:07}", f"P{number}", tags=("a", "b")) for number in range(500)]
    written = await asyncio.gather(
        *(write(pool, actor, *part) for part in (entries, entries[::-1], entries[250:] + entries[:250]))
    )
    assert sum(each.created for each in written) == 500
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 500


async def test_a_number_is_told_by_its_organization(pool: Pool) -> None:
    one, other = await organization(pool), await organization(pool)
    async with pool.acquire() as conn:
        first = await records.create(conn, one, entry=ANA)
        second = await records.create(conn, other, entry=ANA)
        with pytest.raises(ContactAlreadyExists) as refused:
            await records.create(conn, one, entry=ANA)
        assert refused.value.details == {"id": str(first.id)} != {"id": str(second.id)}
        await records.delete(conn, other, id=second.id)
        assert await records.list_page(conn, one, limit=10) == [first]


async def test_a_contact_that_is_deleted_while_it_gets_a_tag_leaves_none(pool: Pool) -> None:
    actor = await organization(pool)
    await write(pool, actor, ANA)
    id = (await contact(pool, actor)).id
    async with pool.acquire() as tagging, pool.acquire() as deleting:
        transaction = tagging.transaction()
        await transaction.start()
        late = Entry(ANA.phone, tags=("late",))
        await records.create_many(tagging, actor, entries=[late], on_duplicate="update")
        gone = asyncio.create_task(records.delete(deleting, actor, id=id))
        await blocked(pool)
        await transaction.commit()
        await gone
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    assert await pool.fetchval("SELECT count(*) FROM contact_tags") == 0


async def test_a_number_that_another_contact_had_for_a_moment_is_free(pool: Pool) -> None:
    """It was refused as that of the contact "None"."""
    actor = await organization(pool)
    await write(pool, actor, ANA)
    id = (await contact(pool, actor)).id
    changes = records.Changes(phone="+258840000001")
    async with pool.acquire() as conn, pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await records.create_many(other, actor, entries=[Entry("+258840000001", "Rui")])

        async def deleted() -> None:
            await pool.execute("DELETE FROM contacts WHERE name = 'Rui'")

        looks = Meanwhile(conn, records.OTHER, deleted, skips=1)
        change = asyncio.create_task(records.change(looks, actor, id=id, changes=changes))
        await blocked(pool)
        await transaction.commit()
        assert (await change).phone == "+258840000001"


async def imported(pool: Pool, actor: Actor, place: Path, *lines: str) -> UUID:
    """The import of a file with these lines."""
    file = place / "people.csv"
    file.write_text("\n".join(("phone,name,tags", *lines, "")))
    async with pool.acquire() as conn:
        done = await importing.run(
            conn,
            actor,
            path=file,
            layout=sheets.layout(file),
            rejects=place / "rejects.csv",
            options=importing.Options(),
            on_progress=lambda progress: None,
        )
    return done.import_id


async def test_an_undo_that_two_workers_finish_is_recorded_once(pool: Pool, tmp_path: Path) -> None:
    """One whose lease ended meanwhile, and the one that took over."""
    actor = await organization(pool)
    id = await imported(pool, actor, tmp_path, f"{ANA.phone},Eva,new")
    async with pool.acquire() as conn:
        assert await undoing.undo(conn, actor, id=id) == undoing.Undone(deleted=1)
        assert await undoing.undo(conn, actor, id=id) == undoing.Undone()
    told = await pool.fetch("SELECT after::text FROM audit_log WHERE action = 'contacts.import_undone'")
    assert ['"deleted"' in row["after"] for row in told] == [True]


@pytest.mark.parametrize("existed", [False, True])
async def test_an_undo_finds_a_contact_that_is_being_noted_as_written_to(
    pool: Pool, tmp_path: Path, *, existed: bool
) -> None:
    """Its row is in another place afterwards."""
    actor = await organization(pool)
    if existed:
        await write(pool, actor, ANA)
    id = await imported(pool, actor, tmp_path, f"{ANA.phone},Eva,new")

    async def undo() -> undoing.Undone:
        async with pool.acquire() as conn:
            return await undoing.undo(conn, actor, id=id)

    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE contacts SET written_at = now()")
        undone = asyncio.create_task(undo())
        await blocked(pool)
    assert await undone == (undoing.Undone(restored=1) if existed else undoing.Undone(deleted=1))
    assert await pool.fetchval(APART) == 0
    left = [tuple(row) for row in await pool.fetch("SELECT name, tags FROM contacts")]
    assert left == ([("Ana Silva", ["vip"])] if existed else [])


async def test_the_database_holds_the_bounds_too(pool: Pool) -> None:
    actor = await organization(pool)
    for wrong in (Entry("258841234567"), Entry(ANA.phone, "x" * 201), Entry(ANA.phone, tags=tuple("abcdefghijk" * 5))):
        with pytest.raises(asyncpg.CheckViolationError):
            await write(pool, actor, wrong)


@pytest.mark.fresh_database
async def test_pages_are_found_by_index(pool: Pool) -> None:
    """Not by reading everything that is newer than the page."""
    actor = await organization(pool)
    for statement, values in ((records.LIST, ()), (records.LIST_TAGGED, ("vip",))):
        plan = "\n".join(
            row[0]
            for row in await pool.fetch(
                "EXPLAIN " + statement, actor.organization_id, "live", actor.organization_id, 10, *values
            )
        )
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan.replace("Sort Key", "").split("->")[0], plan
        assert re.search(r"Index Cond: \(\(organization_id = .* AND \(\(mode\)::text = ", plan), plan


@given(st.lists(st.text(max_size=70), max_size=60))
def test_tags_are_clean_whatever_comes(texts: list[str]) -> None:
    try:
        found = records.tags(texts)
    except Invalid:
        return
    assert len(found) == len(set(found)) <= MAX_TAGS
    for each in found:
        assert 1 <= len(each) <= 64
        assert each == each.strip() == " ".join(each.split())
        assert "\x1f" not in each
    assert records.tags(found) == found


async def test_a_tag_of_many_is_renamed_step_by_step(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request does not wait, a worker continues, and both tables agree after each step."""
    monkeypatch.setattr(tag_changes, "STEP", 3)
    actor = await organization(pool)
    entries = [Entry(f"+25884123456{n}", tags=("old", "vip") if n % 2 else ("old",)) for n in range(8)]
    await write(pool, actor, *entries)
    async with pool.acquire() as conn:
        async with conn.transaction():
            id = await tag_changes.begin(conn, actor, tag="old", becomes="vip")
        (begun,) = await tag_changes.under_way(conn, actor)
        assert (begun.id, begun.contacts, begun.finished_at) == (id, 3, None)
        while True:
            async with conn.transaction():
                done = await tag_changes.step(conn)
            assert await pool.fetchval(APART) == 0
            if not done:
                break
        ended = await tag_changes.get(conn, actor, id=id)
        (left,) = await tag_changes.list_page(conn, actor, limit=10)
    assert (ended.contacts, ended.finished_at is None, left.name, left.contacts) == (8, False, "vip", 8)
    assert await pool.fetchval("SELECT string_agg(DISTINCT tags::text, ' ') FROM contacts") == "{vip}"


async def test_changes_of_tags_that_undo_each_other_end(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, each with one of the changes, used to move the same contacts back and forth for ever."""
    monkeypatch.setattr(tag_changes, "STEP", 3)
    actor, other = await organization(pool), await organization(pool)
    await write(pool, actor, *(Entry(f"+25884123456{n}", tags=("a",)) for n in range(9)))
    await write(pool, other, *(Entry(f"+25884123456{n}", tags=("a",)) for n in range(4)))
    async with pool.acquire() as conn, pool.acquire() as second:
        async with conn.transaction():
            there = await tag_changes.begin(conn, actor, tag="a", becomes="b")
        async with conn.transaction():
            back = await tag_changes.begin(conn, actor, tag="b", becomes="a")
        async with conn.transaction():
            theirs = await tag_changes.begin(conn, other, tag="a", becomes="b")
        assert (await tag_changes.get(conn, actor, id=back)).contacts == 0
        async with conn.transaction(), second.transaction():
            assert await tag_changes.step(conn) == 3
            assert await tag_changes.step(second) == 1  # the other organization's: nobody waits for a stranger's tag
        assert (await tag_changes.get(conn, other, id=theirs)).finished_at is not None
        # A request that waits for the second change helps with the first.
        for _ in range(10):
            async with conn.transaction():
                await tag_changes.go_on(conn, actor, id=back)
        ended = [await tag_changes.get(conn, actor, id=id) for id in (there, back)]
    assert [(one.contacts, one.finished_at is None) for one in ended] == [(9, False), (9, False)]
    tags = "SELECT string_agg(DISTINCT tags::text, ' ') FROM contacts WHERE organization_id = $1"
    assert await pool.fetchval(tags, actor.organization_id) == "{a}"
    assert await pool.fetchval(tags, other.organization_id) == "{b}"
    assert await pool.fetchval(APART) == 0


async def test_contacts_are_found_by_a_part_of_their_number(pool: Pool) -> None:
    actor = await organization(pool)
    people = ("+258841234567", "Ana"), ("+258829876543", "Room 1234")
    await write(pool, actor, *(Entry(phone, name, tags=("all",)) for phone, name in people))
    async with pool.acquire() as conn:
        for tags in ((), ("all",)):
            for text, names in (
                ("84 123", {"Ana"}),
                ("+258 84", {"Ana"}),
                ("00258 (0) 82", {"Room 1234"}),
                ("084-12", {"Ana"}),
                ("1234", {"Room 1234", "Ana"}),
                ("a 1234", set()),
                ("0", set()),
                ("555", set()),
            ):
                filters = search.Filters(text=text, or_part=True, tags=tags)
                found = await search.search(conn, actor, filters=filters)
                assert {one.name for one in found.contacts} == names, (text, tags)


async def test_a_search_that_looked_at_enough_says_how_far_it_came(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LOOK", 4)
    actor = await organization(pool)
    await write(pool, actor, *(Entry(f"+25884123456{n}", "Ana" if n == 0 else "Rui", tags=("a",)) for n in range(9)))
    for filters in (search.Filters(text="ana"), search.Filters(text="ana", tags=("a",))):
        looks, after = 0, None
        async with pool.acquire() as conn:
            while True:
                found = await search.search(conn, actor, filters=filters, after=after, limit=2)
                looks += 1
                if found.seen is None:
                    break
                assert found.contacts == []
                after = found.seen
        assert ([one.name for one in found.contacts], looks) == (["Ana"], 3)


@pytest.mark.fresh_database
async def test_a_search_by_tag_reads_no_more_contacts_than_its_page_takes(pool: Pool) -> None:
    """A page of 50 contacts who were never messaged used to read 20,000, each by its key."""
    actor = await organization(pool)
    numbers = [f"+25884{number:07}" for number in range(600)]
    await write(pool, actor, *(Entry(number, tags=("a", "b")) for number in numbers))
    read = "SELECT coalesce(seq_tup_read + idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'contacts'"
    for tags in (("a",), ("a", "b")):
        filters = search.Filters(tags=tags, never_written=True)
        async with pool.acquire() as conn, conn.transaction():
            before = await conn.fetchval(read)
            found = await search.search(conn, actor, filters=filters, limit=20)
            assert await conn.fetchval(read) - before == 21, tags
        # The newest ones, in that order.
        ids = [one.id for one in found.contacts]
        assert ids == sorted(ids, reverse=True)
        everyone = await pool.fetch("SELECT id FROM contacts ORDER BY id DESC LIMIT 21")
        assert ids == [row["id"] for row in everyone]
