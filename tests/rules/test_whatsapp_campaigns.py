"""WhatsApp campaigns: what is checked when and by whom, who is skipped, the wallet, cancellation, counts, each once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import time_of, uuid7
from heliograph.campaigns import counting, filling, plan, record, staging, standstill
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.campaigns.channels.whatsapp import WhatsAppCampaignSpec
from heliograph.campaigns.filling import Filling
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.staging import Stager
from heliograph.campaigns.views import recipients
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.whatsapp.callbacks import conversations, expiry
from heliograph.whatsapp.mirror import warnings
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import TemplateNotApproved, TemplateNotFound, TemplateParameterMismatch
from heliograph.whatsapp.money import wallet
from tests.meanwhile import before, begun
from tests.rules.dispatching_whatsapp import UNKNOWN, Bench, accept_all, fault, status_item, status_of
from tests.rules.factories import endpoint
from tests.rules.test_campaigns import SLOW, count, counts, run
from tests.rules.test_campaigns import create as create_sms
from tests.rules.whatsapp_factories import CODE, PRICES, RESTRICT, UNIT, Made, check_wallets, made, rates, template

#: Parameters for `order_shipped`: a name, and a fixed text.
FILLINGS = (Filling(column="first_name", default="customer"), Filling(text="4471"))
#: The price of one message to `number(n)`.
PRICE = PRICES["utility", "MZ"]


def number(n: int) -> str:
    return f"+25884{n:07}"


async def contacts(pool: Pool, actor: Actor, amount: int, *, tag: str = "porto", **values: Any) -> None:
    entries = [Entry(number(n), f"P{n}", tags=(tag,), **values) for n in range(amount)]
    async with pool.acquire() as conn, conn.transaction():
        await records.create_many(conn, actor, entries=entries)


async def contact(pool: Pool, actor: Actor, phone: str, **values: Any) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await records.create(conn, actor, entry=Entry(phone, "Ana", tags=("porto",), **values))


def spec(known: Made, **values: Any) -> WhatsAppCampaignSpec:
    return WhatsAppCampaignSpec(
        **{
            "name": "Delivery day",
            "number_id": known.number_id,
            "template": "order_shipped",
            "language": "en",
            "parameters": FILLINGS,
            "audience_tags": ["porto"],
            **values,
        }
    )


async def create(pool: Pool, known: Made, **values: Any) -> Campaign:
    async with pool.acquire() as conn, conn.transaction():
        return await whatsapp_channel.create(conn, known.actor, spec=spec(known, **values), request_id="req")


async def get(pool: Pool, known: Made, id: UUID) -> Campaign:
    async with pool.acquire() as conn:
        return await record.get(conn, known.actor, id=id, channel="whatsapp")


async def cancel(pool: Pool, known: Made, id: UUID) -> Campaign:
    async with pool.acquire() as conn, conn.transaction():
        return await plan.cancel(conn, known.actor, id=id, channel="whatsapp")


async def top_up(pool: Pool, known: Made, amount: int) -> None:
    async with pool.acquire() as conn:
        await wallet.top_up(conn, known.organization_id, amount=amount)


async def again(pool: Pool, **sizes: int) -> None:
    """Run the step of a paused campaign now."""
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool, **sizes)


async def sent(pool: Pool) -> dict[str, list[str]]:
    """The parameter values of each recipient's message."""
    rows = await pool.fetch("SELECT recipient, content FROM whatsapp_messages")
    assert len(rows) == len({row["recipient"] for row in rows}), "somebody got it twice"
    return {row["recipient"]: msgspec.json.decode(row["content"])["parameters"] for row in rows}


# ── Making one ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_contacts_get_it_with_their_values(pool: Pool) -> None:
    known = await made(pool)
    await contact(pool, known.actor, number(1), first_name=" Ana ")
    await contact(pool, known.actor, number(2))
    campaign = await create(pool, known)
    assert (campaign.channel, campaign.status) == ("whatsapp", "staging")
    await run(pool)
    assert await sent(pool) == {number(1): ["Ana", "4471"], number(2): ["customer", "4471"]}
    found = await get(pool, known, campaign.id)
    assert (found.status, found.counts) == ("running", counts(queued=2))
    row = await pool.fetchrow("SELECT * FROM whatsapp_messages WHERE recipient = $1", number(1))
    assert row["campaign_id"] == campaign.id
    assert (row["template_id"], row["template_name"], row["template_language"]) == (
        known.template_id,
        "order_shipped",
        "en",
    )
    assert (row["status"], row["mode"], row["billing_category"], row["country"]) == (
        "accepted",
        "live",
        "utility",
        "MZ",
    )
    assert (row["charge"], row["reserved"]) == ("reserved", PRICE)
    assert row["deadline_at"] > row["accepted_at"] + timedelta(days=30)
    queued = await pool.fetch("SELECT kind, line, lane FROM queue")
    assert {tuple(one) for one in queued} == {("whatsapp", known.number_id, 1)}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 2
    await check_wallets(pool, [known.organization_id])


async def test_what_is_shown_and_to_whom(pool: Pool) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 1)
    campaign = await create(pool, known)
    shown = record.shown(campaign)
    assert (shown["channel"], shown["template_name"]) == ("whatsapp", "order_shipped")
    assert not shown.keys() & {"parameters", "message_template", "sender_id"}
    assert isinstance(shown["counts"], dict)
    assert "unknown" not in shown["counts"]
    text = await sms(pool, known.actor)
    assert "read" not in record.shown(text)["counts"]  # type: ignore[operator]
    async with pool.acquire() as conn:
        for channel, one in (("sms", text), ("whatsapp", campaign)):
            listed = await record.list_page(conn, known.actor, after=None, limit=9, channel=channel)
            assert [found.id for found in listed] == [one.id]
        for channel, id in (("sms", campaign.id), ("whatsapp", text.id)):
            with pytest.raises(NotFound):
                await record.get(conn, known.actor, id=id, channel=channel)
            with pytest.raises(NotFound):
                await plan.cancel(conn, known.actor, id=id, channel=channel)
    with pytest.raises(NotFound):
        await get(pool, await made(pool), campaign.id)


async def sms(pool: Pool, actor: Actor) -> Campaign:
    wanted = sms_channel.SmsCampaignSpec(name="Text", message_template="hi", recipients=[number(1)])
    async with pool.acquire() as conn, conn.transaction():
        return await sms_channel.create(conn, actor, spec=wanted, request_id="req")


@pytest.mark.parametrize(
    ("change", "refusal", "word"),
    [
        ({"number_id": uuid7()}, Invalid, "number"),
        ({"template": "unknown"}, TemplateNotFound, "unknown"),
        ({"language": "fr"}, TemplateNotFound, "fr"),
        ({"template": "login_code", "parameters": (Filling(text="1"),)}, Invalid, "who has just asked"),
        ({"parameters": ()}, TemplateParameterMismatch, "'expected': 2, 'received': 0"),
        ({"parameters": (Filling(text="a\nb"), Filling(text="x"))}, Invalid, "parameter 1"),
        ({"parameters": (Filling(column="name"), Filling(text=" "))}, Invalid, "parameter 2"),
        ({"parameters": (Filling(column="name", default="\t"), Filling(text="x"))}, Invalid, "parameter 1"),
        ({"parameters": (Filling(text="x"), Filling(text="x" * 1025))}, Invalid, "parameter 2"),
        ({"parameters": (Filling(text="x" * 600), Filling(text="x" * 600))}, Invalid, "the template"),
        ({"name": " "}, Invalid, "name"),
        ({"audience_tags": None}, Invalid, "audience_tags"),
        ({"audience_tags": ["none"]}, plan.CampaignAudienceEmpty, ""),
        ({"scheduled_at": datetime.now(UTC) + timedelta(days=400)}, Invalid, "scheduled_at"),
    ],
)
async def test_what_cannot_be(pool: Pool, change: dict[str, Any], refusal: type[Refusal], word: str) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 1)
    with pytest.raises(refusal) as refused:
        await create(pool, known, **change)
    assert word in f"{refused.value.message} {refused.value.details}"
    assert await pool.fetchval("SELECT count(*) FROM campaigns") == 0


@pytest.mark.parametrize(
    ("sql", "refusal"),
    [
        ("UPDATE whatsapp_templates SET status = 'pending'", TemplateNotApproved),
        ("UPDATE whatsapp_templates SET status = 'removed'", TemplateNotFound),
        ("UPDATE whatsapp_templates SET disabled_locally = true", TemplateNotFound),
        ("UPDATE whatsapp_templates SET category = 'marketing'", Invalid),
        ("UPDATE whatsapp_numbers SET connection_status = 'banned'", PhoneNumberUnavailable),
        ("UPDATE whatsapp_numbers SET state = 'removed'", PhoneNumberUnavailable),
        ("UPDATE whatsapp_accounts SET state = 'paused'", PhoneNumberUnavailable),
        ("UPDATE whatsapp_rates SET valid_from = now() + interval '1 day'", Invalid),
    ],
)
async def test_what_cannot_be_now(pool: Pool, sql: str, refusal: type[Refusal]) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 1)
    await pool.execute(sql)
    with pytest.raises(refusal):
        await create(pool, known)


def test_fillings_as_people_write_them() -> None:
    found = filling.parse(["first_name", "text:text: 1", "phone"], {"first_name": "you"})
    assert found == [Filling("first_name", "you"), Filling(text="text: 1"), Filling("phone")]
    stored = msgspec.json.encode(found).decode()
    assert filling.read(stored) == tuple(found)
    assert filling.written(stored) == ["first_name (you)", "text:text: 1", "phone"]
    for written, defaults in ((["tags"], {}), (["text"], {}), (["name"], {"phone": "x"})):
        with pytest.raises(Invalid):
            filling.parse(written, defaults)


# ── Who gets it ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_cannot_get_it_is_skipped_and_counted(pool: Pool) -> None:
    known = await made(pool)
    await pool.execute("DELETE FROM whatsapp_rates WHERE country = '*'")
    await contact(pool, known.actor, number(1), first_name="Ana")
    await contact(pool, known.actor, number(2), first_name="Rui")
    await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", known.organization_id, number(2))
    await contact(pool, known.actor, number(3))  # no value, and no default
    await contact(pool, known.actor, number(4), first_name="line\nbreak")
    await contact(pool, known.actor, number(5), first_name="{{1}} text: x")
    await contact(pool, known.actor, "+41791234567", first_name="Urs")  # its price is unknown
    campaign = await create(pool, known, parameters=(Filling(column="first_name"), Filling(column="phone")))
    await run(pool)
    assert await sent(pool) == {number(1): ["Ana", number(1)], number(5): ["{{1}} text: x", number(5)]}
    assert (await get(pool, known, campaign.id)).counts == counts(queued=2, opted_out=1, invalid=3)
    await check_wallets(pool, [known.organization_id])


async def test_only_allowed_countries_each_at_its_price(pool: Pool) -> None:
    known = await made(pool)
    await pool.execute("UPDATE organizations SET allowed_countries = '{MZ,CH}'")
    for phone in (number(1), "+41791234567", "+351912345678"):
        await contact(pool, known.actor, phone)
    campaign = await create(pool, known)
    await run(pool)
    rows = await pool.fetch("SELECT country, reserved FROM whatsapp_messages")
    assert {tuple(row) for row in rows} == {("MZ", PRICE), ("CH", PRICES["utility", "*"])}
    assert (await get(pool, known, campaign.id)).counts == counts(queued=2, invalid=1)


async def test_a_template_without_parameters(pool: Pool) -> None:
    known = await made(pool)
    body = [{"type": "BODY", "text": "We are closed tomorrow."}]
    await template(pool, known.organization_id, known.account_id, name="closed", components=body, parameter_count=0)
    await contacts(pool, known.actor, 3)
    campaign = await create(pool, known, template="closed", parameters=())
    await run(pool, chunk=2)
    assert await sent(pool) == {number(n): [] for n in range(3)}
    assert (await get(pool, known, campaign.id)).counts == counts(queued=3)


async def test_many_workers_stage_each_recipient_once(pool: Pool) -> None:
    known = await made(pool, balance=60 * PRICE)
    await contacts(pool, known.actor, 50)
    campaigns = [await create(pool, known) for _ in range(2)]
    await asyncio.gather(*(run(pool, chunk=9, gather=20) for _ in range(3)))
    await run(pool)
    found = [await get(pool, known, one.id) for one in campaigns]
    assert sum(one.counts.queued for one in found) == 60
    assert await pool.fetchval("SELECT count(DISTINCT (campaign_id, recipient)) FROM whatsapp_messages") == 60
    # A recipient has one conversation with the number, however many messages.
    recipients = await pool.fetchval("SELECT count(DISTINCT recipient) FROM whatsapp_messages")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == recipients
    await check_wallets(pool, [known.organization_id])


async def test_a_test_key_costs_nothing_and_needs_no_rates(pool: Pool) -> None:
    known = await made(pool, balance=0, mode="test")
    await pool.execute("DELETE FROM whatsapp_rates")
    await contacts(pool, known.actor, 2)
    campaign = await create(pool, known)
    await run(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=2)
    assert {row[0] for row in await pool.fetch("SELECT line FROM queue")} == {UUID(int=1)}
    assert {row[0] for row in await pool.fetch("SELECT charge FROM whatsapp_messages")} == {"none"}
    await cancel(pool, known, campaign.id)
    await run(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(canceled=2)
    await check_wallets(pool, [known.organization_id])


async def test_pace_spreads_what_is_due(pool: Pool) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 30)
    campaign = await create(pool, known, messages_per_minute=60)
    await run(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=20, pending=10)
    due = [row[0] for row in await pool.fetch("SELECT due_at FROM queue ORDER BY due_at")]
    assert due[-1] - due[0] == timedelta(seconds=19)


# ── What stops it ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_waits_for_money_and_goes_on_by_itself(pool: Pool) -> None:
    known = await made(pool, balance=3 * PRICE + 1)
    await contacts(pool, known.actor, 10)
    campaign = await create(pool, known)
    await run(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.status_reason) == ("paused", "wallet_insufficient_funds")
    told = await pool.fetchval("SELECT facts FROM notices WHERE kind = 'campaign.paused'")
    assert told == '{"channel":"whatsapp","reason":"wallet_insufficient_funds"}'
    assert found.counts == counts(queued=3, pending=7)
    await top_up(pool, known, 2 * PRICE)
    await again(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=5, pending=5)
    await top_up(pool, known, UNIT)
    await again(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.status_reason, found.counts) == ("running", None, counts(queued=10))
    assert set(await sent(pool)) == {number(n) for n in range(10)}
    await check_wallets(pool, [known.organization_id])


#: What stops staged messages, and the reason that the campaign shows: each takes precedence over those before it.
STANDS = [
    ("UPDATE whatsapp_numbers SET messaging_limit = 250", "whatsapp_messaging_limit_reached"),
    ("UPDATE whatsapp_templates SET missing_at = now()", "whatsapp_template_unconfirmed"),
    ("UPDATE whatsapp_templates SET category = 'marketing'", "whatsapp_template_not_utility"),
    ("UPDATE whatsapp_templates SET status = 'paused'", "whatsapp_template_not_approved"),
    (RESTRICT, "whatsapp_number_held"),
    ("UPDATE whatsapp_warnings SET over_at = now()", "whatsapp_template_not_approved"),
    ("UPDATE whatsapp_numbers SET held_until = now() + interval '1 hour'", "whatsapp_number_held"),
    ("UPDATE whatsapp_accounts SET state = 'paused'", "whatsapp_account_paused"),
    ("UPDATE organizations SET state = 'suspended'", "organization_suspended"),
]


def test_campaigns_and_workers_agree_when_an_account_only_answers() -> None:
    assert standstill.REPLIES_ONLY.split() == warnings.REPLIES_ONLY.split()


async def test_one_that_runs_and_stands_still_says_what_it_waits_for(pool: Pool) -> None:
    """Everything is staged, and nothing is sent: without a reason it would look as if nothing were wrong."""
    known = await made(pool)
    await contacts(pool, known.actor, 2)
    campaign = await create(pool, known)
    await run(pool)
    await pool.execute("INSERT INTO whatsapp_portfolios SELECT portfolio, 250, now() FROM whatsapp_accounts")

    async def reasons() -> set[str | None]:
        async with pool.acquire() as conn:
            (shown,) = await record.list_page(conn, known.actor, after=None, limit=5, channel="whatsapp")
            ((_, everywhere),) = await record.list_everywhere(conn, organization_id=None, channel="whatsapp", limit=5)
        found = await get(pool, known, campaign.id)
        assert {found.status, shown.status, everywhere.status} == {"running"}
        return {found.status_reason, shown.status_reason, everywhere.status_reason}

    assert await reasons() == {None}
    for change, reason in STANDS:
        await pool.execute(change)
        assert await reasons() == {reason}
    await pool.execute("UPDATE campaigns SET sent = sent + queued, queued = 0")
    assert await reasons() == {record.WAITING}


@pytest.mark.parametrize(
    ("stop", "go", "reason"),
    [
        ("UPDATE whatsapp_templates SET status = 'paused'", "SET status = 'approved'", whatsapp_channel.TEMPLATE),
        ("UPDATE whatsapp_templates SET status = 'in_appeal'", "SET status = 'approved'", whatsapp_channel.TEMPLATE),
        (
            "UPDATE whatsapp_templates SET category = 'marketing'",
            "SET category = 'utility'",
            whatsapp_channel.NOT_UTILITY,
        ),
        ("UPDATE whatsapp_accounts SET state = 'paused'", "SET state = 'active'", whatsapp_channel.NUMBER),
        (
            "UPDATE whatsapp_numbers SET connection_status = 'disconnected'",
            "SET connection_status = 'connected'",
            whatsapp_channel.NUMBER,
        ),
        ("UPDATE organizations SET state = 'suspended'", "SET state = 'active'", plan.SUSPENDED),
        ("UPDATE wallets SET currency = 'USD'", "SET currency = 'EUR'", whatsapp_channel.FUNDS),
    ],
)
async def test_it_pauses_and_goes_on_by_itself(pool: Pool, stop: str, go: str, reason: str) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 4)
    campaign = await create(pool, known)
    stager = Stager(pool, chunk=2)
    for _ in range(3):  # resolved, begun, two staged
        await stager.round()
    await pool.execute(stop)
    await again(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.status_reason, found.counts) == ("paused", reason, counts(queued=2, pending=2))
    await pool.execute(" ".join(stop.split()[:2]) + " " + go)
    await again(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.status_reason, found.counts) == ("running", None, counts(queued=4))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE whatsapp_templates SET status = 'rejected'", whatsapp_channel.TEMPLATE),
        ("UPDATE whatsapp_templates SET status = 'disabled'", whatsapp_channel.TEMPLATE),
        ("UPDATE whatsapp_templates SET status = 'removed'", whatsapp_channel.TEMPLATE),
        ("UPDATE whatsapp_templates SET disabled_locally = true", whatsapp_channel.TEMPLATE),
        (
            """UPDATE whatsapp_templates SET components = '[{"type": "BODY", "text": "{{1}}"}]'""",
            whatsapp_channel.MISMATCH,
        ),
        ("UPDATE whatsapp_numbers SET state = 'removed'", whatsapp_channel.NUMBER),
    ],
)
async def test_it_fails_and_takes_back_what_is_not_sent(pool: Pool, sql: str, reason: str) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 4)
    campaign = await create(pool, known)
    stager = Stager(pool, chunk=3)
    for _ in range(3):
        await stager.round()
    await pool.execute(sql)
    await again(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.status_reason, found.counts) == ("failed", reason, counts(canceled=4))
    assert await pool.fetchval("SELECT available FROM wallets") == 100 * UNIT
    await check_wallets(pool, [known.organization_id])


async def test_what_is_free_goes_whatever_the_wallet_holds(pool: Pool) -> None:
    known = await made(pool, balance=0)
    await pool.execute("UPDATE whatsapp_rates SET price = 0")
    await pool.execute("UPDATE wallets SET available = -1, total = -1")
    await contacts(pool, known.actor, 2)
    campaign = await create(pool, known)
    await run(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=2)


OPEN = """
SELECT whatsapp_open_conversations(now(), array_fill($1::uuid, ARRAY[cardinality($3::text[])]),
                                   array_fill($2::uuid, ARRAY[cardinality($3::text[])]), $3, $4)
"""


async def test_who_came_through_an_advertisement_gets_it_whatever_the_wallet_holds(pool: Pool) -> None:
    """As with single messages: those of the free hours reserve nothing."""
    known = await made(pool, balance=PRICE)
    await contacts(pool, known.actor, 4)
    users = [number(n) for n in range(4)]
    await pool.execute(OPEN, known.organization_id, known.number_id, users, [uuid7() for _ in users])
    await pool.execute(
        "UPDATE whatsapp_conversations SET referred_at = now(), free_until = now() + make_interval(hours => CASE"
        " recipient WHEN $1 THEN 0 WHEN $2 THEN 0 ELSE 72 END)",
        number(1),
        number(3),
    )
    campaign = await create(pool, known)
    await run(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status_reason, found.counts) == ("wallet_insufficient_funds", counts(queued=3, pending=1))
    rows = await pool.fetch("SELECT recipient, reserved FROM whatsapp_messages ORDER BY recipient")
    assert [(row["recipient"], row["reserved"]) for row in rows] == [
        (number(0), 0),
        (number(1), PRICE),
        (number(2), 0),
    ]
    await check_wallets(pool, [known.organization_id])


@pytest.mark.parametrize("wrote", ["+551187654321", "BR.1"])
async def test_who_came_through_an_advertisement_is_known_however_meta_writes_them(pool: Pool, wrote: str) -> None:
    """Without the ninth digit of Brazil, or under a user id: such a campaign waited for money that it does not need."""
    known = await made(pool, balance=0)
    async with pool.acquire() as conn, conn.transaction():
        await conversations.link(conn, [(known.organization_id, "+551187654321", "BR.1")])
    await contact(pool, known.actor, "+5511987654321")
    await pool.execute(OPEN, known.organization_id, known.number_id, [wrote], [uuid7()])
    await pool.execute(
        "UPDATE whatsapp_conversations"
        " SET referred_at = now(), free_until = now() + interval '72 hours', recipient = $1",
        wrote,
    )
    campaign = await create(pool, known)
    await run(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status_reason, found.counts) == (None, counts(queued=1))
    assert await pool.fetchval("SELECT reserved FROM whatsapp_messages") == 0
    await check_wallets(pool, [known.organization_id])


async def test_messages_of_a_slow_step_are_not_accepted_long_before_they_have_their_ids(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by SMS: lists of a period look for them by their ids."""
    monkeypatch.setattr(staging, "TAKE", SLOW)
    known = await made(pool)
    await contacts(pool, known.actor, 1)
    await create(pool, known)
    await run(pool)
    row = await pool.fetchrow("SELECT id, accepted_at FROM whatsapp_messages")
    assert row["accepted_at"] > time_of(row["id"]) - bounded_scan.AHEAD


@pytest.mark.parametrize(("first", "second"), [("sms", "whatsapp"), ("whatsapp", "sms")])
async def test_campaigns_of_both_channels_that_are_staged_at_once_do_not_both_write_to_somebody(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """Each locks the balance of its own channel."""
    known = await made(pool)
    await contacts(pool, known.actor, 2)
    audience: dict[str, Any] = {"audience_tags": ["porto"], "not_written_days": 3}
    stager = Stager(pool)
    for channel in (first, second):
        is_sms = channel == "sms"
        campaign = await (create_sms(pool, known.actor, **audience) if is_sms else create(pool, known, **audience))
        while await pool.fetchval("SELECT status FROM campaigns WHERE id = $1", campaign.id) != "running":
            await stager.round()
        await pool.execute("UPDATE campaigns SET step_at = now() + interval '1 hour'")
    await pool.execute("UPDATE campaigns SET step_at = created_at")
    others: list[asyncio.Task[Any]] = []

    async def meanwhile() -> None:
        others.append(await begun(pool, run(pool)))

    before(monkeypatch, counting, "begin", meanwhile)
    await stager.round()
    await others[0]
    rows = await pool.fetch("SELECT channel, queued, recently_written FROM campaigns ORDER BY id")
    assert [tuple(row) for row in rows] == [(first, 2, 0), (second, 0, 2)]


async def test_a_rate_that_changes_counts_from_the_next_chunk(pool: Pool) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 4)
    await create(pool, known)
    stager = Stager(pool, chunk=2)
    for _ in range(3):
        await stager.round()
    await pool.execute("UPDATE whatsapp_rates SET price = 7 WHERE country = 'MZ'")
    await again(pool)
    rows = await pool.fetch("SELECT reserved, count(*) AS n FROM whatsapp_messages GROUP BY 1")
    assert {row["reserved"]: row["n"] for row in rows} == {PRICE: 2, 7: 2}


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_cancel_releases_what_is_not_sent(pool: Pool) -> None:
    known = await made(pool, balance=10 * PRICE)
    await contacts(pool, known.actor, 20)
    campaign = await create(pool, known)
    await run(pool, chunk=4)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=10, pending=10)
    ids = {row[0]: row[1] for row in await pool.fetch("SELECT recipient, id FROM whatsapp_messages")}
    # One was claimed by a worker, one waits for the outcome of its attempt, one was put back, one was sent already.
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute' WHERE id = $1", ids[number(1)])
    for n, state in ((2, "unknown"), (3, "busy")):
        await pool.execute(
            "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
            " VALUES ($1, $2, 1, $3, $4, now(), now())",
            known.organization_id,
            ids[number(n)],
            known.number_id,
            state,
        )
    await pool.execute("UPDATE whatsapp_messages SET status = 'sent' WHERE recipient = $1", number(4))
    await pool.execute("DELETE FROM queue WHERE id = $1", ids[number(4)])
    found = await cancel(pool, known, campaign.id)
    assert (found.status, found.counts) == ("canceled", counts(queued=10, canceled=10))
    await run(pool)
    assert (await cancel(pool, known, campaign.id)).counts == counts(queued=2, sent=1, canceled=17)
    assert {row[0] for row in await pool.fetch("SELECT id FROM queue")} == {ids[number(1)], ids[number(2)]}
    assert tuple(await pool.fetchrow("SELECT available, reserved FROM wallets")) == (7 * PRICE, 3 * PRICE)
    assert await pool.fetchval("SELECT count(*) FROM wallet_movements WHERE movement = 'release'") == 7
    # A message that the worker puts back is not sent either; the other one's outcome is unknown.
    await pool.execute("UPDATE queue SET lease_until = NULL")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert {row[0] for row in await pool.fetch("SELECT id FROM queue")} == {ids[number(2)]}
    assert (await get(pool, known, campaign.id)).counts == counts(queued=1, sent=1, canceled=18)
    await pool.execute("UPDATE whatsapp_messages SET status = 'failed' WHERE status = 'accepted'")
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert await pool.fetchval("SELECT step_at FROM campaigns") is None
    await check_wallets(pool, [known.organization_id])


@pytest.mark.parametrize("stop", ["cancel", "fail"])
async def test_what_lost_its_answer_is_not_sent_again_once_its_campaign_ended(pool: Pool, stop: str) -> None:
    """Whether Meta has it is unknown: a status may still tell, and until then nothing is sent or charged."""
    known = await made(pool)
    await contacts(pool, known.actor, 2)
    campaign = await create(pool, known)
    await run(pool)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: UNKNOWN
    await bench.round()
    ids = [one.message_id for one in bench.only.submitted]
    assert len(ids) == 2
    if stop == "cancel":
        await cancel(pool, known, campaign.id)
    else:
        await pool.execute("UPDATE campaigns SET status = 'failed', step_at = now()")
    await run(pool)
    await bench.later(seconds=200)
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now()")
    bench.only.script = accept_all
    await bench.round(2)
    assert len(bench.only.submitted) == 2
    for id in ids:
        assert await status_of(pool, id) == ("failed", "unknown", "released")
    # Nor by a campaign to those who did not get it, until it is known.
    await pool.execute("UPDATE campaigns SET started_at = started_at - interval '1 hour'")  # `later` moved its messages
    found = await get(pool, known, campaign.id)
    async with pool.acquire() as conn:
        assert await recipients.again(conn, known.actor, campaign=found) == []
        await pool.execute("UPDATE whatsapp_messages SET failure_evidence = '131026' WHERE id = $1", ids[1])
        missed = await pool.fetchval("SELECT recipient FROM whatsapp_messages WHERE id = $1", ids[1])
        assert await recipients.again(conn, known.actor, campaign=found) == [missed]
    await bench.hear(known, status_item(known, ids[0], "delivered"))
    assert await status_of(pool, ids[0]) == ("delivered", None, "consumed")
    await check_wallets(pool, [known.organization_id])


async def test_what_lost_its_answer_waits_while_its_campaign_is_paused(pool: Pool) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 1)
    campaign = await create(pool, known)
    await run(pool)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: UNKNOWN
    await bench.round()
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, known.actor, id=campaign.id, channel="whatsapp")
    await run(pool)
    bench.only.script = accept_all
    for _ in range(3):
        await bench.later(seconds=200)
        await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now()")
        await bench.round()
    assert len(bench.only.submitted) == 1
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, known.actor, id=campaign.id, channel="whatsapp")
    await run(pool)
    await bench.later(seconds=31)
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now()")
    await bench.round()
    assert len(bench.only.submitted) == 2


async def test_a_template_that_comes_back_ends_no_pause(pool: Pool) -> None:
    """A message that waited for its template when the campaign was paused waits for both."""
    known = await made(pool)
    await contacts(pool, known.actor, 3)
    campaign = await create(pool, known)
    await run(pool)
    bench = await Bench(pool).start()
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    await bench.round()
    async with pool.acquire() as conn, conn.transaction():
        await plan.pause(conn, known.actor, id=campaign.id, channel="whatsapp")
    await run(pool)
    await pool.execute("UPDATE whatsapp_templates SET status = 'approved'")
    bench.restart()
    await bench.round(2)
    assert bench.only.submitted == []
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, known.actor, id=campaign.id, channel="whatsapp")
    await run(pool)
    await bench.later(seconds=301)
    await bench.round(2)
    assert len(bench.only.submitted) == 3


async def test_counts_are_disjoint_and_follow_what_is_read(pool: Pool) -> None:
    known = await made(pool)
    await endpoint(pool, known.actor, "campaign.completed")
    await contacts(pool, known.actor, 4)
    campaign = await create(pool, known)
    await run(pool)
    await pool.execute("DELETE FROM queue WHERE kind = 'whatsapp'")
    for n, status in enumerate(("accepted", "sent", "delivered", "read")):
        await pool.execute("UPDATE whatsapp_messages SET status = $1 WHERE recipient = $2", status, number(n))
    await count(pool)
    found = await get(pool, known, campaign.id)
    assert (found.status, found.counts) == ("running", counts(queued=1, sent=1, delivered=1, read=1))
    # Meta reports one failure in a status, and the other in its response.
    await pool.execute("UPDATE whatsapp_messages SET failure_evidence = '131026' WHERE status = 'sent'")
    await pool.execute("UPDATE whatsapp_messages SET status = 'failed' WHERE status IN ('accepted', 'sent')")
    for _ in range(2):
        await count(pool)
    found = await get(pool, known, campaign.id)
    assert found.never_sent == 1
    assert (found.status, found.counts) == ("completed", counts(delivered=1, read=1, failed=2))
    events = await pool.fetch("SELECT data FROM events WHERE kind = 'campaign.completed'")
    assert [msgspec.json.decode(row["data"]) for row in events] == [{"campaign": record.shown(found)}]
    # Reading continues after the end, and a failure may be reversed.
    await pool.execute("UPDATE whatsapp_messages SET status = 'read' WHERE recipient <> $1", number(0))
    await count(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(read=3, failed=1)
    await pool.execute("UPDATE whatsapp_messages SET status = 'read'")
    await count(pool)
    found = await get(pool, known, campaign.id)
    assert (found.counts, found.never_sent) == (counts(read=4), 0)
    assert await pool.fetchval("SELECT count(*) FROM campaign_chunks") == 0
    assert await pool.fetchval("SELECT count(*) FROM events") == 1


async def test_what_meta_may_have_is_not_counted_as_never_sent(pool: Pool) -> None:
    """An attempt whose response was lost may have arrived, and one that was accepted did, although no status ever
    came."""
    known = await made(pool)
    await contacts(pool, known.actor, 4)
    campaign = await create(pool, known)
    await run(pool)
    await pool.execute("DELETE FROM queue WHERE kind = 'whatsapp'")
    for n, states in enumerate((("unknown", "refused"), ("accepted",), ("busy", "refused"), ())):
        for attempt, state in enumerate(states, 1):
            await pool.execute(
                "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
                " SELECT organization_id, id, $2, number_id, $3::text, now(), now() FROM whatsapp_messages"
                " WHERE recipient = $1",
                number(n),
                attempt,
                state,
            )
    await pool.execute("UPDATE whatsapp_messages SET status = 'failed', failed_at = now(), failure_code = 'expired'")
    await count(pool)
    found = await get(pool, known, campaign.id)
    assert (found.counts, found.never_sent) == (counts(failed=4), 2)


async def test_what_meta_has_or_may_have_was_sent_though_it_failed(pool: Pool) -> None:
    """Of those without a status, only the one that Meta refused was never sent."""
    known = await made(pool)
    await contacts(pool, known.actor, 3)
    campaign = await create(pool, known)
    await run(pool)
    bench = await Bench(pool).start()
    answers = iter((accept_all, lambda submission: UNKNOWN, lambda submission: fault(131026)))
    bench.only.script = lambda submission: next(answers)(submission)
    assert await bench.round() == 3
    await pool.execute("UPDATE whatsapp_messages SET deadline_at = accepted_at WHERE status = 'accepted'")
    async with pool.acquire() as conn, conn.transaction():
        await expiry.sweep(conn, bench.rates)
    states = await pool.fetch("SELECT state FROM attempts ORDER BY state")
    assert [row["state"] for row in states] == ["accepted", "refused", "unknown"]
    await count(pool)
    found = await get(pool, known, campaign.id)
    assert (found.counts, found.never_sent) == (counts(failed=3), 1)


async def test_both_channels_side_by_side(pool: Pool) -> None:
    known = await made(pool)
    await contacts(pool, known.actor, 5)
    text, campaign = await sms(pool, known.actor), await create(pool, known)
    await run(pool)
    await count(pool)
    assert (await get(pool, known, campaign.id)).counts == counts(queued=5)
    async with pool.acquire() as conn:
        assert (await record.get(conn, known.actor, id=text.id)).counts == counts(queued=1)


async def test_a_category_that_codes_have_is_refused_though_it_has_rates(pool: Pool) -> None:
    known = await made(pool)
    await rates(pool, prices={("authentication", "MZ"): 1})
    await template(pool, known.organization_id, known.account_id, name="code", category="authentication",
                   components=CODE, parameter_count=1)  # fmt: skip
    with pytest.raises(Invalid, match="in the category utility"):
        await create(pool, known, template="code", parameters=(Filling(text="1"),))
