"""Erasing a person on a real database: copies of their data in forms and in what is kept for undoing."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from heliograph.audit import reading as audit
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import drafts
from heliograph.contacts import importing, marked, records, search
from heliograph.contacts.records import Changes, Entry
from heliograph.contacts.sheets import Layout, Row
from heliograph.overview import messages
from heliograph.overview.exports import jobs, kinds
from heliograph.privacy import answers, erasure
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealing
from heliograph.sending.attempts import WORKER_DIED
from heliograph.webhooks.recording import at_rest
from tests.rules.factories import message as sms
from tests.rules.factories import organization
from tests.rules.whatsapp_factories import made
from tests.rules.whatsapp_factories import message as whatsapp

ANA, BIA = "+258841234567", "+258841234568"
IMAGE = """
INSERT INTO contact_import_images (organization_id, import_id, batch, contact_id, phone, name, tags, updated_at)
VALUES ($1, $2, 1, $3, $4, 'Ana Before', '{}', now())
"""


@pytest.mark.parametrize("typed", ["84 123-4567", "0841234567", "+258 84 123 4567"])
async def test_a_number_in_a_draft_goes_as_it_is_written_at_home_too(pool: Pool, typed: str) -> None:
    actor, draft = await organization(pool), uuid7()
    others = ["84 123-4568", "+34841234567", "nobody"]
    async with pool.acquire() as conn:
        await drafts.save(conn, actor, id=draft, fields={"text": "Hello"}, numbers=[typed, *others])
        done = await erasure.erase(conn, actor, address="+258841234567")
        assert done.erased == {"campaign_drafts": 1}
        kept = (await drafts.get(conn, actor, id=draft)).numbers
    assert kept == ["841234568", "+34841234567", "nobody"]


async def test_a_contact_that_was_just_deleted_goes_as_it_was_before_an_import_too(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        kept, gone = [await records.create(conn, actor, entry=Entry(to, "Somebody")) for to in (BIA, ANA)]
        for one in (kept, gone):
            await conn.execute(IMAGE, actor.organization_id, uuid7(), one.id, one.phone)
        async with conn.transaction():
            await marked.delete(conn, actor, ids=[gone.id])
        done = await erasure.erase(conn, actor, address=ANA)
    assert done.erased == {"contacts_before": 1, "rows_of_imports": 1}
    assert [row[0] for row in await pool.fetch("SELECT contact_id FROM contact_import_images")] == [kept.id]


@pytest.mark.parametrize("since", ["deleted", "another number"])
async def test_a_name_before_an_import_goes_by_its_number_whatever_became_of_the_contact(
    pool: Pool, since: str
) -> None:
    actor, options = await organization(pool), importing.Options()
    layout = Layout("utf-8", ",", ["phone", "name"], {"phone": 0, "name": 1}, 0)
    async with pool.acquire() as conn:
        made = [await records.create(conn, actor, entry=Entry(to, f"Before {to[-1]}")) for to in (ANA, BIA)]
        rows = [Row(n, [to, "After"]) for n, to in enumerate((ANA, BIA))]
        batch = importing.batch_of(rows, layout, options, 0)
        async with conn.transaction():
            await importing.write(conn, actor, id=uuid7(), batch=batch, options=options)
        if since == "deleted":
            await records.delete(conn, actor, id=made[0].id)
        else:
            await records.change(conn, actor, id=made[0].id, changes=Changes(phone="+258849999999"))
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {"rows_of_imports": 1}
    assert [row[0] for row in await pool.fetch("SELECT name FROM contact_import_images")] == ["Before 8"]


TRIED = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, detail)
VALUES ($1, $2, $3, $2, 'unknown', now(), now(), $4)
"""


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_suppliers_answered_about_a_text_goes(pool: Pool, channel: str) -> None:
    acme = await made(pool)
    for to in (ANA, BIA):
        id = await (sms(pool, acme.actor, to=to) if channel == "sms" else whatsapp(pool, acme, to=to))
        for n, detail in enumerate((f"bad text: hello {to}", WORKER_DIED), 1):
            await pool.execute(TRIED, acme.organization_id, id, n, detail)
    async with pool.acquire() as conn:
        assert (await erasure.erase(conn, acme.actor, address=ANA)).erased["answers_of_suppliers"] == 1
        assert "answers_of_suppliers" not in (await erasure.erase(conn, acme.actor, address=ANA)).erased
    left = await pool.fetch("SELECT detail FROM attempts ORDER BY message_id, attempt")
    # What decides whether a supplier is to blame is kept.
    assert [row["detail"] for row in left] == ["", WORKER_DIED, f"bad text: hello {BIA}", WORKER_DIED]


ATTEMPT = """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
VALUES ($1, $2, $2, 1, now(), 1, 500, 'refused', $3)
"""


async def test_the_beginnings_of_answers_that_name_a_person_go(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STEP_OF_BEGINNINGS", 1)
    actor, other = await organization(pool), await organization(pool)
    for who, told in ((actor, f"cannot store {ANA}"), (actor, f"to={ANA[1:]}: no"), (actor, BIA), (other, ANA)):
        await pool.execute(ATTEMPT, who.organization_id, uuid7(), told)
    async with pool.acquire() as conn:
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {"answers_in_lists": 2}
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {}
    left = await pool.fetch("SELECT detail FROM webhook_attempts ORDER BY event_id")
    assert [row["detail"] for row in left] == ["", "", BIA, ANA]


ANSWERED = """
INSERT INTO webhook_attempt_evidence (organization_id, begun_on, event_id, endpoint_id, started_at, url, sent, head,
                                      body)
VALUES ($1, (now() AT TIME ZONE 'UTC')::date, $2, $2, now(), '', '', $3, $4)
"""


@pytest.mark.usefixtures("armed")
async def test_sealed_answers_that_name_a_person_go(pool: Pool) -> None:
    actor = await organization(pool)
    events = [uuid7() for _ in range(5)]
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
        sealing = await Sealing.of(conn, [actor.organization_id])

        async def keep(id: UUID, head: str, body: str, *, under: UUID) -> None:
            told = [sealing.sealed(actor.organization_id, at_rest.ANSWERS, under, one).encode() for one in (head, body)]
            await conn.execute(ANSWERED, actor.organization_id, id, *told)

        await keep(events[0], "HTTP/1.1 500", f"no {ANA}", under=events[0])
        await keep(events[1], f"X-To: {ANA[1:]}", "no", under=events[1])
        await keep(events[2], "HTTP/1.1 500", f"no {BIA}", under=events[2])
        await keep(events[3], "HTTP/1.1 500", "it cannot be opened here", under=events[4])
        await conn.execute(ANSWERED, actor.organization_id, events[4], f"X-To: {ANA}".encode(), b"open")
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {"answers_of_receivers": 4}
        left = await conn.fetch("SELECT event_id FROM webhook_attempt_evidence")
    assert [row[0] for row in left] == [events[2]]


WORD = "INSERT INTO whatsapp_words (organization_id, recipient, word, said_at) VALUES ($1, $2, $3, now())"


async def test_a_start_goes_with_its_person_and_a_stop_stays_with_the_opt_out(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    for who, to, word in ((actor, ANA, "start"), (actor, BIA, "stop"), (other, ANA, "start")):
        await pool.execute(WORD, who.organization_id, to, word)
    async with pool.acquire() as conn:
        for one in (ANA, BIA):
            await erasure.erase(conn, actor, address=one)
    left = await pool.fetch("SELECT organization_id, recipient FROM whatsapp_words")
    assert {tuple(row) for row in left} == {(actor.organization_id, BIA), (other.organization_id, ANA)}


EXPORT = """
INSERT INTO exports (organization_id, id, mode, kind, user_id, author, wanted, state, created_at)
VALUES ($1, $2, 'live', $3, $2, 'Ana', $4, $5, now())
"""


async def test_changes_to_a_whole_list_go_on_when_a_person_is_erased(pool: Pool) -> None:
    """Half of the messages that somebody cancels would be sent otherwise."""
    actor = await organization(pool)
    for kind, state in (("audit", "running"), ("cancel", "running"), ("tag", "running"), ("cancel", "finished")):
        await pool.execute(EXPORT, actor.organization_id, uuid7(), kind, "{}", state)
    async with pool.acquire() as conn:
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {"files_exported": 1}
    states = [tuple(row) for row in await pool.fetch("SELECT kind, state FROM exports ORDER BY id")]
    assert states == [("audit", "erased"), ("cancel", "running"), ("tag", "running"), ("cancel", "finished")]


async def test_what_a_list_was_searched_for_goes_with_its_files(pool: Pool) -> None:
    """Also of one whose file was not finished, or that was changed: only a change that is running needs it."""
    actor = await organization(pool)
    asked: list[tuple[kinds.Wanted, str]] = [
        (kinds.Messages(form="csv", filters=messages.Filters(recipient=ANA, country="MZ"), sees="all"), "finished"),
        (kinds.Messages(form="csv", filters=messages.Filters(recipient=ANA, country="MZ"), sees="all"), "failed"),
        (kinds.Contacts(form="csv", filters=search.Filters(text=ANA, country="MZ")), "running"),
        (kinds.Contacts(form="csv", filters=search.Filters(text="Ana\0", country="MZ")), "finished"),
        (kinds.Audit(form="csv", filters=audit.Filter(object="Ana", action="contact")), "stopped"),
        (kinds.Cancel(form="csv", filters=messages.Filters(recipient=ANA, country="MZ")), "finished"),
        (kinds.Tag(form="csv", filters=search.Filters(text=ANA, country="MZ"), value="gone"), "stopped"),
        (kinds.Tag(form="csv", filters=search.Filters(text=ANA, country="MZ"), value="gone"), "running"),
    ]
    async with pool.acquire() as conn:
        for one, state in asked:
            kind = type(one).__struct_config__.tag
            told = msgspec.json.encode(one).decode()
            await conn.execute(EXPORT, actor.organization_id, uuid7(), kind, told, state)
        assert (await erasure.erase(conn, actor, address=ANA)).erased == {"files_exported": 3}
        rows = await conn.fetch(f"SELECT {jobs.COLUMNS} FROM exports ORDER BY id")
    found = [jobs.of_row(row).wanted for row in rows]
    assert [getattr(one, "filters", None) for one in found] == [
        messages.Filters(country="MZ"),
        messages.Filters(country="MZ"),
        search.Filters(country="MZ"),
        search.Filters(text="Ana\0", country="MZ"),
        audit.Filter(action="contact"),
        messages.Filters(country="MZ"),
        search.Filters(country="MZ"),
        search.Filters(text=ANA, country="MZ"),
    ]
