"""Numbers follow Meta's events and readings in any order; customers read documented values only."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.suppliers.whatsapp_cloud import objects as whatsapp_objects
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem, CapabilityItem, NumberItem, Restriction
from heliograph.suppliers.whatsapp_cloud.callbacks.management import tier_of
from heliograph.suppliers.whatsapp_cloud.objects import CloudNumber
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, numbers
from heliograph.whatsapp.mirror.accounts import BusinessAccount
from heliograph.whatsapp.mirror.numbers import NumberBook, PhoneNumberUnavailable
from tests.rules import whatsapp_account_factories as made
from tests.rules.factories import endpoint, organization

NOW = datetime.now(UTC).replace(microsecond=0)
DIGITS = "212520001234"


def common(seconds: float, field: str) -> dict[str, Any]:
    return {"waba_id": made.WABA, "field": field, "at": NOW + timedelta(seconds=seconds), "fingerprint": ""}


def number_event(seconds: float, field: str = "phone_number_quality_update", **values: Any) -> NumberItem:
    return NumberItem(**common(seconds, field), **{"digits": DIGITS, **values})


def account_event(seconds: float, field: str = "account_update", **values: Any) -> AccountItem:
    return AccountItem(**common(seconds, field), **values)


def restricted(*types: str) -> AccountItem:
    return account_event(1, event="ACCOUNT_RESTRICTION", restrictions=tuple(Restriction(one) for one in types))


def listed(**values: Any) -> CloudNumber:
    """A number as Meta lists it."""
    raw = {
        "id": made.GRAPH_ID,
        "display_phone_number": "+212 520-001234",
        "verified_name": "Boutique Amal",
        "status": "CONNECTED",
        "quality_rating": "GREEN",
        "platform_type": "CLOUD_API",
        "throughput": {"level": "STANDARD"},
        "whatsapp_business_manager_messaging_limit": "TIER_2K",
        **values,
    }
    found = whatsapp_objects.number(raw)
    assert found is not None
    return found


async def apply(pool: Pool, account: BusinessAccount, *items: NumberItem | CapabilityItem | AccountItem) -> int:
    """Events that arrive together."""
    async with pool.acquire() as conn:
        return await numbers.apply_items(
            conn, account.organization_id, account.id, [(one, NOW + timedelta(hours=1)) for one in items]
        )


async def store(
    pool: Pool,
    account: BusinessAccount,
    *listing: CloudNumber,
    seconds: float = 0.0,
    asked: dict[str, CloudNumber | None] | None = None,
) -> tuple[list[str], int]:
    """A reading of everything as of NOW + `seconds`; returns what another account has, and deliveries queued. `asked`:
    Meta's answers about numbers missing from the list; None: they are gone."""
    if asked is None:
        asked = {row["graph_id"]: None for row in await pool.fetch("SELECT graph_id FROM whatsapp_numbers")}
    at = NOW + timedelta(seconds=seconds)
    async with pool.acquire() as conn, conn.transaction():
        before = await numbers.of_account(conn, account.organization_id, account.id)
        taken = await numbers.store_numbers(conn, account.organization_id, account.id, listing, at=at, asked=asked)
        queued = await numbers.announce(conn, account.organization_id, account.id, before)
        await conn.execute("UPDATE whatsapp_accounts SET numbers_read_at = $1", at)
    return taken, queued


async def row(pool: Pool) -> Any:
    (found,) = await pool.fetch("SELECT * FROM whatsapp_numbers WHERE state = 'active'")
    return found


async def test_numbers_of_an_account_that_comes_back_are_connected_as_meta_lists_them(pool: Pool) -> None:
    """It left the platform, was removed here, and joined again."""
    actor = await organization(pool)
    account = await made.account(pool, actor)
    id = await made.number(pool, account)
    await apply(pool, account, account_event(1, event="ACCOUNT_OFFBOARDED"))
    assert (await row(pool))["connection_status"] == "disconnected"
    async with pool.acquire() as conn:
        await accounts.set_state(conn, organization_id=actor.organization_id, account_id=account.id, state="removed")
    assert (await made.account(pool, actor)).id == account.id
    await store(pool, account, listed())
    found = await row(pool)
    assert (found["id"], found["connection_status"]) == (id, "connected")


EVENTS = [
    number_event(1, event="THROUGHPUT_UPGRADE", tier=tier_of("TIER_UNLIMITED")),
    CapabilityItem(**common(2, "business_capability_update"), tier=tier_of(10_000)),
    account_event(3, ban_state="DISABLE", event="DISABLED_UPDATE"),
    account_event(4, ban_state="REINSTATE", event="DISABLED_UPDATE"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
@pytest.mark.parametrize("at_once", [1, 6])
async def test_events_come_to_the_same_in_any_order_and_twice(pool: Pool, order: tuple[int, ...], at_once: int) -> None:
    account = await made.account(pool, await organization(pool))
    await made.number(pool, account)
    events = [EVENTS[index] for index in (*order, *order[:2])]
    for n in range(0, len(events), at_once):
        await apply(pool, account, *events[n : n + at_once])
    found = await row(pool)
    assert (found["messaging_tier"], found["messaging_limit"], found["throughput_per_second"]) == (
        "tier_10k",
        10_000,
        1000,
    )
    assert found["connection_status"] == "connected"
    assert found["applied_at"] == NOW + timedelta(seconds=4)


async def test_many_changes_at_once_ask_the_database_no_more_than_a_few_do(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    await made.number(pool, account)
    await endpoint(pool, actor, "whatsapp.phone_number.updated")
    few: list[str] = []
    many: list[str] = []
    async with pool.acquire() as conn:
        for asked, items in ((few, EVENTS[:2]), (many, EVENTS * 10)):
            with conn.query_logger(lambda query, asked=asked: asked.append(query.query)):
                changes = [(one, NOW + timedelta(hours=1)) for one in items]
                await numbers.apply_items(conn, account.organization_id, account.id, changes)
    assert len(many) <= len(few)
    assert len(await made.events_of(pool, actor)) == 1


@pytest.mark.parametrize(
    ("written", "tier", "limit"),
    [
        (2000, "tier_2k", 2000),
        ("TIER_2K", "tier_2k", 2000),
        ("TIER_250", "tier_250", 250),
        (100_000, "tier_100k", 100_000),
        (-1, "unlimited", None),
        ("TIER_UNLIMITED", "unlimited", None),
        (777, "unknown", 777),
    ],
)
async def test_a_limit_is_read_as_it_is_written(pool: Pool, written: Any, tier: str, limit: int | None) -> None:
    account = await made.account(pool, await organization(pool))
    await made.number(pool, account, messaging_tier="tier_50", messaging_limit=50)
    await apply(pool, account, CapabilityItem(**common(1, "business_capability_update"), tier=tier_of(written)))
    found = await row(pool)
    assert (found["messaging_tier"], found["messaging_limit"]) == (tier, limit)


async def test_a_limit_that_nobody_set_changes_nothing(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    await made.number(pool, account)
    await apply(pool, account, number_event(1, event="ONBOARDING", tier=tier_of("NOT_SET")))
    assert (await row(pool))["messaging_limit"] == 2000
    # Nor does a reading with a token that may not see any.
    await store(pool, account, listed(whatsapp_business_manager_messaging_limit=None), seconds=2)
    assert (await row(pool))["messaging_limit"] == 2000
    await store(pool, account, listed(whatsapp_business_manager_messaging_limit="TIER_UNLIMITED"), seconds=3)
    assert (await row(pool))["messaging_limit"] is None


@pytest.mark.parametrize(
    ("item", "connection"),
    [
        (account_event(1, event="ACCOUNT_RESTRICTION"), "restricted"),
        (restricted("RESTRICTED_ADD_PHONE_NUMBER_ACTION", "RESTRICTED_CUSTOMER_INITIATED_MESSAGING"), "restricted"),
        (restricted("RESTRICTED_ADD_PHONE_NUMBER_ACTION", "RESTRICTED_UTILITY_TEMPLATES"), "connected"),
        (account_event(1, event="DISABLED_UPDATE", ban_state="DISABLE"), "banned"),
        (account_event(1, event="DISABLED_UPDATE", ban_state="SCHEDULE_FOR_DISABLE"), "connected"),
        (account_event(1, event="ACCOUNT_DELETED"), "disconnected"),
        (account_event(1, event="PARTNER_ADDED"), "connected"),
        (account_event(1, field="account_alerts", event="ACCOUNT_DELETED"), "connected"),
    ],
)
async def test_what_happens_to_an_account_happens_to_its_numbers(
    pool: Pool, item: AccountItem, connection: str
) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    await made.ago(pool, account, "numbers_at", timedelta(hours=-1))
    await apply(pool, account, item)
    assert (await row(pool))["connection_status"] == connection
    # Whatever it was, Meta is asked soon.
    assert await pool.fetchval("SELECT numbers_at < now() + interval '5 minutes' FROM whatsapp_accounts")
    if connection in ("banned", "disconnected"):
        with pytest.raises(PhoneNumberUnavailable) as refused:
            await NumberBook(pool).resolve(actor, number)
        assert refused.value.details == {"phoneNumberId": str(number), "reason": connection}
    else:
        assert (await NumberBook(pool).resolve(actor, number)).sendable


@pytest.mark.parametrize("is_event", [True, False])
async def test_a_number_that_is_connected_again_has_one_message_try_its_hold(pool: Pool, is_event: bool) -> None:
    """The hold's cause, such as a missing registration, is over; a probe shows whether it is. Others stay as they are:
    connected numbers, which are held for something else, and holds that are over."""
    account = await made.account(pool, await organization(pool))
    ids = [
        await made.number(pool, account, graph_id=graph_id, digits=digits)
        for graph_id, digits in ((made.GRAPH_ID, DIGITS), ("556", "212520009999"), ("557", "212520009998"))
    ]
    both = [listed(), listed(id="556", display_phone_number="+212 520-009999")]
    both.append(listed(id="557", display_phone_number="+212 520-009998"))
    await store(pool, account, *both)
    await apply(pool, account, account_event(1, event="ACCOUNT_OFFBOARDED"))
    await pool.execute("UPDATE whatsapp_numbers SET connection_status = 'connected' WHERE graph_id = '556'")
    async with pool.acquire() as conn:
        for id in ids[:2]:
            await holds.hold_number(conn, account.organization_id, id, seconds=600, reason="test")
            await holds.tries(conn, account.organization_id, account.id, id, uuid7())
    if is_event:
        await apply(pool, account, account_event(2, event="ACCOUNT_RECONNECTED"))
    else:
        await store(pool, account, *both, seconds=2)
    found = await pool.fetch(
        "SELECT held_until > now() AS is_held, trying_id IS NOT NULL AS tries FROM whatsapp_numbers ORDER BY graph_id"
    )
    assert [tuple(one.values()) for one in found] == [(False, False), (True, True), (None, False)]
    async with pool.acquire() as conn:
        assert await holds.leave_to_try(conn, account.organization_id, ids[0])
        assert not await holds.leave_to_try(conn, account.organization_id, ids[1])


async def test_an_event_is_of_one_number_of_one_account(pool: Pool) -> None:
    actor = await organization(pool)
    account, other = await made.account(pool, actor), await made.account(pool, actor, waba_id="901")
    await made.number(pool, account)
    await made.number(pool, account, graph_id="556", digits="212520009999")
    await made.number(pool, other, graph_id="557")
    await apply(pool, account, number_event(1, event="THROUGHPUT_UPGRADE"))
    rates = dict(await pool.fetch("SELECT graph_id, throughput_per_second FROM whatsapp_numbers"))
    assert rates == {made.GRAPH_ID: 1000, "556": 80, "557": 80}
    decided = number_event(2, field="phone_number_name_update", event="REJECTED", verified_name="Other")
    await apply(pool, account, decided)
    await apply(pool, account, number_event(2, field="phone_number_name_update", event="APPROVED", verified_name="New"))
    assert set(await pool.fetch("SELECT verified_name FROM whatsapp_numbers")) == {("Boutique Amal",), ("New",)}


@pytest.mark.parametrize(
    ("values", "connection"),
    [
        ({}, "connected"),
        ({"status": "FLAGGED"}, "connected"),
        ({"status": "BANNED"}, "banned"),
        ({"status": "MIGRATED"}, "disconnected"),
        ({"status": "SOMETHING_NEW"}, "unknown"),
        ({"status": None}, "unknown"),
        ({"platform_type": "NOT_APPLICABLE"}, "pending"),
        ({"health_status": {"can_send_message": "BLOCKED", "entities": []}}, "restricted"),
        (
            {
                "health_status": {
                    "can_send_message": "LIMITED",
                    "entities": [{"entity_type": "WABA", "can_send_message": "LIMITED"}],
                }
            },
            "restricted",
        ),
        (
            {
                "health_status": {
                    "can_send_message": "LIMITED",
                    "entities": [{"entity_type": "BUSINESS", "can_send_message": "LIMITED"}],
                }
            },
            "connected",
        ),
    ],
)
def test_a_status_of_metas_is_one_of_ours(values: dict[str, Any], connection: str) -> None:
    assert numbers.connection_of(listed(**values)) == connection


async def test_a_number_whose_quality_falls_further_within_the_hour_rings_again(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    for n, rating in enumerate(("GREEN", "YELLOW", "RED", "RED")):
        await store(pool, account, listed(quality_rating=rating), seconds=n)
    told = await pool.fetch("SELECT facts FROM notices WHERE kind = 'number.quality' ORDER BY id")
    assert [row[0] for row in told] == ['{"rating":"yellow"}', '{"rating":"red"}']


async def test_a_reading_brings_changes_and_takes_away(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    await endpoint(pool, actor, "whatsapp.phone_number.updated")
    assert await store(pool, account, listed(), listed(id="556", display_phone_number="+212 520-009999")) == ([], 2)
    assert await store(pool, account, listed(), listed(id="556", display_phone_number="+212 520-009999")) == ([], 0)
    id = await pool.fetchval("SELECT id FROM whatsapp_numbers WHERE graph_id = $1", made.GRAPH_ID)
    changed = listed(quality_rating="RED", throughput={"level": "HIGH"}, name_status="DECLINED")
    assert await store(pool, account, changed) == ([], 2)
    told = {data["phoneNumber"]["id"]: data["phoneNumber"] for _, data in await made.events_of(pool, actor)}
    gone = next(one for key, one in told.items() if key != str(id))
    assert gone["connectionStatus"] == "disconnected"
    assert told[str(id)].pop("lastCheckedAt")
    assert told[str(id)] == {
        "id": str(id),
        "displayPhoneNumber": "+212 520-001234",
        "verifiedName": "Boutique Amal",
        "connectionStatus": "connected",
        "qualityRating": "red",
        "messagingTier": "tier_2k",
        "messagingLimit": 2000,
        "throughputPerSecond": 1000,
        "credentialStatus": "unknown",
    }
    # When it comes back, it is the same number.
    assert await store(pool, account, changed, listed(id="556", display_phone_number="+212 520-009999")) == ([], 1)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_numbers") == 2


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_number_that_was_deleted_at_meta_and_added_again_is_the_same(pool: Pool, noticed: bool) -> None:
    """It got another `phoneNumberId`, what waited for it failed, and the windows of its users were lost. `noticed`: a
    reading has found that it was gone."""
    actor = await organization(pool)
    account = await made.account(pool, actor)
    other = listed(id="556", display_phone_number="+212 520-009999")
    await store(pool, account, listed(), other)
    id = await pool.fetchval("SELECT id FROM whatsapp_numbers WHERE graph_id = $1", made.GRAPH_ID)
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now() + interval '1 hour' WHERE id = $1", id)
    gone: dict[str, Any] = {made.GRAPH_ID: None}
    if noticed:
        await store(pool, account, other, seconds=10, asked=gone)
    await store(pool, account, listed(id="557"), other, seconds=20, asked=gone)
    rows = await pool.fetch(
        "SELECT id, state, held_until > now() AS held FROM whatsapp_numbers WHERE graph_id <> '556'"
    )
    assert [tuple(row) for row in rows] == [(id, "active", False)]
    assert (await NumberBook(pool).resolve(actor, id)).graph_id == "557"
    # Another number with a new id is another number.
    await store(pool, account, listed(id="557"), other, listed(id="558", display_phone_number="+212 520-008888"),
                seconds=30)  # fmt: skip
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_numbers WHERE state = 'active'") == 3


async def test_a_number_that_is_listed_twice_is_read_like_others(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    assert (await store(pool, account, listed(), listed()))[0] == []
    found = await row(pool)
    assert (found["verified_name"], found["connection_status"], found["messaging_limit"]) == (
        "Boutique Amal",
        "connected",
        2000,
    )


async def test_a_number_that_a_listing_lacks_stays_until_meta_says_that_it_is_gone(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    await store(pool, account, listed())
    # It cannot be requested, or it exists after all.
    for answers in ({}, {made.GRAPH_ID: listed()}):
        assert await store(pool, account, seconds=10, asked=answers) == ([], 0)
        found = await row(pool)
        assert (found["state"], found["missing_at"] is not None) == ("active", True)
    await store(pool, account, listed(), seconds=20, asked={})
    assert (await row(pool))["missing_at"] is None
    # Lists have lacked it for long, and Meta has it: it belongs to another account now.
    await store(pool, account, seconds=30, asked={})
    await pool.execute("UPDATE whatsapp_numbers SET missing_at = now() - interval '6 minutes'")
    await store(pool, account, seconds=40, asked={})
    assert await pool.fetchval("SELECT state FROM whatsapp_numbers") == "active"
    await store(pool, account, seconds=50, asked={made.GRAPH_ID: listed()})
    assert await pool.fetchval("SELECT state FROM whatsapp_numbers") == "removed"


@pytest.mark.parametrize("level", [None, "STANDARD", "HIGH", "NOT_APPLICABLE"])
async def test_a_number_that_is_on_the_business_app_too_sends_twenty_a_second(pool: Pool, level: str | None) -> None:
    account = await made.account(pool, await organization(pool))
    throughput = {"level": level} if level else None
    await store(pool, account, listed(is_on_biz_app=True, throughput=throughput))
    assert (await row(pool))["throughput_per_second"] == 20
    # It leaves the app.
    await store(pool, account, listed(is_on_biz_app=False), seconds=1)
    assert (await row(pool))["throughput_per_second"] == 80


async def test_a_reading_gives_way_to_newer_events_and_wins_over_older_ones(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    await made.number(pool, account)
    await apply(pool, account, account_event(10, ban_state="DISABLE"))
    await store(pool, account, listed(quality_rating="YELLOW"), seconds=5)
    found = await row(pool)
    assert (found["connection_status"], found["quality_rating"]) == ("banned", "yellow")
    went = await pool.fetch("SELECT quality FROM whatsapp_qualities ORDER BY at")
    assert [row["quality"] for row in went][-1:] == ["yellow"], "a row when it changes"
    assert len(went) == len({row["quality"] for row in went})
    await store(pool, account, listed(), seconds=20)
    assert (await row(pool))["connection_status"] == "connected"
    await apply(pool, account, account_event(15, ban_state="DISABLE"))
    assert (await row(pool))["connection_status"] == "connected"


async def test_a_number_is_of_one_account_at_a_time(pool: Pool) -> None:
    one, other = await organization(pool), await organization(pool)
    first = await made.account(pool, one)
    second = await made.account(pool, other, waba_id="901", app_id="661")
    assert (await store(pool, first, listed()))[0] == []
    assert (await store(pool, second, listed()))[0] == [made.GRAPH_ID]
    await store(pool, first)
    assert (await store(pool, second, listed()))[0] == []
    assert (await store(pool, first, listed()))[0] == [made.GRAPH_ID]
    assert (await row(pool))["organization_id"] == other.organization_id


async def test_another_organizations_number_is_unknown(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    number = await made.number(pool, account)
    book = NumberBook(pool)
    for stranger, id in ((await organization(pool), number), (actor, uuid7())):
        with pytest.raises(Invalid, match="phoneNumberId"):
            await book.resolve(stranger, id)
    assert (await book.resolve(actor, number)).graph_id == made.GRAPH_ID


async def test_events_after_a_removal_do_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    await made.number(pool, account)
    async with pool.acquire() as conn:
        await accounts.set_state(conn, organization_id=actor.organization_id, account_id=account.id, state="removed")
    assert await apply(pool, account, account_event(1, ban_state="DISABLE")) == 0
    assert await pool.fetchval("SELECT connection_status FROM whatsapp_numbers") == "connected"
