"""Templates follow Meta's events and readings in any order; one that an operator disabled stays disabled."""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.suppliers.whatsapp_cloud import objects as whatsapp_objects
from heliograph.suppliers.whatsapp_cloud.callbacks.items import TemplateItem
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse
from heliograph.suppliers.whatsapp_cloud.objects import CloudTemplate
from heliograph.whatsapp import reads
from heliograph.whatsapp.mirror import accounts, template_sync
from heliograph.whatsapp.mirror.accounts import BusinessAccount
from heliograph.whatsapp.mirror.numbers import NumberBook
from heliograph.whatsapp.mirror.template_sync import kept
from heliograph.whatsapp.mirror.templates import TemplateBook, TemplateNotFound
from tests.rules import whatsapp_account_factories as made
from tests.rules.factories import endpoint, organization

NOW = datetime.now(UTC).replace(microsecond=0)
GRAPH_ID = "1200000000000017"


def item(seconds: float, kind: str = "status", template_id: str = GRAPH_ID, **values: Any) -> TemplateItem:
    """An event `seconds` from NOW."""
    common = {"waba_id": made.WABA, "field": kind, "at": NOW + timedelta(seconds=seconds), "fingerprint": ""}
    return TemplateItem(**common, kind=kind, template_id=template_id, **values)


def listed(**values: Any) -> CloudTemplate:
    """A template as Meta lists it."""
    raw = {
        "id": GRAPH_ID,
        "name": "order_shipped",
        "language": "fr",
        "status": "APPROVED",
        "category": "UTILITY",
        "components": made.BODY,
        **values,
    }
    found = whatsapp_objects.template(raw)
    assert found is not None
    return found


async def apply(pool: Pool, account: BusinessAccount, *items: TemplateItem, at: datetime | None = None) -> int:
    """Events that arrive together, `at` or an hour from NOW."""
    arrived = at or NOW + timedelta(hours=1)
    async with pool.acquire() as conn:
        return await template_sync.apply_items(
            conn, account.organization_id, account.id, [(one, arrived) for one in items]
        )


async def store(
    pool: Pool,
    account: BusinessAccount,
    *listing: CloudTemplate,
    seconds: float = 0.0,
    gone: bool = True,
    **values: Any,
) -> Any:
    """A reading of all, which speaks of NOW + `seconds`; its time is put down as the mirror does. `gone`: of what it
    lacks, Meta says that it is gone; otherwise it cannot be asked."""
    at = NOW + timedelta(seconds=seconds)
    async with pool.acquire() as conn, conn.transaction():
        if gone:
            values["asked"] = {row["id"]: None for row in await conn.fetch("SELECT id FROM whatsapp_templates")}
        changes = await template_sync.store_listing(
            conn, account.organization_id, account.id, listing, at=at, asked_at=at + timedelta(seconds=60), **values
        )
        await conn.execute("UPDATE whatsapp_accounts SET templates_read_at = $1", at)
    return changes


async def row(pool: Pool) -> Any:
    (found,) = await pool.fetch("SELECT * FROM whatsapp_templates")
    return found


async def begun(pool: Pool) -> tuple[Actor, BusinessAccount, UUID]:
    """An organization with an account and the template GRAPH_ID."""
    actor = await organization(pool)
    account = await made.account(pool, actor)
    return actor, account, await made.template(pool, account, graph_id=GRAPH_ID)


EVENTS = [
    item(1, event="PAUSED", pause="FIRST_PAUSE"),
    item(2, "category", category="MARKETING", previous_category="UTILITY"),
    item(3, event="APPROVED", pause="UNPAUSE"),
    item(4, "quality", quality="YELLOW"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
@pytest.mark.parametrize("at_once", [1, 6])
async def test_events_come_to_the_same_in_any_order_and_twice(pool: Pool, order: tuple[int, ...], at_once: int) -> None:
    _, account, _ = await begun(pool)
    events = [EVENTS[index] for index in (*order, *order[:2])]
    for n in range(0, len(events), at_once):
        await apply(pool, account, *events[n : n + at_once])
    found = await row(pool)
    assert (found["status"], found["category"], found["quality"], found["held_until"]) == (
        "approved",
        "marketing",
        "yellow",
        None,
    )
    assert found["applied_at"] == NOW + timedelta(seconds=4)
    assert found["reread_at"] is not None


async def test_many_changes_at_once_ask_the_database_no_more_than_one_does(pool: Pool) -> None:
    """Meta may report every template of an account in one callback, and everything else of its app waits for it."""
    actor, account, _ = await begun(pool)
    await endpoint(pool, actor, "whatsapp.template.updated")
    for n in range(20):
        await made.template(pool, account, f"template_{n}", graph_id=str(n))
    changes = [item(1, event="PAUSED", template_id=str(n)) for n in range(20)]
    changes += [item(2, "quality", template_id=str(n), quality="RED") for n in range(20)]
    changes.append(item(1, event="APPROVED", template_id="unknown", name="new", language="fr"))
    asked: list[str] = []
    async with pool.acquire() as conn:
        with conn.query_logger(lambda query: asked.append(query.query)):
            ids = account.organization_id, account.id
            deliveries = await template_sync.apply_items(conn, *ids, [(one, NOW) for one in changes])
    assert deliveries == 20
    assert len(asked) == len(set(asked)) + 1  # once more for the unknown one
    states = await pool.fetch("SELECT status, quality, count(*) FROM whatsapp_templates GROUP BY 1, 2 ORDER BY 3")
    assert [tuple(one) for one in states] == [("approved", "unknown", 1), ("paused", "red", 20)]


async def test_changes_of_one_template_that_arrive_together_are_one_for_customers(pool: Pool) -> None:
    actor, account, _ = await begun(pool)
    await endpoint(pool, actor, "whatsapp.template.updated")
    assert await apply(pool, account, *EVENTS) == 1
    ((_, told),) = await made.events_of(pool, actor)
    assert (told["template"]["status"], told["template"]["category"]) == ("approved", "marketing")
    assert [row["kind"] for row in await pool.fetch("SELECT kind FROM notices")] == ["template.marketing"]


async def test_a_template_that_is_rejected_again_within_the_hour_rings_again(pool: Pool) -> None:
    """Somebody has submitted it again, and waits."""
    _, account, _ = await begun(pool)
    for n, event in enumerate(("REJECTED", "PENDING", "REJECTED", "REJECTED")):
        await apply(pool, account, item(n + 1, event=event))
    assert [row["kind"] for row in await pool.fetch("SELECT kind FROM notices")] == ["template.rejected"] * 2


async def test_customers_hear_once_of_what_they_see(pool: Pool) -> None:
    actor, account, id = await begun(pool)
    await endpoint(pool, actor, "whatsapp.template.updated")
    rejected = item(5, event="REJECTED", reason="PROMOTIONAL")
    assert [await apply(pool, account, one) for one in (*EVENTS, *EVENTS, rejected, rejected)] == [
        1, 1, 1, 0, 0, 0, 0, 0, 1, 0,
    ]  # fmt: skip
    told = await made.events_of(pool, actor)
    assert [(data["template"]["status"], data["template"]["category"]) for _, data in told] == [
        ("paused", "utility"),
        ("paused", "marketing"),
        ("approved", "marketing"),
        ("rejected", "marketing"),
    ]
    kinds = await pool.fetch("SELECT kind, object FROM notices ORDER BY id")
    assert kinds == [(f"template.{one}", str(id)) for one in ("paused", "marketing", "rejected")]
    last = told[-1][1]["template"]
    assert last.pop("updatedAt")
    assert last == {
        "id": str(id),
        "name": "order_shipped",
        "language": "fr",
        "category": "marketing",
        "status": "rejected",
        "sendable": False,
        "parameterCount": 2,
        "bodyPreview": made.BODY[0]["text"],
        "components": msgspec.to_builtins(reads.parts(made.BODY)),
        "rejectionReason": "promotional",
    }


async def test_an_advance_notice_changes_nothing_and_the_final_one_does(pool: Pool) -> None:
    """The events as Meta writes them, with a hyphen in the language and an id beyond what a float holds."""
    actor = await organization(pool)
    account = await made.account(pool, actor)
    id = "12000000000000000171"
    await made.template(pool, account, graph_id=id, language="en_US")

    def body(at: int, value: str) -> bytes:
        return (
            f'{{"object":"whatsapp_business_account","entry":[{{"id":"{made.WABA}","time":{at},"changes":[{{"field":'
            f'"template_category_update","value":{{"message_template_id":{id},"message_template_name":"order_shipped",'
            f'"message_template_language":"en-US",{value}}}}}]}}]}}'
        ).encode()

    at = int(NOW.timestamp())
    (advance,) = parse(body(at, '"new_category":"UTILITY","correct_category":"MARKETING"'))
    (final,) = parse(body(at + 86_400, '"previous_category":"UTILITY","new_category":"MARKETING"'))
    assert isinstance(advance, TemplateItem)
    assert isinstance(final, TemplateItem)
    await apply(pool, account, advance)
    assert (await row(pool))["category"] == "utility"
    await apply(pool, account, final, at=NOW + timedelta(days=2))
    assert (await row(pool))["category"] == "marketing"
    await apply(pool, account, advance)
    assert (await row(pool))["category"] == "marketing"


async def test_a_mention_of_the_category_does_not_undo_the_news_of_the_same_second(pool: Pool) -> None:
    _, account, _ = await begun(pool)
    news = item(1, "category", category="MARKETING", previous_category="UTILITY")
    mention = item(1, event="APPROVED", category="UTILITY")
    for one in (news, mention, news, mention):
        await apply(pool, account, one)
        assert (await row(pool))["category"] == "marketing"


async def test_an_event_that_names_only_name_and_language_finds_its_template(pool: Pool) -> None:
    _, account, _ = await begun(pool)
    await apply(pool, account, item(1, template_id="999", name="order_shipped", language="fr", event="DISABLED"))
    assert (await row(pool))["status"] == "disabled"
    # Not so its end: a template that was made anew has the same name.
    await apply(pool, account, item(2, template_id="999", name="order_shipped", language="fr", event="DELETED"))
    assert (await row(pool))["status"] == "disabled"
    await apply(pool, account, item(3, event="DELETED"))
    assert (await row(pool))["status"] == "removed"


@pytest.mark.parametrize("event", ["DELETED", None])
async def test_one_made_anew_is_sent_once_its_content_is_known(pool: Pool, event: str | None) -> None:
    """It was approved with the content of the one before, whose parameters Meta refuses."""
    _, account, _ = await begun(pool)
    if event:
        await apply(pool, account, item(1, event=event))
    status = (await row(pool))["status"]
    anew = item(2, template_id="999", name="order_shipped", language="fr", event="APPROVED")
    assert await apply(pool, account, anew) == 0
    found = await row(pool)
    assert (found["status"], found["missing_at"] is not None) == (status, status == "approved")
    assert await pool.fetchval("SELECT templates_at <= now() + interval '2 minutes' FROM whatsapp_accounts")
    components = [{"type": "BODY", "text": "Bonjour {{1}}."}]
    await store(pool, account, listed(id="999", components=components), seconds=3600)
    found = await row(pool)
    assert (found["status"], found["missing_at"], found["graph_id"]) == ("approved", None, "999")
    assert found["parameter_count"] == 1


async def test_one_that_nobody_knows_has_all_of_them_read_again(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    for column in ("mirror_at", "templates_at", "numbers_at"):
        await made.ago(pool, account, column, timedelta(hours=-1))
    assert await apply(pool, account, item(0, event="APPROVED", name="new", language="fr")) == 0
    due = "SELECT mirror_at < now() + interval '5 minutes' AND templates_at < now() + interval '5 minutes'"
    assert await pool.fetchval(f"{due} AND numbers_at > now() + interval '5 minutes' FROM whatsapp_accounts")


async def test_a_reading_gives_way_to_newer_events_and_wins_over_older_ones(pool: Pool) -> None:
    _, account, _ = await begun(pool)
    await apply(pool, account, item(10, event="PAUSED"))
    # Meta's listing lags behind: it is of before the event.
    await store(pool, account, listed(), seconds=5)
    assert (await row(pool))["status"] == "paused"
    await store(pool, account, listed(category="MARKETING"), seconds=20)
    assert ((await row(pool))["status"], (await row(pool))["category"]) == ("approved", "marketing")
    # What Meta tells again days later was known by then.
    await apply(pool, account, item(15, event="DISABLED"))
    await apply(pool, account, item(15, "category", category="UTILITY"))
    assert ((await row(pool))["status"], (await row(pool))["category"]) == ("approved", "marketing")
    await apply(pool, account, item(25, event="DISABLED"))
    assert (await row(pool))["status"] == "disabled"


async def test_a_time_to_come_is_now(pool: Pool) -> None:
    _, account, _ = await begun(pool)
    await apply(pool, account, item(86_400, event="PAUSED"), at=NOW)
    await apply(pool, account, item(5, event="APPROVED"), at=NOW + timedelta(seconds=10))
    assert (await row(pool))["status"] == "approved"


async def test_a_listing_brings_changes_and_takes_away(pool: Pool) -> None:
    actor = await organization(pool)
    account = await made.account(pool, actor)
    await endpoint(pool, actor, "whatsapp.template.updated")
    button = {
        "type": "URL",
        "text": "Suivre",
        "url": "https://shop.example/{{1}}",
        "example": ["https://shop.example/1"],
    }
    parts = [*made.BODY, {"type": "BUTTONS", "buttons": [button, {"type": "FLOW", "flow_id": 17, "text": "Go"}]}]
    first = await store(pool, account, listed(), listed(id="2", name="second", components=parts), quiet=True)
    assert (first.added, first.deliveries) == (2, 0)
    ids = dict(await pool.fetch("SELECT name, id FROM whatsapp_templates"))
    # The same again changes nothing, in no row.
    stamps = await pool.fetch("SELECT xmin::text FROM whatsapp_templates ORDER BY id")
    assert (
        await store(pool, account, listed(), listed(id="2", name="second", components=parts), seconds=1)
        == type(first)()
    )
    assert await pool.fetch("SELECT xmin::text FROM whatsapp_templates ORDER BY id") == stamps
    second = await pool.fetchrow("SELECT * FROM whatsapp_templates WHERE name = 'second'")
    assert second["parameter_count"] == 3
    assert "flow_id" not in second["components"]
    assert '"example"' not in second["components"]

    third = listed(id="3", name="third", language="en-US", status="PENDING", category="AUTHENTICATION")
    changes = await store(pool, account, listed(status="PAUSED"), third, seconds=2)
    assert (changes.added, changes.changed, changes.removed, changes.deliveries) == (1, 1, 1, 3)
    rows = {found["name"]: found for found in await pool.fetch("SELECT * FROM whatsapp_templates")}
    assert {name: found["status"] for name, found in rows.items()} == {
        "order_shipped": "paused",
        "second": "removed",
        "third": "pending",
    }
    assert (rows["third"]["language"], rows["third"]["parameter_count"]) == ("en_US", 1)
    assert rows["order_shipped"]["held_until"] is not None
    assert rows["order_shipped"]["reread_at"] > rows["order_shipped"]["held_until"]

    back = await store(pool, account, listed(), listed(id="22", name="second"), seconds=3)
    assert (back.added, back.changed, back.removed) == (0, 2, 1)
    again = await pool.fetchrow("SELECT * FROM whatsapp_templates WHERE name = 'second'")
    assert (again["id"], again["graph_id"], again["status"]) == (ids["second"], "22", "approved")


@pytest.mark.parametrize(
    "odd",
    [
        {"components": [{"type": "BODY", "text": "x\N{SUPERSCRIPT TWO} is {{\N{SUPERSCRIPT TWO}}}"}]},
        {"components": [{"type": "BODY", "text": f"Bonjour {{{{{'1' * 5000}}}}}"}]},
        {"message_send_ttl_seconds": 10**30},
        {"name": b"".join(hashlib.sha512(bytes([n])).digest() for n in range(60)).hex()},
    ],
    ids=["digit", "position", "lifetime", "name"],
)
async def test_one_that_cannot_be_meant_keeps_no_other_from_being_read(pool: Pool, odd: dict[str, Any]) -> None:
    account = await made.account(pool, await organization(pool))
    found = whatsapp_objects.template({"id": "2", "name": "odd", "language": "fr", "status": "APPROVED",
                                       "category": "UTILITY", **odd})  # fmt: skip
    await store(pool, account, listed(), *([found] if found else []))
    rows = await pool.fetch("SELECT name, ttl_seconds FROM whatsapp_templates ORDER BY name DESC")
    assert rows[0] == ("order_shipped", None)
    assert [tuple(row) for row in rows[1:]] == (
        [] if "name" in odd else [("odd", 30 * 86_400 if "components" not in odd else None)]
    )


async def test_a_reading_leaves_removed_ones_alone_unless_they_are_listed(pool: Pool) -> None:
    """They are never deleted, so there may be far more of them than of the others."""
    _, account, _ = await begun(pool)
    ids = account.organization_id, account.id
    for n in range(5):
        await made.template(pool, account, f"old_{n}", status="removed")
    await pool.execute("UPDATE whatsapp_templates SET missing_at = now() WHERE name = 'old_0'")
    async with pool.acquire() as conn:
        read = await conn.fetch(template_sync.OF_ACCOUNT, *ids, ["order_shipped", "old_1", "old_2"], ["fr", "fr", "en"])
    assert sorted(row["name"] for row in read) == ["old_0", "old_1", "order_shipped"]
    await store(pool, account, listed(), listed(id="999", name="old_1"), seconds=10, gone=False)
    rows = await pool.fetch("SELECT name, status, missing_at FROM whatsapp_templates ORDER BY name")
    assert [tuple(row) for row in rows] == [
        ("old_0", "removed", None),
        ("old_1", "approved", None),
        ("old_2", "removed", None),
        ("old_3", "removed", None),
        ("old_4", "removed", None),
        ("order_shipped", "approved", None),
    ]


@pytest.mark.parametrize("end", ["PENDING_DELETION", "DELETED"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_one_made_anew_stands_in_the_list_beside_the_one_that_was_deleted(
    pool: Pool, end: str, is_first: bool
) -> None:
    account = await made.account(pool, await organization(pool))
    await store(pool, account, listed(), quiet=True)
    both = [listed(status=end), listed(id="22")]
    changes = await store(pool, account, *(both if is_first else both[::-1]), seconds=1)
    assert changes.removed == 0
    found = await row(pool)
    assert (found["graph_id"], found["status"]) == ("22", "approved")
    await store(pool, account, listed(id="22", status=end), seconds=2)
    assert (await row(pool))["status"] == "removed"


async def test_local_disabling_survives_everything_and_is_silent(pool: Pool) -> None:
    actor, account, id = await begun(pool)
    await made.number(pool, account)
    number = await NumberBook(pool).resolve(actor, await pool.fetchval("SELECT id FROM whatsapp_numbers"))
    async with pool.acquire() as conn:
        assert await template_sync.set_disabled(conn, actor.organization_id, id, disabled=True)
        assert not await template_sync.set_disabled(conn, actor.organization_id, id, disabled=True)
        with pytest.raises(NotFound):
            await template_sync.set_disabled(conn, (await organization(pool)).organization_id, id, disabled=True)
    with pytest.raises(TemplateNotFound):
        await TemplateBook(pool).find(actor, number, "order_shipped", "fr")
    assert [data["template"]["status"] for _, data in await made.events_of(pool, actor)] == ["disabled"]
    await apply(pool, account, item(1, event="PAUSED"))
    await store(pool, account, listed(status="APPROVED", category="AUTHENTICATION"), seconds=2)
    await store(pool, account, seconds=3)
    await store(pool, account, listed(id="77"), seconds=4)
    found = await row(pool)
    assert (found["disabled_locally"], found["status"], found["graph_id"]) == (True, "approved", "77")
    assert len(await made.events_of(pool, actor)) == 1
    async with pool.acquire() as conn:
        assert await template_sync.set_disabled(conn, actor.organization_id, id, disabled=False)
    assert (await TemplateBook(pool).find(actor, number, "order_shipped", "fr")).status == "approved"
    assert [data["template"]["status"] for _, data in await made.events_of(pool, actor)] == ["disabled", "approved"]


async def test_a_refused_send_pauses_it_until_a_reading_after_the_lag(pool: Pool) -> None:
    actor, account, id = await begun(pool)
    await endpoint(pool, actor, "whatsapp.template.updated")
    async with pool.acquire() as conn:
        assert await template_sync.hold(conn, actor.organization_id, id, seconds=10_800) == 1
        assert await template_sync.hold(conn, actor.organization_id, uuid7(), seconds=1) == 0
    found = await row(pool)
    assert (found["status"], found["held_until"] > NOW + timedelta(hours=2)) == ("paused", True)
    await store(pool, account, listed(), seconds=-3600)
    assert (await row(pool))["status"] == "paused"
    await store(pool, account, listed(), seconds=3600)
    assert ((await row(pool))["status"], (await row(pool))["held_until"]) == ("approved", None)


@pytest.mark.parametrize("by", ["event", "listing"])
@pytest.mark.parametrize("status", ["paused", "disabled"])
async def test_a_refusal_that_a_status_reports_late_changes_nothing_that_is_newer(
    pool: Pool, by: str, status: str
) -> None:
    """Callbacks were delayed, and the template has been in use again since."""
    actor, account, id = await begun(pool)
    if by == "event":
        await apply(pool, account, item(-60, event="REINSTATED"))
    else:
        await store(pool, account, listed(), seconds=-60)
    for seconds, expected in ((-61, "approved"), (-59, status)):
        at = NOW + timedelta(seconds=seconds)
        async with pool.acquire() as conn:
            await template_sync.hold(conn, actor.organization_id, id, seconds=10_800, status=status, at=at)
        found = await row(pool)
        assert (found["status"], found["reread_at"] is not None) == (expected, True)
    assert found["held_until"] == (at + timedelta(seconds=10_800) if status == "paused" else None)


async def test_one_read_alone_that_is_gone_is_held_until_a_listing_says_so_too(pool: Pool) -> None:
    """A credential that sees nothing gets the same answer for everything."""
    actor, account, id = await begun(pool)
    await apply(pool, account, item(0, event="FLAGGED"))
    async with pool.acquire() as conn:
        same = await template_sync.store_one(conn, actor.organization_id, id, listed(), at=NOW + timedelta(seconds=1))
        assert (same.changed, (await row(pool))["reread_at"]) == (0, None)
        gone = await template_sync.store_one(conn, actor.organization_id, id, None, at=NOW + timedelta(seconds=2))
    found = await row(pool)
    assert (gone.removed, found["status"], found["missing_at"] is not None) == (0, "approved", True)
    assert await pool.fetchval("SELECT templates_at <= now() FROM whatsapp_accounts")
    assert (await store(pool, account, seconds=3600)).removed == 1
    found = await row(pool)
    assert (found["status"], found["missing_at"]) == ("removed", None)


async def test_what_a_listing_lacks_stays_until_meta_says_that_it_is_gone(pool: Pool) -> None:
    _, account, id = await begun(pool)
    changes = await store(pool, account, seconds=3600, gone=False)
    found = await row(pool)
    assert (changes.removed, found["status"], found["missing_at"] is not None) == (0, "approved", True)
    # Asked for alone, it is there, with what has changed of it.
    await store(pool, account, seconds=3700, gone=False, asked={id: listed(status="PAUSED")})
    found = await row(pool)
    assert (found["status"], found["missing_at"]) == ("paused", None)
    await store(pool, account, seconds=3800, gone=False)
    await store(pool, account, listed(), seconds=3900, gone=False)
    found = await row(pool)
    assert (found["status"], found["missing_at"]) == ("approved", None)


async def test_templates_of_an_account_that_comes_back_are_what_meta_lists(pool: Pool) -> None:
    """Meta's last event about one may be newer than the list, which lags behind events."""
    actor, account, id = await begun(pool)
    await apply(pool, account, item(1, event="PAUSED"))
    async with pool.acquire() as conn:
        ids = {"organization_id": actor.organization_id, "account_id": account.id}
        await accounts.set_state(conn, **ids, state="removed")
    assert (await row(pool))["status"] == "removed"
    assert (await made.account(pool, actor)).id == account.id
    changes = await store(pool, account, listed(status="PAUSED"), quiet=True)
    assert (changes.added, changes.changed, changes.removed) == (0, 1, 0)
    found = await row(pool)
    assert (found["id"], found["status"], found["category"]) == (id, "paused", "utility")


async def test_the_book_matches_exactly_and_never_says_no_on_what_was(pool: Pool) -> None:
    actor, account, id = await begun(pool)
    number = await NumberBook(pool).resolve(actor, await made.number(pool, account))
    book = TemplateBook(pool)
    found = await book.find(actor, number, "order_shipped", "fr")
    assert (found.id, found.parameter_count, found.layout.parameter_count, found.category) == (id, 2, 2, "utility")
    for name, language in (("order_shipped", "fr_FR"), ("Order_shipped", "fr"), ("other", "fr")):
        with pytest.raises(TemplateNotFound) as refused:
            await book.find(actor, number, name, language)
        assert refused.value.details == {"name": name, "language": language}
    with pytest.raises(TemplateNotFound):
        await book.find(await organization(pool), number, "order_shipped", "fr")
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    assert (await TemplateBook(pool).find(actor, number, "order_shipped", "fr")).status == "paused"
    await pool.execute("UPDATE whatsapp_templates SET status = 'approved'")
    assert (await book.find(actor, number, "order_shipped", "fr")).status == "approved"
    by_id = await book.get(actor.organization_id, id)
    assert by_id is not None
    assert by_id.name == "order_shipped"
    assert await book.get(actor.organization_id, uuid7()) is None


def test_nothing_that_leads_to_meta_is_kept() -> None:
    parts = [
        {"type": "HEADER", "format": "IMAGE", "example": {"header_handle": ["https://scontent.example/x"]}},
        {"type": "BODY", "text": "x", "add_security_recommendation": True},
        {"type": "CAROUSEL", "cards": [{"components": []}]},
    ]
    assert kept(parts) == [
        {"type": "HEADER", "format": "IMAGE"},
        {"type": "BODY", "text": "x", "add_security_recommendation": True},
        {"type": "CAROUSEL"},
    ]
