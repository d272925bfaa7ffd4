"""Campaigns: recipients, texts and times; quota, pace, cancellation; counts that add up; each recipient once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph import notices
from heliograph.accounts import quota, send_defaults, spending, usage
from heliograph.accounts.api_keys import lifecycle
from heliograph.base import phones
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import time_of, uuid7, uuid7_floor
from heliograph.base.process import measures
from heliograph.campaigns import audience, counting, pausing, plan, record, staging, template
from heliograph.campaigns.approval import approving, lapses, rule
from heliograph.campaigns.approval.approving import CampaignApprovalByAnother
from heliograph.campaigns.approval.rule import CampaignApprovalRequired
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.campaigns.record import Campaign, Counts
from heliograph.campaigns.staging import Stager
from heliograph.campaigns.views import preview, recipients
from heliograph.campaigns.views import tags as tag_uses
from heliograph.campaigns.work import CampaignWork
from heliograph.consent import skipped
from heliograph.contacts import importing, records, sheets, undoing
from heliograph.contacts.importing import Options
from heliograph.contacts.records import Entry
from heliograph.notices import conditions
from heliograph.people import memberships
from heliograph.privacy import erasure, holdings
from heliograph.queue import holds, leases
from heliograph.queue.backlog import claim_once
from heliograph.queue.holds import Selection
from heliograph.retention import rules as retention
from heliograph.sms.accepting import encoding
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from heliograph.suppliers.contract import Outcome, Part, Verdict
from heliograph.traffic import folding
from tests.meanwhile import after, begun
from tests.rules.dispatching import Bench
from tests.rules.factories import blocked, check_books, endpoint, message, organization, sender
from tests.rules.test_charges import default
from tests.rules.test_sender_refusals import add, refuse

SUPPLIER = UUID(int=7)
NOBODY = Counts(*[0] * len(Counts.__struct_fields__))


def counts(**values: int) -> Counts:
    return msgspec.structs.replace(NOBODY, total=sum(values.values()), **values)


async def contact(pool: Pool, actor: Actor, phone: str, *tags: str, name: str = "Ana", **values: Any) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await records.create(conn, actor, entry=Entry(phone, name, tags=tags, **values))


async def opt_out(pool: Pool, actor: Actor, phone: str) -> None:
    await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", actor.organization_id, phone)


async def create(pool: Pool, actor: Actor, text: str = "hello", **values: Any) -> Campaign:
    spec = SmsCampaignSpec(**{"name": "Sale", "message_template": text} | values)
    async with pool.acquire() as conn, conn.transaction():
        return await sms_channel.create(conn, actor, spec=spec, request_id="req")


async def get(pool: Pool, actor: Actor, id: UUID) -> Campaign:
    async with pool.acquire() as conn:
        return await record.get(conn, actor, id=id)


async def cancel(pool: Pool, actor: Actor, id: UUID) -> Campaign:
    async with pool.acquire() as conn, conn.transaction():
        return await plan.cancel(conn, actor, id=id)


async def run(pool: Pool, **sizes: int) -> None:
    """Run every step that is due."""
    stager = Stager(pool, **sizes)
    for _ in range(200):
        if not await stager.round():
            return
    raise AssertionError("it never comes to rest")


async def count(pool: Pool) -> None:
    """Count all chunks, as if they were due."""
    await pool.execute("UPDATE campaign_chunks SET count_at = now()")
    async with pool.acquire() as conn, conn.transaction():
        await counting.count_due(conn)


async def end(pool: Pool, status: str) -> None:
    """Move the messages that have not ended to a status, and out of the queue."""
    await pool.execute("UPDATE messages SET status = $1 WHERE status IN ('accepted', 'sent')", status)
    await pool.execute("DELETE FROM queue WHERE kind = 'sms'")


async def texts(pool: Pool) -> dict[str, str]:
    rows = await pool.fetch("SELECT recipient, body FROM messages")
    assert len(rows) == len({row[0] for row in rows}), "somebody got it twice"
    return {row[0]: row[1] for row in rows}


def number(n: int) -> str:
    return f"+25884{n:07}"


#: A step that takes three seconds until its messages have their ids, as after the import of large rates.
SLOW = staging.TAKE.replace("clock_timestamp() AS at", "clock_timestamp() - interval '3 seconds' AS at")


async def test_a_slow_step_leaves_no_message_out_of_every_period(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages were accepted before they had their ids: a list until a time in between left them out, and so did
    the one from that time on."""
    monkeypatch.setattr(staging, "TAKE", SLOW)
    actor = await organization(pool)
    await create(pool, actor, recipients=[number(1)])
    await run(pool)
    id = await pool.fetchval("SELECT id FROM messages")
    for before in range(0, 4000, 200):
        at, found = time_of(id) - timedelta(milliseconds=before), []
        async with pool.acquire() as conn:
            for since, to in ((None, at), (at, None)):
                found += (await usage.list_page(conn, actor, date_from=since, date_to=to)).entries
        assert [one.message_id for one in found if one.type == "usage"] == [id], before


# ── The audience ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_listed_recipients_get_it_once_each(pool: Pool) -> None:
    actor = await organization(pool)
    await opt_out(pool, actor, number(3))
    listed = [number(1), number(1)[1:], "+258 84 000 0001", number(2), number(3), "nobody", "nobody", "12"]
    made = await create(pool, actor, recipients=listed)
    assert (made.status, made.counts) == ("staging", counts(pending=3, invalid=2))
    before = dict(measures.CAMPAIGN_RECIPIENTS.values)
    await run(pool)
    new = {key: count - before.get(key, 0) for key, count in measures.CAMPAIGN_RECIPIENTS.values.items()}
    assert {key: count for key, count in new.items() if count} == {("sms", "queued"): 2, ("sms", "opted_out"): 1}
    found = await get(pool, actor, made.id)
    assert (found.status, found.counts) == ("running", counts(queued=2, opted_out=1, invalid=2))
    assert await texts(pool) == {number(1): "hello", number(2): "hello"}
    row = await pool.fetchrow("SELECT * FROM messages LIMIT 1")
    assert (row["campaign_id"], row["guarantee"], row["mode"]) == (made.id, "at_most_once", "live")
    assert {row["lane"] for row in await pool.fetch("SELECT lane FROM queue")} == {1}
    await check_books(pool, [actor.organization_id])
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE campaign_id = $1", made.id) == 2


async def test_listed_numbers_are_dialed_and_named_like_those_of_contacts(pool: Pool) -> None:
    """Written without a space, they kept an old form, or a zero that belongs to national numbers: nobody's number."""
    actor = await organization(pool)
    forms = {
        "+551181234567": "+5511981234567",
        "+5215512345678": "+525512345678",
        "+270821234567": "+27821234567",
        "+4917012345678": "+4917012345678",
        "+2581": "+2581",
    }
    for n, number in enumerate(list(forms.values())[:4]):
        await contact(pool, actor, number, name=f"P{n}")
    await create(pool, actor, "Hi {{name}}", recipients=list(forms))
    await run(pool)
    assert await texts(pool) == {number: f"Hi P{n}" for n, number in enumerate(list(forms.values())[:4])}


async def test_reasons_say_that_not_all_was_examined_also_if_nothing_examined_failed(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1), number(2)])
    await run(pool)
    oldest = "SELECT id FROM messages ORDER BY id LIMIT 1"
    await pool.execute(f"UPDATE messages SET status = 'failed' WHERE id = ({oldest})")
    campaign = await get(pool, actor, made.id)
    found = []
    async with pool.acquire() as conn:
        for look in (1, 3):
            seen = await recipients.reasons(conn, actor, campaign=campaign, look=look)
            found.append(([(one.status, one.count) for one in seen.listed], seen.is_partial))
    assert found == [([], True), ([("failed", 1)], False)]


async def skipped_by(pool: Pool, campaign: UUID) -> set[tuple[str, str]]:
    rows = await pool.fetch("SELECT recipient, reason FROM campaign_skipped WHERE campaign_id = $1", campaign)
    assert len(rows) == len(set(rows))
    return {tuple(row) for row in rows}


async def test_who_is_skipped_is_kept_with_the_reason_and_erased_like_all_of_a_person(pool: Pool) -> None:
    actor = await organization(pool)
    await opt_out(pool, actor, number(3))
    await pool.execute("UPDATE organizations SET allowed_countries = '{MZ}' WHERE id = $1", actor.organization_id)
    for n, name in ((1, "Ana"), (2, "a" * 150)):
        await contact(pool, actor, number(n), name=name)
    typed = f"{number(3)[4:6]} {number(3)[6:9]}-{number(3)[9:]} (Rui)"
    listed = [*map(number, (1, 2, 3)), "+351912345678", "no\0body\u202e" + "x" * 90, typed]
    made = await create(pool, actor, "{{name}}" * 13, recipients=listed)
    await run(pool, chunk=2)  # whatever the chunks
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, opted_out=1, invalid=4)
    assert await skipped_by(pool, made.id) == {
        (number(2), "unfit"),
        (number(3), "opted_out"),
        ("+351912345678", "not_allowed"),
        ("nobody" + "x" * 56, "no_number"),
        (typed, "no_number"),
    }
    async with pool.acquire() as conn:
        held = [one async for one in holdings.held(conn, actor, address=number(3))]
        theirs = [(one["reason"], one["name"]) for one in held if one["what"] == "skipped_by_campaign"]
        # A text that is not a number may still be the person's, as it was typed.
        assert theirs == [("opted_out", "Sale"), ("no_number", "Sale")]
        before = await skipped_by(pool, made.id)
        receipt = await erasure.erase(conn, actor, address=number(3))
    assert receipt.erased["skipped_by_campaigns"] == 2
    gone = before - await skipped_by(pool, made.id)
    assert gone == {(number(3), "opted_out"), (typed, "no_number")}


async def test_whoever_was_erased_is_not_among_those_who_did_not_get_a_campaign(pool: Pool) -> None:
    actor = await organization(pool)
    whom = [number(n) for n in range(1, 5)]
    made = await create(pool, actor, recipients=whom)
    await run(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute("UPDATE messages SET status = 'failed', failure_code = 'unroutable', failed_at = now()")
    campaign = await get(pool, actor, made.id)
    async with pool.acquire() as conn:

        async def left() -> list[str]:
            return sorted(await recipients.again(conn, actor, campaign=campaign))

        assert await left() == whom
        for erased in (number(2), number(4)):
            await erasure.erase(conn, actor, address=erased)
        assert await left() == [number(1), number(3)]
        # That a text is missing says nothing once those before it have expired; one that was to be sent later has not.
        await conn.execute("UPDATE messages SET body = NULL WHERE recipient = ANY ($1)", whom[:3])
        assert await left() == whom
        later = "UPDATE messages SET body = 'Hi', send_at = accepted_at + interval '9 days' WHERE recipient = $1"
        first = await conn.fetchval("SELECT recipient FROM messages ORDER BY id LIMIT 1")
        await conn.execute(later, first)
        assert await left() == whom


async def test_whoever_was_erased_gets_no_campaign_that_listed_them(pool: Pool) -> None:
    """Neither one that has yet to begin nor one in progress, even if it has read its next recipients already."""
    actor = await organization(pool)
    listed = [number(n) for n in range(1, 6)]
    soon = datetime.now(UTC) + timedelta(hours=1)
    later = await create(pool, actor, "later", recipients=listed[:2], scheduled_at=soon)
    made = await create(pool, actor, recipients=listed)
    stager = Stager(pool, chunk=2)
    for _ in range(2):  # begun, with its first chunk staged
        await stager.round()
    assert (await get(pool, actor, made.id)).counts == counts(queued=2, pending=3)
    async with pool.acquire() as conn:
        receipts = [await erasure.erase(conn, actor, address=one) for one in (number(1), number(4))]
    assert [one.erased["recipients_of_campaigns"] for one in receipts] == [1, 1]
    # The first person's message of the running campaign was waiting already: it is canceled, and has no text any more.
    assert [one.withdrawn for one in receipts] == [{"sms": 1}, {}]
    while await stager.round():
        pass
    assert (await get(pool, actor, made.id)).counts == counts(queued=4)
    assert await pool.fetchval("SELECT body FROM messages WHERE recipient = $1", number(1)) is None
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", later.id)
    await run(pool)
    assert (await get(pool, actor, later.id)).counts == counts(queued=1)
    written = [tuple(row) for row in await pool.fetch("SELECT recipient, campaign_id FROM messages ORDER BY id")]
    assert written == [(number(n), made.id) for n in (1, 2, 3, 5)] + [(number(2), later.id)]


@pytest.mark.parametrize("why", ["price list", "sender", "unknown sender"])
@pytest.mark.parametrize("mode", ["live", "test"])
async def test_whom_nobody_carries_to_is_counted_before_as_it_is_staged(
    pool: Pool, why: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = msgspec.structs.replace(await organization(pool), mode=mode)
    if why == "price list":
        await default(pool, "country,price,currency,reject\nMZ,0.05,EUR,\nPT,0.05,EUR,yes\n")
    else:
        await refuse(pool, await add(pool, "main"), country="PT")
    listed = [number(1), "+351912345678"]
    acceptor = Acceptor(pool)
    spec = SmsCampaignSpec(
        name="Opening",
        message_template="hello",
        recipients=listed,
        sender_name="Nobody" if why == "unknown sender" else None,
    )
    async with pool.acquire() as conn:
        reaches = await sms_channel.reachability(conn, actor, acceptor, spec=spec)
        seen = await preview.preview_audience(
            conn, actor, say=preview.sms(actor, "hello", reaches=reaches), recipients=listed
        )
    if why == "unknown sender":  # its field says so
        assert (seen.would, seen.invalid) == (2, 0)
    else:
        made = await create(pool, actor, "hello", recipients=listed)
        # The process's cached prices and senders are those of an earlier test.
        monkeypatch.setitem(CHANNELS, "sms", sms_channel.SmsChannel())
        await run(pool)
        staged = (await get(pool, actor, made.id)).counts
        assert (seen.would, seen.invalid) == (staged.queued, staged.invalid) == ((1, 1) if mode == "live" else (2, 0))
    await acceptor.drain()


@pytest.mark.parametrize("by", ["tags", "numbers"])
@pytest.mark.parametrize("text", ["hello", "hello {{name}}"])
async def test_who_was_written_to_lately_is_skipped(pool: Pool, by: str, text: str) -> None:
    """By contacts' own times, like filters of their list; the preview's count is the audience's."""
    actor = await organization(pool)
    for n in range(1, 6):
        await contact(pool, actor, number(n), "vip", name=f"P{n}")
    for n, hours in ((1, 24 * 3 - 1), (2, 24 * 3 + 1), (3, 1), (4, 1)):
        at = "UPDATE contacts SET written_at = now() - make_interval(hours => $2) WHERE phone = $1"
        await pool.execute(at, number(n), hours)
    await pool.execute("UPDATE contacts SET mode = 'test' WHERE phone = $1", number(4))  # of the other mode
    await opt_out(pool, actor, number(3))
    whom: dict[str, Any] = {"audience_tags": ["vip"]} if by == "tags" else {"recipients": [*map(number, range(1, 6))]}
    tags, listed = whom.get("audience_tags"), whom.get("recipients")
    async with pool.acquire() as conn:
        say = preview.sms(actor, text, reaches=lambda phone, segments: True)
        seen = await preview.preview_audience(conn, actor, say=say, tags=tags, recipients=listed, not_written_days=3)
    made = await create(pool, actor, text, not_written_days=3, **whom)
    assert made.not_written_days == 3
    await run(pool)
    left = {2, 5} if by == "tags" else {2, 4, 5}
    assert set(await texts(pool)) == {number(n) for n in left}
    assert (await get(pool, actor, made.id)).counts == counts(queued=len(left), opted_out=1, recently_written=1)
    assert await skipped_by(pool, made.id) == {(number(1), "recently_written"), (number(3), "opted_out")}
    assert (seen.recently_written, seen.opted_out, seen.would) == (1, 1, len(left))
    told = await pool.fetchval("SELECT after FROM audit_log WHERE action = 'campaign.created'")
    assert msgspec.json.decode(told)["not_written_days"] == 3
    for wrong in (0, 366):
        with pytest.raises(Invalid):
            await create(pool, actor, not_written_days=wrong, **whom)


async def test_all_that_is_wrong_with_a_campaign_is_named(pool: Pool) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    values = {"name": "", "scheduled_at": past, "recipients": [], "not_written_days": 0, "excluded_tags": ["x"]}
    with pytest.raises(Invalid) as refused:
        await create(pool, await organization(pool), "", **values)
    named = [one["field"] for one in refused.value.details["fields"]]
    assert named == ["message_template", *values]


@pytest.mark.parametrize("spelled", [("+541123456789", "+5491123456789"), ("+551172345678", "+5511972345678")])
@pytest.mark.parametrize("by", ["tags", "import"])
async def test_a_person_who_is_a_contact_in_two_spellings_gets_it_once(
    pool: Pool, tmp_path: Path, spelled: tuple[str, str], by: str
) -> None:
    """Nobody can tell an Argentine mobile as it is written at home from a landline, so both are contacts."""
    actor, other = await organization(pool), "+541123456780"
    id = await imported(pool, actor, tmp_path, *(f"{phone},Ana,vip" for phone in (*spelled, other)))
    async with pool.acquire() as conn:
        say = preview.sms(actor, "hello", reaches=lambda phone, segments: True)
        whom = {"imported": id} if by == "import" else {"tags": ["vip"]}
        assert (await preview.preview_audience(conn, actor, say=say, **whom)).would == 2
    made = await create(pool, actor, **({"audience_import": id} if by == "import" else {"audience_tags": ["vip"]}))
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=2)
    assert {phones.person(phone) for phone in await texts(pool)} == {spelled[0], other}


@pytest.mark.parametrize("by", ["tags", "import"])
async def test_a_person_who_became_a_contact_again_in_another_spelling_was_written_to_lately(
    pool: Pool, tmp_path: Path, by: str
) -> None:
    actor = await organization(pool)
    await contact(pool, actor, "+541123456789")
    await pool.execute("UPDATE contacts SET written_at = now() - interval '1 day'")
    id = await imported(pool, actor, tmp_path, "+5491123456789,Ana,vip", f"{number(1)},Rui,vip")
    async with pool.acquire() as conn:
        say = preview.sms(actor, "hello", reaches=lambda phone, segments: True)
        looked_at: dict[str, Any] = {"imported": id} if by == "import" else {"tags": ["vip"]}
        seen = await preview.preview_audience(conn, actor, say=say, not_written_days=3, **looked_at)
    whom: dict[str, Any] = {"audience_import": id} if by == "import" else {"audience_tags": ["vip"]}
    made = await create(pool, actor, not_written_days=3, **whom)
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, recently_written=1)
    assert (seen.would, seen.recently_written) == (1, 1)


async def not_written(pool: Pool, actor: Actor, tag: str = "vip") -> tuple[int, Campaign]:
    """A campaign to a tag that skips whoever was written to within three days, staged: how many its preview says it
    skips for that, and what became of it."""
    async with pool.acquire() as conn:
        say = preview.sms(actor, "hello", reaches=lambda phone, segments: True)
        seen = await preview.preview_audience(conn, actor, say=say, tags=[tag], not_written_days=3)
    made = await create(pool, actor, audience_tags=[tag], not_written_days=3)
    await run(pool)
    return seen.recently_written, await get(pool, actor, made.id)


async def test_whoever_another_campaign_is_about_to_write_to_is_skipped(pool: Pool) -> None:
    """In the evening, two campaigns are created that wait for the morning: nobody gets both."""
    actor = await organization(pool)
    for n in range(1, 5):
        await contact(pool, actor, number(n), "vip", name=f"P{n}", first_name=None if n == 2 else "Ana")
    # The first one has nothing to say to 2, and is not for 4.
    first = await create(pool, actor, "{{first_name}}", recipients=[number(n) for n in (1, 2, 3)])
    await run(pool)
    assert (await get(pool, actor, first.id)).counts == counts(queued=2, invalid=1)
    skipped_ones, second = await not_written(pool, actor)
    assert (skipped_ones, second.counts) == (2, counts(queued=2, recently_written=2))
    assert await skipped_by(pool, second.id) == {(number(n), "recently_written") for n in (1, 3)}
    # What they got since the first one began is known from their own times, however long it goes on.
    await pool.execute("UPDATE campaigns SET started_at = now() - interval '9 days'")
    await pool.execute("UPDATE contacts SET written_at = now() - interval '4 days' WHERE phone = $1", number(1))
    skipped_ones, third = await not_written(pool, actor)
    assert (skipped_ones, third.counts) == (3, counts(queued=1, recently_written=3))
    assert (number(1), "recently_written") not in await skipped_by(pool, third.id)


SPELLINGS = pytest.mark.parametrize(
    ("known", "listed"), [("+5491123456789", "+541123456789"), ("+541123456789", "+5491123456789")]
)


@SPELLINGS
@pytest.mark.parametrize("text", ["hello", "hello {{name}}"])
async def test_whoever_is_listed_in_another_spelling_than_their_contacts_was_written_to_lately(
    pool: Pool, known: str, listed: str, text: str
) -> None:
    """Messages to any spelling count for the contact."""
    actor = await organization(pool)
    await contact(pool, actor, known)
    await pool.execute("UPDATE contacts SET written_at = now() - interval '1 day'")
    async with pool.acquire() as conn:
        say = preview.sms(actor, text, reaches=lambda phone, segments: True)
        whom = [listed, number(1)]
        seen = await preview.preview_audience(conn, actor, say=say, recipients=whom, not_written_days=3)
    made = await create(pool, actor, text, recipients=whom, not_written_days=3)
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, recently_written=1)
    assert (seen.would, seen.recently_written) == (1, 1)


@SPELLINGS
async def test_whoever_is_listed_in_another_spelling_than_their_contacts_has_its_name(
    pool: Pool, known: str, listed: str
) -> None:
    actor = await organization(pool)
    whom = [listed, "+541187654321", "+541187654322"]
    await contact(pool, actor, known, name="Ana")
    # One without a name, and one in both spellings, of whom the name of the very number counts.
    await contact(pool, actor, "+5491187654321", name="+5491187654321")
    await contact(pool, actor, "+5491187654322", name="Other")
    await contact(pool, actor, "+541187654322", name="Rui")
    async with pool.acquire() as conn:
        say = preview.sms(actor, "Hi {{name}}", reaches=lambda phone, segments: True)
        seen = await preview.preview_audience(conn, actor, say=say, recipients=whom)
    filled = dict(zip(whom, ("Hi Ana", "Hi ", "Hi Rui"), strict=True))
    assert {one.phone: one.text for one in seen.examples} == filled
    await create(pool, actor, "Hi {{name}}", recipients=whom)
    await run(pool)
    assert await texts(pool) == filled
    await opt_out(pool, actor, listed)
    skips = await create(pool, actor, recipients=whom)
    await run(pool)
    async with pool.acquire() as conn:
        found = await skipped.list_page(conn, actor, campaign_id=skips.id, reason="opted_out", limit=2)
    assert [(one.recipient, one.name) for one in found] == [(listed, "Ana")]


@SPELLINGS
@pytest.mark.parametrize("by", ["tag", "number"])
async def test_whoever_is_about_to_be_written_to_at_another_spelling_of_their_number_is_skipped(
    pool: Pool, known: str, listed: str, by: str
) -> None:
    """Once that message has left, it counts for the contact, too."""
    actor = await organization(pool)
    await contact(pool, actor, known, "vip")
    await contact(pool, actor, number(1), "vip")
    first = await create(pool, actor, recipients=[listed if by == "tag" else known])
    await run(pool)
    assert (await get(pool, actor, first.id)).counts == counts(queued=1)
    whom: dict[str, Any] = {"audience_tags": ["vip"]} if by == "tag" else {"recipients": [listed, number(1)]}
    second = await create(pool, actor, not_written_days=3, **whom)
    await run(pool)
    assert (await get(pool, actor, second.id)).counts == counts(queued=1, recently_written=1)


@pytest.mark.parametrize(("ended", "expected"), [("canceled", 0), ("completed", 2)])
async def test_a_campaign_that_has_just_ended_counts_if_it_was_sent(pool: Pool, ended: str, expected: int) -> None:
    """That it was sent is noted with its contacts some minutes later."""
    actor = await organization(pool)
    for n in (1, 2):
        await contact(pool, actor, number(n), "vip")
    first = await create(pool, actor, audience_tags=["vip"])
    await run(pool)
    if ended == "canceled":
        await cancel(pool, actor, first.id)
        await run(pool)
    else:
        await end(pool, "delivered")
        await count(pool)
    assert (await get(pool, actor, first.id)).status == ended
    async with pool.acquire() as conn:  # as retention does in each hour
        await audience.forget(conn)
    skipped_ones, second = await not_written(pool, actor)
    assert (skipped_ones, second.counts.recently_written) == (expected, expected)
    if ended == "completed":  # contacts' own times decide from then on
        await pool.execute("UPDATE campaigns SET drained_at = drained_at - interval '6 minutes'")
        assert (await not_written(pool, actor))[0] == 0
        async with pool.acquire() as conn:
            await audience.forget(conn)
        assert await pool.fetchval("SELECT forgotten FROM campaigns WHERE id = $1", first.id)


async def test_two_campaigns_that_are_staged_at_once_do_not_both_write_to_somebody(pool: Pool) -> None:
    """Each has read its next recipients before the other one stores its messages."""
    actor = await organization(pool)
    for n in (1, 2, 3):
        await contact(pool, actor, number(n), "vip")
    second = await create(pool, actor, audience_tags=["vip"], not_written_days=3)
    stager = Stager(pool, chunk=1)
    while (await get(pool, actor, second.id)).counts.queued == 0:
        await stager.round()
    assert stager._ahead is not None
    await stager._ahead.task
    await pool.execute("UPDATE campaigns SET step_at = now() + interval '1 hour'")
    first = await create(pool, actor, recipients=[number(n) for n in (2, 3)])
    await run(pool)
    assert (await get(pool, actor, first.id)).counts == counts(queued=2)
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", second.id)
    while await stager.round():
        pass
    assert (await get(pool, actor, second.id)).counts == counts(queued=1, recently_written=2)


@pytest.mark.parametrize(("mode", "expected"), [("any", {1, 2, 3}), ("all", {2})])
async def test_contacts_by_tag(pool: Pool, mode: str, expected: set[int]) -> None:
    actor = await organization(pool)
    other = await organization(pool)
    await contact(pool, actor, number(1), "vip")
    await contact(pool, actor, number(2), "vip", "beira")
    await contact(pool, actor, number(3), "beira")
    await contact(pool, actor, number(4))
    await contact(pool, other, number(5), "vip", "beira")
    made = await create(pool, actor, audience_tags=[" VIP ", "beira", "vip"], audience_tag_match_mode=mode)
    assert made.audience_tags == ["vip", "beira"]
    assert record.shown(made)["recipient_count"] is None
    await run(pool)
    assert set(await texts(pool)) == {number(n) for n in expected}
    assert record.shown(await get(pool, actor, made.id))["recipient_count"] == len(expected)


async def test_tags_say_when_a_campaign_to_them_last_began(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    await contact(pool, actor, number(1), "vip", "beira")
    await contact(pool, actor, number(2), "staff", "never")
    await contact(pool, other, number(1), "vip", "never")
    first = await create(pool, actor, audience_tags=["vip", "beira"], excluded_tags=["staff"])
    second = await create(pool, actor, audience_tags=["vip"])
    await create(pool, actor, audience_tags=["staff"], scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    await create(pool, other, audience_tags=["never"])

    async def last(whose: Actor = actor, look: int = tag_uses.LOOK) -> dict[str, tuple[datetime | None, UUID | None]]:
        async with pool.acquire() as conn:
            listed = await tag_uses.list_page(conn, whose, limit=10, look=look)
        return {one.name: (one.last_campaign_at, one.campaign_id) for one in listed}

    began = {row["id"]: row["started_at"] for row in await pool.fetch("SELECT id, started_at FROM campaigns")}
    one, two, none = (began[first.id], first.id), (began[second.id], second.id), (None, None)
    assert await last() == {"beira": one, "never": none, "staff": none, "vip": two}
    assert await last(msgspec.structs.replace(actor, mode="test")) == {}
    # A search is bounded: of the scheduled campaign and the second one alone.
    assert await last(look=2) == {"beira": none, "never": none, "staff": none, "vip": two}


async def test_contacts_with_an_excluded_tag_are_left_out(pool: Pool) -> None:
    actor = await organization(pool)
    await contact(pool, actor, number(1), "vip")
    await contact(pool, actor, number(2), "vip", "staff")
    await contact(pool, actor, number(3), "beira", "left")
    await contact(pool, actor, number(4), "beira")
    made = await create(pool, actor, audience_tags=["vip", "beira"], excluded_tags=[" Staff", "left", "staff", "none"])
    assert made.excluded_tags == ["staff", "left", "none"]
    async with pool.acquire() as conn:
        assert await record.waiting_for_tag(conn, actor, tag="staff") == ["Sale"]
    await run(pool, gather=1)
    assert set(await texts(pool)) == {number(1), number(4)}
    found = record.shown(await get(pool, actor, made.id))
    assert (found["recipient_count"], found["excluded_tags"]) == (2, ["staff", "left", "none"])
    told = await pool.fetchval("SELECT after FROM audit_log WHERE action = 'campaign.created'")
    assert msgspec.json.decode(told)["excluded_tags"] == ["staff", "left", "none"]
    with pytest.raises(plan.CampaignAudienceEmpty):
        await create(pool, actor, audience_tags=["vip"], excluded_tags=["vip"])


async def test_an_audience_is_gathered_over_many_steps(pool: Pool) -> None:
    actor = await organization(pool, quota=1000)
    entries = [Entry(number(n), f"P{n}", tags=("one", "two") if n % 3 else ("two",)) for n in range(50)]
    async with pool.acquire() as conn, conn.transaction():
        await records.create_many(conn, actor, entries=entries)
    made = await create(pool, actor, "{{name}}", audience_tags=["one", "two"])
    await run(pool, chunk=11, gather=7)
    assert await texts(pool) == {number(n): f"P{n}" for n in range(50)}
    assert (await get(pool, actor, made.id)).counts == counts(queued=50)
    await check_books(pool, [actor.organization_id])


async def test_nobody_is_refused_now_and_allowed_later(pool: Pool) -> None:
    actor = await organization(pool)
    await opt_out(pool, actor, number(1))
    await contact(pool, actor, number(1), "silent")
    for spec in ({"audience_tags": ["silent"]}, {"audience_tags": ["none"]}, {"recipients": [number(1), "x"]}):
        with pytest.raises(plan.CampaignAudienceEmpty):
            await create(pool, actor, **spec)
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = await create(pool, actor, audience_tags=["none"], scheduled_at=soon)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.counts) == ("completed", NOBODY)
    assert found.completed_at


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "audience_tags"),
        ({"recipients": [number(1)], "audience_tags": ["vip"]}, "audience_tags"),
        ({"recipients": []}, "recipients"),
        ({"audience_tags": []}, "audience_tags"),
        ({"audience_tags": ["  "]}, "audience_tags"),
        ({"audience_tags": [f"t{n}" for n in range(21)]}, "audience_tags"),
        ({"audience_tags": ["a"], "excluded_tags": [f"t{n}" for n in range(21)]}, "excluded_tags"),
        ({"audience_tags": ["a"], "excluded_tags": ["  "]}, "excluded_tags"),
        ({"recipients": [number(1)], "excluded_tags": ["vip"]}, "excluded_tags"),
        ({"recipients": [number(1)], "name": "  "}, "name"),
        ({"recipients": [number(1)], "message_template": "Hi {{nome}}"}, "message_template"),
        ({"recipients": [number(1)], "message_template": "Hi {{}}"}, "message_template"),
        ({"recipients": [number(1)], "message_template": " "}, "message_template"),
        ({"recipients": [number(1)], "message_template": "ж" * 700}, "message_template"),
        ({"recipients": [number(1)], "sender_id": uuid7()}, "sender_id"),
        ({"recipients": [number(1)], "scheduled_at": datetime.now(UTC) - timedelta(seconds=62)}, "scheduled_at"),
        ({"recipients": [number(1)], "scheduled_at": datetime.now(UTC) + timedelta(days=366)}, "scheduled_at"),
    ],
)
async def test_what_cannot_be(pool: Pool, spec: dict[str, Any], field: str) -> None:
    actor = await organization(pool)
    with pytest.raises(Invalid) as refused:
        await create(pool, actor, **spec)
    assert refused.value.details["fields"][0]["field"] == field
    assert await pool.fetchval("SELECT count(*) FROM campaigns") == 0


async def test_the_sender_is_approved_at_the_start_and_all_along(pool: Pool) -> None:
    actor = await organization(pool)
    await sender(pool, actor, "PENDING", status="pending")
    with pytest.raises(SenderIdNotApproved):
        await create(pool, actor, recipients=[number(1)], sender_name="pending")
    made = await create(pool, actor, recipients=[number(1)], sender_name="heliograph")
    await pool.execute("UPDATE sender_ids SET status = 'suspended', is_default = false")
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("failed", plan.SENDER, counts(canceled=1))


# ── The text ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_places_are_filled_once_with_what_is_known(pool: Pool) -> None:
    actor = await organization(pool)
    await contact(pool, actor, number(1), "x", name="{{phone}} {{x}}", first_name="Ana")
    await contact(pool, actor, number(2), "x", name="Zé", last_name="Ω")
    await create(pool, actor, "{{ name }}|{{first_name}}|{{last_name}}|{{phone}}|{", audience_tags=["x"])
    await create(pool, actor, "{{first_name}}{{name}}!", recipients=[number(3), number(4)])
    await contact(pool, actor, number(4), name="Rui")
    await run(pool)
    assert await texts(pool) == {
        number(1): f"{{{{phone}}}} {{{{x}}}}|Ana||{number(1)}|{{",
        number(2): f"Zé||Ω|{number(2)}|{{",
        number(3): "!",
        number(4): "Rui!",
    }
    for row in await pool.fetch("SELECT recipient, encoding, segments FROM messages"):
        assert (row["encoding"], row["segments"]) == encoding.count((await texts(pool))[row["recipient"]])


@pytest.mark.parametrize("by", ["tag", "import", "number"])
async def test_nobody_is_called_by_their_number(pool: Pool, tmp_path: Path, by: str) -> None:
    """A contact imported without a name has its number instead."""
    actor = await organization(pool)
    id = await imported(pool, actor, tmp_path, f"{number(1)},,x", f"{number(2)},Zé,x")
    audience_of: dict[str, dict[str, Any]] = {
        "tag": {"audience_tags": ["x"]},
        "import": {"audience_import": id},
        "number": {"recipients": [number(1), number(2)]},
    }
    text = "{{name|customer}}, {{phone}}"
    wanted = {number(1): f"customer, {number(1)}", number(2): f"Zé, {number(2)}"}
    say = preview.sms(actor, text, reaches=lambda phone, segments: True)
    looked_at = {name.removeprefix("audience_"): value for name, value in audience_of[by].items()}
    looked_at |= {"imported": looked_at.pop("import", None)}
    async with pool.acquire() as conn:
        seen = await preview.preview_audience(conn, actor, say=say, **looked_at)
    assert {one.phone: one.text for one in seen.examples} == wanted
    assert {one.phone: one.name for one in seen.examples} == {number(1): "", number(2): "Zé"}
    await create(pool, actor, text, **audience_of[by])
    await run(pool)
    assert await texts(pool) == wanted


async def test_accents_are_left_out_as_the_organization_chose(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute("UPDATE organizations SET replace_accents = true")
    await contact(pool, actor, number(1), "x", name="João")
    await create(pool, actor, "{{name}}, até amanhã! " + "x" * 80, audience_tags=["x"])
    await run(pool)
    (row,) = await pool.fetch("SELECT encoding, segments FROM messages")
    assert (row["encoding"], row["segments"]) == ("gsm7", 1)


async def test_a_contact_may_change_once_the_audience_is_gathered(pool: Pool) -> None:
    actor = await organization(pool)
    await contact(pool, actor, number(1), "x", name="Before")
    await create(pool, actor, "{{name}}", audience_tags=["x"])
    stager = Stager(pool)
    await stager.round()
    await pool.execute("DELETE FROM contacts")
    await run(pool)
    assert await texts(pool) == {number(1): "Before"}


async def test_a_text_that_is_too_long_for_somebody_is_not_sent_to_them(pool: Pool) -> None:
    actor = await organization(pool)
    await contact(pool, actor, number(1), "x", name="a" * 200)
    await contact(pool, actor, number(2), "x", name="b")
    made = await create(pool, actor, "{{name}}" * 8, audience_tags=["x"])
    await run(pool)
    assert await texts(pool) == {number(2): "b" * 8}
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, invalid=1)


@pytest.mark.parametrize("text", ["{{first_name}}", " {{last_name}} {{first_name}}\n", "\u200b{{first_name}}"])
async def test_nobody_gets_and_pays_for_a_text_of_which_nothing_is_left(pool: Pool, text: str) -> None:
    actor = await organization(pool)
    await contact(pool, actor, number(1), "x", name="Ana", first_name="Ana")
    await contact(pool, actor, number(2), "x", name="Eva")
    spec = SmsCampaignSpec(name="Sale", message_template=text, audience_tags=["x"])
    made = await create(pool, actor, text, audience_tags=["x"])
    async with pool.acquire() as conn:
        say = preview.sms(actor, text, reaches=await sms_channel.reachability(conn, actor, Acceptor(pool), spec=spec))
        seen = await preview.preview_audience(conn, actor, say=say, tags=["x"])
    await run(pool)
    assert [one.strip(" \n\u200b") for one in (await texts(pool)).values()] == ["Ana"]
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, invalid=1)
    assert (seen.would, seen.invalid) == (1, 1)
    await check_books(pool, [actor.organization_id])


async def test_only_allowed_countries(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute("UPDATE organizations SET allowed_countries = '{MZ}'")
    made = await create(pool, actor, recipients=[number(1), "+41791234567"])
    await run(pool)
    assert set(await texts(pool)) == {number(1)}
    assert (await get(pool, actor, made.id)).counts == counts(queued=1, invalid=1)


@given(st.text(), st.lists(st.sampled_from(("{{name}}", "{{ phone }}", "{{", "}}", "x")), max_size=6))
def test_filling_is_plain_substitution(value: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    if template.places(text) <= set(template.PLACES):
        filled = template.filler(text)(["+1", value, "", ""])
        assert filled == text.replace("{{ phone }}", "+1").replace("{{name}}", value) or "{{{" in text


# ── Quota, pace, suspension ───────────────────────────────────────────────────────────────────────────────────────


async def test_it_waits_for_quota_and_goes_on_by_itself(pool: Pool) -> None:
    actor = await organization(pool, quota=3)
    made = await create(pool, actor, recipients=[number(n) for n in range(10)])
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason) == ("paused", plan.QUOTA)
    assert found.counts == counts(queued=3, pending=7)
    told = await pool.fetch("SELECT kind, object, name, facts FROM notices")
    assert told == [("campaign.paused", str(made.id), made.name, '{"channel":"sms","reason":"quota_exceeded"}')]
    async with pool.acquire() as conn:
        await quota.grant(conn, actor.organization_id, amount=6, reason="more")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=9, pending=1)
    async with pool.acquire() as conn:
        await quota.grant(conn, actor.organization_id, amount=100, reason="more")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("running", "no_supplier_connected", counts(queued=10))
    assert set(await texts(pool)) == {number(n) for n in range(10)}
    await check_books(pool, [actor.organization_id])


async def test_it_waits_for_the_next_day_if_the_day_has_a_limit(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await spending.limit(conn, actor.organization_id, segments=7)
    made = await create(pool, actor, text="a" * 200, recipients=[number(n) for n in range(10)])
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", plan.SPENT, counts(queued=3, pending=7))
    # A day that is over, and one from before the clock was set back.
    for passed, queued in ((-1, 6), (40, 9)):
        await pool.execute("UPDATE spend_limits SET day = day + $1::int", passed)
        await pool.execute("UPDATE campaigns SET step_at = now()")
        await run(pool)
        assert (await get(pool, actor, made.id)).counts == counts(queued=queued, pending=10 - queued)
    async with pool.acquire() as conn:
        assert [one.used for one in await spending.limits(conn, actor.organization_id)] == [6]
        await spending.limit(conn, actor.organization_id, segments=None)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=10)
    await check_books(pool, [actor.organization_id])


async def test_a_day_that_has_begun_for_others_counts_as_todays(pool: Pool) -> None:
    """The step used to take it for unused, staged more than was left, was refused, and began again."""
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await spending.limit(conn, actor.organization_id, segments=5)
    await pool.execute("UPDATE spend_limits SET used = 3, day = day + 1")
    made = await create(pool, actor, recipients=[number(n) for n in range(4)])
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", plan.SPENT, counts(queued=2, pending=2))
    async with pool.acquire() as conn:
        assert [one.used for one in await spending.limits(conn, actor.organization_id)] == [5]


async def test_ids_of_two_chunks_never_lie_between_each_other(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the clock was set back: each counted messages of the other, and the campaign did not end."""
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(n) for n in range(4)])
    first, second, third, fourth = (uuid7() for _ in range(4))
    given = [first, fourth, second, third]
    monkeypatch.setattr(staging, "uuid7", lambda: given.pop(0) if given else uuid7())
    await run(pool, chunk=2)
    assert not given
    await end(pool, "delivered")
    await count(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.counts) == ("completed", counts(delivered=4))
    await check_books(pool, [actor.organization_id])


async def test_a_limit_below_what_is_used_concerns_nobody_if_all_are_staged(pool: Pool) -> None:
    """The step, which had nobody left to stage, failed until the next day."""
    actor = await organization(pool, quota=100)
    made = await create(pool, actor, recipients=[number(n) for n in range(4)])
    stager = Stager(pool, chunk=4)
    while (await get(pool, actor, made.id)).counts != counts(queued=4):
        assert await stager.round()
    async with pool.acquire() as conn:
        await spending.limit(conn, actor.organization_id, segments=3)
    await run(pool, chunk=4)
    assert await pool.fetchval("SELECT step_at FROM campaigns") is None
    await end(pool, "delivered")
    await count(pool)
    assert (await get(pool, actor, made.id)).status == "completed"


@pytest.mark.parametrize(("messages", "segments"), [(4, 8), (4, 39), (5, 8), (4, 1000)])
async def test_quota_and_the_limit_of_the_day_each_cover_it_in_their_own_unit(
    pool: Pool, messages: int, segments: int
) -> None:
    """A quota counts messages, and a day's limit counts segments: four messages of two segments need four and eight."""
    actor = await organization(pool, quota=messages)
    async with pool.acquire() as conn:
        await spending.limit(conn, actor.organization_id, segments=segments)
    made = await create(pool, actor, text="a" * 200, recipients=[number(n) for n in range(4)])
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.counts) == ("running", counts(queued=4))
    await check_books(pool, [actor.organization_id])


@pytest.mark.parametrize(("messages", "segments", "reason"), [(3, 7, plan.QUOTA), (4, 7, plan.SPENT)])
async def test_it_says_which_of_both_it_waits_for(pool: Pool, messages: int, segments: int, reason: str) -> None:
    actor = await organization(pool, quota=messages)
    async with pool.acquire() as conn:
        await spending.limit(conn, actor.organization_id, segments=segments)
    made = await create(pool, actor, text="a" * 200, recipients=[number(n) for n in range(5)])
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", reason, counts(queued=3, pending=2))


async def test_a_keys_limit_covers_the_campaigns_that_it_created(pool: Pool) -> None:
    """Whether it was set before or after they were staged, beside a limit of the organization."""
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        made = [
            await lifecycle.issue(conn, actor, name=name, profile="full_access", mode="live") for name in ("a", "b")
        ]
        first, second = (key.id for key, _ in made)
        await spending.limit(conn, actor.organization_id, segments=100)
        await spending.limit(conn, actor.organization_id, segments=7, key_id=first)
    own = msgspec.structs.replace(actor, key_id=first)
    campaign = await create(pool, own, text="a" * 200, recipients=[number(n) for n in range(10)])
    other = msgspec.structs.replace(actor, key_id=second)
    await create(pool, other, recipients=[number(n) for n in range(20, 25)])
    await run(pool)
    found = await get(pool, actor, campaign.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", plan.SPENT, counts(queued=3, pending=7))
    for folded in (False, True):
        async with pool.acquire() as conn:
            if folded:
                await folding.fold(conn)
            await spending.limit(conn, actor.organization_id, segments=9, key_id=second)
            limits = {one.key_id: one.used for one in await spending.limits(conn, actor.organization_id)}
            assert limits == {None: 11, first: 6, second: 5}
            await spending.limit(conn, actor.organization_id, segments=None, key_id=second)


async def test_a_suspended_organization_waits(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1)])
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason) == ("paused", plan.SUSPENDED)
    await pool.execute("UPDATE organizations SET state = 'active'")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=1)


async def test_a_test_key_costs_nothing(pool: Pool) -> None:
    actor = await organization(pool, quota=0, mode="test")
    made = await create(pool, actor, recipients=[number(1)])
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(queued=1)
    assert await pool.fetchval("SELECT line FROM queue") == UUID(int=1)
    await cancel(pool, actor, made.id)
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type <> 'grant'") == 0


async def test_pace_spreads_what_is_due_and_stages_little_ahead(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(n) for n in range(100)], messages_per_minute=60)
    await run(pool)
    ahead = int(plan.LEAD.total_seconds())
    assert (await get(pool, actor, made.id)).counts == counts(queued=ahead, pending=100 - ahead)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    due = [row[0] for row in await pool.fetch("SELECT due_at FROM queue ORDER BY due_at")]
    assert len(due) > ahead
    assert {later - earlier for earlier, later in itertools.pairwise(due)} == {timedelta(seconds=1)}
    wait = await pool.fetchval("SELECT extract(epoch FROM step_at - now())::float8 FROM campaigns")
    assert 0 < wait <= ahead


async def test_a_pause_leaves_a_pace_as_it_was(pool: Pool) -> None:
    """Messages staged before and after the pause are not sent side by side."""
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(n) for n in range(100)], messages_per_minute=60)
    await run(pool)
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, actor, id=made.id)
    await run(pool)
    for table, column in (("campaign_chunks", "put_off_at"), ("queue", "due_at"), ("campaigns", "due_at")):
        await pool.execute(f"UPDATE {table} SET {column} = {column} - interval '1 minute'")
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, actor, id=made.id)
    await run(pool)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    # Messages that would be due in the past are due now, and take their place there.
    due = [row[0] for row in await pool.fetch("SELECT coalesce(since, due_at) FROM queue ORDER BY 1")]
    assert len(due) > plan.LEAD.total_seconds()
    assert {later - earlier for earlier, later in itertools.pairwise(due)} == {timedelta(seconds=1)}


async def test_two_pauses_in_a_row_leave_the_slowest_pace_as_it_was(pool: Pool) -> None:
    """The next message is staged at once when a campaign is resumed, and then is due a minute ahead."""
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(n) for n in range(3)], messages_per_minute=1)
    await run(pool)
    for minutes in (0, 10):
        async with pool.acquire() as conn, conn.transaction():
            await plan.pause(conn, actor, id=made.id)
        await run(pool)
        for table, column in (("campaign_chunks", "put_off_at"), ("queue", "due_at"), ("campaigns", "due_at")):
            await pool.execute(f"UPDATE {table} SET {column} = {column} - make_interval(mins => $1)", minutes)
        await resume(pool, actor, made.id)
        await run(pool)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    due = [row[0] for row in await pool.fetch("SELECT coalesce(since, due_at) FROM queue ORDER BY 1")]
    between = [later - earlier for earlier, later in itertools.pairwise(due)]
    # Each chunk is postponed at its own moment.
    assert [timedelta(minutes=1) <= one < timedelta(minutes=2) for one in between] == [True, True], between


async def test_what_waits_for_the_morning_goes_in_the_morning_after_a_pause_in_the_night(pool: Pool) -> None:
    """It was due later by the length of the pause, in the evening or on the next day."""
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(n) for n in (1, 2, 3)])
    await run(pool)
    # 1 waits for the morning, 2 for one that will be over when the campaign is resumed; 3 has not been looked at.
    ahead = {number(1): timedelta(hours=10), number(2): timedelta(hours=5), number(3): timedelta(0)}
    for phone, wait in ahead.items():
        due = "UPDATE queue SET due_at = now() + $2::interval WHERE id = (SELECT id FROM messages WHERE recipient = $1)"
        await pool.execute(due, phone, wait)
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, actor, id=made.id)
    await run(pool)
    for table, column in (("campaign_chunks", "put_off_at"), ("queue", "due_at")):  # six hours later
        await pool.execute(f"UPDATE {table} SET {column} = {column} - interval '6 hours'")
    await resume(pool, actor, made.id)
    await run(pool)
    rows = await pool.fetch(
        "SELECT recipient, round(extract(epoch FROM due_at - now()) / 3600)::int FROM queue JOIN messages USING (id)"
    )
    assert dict(rows) == {number(1): 4, number(2): 0, number(3): 0}


@pytest.mark.parametrize(
    ("kind", "usual", "lasts"), [("marketing", None, None), ("marketing", 300, 300), ("otp", 3600, 600)]
)
@pytest.mark.parametrize("pace", [None, 60])
async def test_it_is_worth_delivering_for_as_long_as_its_organizations_sends_are(
    pool: Pool, kind: str, usual: int | None, lasts: int | None, pace: int | None
) -> None:
    """From when each message is due, and for a code no longer than codes are valid."""
    actor = await organization(pool)
    await pool.execute("UPDATE organizations SET validity_seconds = $1", usual)
    await create(pool, actor, recipients=[number(1), number(2)], traffic_class=kind, messages_per_minute=pace)
    await run(pool)
    rows = await pool.fetch("SELECT m.expires_at, q.due_at FROM messages m JOIN queue q USING (organization_id, id)")
    assert len(rows) == 2
    for row in rows:
        assert row["expires_at"] == (lasts and row["due_at"] + timedelta(seconds=lasts))


async def test_a_schedule_is_the_databases(pool: Pool) -> None:
    actor = await organization(pool)
    at = await pool.fetchval("SELECT now()")
    made = await create(pool, actor, recipients=[number(1)], scheduled_at=at + timedelta(hours=1))
    just_past = await create(pool, actor, recipients=[number(2)], scheduled_at=at - timedelta(seconds=50))
    assert (made.status, just_past.status) == ("scheduled", "staging")
    await run(pool)
    assert set(await texts(pool)) == {number(2)}
    assert (await get(pool, actor, made.id)).status == "scheduled"
    await pool.execute(
        "UPDATE campaigns SET scheduled_at = scheduled_at - interval '1 hour', step_at = step_at - interval '1 hour'"
        " WHERE id = $1",
        made.id,
    )
    await run(pool)
    assert (await get(pool, actor, made.id)).status == "running"
    assert set(await texts(pool)) == {number(1), number(2)}


async def test_organizations_take_turns(pool: Pool) -> None:
    greedy, modest = await organization(pool), await organization(pool)
    for _ in range(5):
        await create(pool, greedy, recipients=[number(n) for n in range(5)])
    made = await create(pool, modest, recipients=[number(n) for n in range(5)])
    stager = Stager(pool, chunk=1)
    for _ in range(16):
        await stager.round()
    assert (await get(pool, modest, made.id)).counts.queued >= 5


async def test_a_campaign_that_stays_paused_is_checked_less_and_less_often(pool: Pool) -> None:
    """A thousand of them, checked every second, used half a processor for as long as they were paused."""
    at, waits = 0.0, []
    patience, id, other = pausing.Patience(lambda: at), uuid7(), uuid7()
    for _ in range(100):
        waits.append(patience.pause(id).total_seconds())
        at += waits[-1]
    assert waits[:20] == [1.0] * 20
    assert waits == sorted(waits)
    assert waits[-1] == 15.0
    assert patience.pause(other).total_seconds() == 1.0
    at += 3600.0
    assert patience.pause(id).total_seconds() == 1.0  # it was sent meanwhile

    patience.pause = lambda id: timedelta(hours=5)  # type: ignore[method-assign]
    actor = await organization(pool, quota=0)
    await create(pool, actor, recipients=[number(1)])
    stager = Stager(pool)
    stager._patience = patience
    while await stager.round():
        pass
    assert await pool.fetchval("SELECT step_at > now() + interval '4 hours' FROM campaigns WHERE status = 'paused'")


async def test_campaigns_that_are_due_together_start_one_after_the_other(pool: Pool) -> None:
    """If each step of one waited for the same step of all others, nobody of thousands would get anything for
    minutes."""
    actor = await organization(pool)
    await contact(pool, actor, number(1), "all")
    first = await create(pool, actor, audience_tags=["all"])
    for n in range(2, 6):
        await create(pool, actor, recipients=[number(n)])
    stager = Stager(pool)
    for _ in range(4):  # it begins, is resolved, is complete, is staged
        await stager.round()
    assert (await get(pool, actor, first.id)).counts.queued == 1
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM campaigns WHERE queued = 1") == 5


async def test_single_sends_go_first(pool: Pool) -> None:
    busy, other = await organization(pool), await organization(pool)
    for _ in range(3):
        await create(pool, busy, recipients=[number(n) for n in range(200)])
    await run(pool)
    singles = {await message(pool, actor) for actor in (busy, other)}
    async with pool.acquire() as conn:
        claimed = await claim_once(conn, "sms", {leases.UNROUTED: 2}, seconds=60)
        assert {lease.id for lease in claimed} == singles
        # Rows that a campaign still has in the queue are no sign of a fault.
        await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour'")
        assert await leases.oldest(conn, "sms") == 0


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_more_chunks_than_one_transaction_counts_are_counted_in_one_run(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of small campaigns have a chunk each, and one with a further chunk waits for all of them."""
    monkeypatch.setattr(counting, "CHUNKS", 2)
    monkeypatch.setattr(counting, "SECONDS", 3600.0)
    actor = await organization(pool)
    for n in range(7):
        await create(pool, actor, recipients=[number(n)])
    await run(pool)
    await pool.execute("UPDATE campaign_chunks SET count_at = now()")
    async with pool.acquire() as conn:
        assert await counting.count_all_due(conn, most=2) == 4
        assert await counting.count_all_due(conn) == 3
        assert await counting.count_all_due(conn) == 0


async def test_a_campaign_that_was_being_counted_goes_on_at_once(pool: Pool) -> None:
    """Its stager passed over the locked row, and looked again a second later: most of a second was lost in each."""
    actor = await organization(pool)
    await create(pool, actor, recipients=[number(n) for n in range(4)])
    work = CampaignWork(pool, dict.fromkeys(CHANNELS, lambda: None))
    (staging_loop,) = work.loops()
    count = next(one for one in work.timers() if one.name == "campaigns")
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM campaigns FOR UPDATE")
        assert await staging_loop.step() == 0
        assert not staging_loop.wake.is_set()
    async with pool.acquire() as conn:
        await count.step(conn)
    assert staging_loop.wake.is_set()
    assert await staging_loop.step() == 1


async def test_it_completes_once_and_says_so(pool: Pool) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, "campaign.completed")
    made = await create(pool, actor, recipients=[number(n) for n in range(4)])
    await run(pool)
    await count(pool)
    assert (await get(pool, actor, made.id)).status == "running"
    await pool.execute("UPDATE messages SET status = 'sent'")
    await pool.execute("DELETE FROM queue")
    await count(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("running", "waiting_for_receipts", counts(sent=4))
    await pool.execute("UPDATE messages SET status = 'delivered' WHERE recipient <> $1", number(0))
    await pool.execute("UPDATE messages SET status = 'undelivered' WHERE recipient = $1", number(0))
    for _ in range(3):
        await count(pool)
        await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason) == ("completed", None)
    assert found.counts == counts(delivered=3, failed=1)
    events = await pool.fetch("SELECT * FROM events WHERE kind = 'campaign.completed'")
    assert [msgspec.json.decode(row["data"]) for row in events] == [{"campaign": record.shown(found)}]
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'webhook'") == 1
    assert await pool.fetchval("SELECT count(*) FROM campaign_chunks") == 0


async def test_one_that_runs_and_stands_still_says_what_it_waits_for(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1), number(2)])
    await run(pool)

    async def reason() -> str | None:
        found = await get(pool, actor, made.id)
        assert (found.status, found.counts.queued) == ("running", 2)
        return found.status_reason

    assert await reason() == "no_supplier_connected"
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, 'main', 'smpp', '{}', '', now(), now())",
        SUPPLIER,
    )
    await pool.execute(
        "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound)"
        " VALUES ($1, 0, $1, now() + interval '3 days', true)",
        SUPPLIER,
    )
    assert await reason() == "no_supplier_connected", "the clock was set back since"
    await pool.execute("UPDATE supplier_sessions SET lease_until = now() + interval '1 minute'")
    assert await reason() is None
    one = "(SELECT id FROM messages ORDER BY id LIMIT 1)"
    await pool.execute(f"UPDATE queue SET due_at = now() + interval '5 hours' WHERE id = {one}")
    assert await reason() is None
    await pool.execute(f"UPDATE messages SET quiet_until = now() + interval '5 hours' WHERE id = {one}")
    assert await reason() == "quiet_hours"
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",), organization_id=actor.organization_id), reason="asked")
    assert await reason() == "held_by_operator"
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    assert await reason() == "organization_suspended"


async def test_receipts_that_never_come_do_not_hold_it_up_for_days(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1), number(2)])
    await run(pool)
    await pool.execute("UPDATE messages SET status = 'sent'")
    await count(pool)
    assert (await get(pool, actor, made.id)).status == "running"
    await pool.execute("UPDATE campaigns SET drained_at = now() - $1::interval", counting.PATIENCE)
    await count(pool)
    assert (await get(pool, actor, made.id)).status == "completed"
    await pool.execute("UPDATE messages SET status = 'unknown'")
    await count(pool)
    await pool.execute("UPDATE messages SET status = 'delivered'")
    await count(pool)
    assert (await get(pool, actor, made.id)).counts == counts(delivered=2)
    assert await pool.fetchval("SELECT count(*) FROM events") == 1


async def test_cancel_withdraws_what_is_not_sent_and_gives_the_quota_back(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    made = await create(pool, actor, recipients=[number(n) for n in range(20)])
    await run(pool, chunk=4)
    assert (await get(pool, actor, made.id)).counts == counts(queued=10, pending=10)
    # One was taken by a worker, one was sent already.
    taken = await pool.fetchval("SELECT id FROM messages WHERE recipient = $1", number(1))
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute' WHERE id = $1", taken)
    gone = await pool.fetchval("UPDATE messages SET status = 'sent' WHERE recipient = $1 RETURNING id", number(2))
    await pool.execute("DELETE FROM queue WHERE id = $1", gone)
    found = await cancel(pool, actor, made.id)
    assert (found.status, found.counts) == ("canceled", counts(queued=10, canceled=10))
    await run(pool)
    assert (await cancel(pool, actor, made.id)).counts == counts(queued=1, sent=1, canceled=18)
    assert [row[0] for row in await pool.fetch("SELECT id FROM queue")] == [taken]
    total, used = await pool.fetchrow("SELECT total, used FROM quotas")
    assert (total, used) == (10, 2)
    assert await pool.fetchval("SELECT sum(quantity) FROM usage_entries") == 8
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type = 'refund'") == 8
    # A message that the worker puts back is not sent either.
    await run(pool)
    assert await pool.fetchval("SELECT step_at > now() FROM campaigns")
    await pool.execute("UPDATE queue SET lease_until = NULL, lease_token = NULL")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert (await get(pool, actor, made.id)).counts == counts(sent=1, canceled=19)
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0
    assert await pool.fetchval("SELECT step_at FROM campaigns") is None


async def tried(pool: Pool, actor: Actor, n: int, state: str, *, part: bool = False) -> UUID:
    """A message that was tried once, with this result, and waits; `part`: a supplier has a part of it."""
    id: UUID = await pool.fetchval("SELECT id FROM messages WHERE recipient = $1", number(n))
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 1, $2, $3, now(), now())",
        actor.organization_id,
        id,
        state,
    )
    await pool.execute("UPDATE queue SET attempt = 1, target_id = $1 WHERE id = $1", id)
    if part:
        await pool.execute(
            "INSERT INTO sms_parts (answered_on, supplier_id, id_key, message_id, attempt, part, parts,"
            " organization_id, recipient_suffix, created_at)"
            " VALUES (current_date, $2, 'x', $2, 1, 1, 2, $1, '', now())",
            actor.organization_id,
            id,
        )
    return id


async def test_what_a_supplier_has_in_part_was_sent_though_it_failed(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    made = await create(pool, actor, "x" * 200, recipients=[number(n) for n in range(3)])
    await run(pool)
    bench = Bench(pool)
    answers = {
        number(0): Outcome(Verdict.REFUSED),
        number(1): Outcome(Verdict.REFUSED, (Part(1, "A1", "A1"),)),
        number(2): Outcome(Verdict.ACCEPTED, (Part(1, "B1", "B1"), Part(2, "B2", "B2"))),
    }
    bench.only.script = lambda submission: answers[f"+{submission.to.removeprefix('+')}"]
    assert await bench.round() == 3
    await count(pool)
    found = await get(pool, actor, made.id)
    assert (found.counts, found.never_sent) == (counts(failed=2, sent=1), 1)


async def test_a_failure_that_a_receipt_reports_was_sent_though_its_answer_was_lost(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    made = await create(pool, actor, recipients=[number(n) for n in range(3)])
    await run(pool)
    for n, state in ((0, "refused"), (1, "accepted"), (2, "unknown")):
        await tried(pool, actor, n, state)
    await end(pool, "undelivered")
    await count(pool)
    found = await get(pool, actor, made.id)
    assert (found.counts, found.never_sent) == (counts(failed=3), 1)


async def test_what_a_supplier_put_off_goes_out_neither_after_a_cancellation_nor_in_a_pause(pool: Pool) -> None:
    """As in WhatsApp campaigns: only what a supplier may have, or has in part, continues."""
    actor = await organization(pool, quota=10)
    made = await create(pool, actor, recipients=[number(n) for n in range(6)])
    await run(pool)
    for n, state in ((1, "busy"), (2, "unreachable"), (3, "refused")):
        await tried(pool, actor, n, state)
    kept = {await tried(pool, actor, 4, "unknown"), await tried(pool, actor, 5, "busy", part=True)}
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, actor, id=made.id)
    await run(pool)
    waiting = "SELECT id FROM queue WHERE due_at < now() + interval '1 day'"
    assert {row["id"] for row in await pool.fetch(waiting)} == kept
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, actor, id=made.id)
    await run(pool)
    assert len(await pool.fetch(waiting)) == 6
    await cancel(pool, actor, made.id)
    await run(pool)
    assert {row["id"] for row in await pool.fetch("SELECT id FROM queue")} == kept
    assert (await get(pool, actor, made.id)).counts == counts(queued=2, canceled=4)
    assert await pool.fetchval("SELECT total - used FROM quotas") == 8


async def test_what_a_worker_puts_back_during_a_pause_waits_for_its_end(pool: Pool) -> None:
    """A worker had claimed it when the pause began, and its supplier has deferred it since."""
    actor = await organization(pool, quota=10)
    made = await create(pool, actor, recipients=[number(n) for n in range(3)])
    await run(pool)
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute'")
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, actor, id=made.id)
    await run(pool)
    soon = "SELECT count(*) FROM queue WHERE due_at < now() + interval '1 day'"
    assert await pool.fetchval(soon) == 3
    assert await pool.fetchval("SELECT step_at > now() FROM campaigns")
    for n in (1, 2):
        await tried(pool, actor, n, "busy")
    await pool.execute("UPDATE queue SET lease_until = NULL, lease_token = NULL WHERE attempt > 0")
    for _ in range(2):  # a second pass moves nothing further
        await pool.execute("UPDATE campaigns SET step_at = now()")
        await run(pool)
        assert await pool.fetchval(soon) == 1
    # Nothing stays claimed for that long.
    await pool.execute("UPDATE campaign_chunks SET put_off_at = put_off_at - interval '11 minutes'")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert await pool.fetchval("SELECT step_at FROM campaigns") is None
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, actor, id=made.id)
    await run(pool)
    assert await pool.fetchval(soon) == 3


async def test_what_has_ended_cannot_be_canceled(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1)])
    await run(pool)
    await end(pool, "delivered")
    await count(pool)
    with pytest.raises(plan.CampaignNotCancelable) as refused:
        await cancel(pool, actor, made.id)
    assert refused.value.details == {"id": str(made.id), "status": "completed"}
    with pytest.raises(NotFound):
        await cancel(pool, await organization(pool), made.id)


@pytest.mark.parametrize(
    ("first", "was", "ends"),
    [("paused", "paused", "canceled"), ("canceled", "running", "canceled"), ("completed", "running", "completed")],
)
async def test_a_cancellation_is_decided_after_what_happens_at_the_same_moment(
    pool: Pool, first: str, was: str, ends: str
) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1)])
    await run(pool)
    async with pool.acquire() as conn, conn.transaction():
        if first == "completed":
            await conn.execute("UPDATE campaigns SET queued = 0, delivered = 1")
        await plan.move(conn, actor.organization_id, made.id, first, was="running")
        late = asyncio.create_task(cancel(pool, actor, made.id))
        await blocked(pool)
    (done,) = await asyncio.gather(late, return_exceptions=True)
    if ends == "canceled":
        assert isinstance(done, Campaign)
        assert done.status == "canceled"
    else:
        assert isinstance(done, plan.CampaignNotCancelable)
        assert done.details == {"id": str(made.id), "status": ends}
    moves = await pool.fetch(
        "SELECT before::jsonb ->> 'status' AS before FROM audit_log"
        " WHERE action = 'campaign.moved' AND after::jsonb ->> 'status' = 'canceled'"
    )
    assert [row["before"] for row in moves] == ([was] if ends == "canceled" else [])
    assert (await get(pool, actor, made.id)).status == ends


async def test_a_scheduled_one_is_canceled_before_its_time(pool: Pool) -> None:
    actor = await organization(pool)
    at = datetime.now(UTC) + timedelta(hours=1)
    made = await create(pool, actor, recipients=[number(1)], scheduled_at=at)
    await cancel(pool, actor, made.id)
    await run(pool)
    found = await get(pool, actor, made.id)
    assert (found.status, found.counts) == ("canceled", counts(canceled=1))
    assert await texts(pool) == {}


async def test_recipients_are_forgotten_after_the_end(pool: Pool) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, recipients=[number(1), number(2)])
    later = await create(pool, actor, recipients=[number(3)], scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    await run(pool)
    await cancel(pool, actor, made.id)
    await run(pool)
    async with pool.acquire() as conn:
        assert await audience.forget(conn) == 2
        assert await audience.forget(conn) == 0
    assert [row[0] for row in await pool.fetch("SELECT campaign_id FROM campaign_recipients")] == [later.id]


# ── Side by side ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_many_workers_stage_each_recipient_once(pool: Pool) -> None:
    actor = await organization(pool, quota=150)
    made = [await create(pool, actor, recipients=[number(n) for n in range(i * 100, i * 100 + 100)]) for i in range(2)]
    await asyncio.gather(*(run(pool, chunk=9) for _ in range(4)))
    await run(pool)
    found = [await get(pool, actor, one.id) for one in made]
    assert sum(one.counts.queued for one in found) == 150
    assert len(await texts(pool)) == 150
    await check_books(pool, [actor.organization_id])


async def test_one_that_fails_lets_the_others_pass(pool: Pool) -> None:
    actor = await organization(pool)
    broken = await create(pool, actor, recipients=[number(1)])
    await pool.execute("UPDATE campaigns SET message_template = '{{gone}}'")
    made = await create(pool, actor, recipients=[number(2)])
    await run(pool)
    assert set(await texts(pool)) == {number(2)}
    assert (await get(pool, actor, made.id)).counts.queued == 1
    assert (await get(pool, actor, broken.id)).counts.pending == 1


async def test_pages_are_newest_first(pool: Pool) -> None:
    actor = await organization(pool)
    made = [await create(pool, actor, recipients=[number(1)]) for _ in range(3)]
    async with pool.acquire() as conn:
        first = await record.list_page(conn, actor, after=None, limit=2)
        rest = await record.list_page(conn, actor, after=first[-1].id, limit=2)
        assert [one.id for one in (*first, *rest)] == [one.id for one in reversed(made)]
        assert await record.list_page(conn, await organization(pool), after=None, limit=2) == []


# ── A second person's approval ────────────────────────────────────────────────────────────────────────────────────


def person(actor: Actor, name: str) -> Actor:
    return msgspec.structs.replace(actor, by=Principal("person", uuid7(), name))


async def colleague(pool: Pool, actor: Actor, name: str) -> Actor:
    """A member who may create campaigns."""
    made = person(actor, name)
    await pool.execute(COLLEAGUE, made.user_id, f"{made.user_id}@example.com", name, actor.organization_id)
    return made


COLLEAGUE = """
WITH made AS (INSERT INTO users (id, email, name, created_at) VALUES ($1, $2, $3, now()))
INSERT INTO memberships (organization_id, user_id, role, created_at) VALUES ($4, $1, 'sender', now())
"""


async def needs_approval(pool: Pool, actor: Actor, above: int | None) -> None:
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=actor.organization_id, approval_above=above)


async def approve(pool: Pool, actor: Actor, id: UUID) -> Campaign:
    async with pool.acquire() as conn, conn.transaction():
        return await approving.approve(conn, actor, id=id)


async def resume(pool: Pool, actor: Actor, id: UUID) -> Campaign:
    async with pool.acquire() as conn, conn.transaction():
        return await plan.resume(conn, actor, id=id)


async def test_a_campaign_to_many_waits_for_a_second_person(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui = person(actor, "Ana"), await colleague(pool, actor, "Rui")
    await needs_approval(pool, actor, 2)
    small = await create(pool, ana, recipients=[number(1), number(2)])
    made = await create(pool, ana, recipients=[number(n) for n in range(3, 6)])
    await run(pool)
    assert (await get(pool, actor, small.id)).status == "running"
    found = await get(pool, actor, made.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", "approval_required", counts(pending=3))
    assert [*await texts(pool)] == [number(1), number(2)]
    told = await pool.fetch("SELECT kind, object, name FROM notices")
    assert [tuple(row) for row in told] == [("campaign.approval", str(made.id), "Sale")]
    # Neither its author nor a key can; nor can it be resumed, or paused and resumed.
    key = msgspec.structs.replace(actor, key_id=uuid7())
    for who in (ana, key):
        with pytest.raises(CampaignApprovalByAnother):
            await approve(pool, who, made.id)
    with pytest.raises(CampaignApprovalRequired) as refused:
        await resume(pool, rui, made.id)
    assert refused.value.details == {"id": str(made.id), "recipients": 3, "limit": 2}
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, ana, id=made.id)
    with pytest.raises(CampaignApprovalRequired):
        await resume(pool, key, made.id)
    approved = await approve(pool, rui, made.id)
    assert (approved.status, approved.approved_at is not None) == ("paused", True)
    assert (await approve(pool, rui, made.id)).approved_at == approved.approved_at
    await resume(pool, ana, made.id)
    await run(pool)
    assert len(await texts(pool)) == 5
    logged = await pool.fetch("SELECT who_name, after FROM audit_log WHERE action = 'campaign.approved' ORDER BY id")
    assert [tuple(row) for row in logged] == [("Rui", '{"recipients":3,"approved_for":6}')]


async def test_the_creator_is_notified_of_an_approval_and_of_a_cancellation_by_somebody_else(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui = person(actor, "Ana"), await colleague(pool, actor, "Rui")
    operator = msgspec.structs.replace(actor, by=Principal("operator", uuid7(), "Olga"))
    await needs_approval(pool, actor, 0)
    approved, refused, stopped, own = [await create(pool, ana, recipients=[number(1)]) for _ in range(4)]
    by_key = await create(pool, actor, recipients=[number(1)])
    await run(pool)
    for one in (approved, by_key):
        await approve(pool, rui, one.id)
    for who, one in ((rui, refused), (operator, stopped), (ana, own), (rui, by_key)):
        async with pool.acquire() as conn, conn.transaction():
            await plan.cancel(conn, who, id=one.id)
    told = await pool.fetch(
        "SELECT kind, object, facts, user_id FROM notices WHERE kind IN ('campaign.approved', 'campaign.canceled')"
    )
    assert {tuple(row) for row in told} == {
        ("campaign.approved", str(approved.id), '{"channel":"sms","by":"Rui"}', ana.user_id),
        ("campaign.canceled", str(refused.id), '{"channel":"sms","by":"Rui"}', ana.user_id),
        # Operators are not named to organizations.
        ("campaign.canceled", str(stopped.id), '{"channel":"sms"}', ana.user_id),
    }


async def test_nobody_is_told_of_a_campaign_that_no_longer_waits_for_an_approval(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui = person(actor, "Ana"), await colleague(pool, actor, "Rui")
    await needs_approval(pool, actor, 0)
    approved, canceled, resumed, left = [await create(pool, ana, recipients=[number(n)]) for n in range(4)]
    later = datetime.now(UTC) + timedelta(days=1)
    planned = [await create(pool, ana, recipients=[number(n)], scheduled_at=later) for n in range(4, 7)]
    await run(pool)
    assert await waiting(pool) == {one.id for one in (approved, canceled, resumed, left, *planned)}
    for one in (approved, planned[0]):
        await approve(pool, rui, one.id)
    for one in (canceled, planned[1]):
        async with pool.acquire() as conn, conn.transaction():
            await plan.cancel(conn, ana, id=one.id)
    await needs_approval(pool, actor, None)
    await resume(pool, ana, resumed.id)
    assert await waiting(pool) == {left.id, planned[2].id}


async def waiting(pool: Pool) -> set[UUID]:
    """Campaigns of which the bell says that they wait for an approval."""
    return {UUID(row[0]) for row in await pool.fetch("SELECT object FROM notices WHERE kind = 'campaign.approval'")}


async def test_nobody_is_told_that_a_campaign_is_stalled_once_it_goes_on(pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    made = await create(pool, actor, recipients=[number(n) for n in range(9)])
    await run(pool)

    async def rang() -> UUID | None:
        found: UUID | None = await pool.fetchval("SELECT id FROM notices WHERE kind = 'campaign.paused'")
        return found

    async def goes_on(amount: int) -> UUID | None:
        async with pool.acquire() as conn:
            await quota.grant(conn, actor.organization_id, amount=amount, reason="more")
        await pool.execute("UPDATE campaigns SET step_at = now()")
        await run(pool)
        return await rang()

    first = await rang()
    assert first is not None
    # It stalls again within the hour, and does not ring each time.
    assert await goes_on(1) == first
    await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", notices.QUIET)
    assert await goes_on(1) not in (None, first)
    await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", notices.QUIET)
    assert await goes_on(99) is None
    assert (await get(pool, actor, made.id)).counts == counts(queued=9)


async def test_a_campaign_that_stalled_again_within_the_hour_rings_when_that_is_over(pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    made = await create(pool, actor, recipients=[number(n) for n in range(9)])
    await run(pool)

    async def rings() -> int:
        """Check as a worker does every five minutes; returns how many notices there are."""
        async with pool.acquire() as conn:
            await conditions.report(conn)
        count: int = await pool.fetchval("SELECT count(*) FROM notices WHERE kind = 'campaign.paused'")
        return count

    assert await rings() == 1
    async with pool.acquire() as conn:
        await quota.grant(conn, actor.organization_id, amount=1, reason="more")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert (await get(pool, actor, made.id)).status_reason == plan.QUOTA
    assert await rings() == 1
    await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", notices.QUIET)
    assert await rings() == 2
    # Once that is known, it is not reported again, however long it lasts.
    await pool.execute("UPDATE notices SET created_at = created_at - 2 * $1::interval", notices.QUIET)
    await pool.execute("UPDATE campaigns SET stalled_at = stalled_at - 3 * $1::interval", notices.QUIET)
    assert await rings() == 2
    async with pool.acquire() as conn:
        await quota.grant(conn, actor.organization_id, amount=99, reason="more")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert await rings() == 0


async def test_nobody_is_told_that_a_campaign_is_stalled_once_it_has_ended(pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    made = await create(pool, actor, recipients=[number(n) for n in range(2)])
    await run(pool)
    told = "SELECT count(*) FROM notices WHERE kind = 'campaign.paused'"
    assert await pool.fetchval(told) == 1
    await cancel(pool, actor, made.id)
    assert await pool.fetchval(told) == 0


AS_IF = """
UPDATE campaigns SET status = $1, status_reason = $2, staged_to = '',
       pending = ($1 <> ALL ('{completed,canceled,failed}'))::int,
       canceled = ($1 = ANY ('{completed,canceled,failed}'))::int,
       completed_at = CASE WHEN $1 = 'completed' THEN now() END
"""


async def test_what_may_be_done_is_what_the_rules_accept_and_what_changes_something(pool: Pool) -> None:
    actor = await organization(pool)
    ana = person(actor, "Ana")
    id = (await create(pool, ana, recipients=[number(1)])).id
    rules: dict[str, Any] = {
        "pause": plan.pause,
        "resume": plan.resume,
        "cancel": plan.cancel,
        "pace": functools.partial(plan.change_pace, messages_per_minute=5),
    }
    reasons = (None, plan.QUOTA, plan.BY_REQUEST, rule.REASON)
    cases = [(status, None, False) for status in plan.STATES if status != "paused"]
    cases += [("running", plan.QUOTA, False), *itertools.product(["paused"], reasons, (False, True))]
    async with pool.acquire() as conn:
        for status, reason, needs in cases:
            changing = set()
            for name, act in rules.items():
                tried = conn.transaction()
                await tried.start()
                await conn.execute("UPDATE organizations SET approval_above = $1", 0 if needs else None)
                await conn.execute(AS_IF, status, reason)
                before = await record.get(conn, ana, id=id)
                with contextlib.suppress(Refusal):
                    if await act(conn, ana, id=id) != before:
                        changing.add(name)
                await tried.rollback()
            assert plan.acts(before, needs_approval=needs) == changing, (status, reason, needs)
            if reason != plan.BY_REQUEST:
                assert plan.acts(before) == plan.acts(before, needs_approval=reason == rule.REASON)


async def test_an_approval_counts_who_was_gathered(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui = person(actor, "Ana"), await colleague(pool, actor, "Rui")
    await needs_approval(pool, actor, 1)
    for n in range(2):
        await contact(pool, actor, number(n), "vip", "porto")
    at = datetime.now(UTC) + timedelta(hours=1)
    later = await create(pool, ana, audience_tags=["vip"], scheduled_at=at)
    early = await create(pool, ana, audience_tags=["vip"], scheduled_at=at)
    small = await create(pool, ana, recipients=[number(1)], scheduled_at=at)
    told = await pool.fetch("SELECT object FROM notices WHERE kind = 'campaign.approval' ORDER BY id")
    assert [row[0] for row in told] == [str(later.id), str(early.id)]
    assert (await approve(pool, rui, early.id)).status == "scheduled"
    async with pool.acquire() as conn:
        assert (await approving.standing(conn, ana, campaign=later)).above == 1
        assert (await approving.standing(conn, ana, campaign=small)).above is None
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    found = [await get(pool, actor, one.id) for one in (later, early, small)]
    assert [one.status for one in found] == ["paused", "running", "running"]
    assert found[0].status_reason == "approval_required"
    moved = await approve(pool, rui, later.id)
    assert moved.status == "running"
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE campaign_id = $1", later.id) == 2


async def test_an_approval_covers_no_more_than_twice_those_who_were_expected(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui = person(actor, "Ana"), await colleague(pool, actor, "Rui")
    await needs_approval(pool, actor, 0)
    at = datetime.now(UTC) + timedelta(hours=1)
    for n in range(2):
        await contact(pool, actor, number(n), "vip", "porto", "old")
    grew = await create(pool, ana, audience_tags=["vip"], scheduled_at=at)
    outgrew = await create(pool, ana, audience_tags=["porto"], scheduled_at=at)
    both = await create(pool, ana, audience_tags=["vip", "porto"], audience_tag_match_mode="all", scheduled_at=at)
    every = (grew, outgrew, both)
    # People with several of the tags are one recipient each, and those with an excluded tag none.
    await contact(pool, actor, number(8), "beira")
    await contact(pool, actor, number(9), "beira", "staff")
    several = await create(
        pool, ana, audience_tags=["vip", "porto", "old", "beira"], excluded_tags=["staff"], scheduled_at=at
    )
    for one in (*every, several):
        await approve(pool, rui, one.id)
    async with pool.acquire() as conn:
        states = [await approving.standing(conn, ana, campaign=one) for one in (*every, several)]
        assert [(one.above, one.approved_for) for one in states] == [(None, 4)] * 3 + [(None, 6)]
        await plan.cancel(conn, ana, id=several.id)
    for n in range(2, 4):
        await contact(pool, actor, number(n), "vip", "porto")
    await contact(pool, actor, number(4), "porto")
    async with pool.acquire() as conn:
        states = [await approving.standing(conn, ana, campaign=one) for one in every]
        assert [one.above for one in states] == [None, 4, None]
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    found = [await get(pool, actor, one.id) for one in every]
    assert [one.status for one in found] == ["running", "paused", "running"]
    assert (found[1].status_reason, found[1].counts) == ("approval_required", counts(pending=5))
    with pytest.raises(CampaignApprovalRequired) as refused:
        await resume(pool, rui, outgrew.id)
    assert refused.value.details == {"id": str(outgrew.id), "recipients": 5, "limit": 4}
    assert (await approve(pool, rui, outgrew.id)).status == "running"
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE campaign_id = $1", outgrew.id) == 5


async def test_an_approval_counts_as_long_as_its_approver_may_give_it(pool: Pool) -> None:
    actor = await organization(pool)
    ana, rui, eva = person(actor, "Ana"), await colleague(pool, actor, "Rui"), await colleague(pool, actor, "Eva")
    await needs_approval(pool, actor, 0)
    at = datetime.now(UTC) + timedelta(hours=1)
    left, demoted, kept = [await create(pool, ana, recipients=[number(n)], scheduled_at=at) for n in range(3)]
    for who, one in ((rui, left), (eva, demoted), (eva, kept)):
        await approve(pool, who, one.id)
    async with pool.acquire() as conn:
        assert rui.user_id is not None
        assert eva.user_id is not None
        await memberships.remove(conn, actor, user_id=rui.user_id)
        await memberships.change_role(conn, actor, user_id=eva.user_id, role="viewer")
        states = [await approving.standing(conn, ana, campaign=one) for one in (left, demoted)]
        assert [(one.above, one.approver, one.lapsed) for one in states] == [(0, "Rui", "left"), (0, "Eva", "role")]
        # The bell rings once, and long before they would have begun.
        assert await waiting(pool) == set()
        for _ in range(2):
            await lapses.report(conn)
            assert await waiting(pool) == {left.id, demoted.id, kept.id}
            told = await pool.fetch("SELECT facts FROM notices WHERE kind = 'campaign.approval'")
            assert [row[0] for row in told] == ['{"channel":"sms"}'] * 3
            await pool.execute("UPDATE notices SET created_at = created_at - interval '30 days'")
        await pool.execute("DELETE FROM notices")
        await needs_approval(pool, actor, 5)
        await lapses.report(conn)
        assert await waiting(pool) == set()
        await needs_approval(pool, actor, 0)
        await lapses.report(conn)
        await memberships.change_role(conn, actor, user_id=eva.user_id, role="admin")
        assert (await approving.standing(conn, ana, campaign=kept)).above is None
        # It counts again: nobody is asked for another one.
        assert await waiting(pool) == {left.id, demoted.id, kept.id}
        await lapses.report(conn)
        assert await waiting(pool) == {left.id}
        await memberships.change_role(conn, actor, user_id=eva.user_id, role="viewer")
        await pool.execute("UPDATE campaigns SET step_at = now() WHERE id <> $1", kept.id)
        await run(pool)
        await memberships.change_role(conn, actor, user_id=eva.user_id, role="sender")
        await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", kept.id)
        await run(pool)
    found = [await get(pool, actor, one.id) for one in (left, demoted, kept)]
    assert [one.status for one in found] == ["paused", "paused", "running"]
    assert {one.status_reason for one in found[:2]} == {"approval_required"}
    assert (await approve(pool, eva, left.id)).status == "running"
    await run(pool)
    async with pool.acquire() as conn:
        await memberships.remove(conn, actor, user_id=eva.user_id)
        # What has begun was approved, whoever has left since.
        state = await approving.standing(conn, ana, campaign=await get(pool, actor, kept.id))
        assert (state.above, state.approver, state.lapsed) == (None, "Eva", None)


async def test_the_bell_stops_asking_for_an_approval_once_the_organization_asks_for_none(pool: Pool) -> None:
    actor = await organization(pool)
    ana = person(actor, "Ana")
    await needs_approval(pool, actor, 0)
    soon = datetime.now(UTC) + timedelta(hours=1)
    small, large = [
        await create(pool, ana, recipients=[number(n) for n in range(1, size + 1)], scheduled_at=soon)
        for size in (2, 4)
    ]
    begun_already = await create(pool, ana, recipients=[number(1)])
    await run(pool)
    everything = {small.id, large.id, begun_already.id}
    async with pool.acquire() as conn:
        await lapses.report(conn)
        assert await waiting(pool) == everything
        # Of what has begun, somebody has to say that it goes on.
        for above, left in ((3, {large.id, begun_already.id}), (None, {begun_already.id})):
            await needs_approval(pool, actor, above)
            await lapses.report(conn)
            assert await waiting(pool) == left


async def test_a_campaign_that_is_approved_anew_while_that_is_looked_for_does_not_wait(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bell said that it waits for an approval until it began."""
    actor = await organization(pool)
    ana, rui, eva = person(actor, "Ana"), await colleague(pool, actor, "Rui"), await colleague(pool, actor, "Eva")
    await needs_approval(pool, actor, 0)
    made = await create(pool, ana, recipients=[number(1)], scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    await approve(pool, rui, made.id)
    approved: list[asyncio.Future[Campaign]] = []

    async def anew() -> None:
        approved.append(await begun(pool, approve(pool, eva, made.id)))

    async with pool.acquire() as conn:
        assert rui.user_id is not None
        await memberships.remove(conn, actor, user_id=rui.user_id)
        after(monkeypatch, rule, "expected", anew)
        await lapses.report(conn)
    assert (await approved[0]).approved_at is not None
    assert await waiting(pool) == set()


async def test_who_asks_for_no_approval_any_more_gets_none(pool: Pool) -> None:
    actor = await organization(pool)
    ana = person(actor, "Ana")
    await needs_approval(pool, actor, 0)
    made, other = [await create(pool, ana, recipients=[number(n)]) for n in (1, 2)]
    tried = await create(pool, msgspec.structs.replace(ana, mode="test"), recipients=[number(3)])
    await run(pool)
    assert (await get(pool, msgspec.structs.replace(ana, mode="test"), tried.id)).status == "running"
    assert (await resume(pool, actor, other.id)).status == "running"  # an operator
    await needs_approval(pool, actor, None)
    assert (await resume(pool, ana, made.id)).status == "running"
    # A campaign that has begun needs no approval: it continues after a pause.
    await run(pool)
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, ana, id=made.id)
    await needs_approval(pool, actor, 0)
    assert (await resume(pool, ana, made.id)).status == "running"


# ── The people of an import ───────────────────────────────────────────────────────────────────────────────────────


async def imported(pool: Pool, actor: Actor, tmp_path: Path, *rows: str) -> UUID:
    """Import a file of contacts in batches of two rows."""
    path = tmp_path / "people.csv"
    path.write_text("\n".join(("phone,name,tags", *rows)))
    layout = sheets.layout(path)
    async with pool.acquire() as conn:
        done = await importing.run(
            conn,
            actor,
            path=path,
            layout=layout,
            rejects=tmp_path / "rejects.csv",
            options=Options(batch=2),
            on_progress=lambda _: None,
        )
    assert done.import_id is not None
    return done.import_id


async def test_the_people_of_an_import_get_it(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    for n in (1, 2, 8):  # unchanged, updated, not in the file
        await contact(pool, actor, number(n), name=f"P{n}")
    rows = [f"{number(1)},P1,", f"{number(2)},Bia,", f"{number(3)},Eva,staff", "12,Nobody,", f"{number(4)},Rui,"]
    id = await imported(pool, actor, tmp_path, *rows, f"{number(5)},Zé,", f"{number(1)},P1,")
    await opt_out(pool, actor, number(4))
    other = await organization(pool)
    for who, wanted in ((actor, uuid7()), (other, id)):
        with pytest.raises(Invalid, match="no import of contacts"):
            await create(pool, who, audience_import=wanted)
    with pytest.raises(Invalid, match="give one of"):
        await create(pool, actor, audience_import=id, audience_tags=["vip"])
    made = await create(pool, actor, "Hi {{name}}", audience_import=id, excluded_tags=["staff"])
    assert (made.audience_import, made.audience_tags, record.shown(made)["recipient_count"]) == (id, None, None)
    async with pool.acquire() as conn:
        say = preview.sms(actor, "Hi {{name}}", reaches=lambda phone, segments: True)
        seen = await preview.preview_audience(conn, actor, say=say, imported=id, without=["staff"])
        assert (seen.found, seen.excluded, seen.opted_out, seen.would) == (5, 1, 1, 3)
        # People who are deleted before the start get no message.
        await conn.execute(
            "DELETE FROM contacts WHERE phone = $1 AND organization_id = $2", number(5), actor.organization_id
        )
    await run(pool)
    assert await texts(pool) == {number(1): "Hi P1", number(2): "Hi Bia"}
    found = await get(pool, actor, made.id)
    assert found.counts == counts(queued=2, opted_out=1)


@pytest.mark.parametrize("ends", ["finished", "stopped"])
async def test_a_campaign_waits_for_the_rest_of_an_import_that_is_still_running(
    pool: Pool, tmp_path: Path, ends: str
) -> None:
    """Whoever began it while a worker was importing the file wrote only to those who were imported by then."""
    actor = await organization(pool)
    id = await imported(pool, actor, tmp_path, *(f"{number(n)},P{n}," for n in (1, 2, 3)))
    rest = "SELECT organization_id, batch, created, people, written_at FROM contact_import_batches WHERE batch = 2"
    late = await pool.fetchrow(rest)
    assert late is not None
    await pool.execute("DELETE FROM contact_import_batches WHERE batch = 2")
    await pool.execute("UPDATE contact_imports SET state = 'running', is_uploaded = true")
    made = await create(pool, actor, audience_import=id)
    for _ in range(2):
        await run(pool)
        assert await pool.fetchval("SELECT step_at > now() FROM campaigns")
        await pool.execute("UPDATE campaigns SET step_at = now()")
    assert ((await get(pool, actor, made.id)).status, await texts(pool)) == ("staging", {})
    await pool.execute(
        "INSERT INTO contact_import_batches (organization_id, import_id, batch, created, people, written_at)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        late["organization_id"],
        id,
        *tuple(late)[1:],
    )
    await pool.execute("UPDATE contact_imports SET state = $1", ends)
    await run(pool)
    assert set(await texts(pool)) == {number(1), number(2), number(3)}
    assert (await get(pool, actor, made.id)).counts == counts(queued=3)


async def test_a_list_is_kept_until_the_campaign_scheduled_for_it_begins(pool: Pool, tmp_path: Path) -> None:
    """Import lists are deleted with texts, after a month; a campaign may be scheduled a year ahead."""
    actor = await organization(pool)
    id = await imported(pool, actor, tmp_path, f"{number(1)},Ana,")
    other = await imported(pool, actor, tmp_path, f"{number(2)},Rui,")
    later = datetime.now(UTC) + timedelta(days=100)
    made = await create(pool, actor, audience_import=id, scheduled_at=later)
    forget = (retention.DELETE_BATCHES, UUID(int=uuid7_floor(later).int), 100)
    await pool.execute(*forget)
    assert [row[0] for row in await pool.fetch("SELECT import_id FROM contact_import_batches")] == [id], other
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert set(await texts(pool)) == {number(1)}
    assert (await get(pool, actor, made.id)).counts == counts(queued=1)
    await pool.execute(*forget)
    assert await pool.fetchval("SELECT count(*) FROM contact_import_batches") == 0


async def test_an_import_that_was_undone_is_nobodys_audience(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    id = await imported(pool, actor, tmp_path, f"{number(1)},Ana,", f"{number(2)},Bia,", f"{number(3)},Eva,")
    await needs_approval(pool, actor, 2)
    at = datetime.now(UTC) + timedelta(hours=1)
    later = await create(pool, person(actor, "Ana"), audience_import=id, scheduled_at=at)
    assert await pool.fetchval("SELECT object FROM notices") == str(later.id)
    async with pool.acquire() as conn:
        await undoing.undo(conn, actor, id=id)
    with pytest.raises(Invalid, match="no import of contacts"):
        await create(pool, actor, audience_import=id)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    found = await get(pool, actor, later.id)
    assert (found.status, found.counts) == ("completed", counts())
