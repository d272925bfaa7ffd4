"""Meta's warnings, from callback to the row that operators read: in any order, and however often they come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import structlog

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem
from heliograph.whatsapp import messages
from heliograph.whatsapp.mirror import onboarding, warnings
from tests.rules.callback_factories import Meta
from tests.rules.dispatching_whatsapp import Bench, accept_all, fault
from tests.rules.whatsapp_factories import Made, conversation, made
from tests.rules.whatsapp_factories import message as outbound

#: An hour ago, Unix seconds.
BEGAN = int(clock.now().timestamp()) - 3600
DISABLE = {"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": "SCHEDULE_FOR_DISABLE", "waba_ban_date": "May 1"}}
REINSTATE = {"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": "REINSTATE"}}
ALERT = {
    "entity_type": "WABA",
    "alert_info": {
        "alert_type": "OBA_APPROVED",
        "alert_severity": "CRITICAL",
        "alert_status": "ACTIVE",
        "alert_description": "Look at this",
    },
}


async def say(meta: Meta, who: Made, field: str, value: dict[str, Any], seconds: float = 0.0) -> None:
    """An event of `seconds` after BEGAN."""
    await say_all(meta, who, [(field, value, seconds)])


async def say_all(meta: Meta, who: Made, events: Sequence[tuple[str, dict[str, Any], float]]) -> None:
    """Several in one callback, each with its time."""
    entry = [
        {"id": who.waba_id, "time": BEGAN + int(seconds), "changes": [{"field": field, "value": value}]}
        for field, value, seconds in events
    ]
    await meta.post(who, raw=msgspec.json.encode({"object": "whatsapp_business_account", "entry": entry}))
    await meta.work()


async def open_ones(pool: Pool) -> list[tuple[str, str]]:
    rows = await pool.fetch("SELECT kind, detail FROM whatsapp_warnings WHERE over_at IS NULL ORDER BY kind, detail")
    return [(row["kind"], row["detail"]) for row in rows]


@pytest.mark.parametrize(
    ("field", "value", "kind", "detail"),
    [
        ("account_update", {"event": "ACCOUNT_VIOLATION", "violation_info": {"violation_type": "SPAM"}}, "violation",
         "SPAM"),
        ("account_update", DISABLE, "scheduled_disable", "May 1"),
        ("account_update", {"event": "ACCOUNT_RESTRICTION", "restriction_info": [
            {"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": 1795766400}]}, "restriction",
         "RESTRICTED_BIZ_INITIATED_MESSAGING until 2026-11-27 08:00 UTC"),
        ("account_review_update", {"decision": "REJECTED"}, "review_rejected", ""),
        ("account_alerts", ALERT, "alert", "OBA_APPROVED CRITICAL Look at this"),
        ("security", {"display_phone_number": "258841234567", "event": "PIN_CHANGED", "requester": "1"}, "pin_changed",
         "PIN_CHANGED"),
        ("account_update", {"event": "PARTNER_REMOVED"}, "partner_removed", ""),
    ],
)  # fmt: skip
async def test_each_is_kept_logged_and_no_more_than_once(
    pool: Pool, field: str, value: dict[str, Any], kind: str, detail: str
) -> None:
    who, meta = await made(pool), Meta(pool)
    with structlog.testing.capture_logs() as logs:
        await say(meta, who, field, value)
        await say(meta, who, field, value)
    assert await open_ones(pool) == [(kind, detail)]
    told = [one for one in logs if one["event"] == "whatsapp account warning"]
    assert [(one["kind"], one["detail"], one["account_id"]) for one in told] == [(kind, detail, str(who.account_id))]


async def test_a_partner_s_event_names_the_account_inside(pool: Pool) -> None:
    who, meta = await made(pool), Meta(pool)
    at = int(clock.now().timestamp())
    value = {"event": "PARTNER_REMOVED", "waba_info": {"waba_id": who.waba_id}}
    entry = [{"id": "770000000000001", "time": at, "changes": [{"field": "account_update", "value": value}]}]
    await meta.post(who, raw=msgspec.json.encode({"object": "whatsapp_business_account", "entry": entry}))
    await meta.work()
    assert await open_ones(pool) == [("partner_removed", "")]


STORY = [
    ("account_update", DISABLE, 0),
    ("account_update", REINSTATE, 10),
    ("account_review_update", {"decision": "REJECTED"}, 20),
    ("account_update", {**DISABLE, "ban_info": {**DISABLE["ban_info"], "waba_ban_date": "May 9"}}, 30),  # type: ignore[dict-item]
]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
async def test_whatever_the_order_what_was_taken_back_stays_so_until_it_is_said_anew(
    pool: Pool, order: tuple[int, ...], together: bool
) -> None:
    who, meta = await made(pool), Meta(pool)
    told = [STORY[index] for index in (*order, *order[:2])]
    for some in [told] if together else [[one] for one in told]:
        await say_all(meta, who, some)
    assert await open_ones(pool) == [("review_rejected", ""), ("scheduled_disable", "May 9")]
    await say(meta, who, "account_review_update", {"decision": "APPROVED"}, 40)
    await say(meta, who, "account_update", {"event": "PARTNER_REMOVED"}, 50)
    assert await open_ones(pool) == [("partner_removed", ""), ("scheduled_disable", "May 9")]
    async with pool.acquire() as conn:
        seen = await warnings.acknowledge(conn, who.organization_id, who.account_id)
    assert sorted(seen) == [("partner_removed", ""), ("scheduled_disable", "May 9")]
    # Meta repeats callbacks for days, and those are no news.
    await say(meta, who, "account_update", {"event": "PARTNER_REMOVED"}, 50)
    assert await open_ones(pool) == []


async def test_an_alert_that_is_over_is_over(pool: Pool) -> None:
    who, meta = await made(pool), Meta(pool)
    await say(meta, who, "account_alerts", ALERT)
    info: dict[str, Any] = ALERT["alert_info"]  # type: ignore[assignment]
    await say(meta, who, "account_alerts", {**ALERT, "alert_info": info | {"alert_status": "RESOLVED"}}, 10)
    assert await open_ones(pool) == []


@pytest.mark.parametrize("late", [False, True])
async def test_the_end_of_an_alert_ends_no_other(pool: Pool, late: bool) -> None:
    """Of the same type about the same number, in whatever words, and in whichever order they arrive."""
    who, meta = await made(pool), Meta(pool)

    def alert(type: str, entity: str, words: str, state: str = "ACTIVE") -> dict[str, Any]:
        info = {"alert_type": type, "alert_severity": "WARNING", "alert_status": state, "alert_description": words}
        return {"entity_type": "PHONE_NUMBER", "entity_id": entity, "alert_info": info}

    said = [alert("A", "1", "first"), alert("A", "1", "again"), alert("A", "2", "first"), alert("B", "1", "first")]
    events = [(one, 0.0) for one in said] + [(alert("A", "1", "", "RESOLVED"), 10.0)]
    for value, seconds in reversed(events) if late else events:
        await say(meta, who, "account_alerts", value, seconds)
    assert await open_ones(pool) == [("alert", "A WARNING first"), ("alert", "B WARNING first")]
    subjects = await pool.fetch("SELECT subject FROM whatsapp_warnings WHERE over_at IS NULL ORDER BY subject")
    assert [row["subject"] for row in subjects] == ["A 2", "B 1"]
    await say(meta, who, "account_alerts", alert("A", "1", "first"), 20)
    assert len(await open_ones(pool)) == 3


async def test_alerts_of_one_callback_are_stored_together(pool: Pool) -> None:
    """A thousand of them kept everybody else's callbacks waiting for seconds."""
    who, at = await made(pool), clock.now()
    about = {"waba_id": who.waba_id, "field": "account_alerts", "at": at, "fingerprint": ""}
    items = [AccountItem(**about, event=f"TYPE_{n}", severity="WARNING", is_over=n % 3 == 0) for n in range(30)]  # type: ignore[arg-type]
    asked: list[str] = []
    async with pool.acquire() as conn:
        with conn.query_logger(lambda query: asked.append(query.query)):
            await warnings.apply_items(conn, who.organization_id, who.account_id, [(one, at) for one in items])
    assert len(await open_ones(pool)) == 20
    assert sorted(asked) == sorted([warnings.SAY, warnings.OVER])


@pytest.mark.parametrize("state", ["ACTIVE", "NONE"])
async def test_an_alert_that_merely_informs_is_no_warning_and_ends_none(pool: Pool, state: str) -> None:
    who, meta = await made(pool), Meta(pool)
    info: dict[str, Any] = ALERT["alert_info"]  # type: ignore[assignment]
    await say(meta, who, "account_alerts", {**ALERT, "alert_info": info | {"alert_type": "OBA_REJECTED"}})
    known = await open_ones(pool)
    informing = {"alert_severity": "INFORMATIONAL", "alert_status": state, "alert_description": "Approved"}
    await say(meta, who, "account_alerts", {**ALERT, "alert_info": info | informing}, 10)
    assert await open_ones(pool) == known == [("alert", "OBA_REJECTED CRITICAL Look at this")]


@pytest.mark.parametrize("end", ["time", "reading", "operator"])
async def test_an_account_that_may_not_begin_conversations_still_answers(pool: Pool, end: str) -> None:
    """Meta refused the templates, and the hold that followed stopped the replies."""
    who = await made(pool)
    answered = await conversation(pool, who)
    waiting = await outbound(pool, who, to="+258841111111")
    replies = {await outbound(pool, who, type="text", conversation_id=answered), await outbound(pool, who)}
    restriction = {"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": BEGAN + 86_400}
    restricted = {"event": "ACCOUNT_RESTRICTION", "restriction_info": [restriction]}
    await say(Meta(pool), who, "account_update", restricted)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: (
        accept_all(submission) if submission.message_id in replies or not restriction else fault(368)
    )
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == replies
    async with pool.acquire() as conn:
        found = await messages.waiting(conn, who.organization_id, id=waiting)
    assert found is not None
    assert found.held_until is not None
    assert found.held_until.timestamp() == restriction["expiration"]
    match end:
        case "time":
            await pool.execute("UPDATE whatsapp_warnings SET ends_at = now()")
        case "reading":
            await pool.execute("UPDATE whatsapp_numbers SET connection_status = 'connected'")
        case "operator":
            async with pool.acquire() as conn:
                await warnings.acknowledge(conn, who.organization_id, who.account_id)
    restriction.clear()
    await bench.later(seconds=61)
    await bench.refresh()
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == {*replies, waiting}


@pytest.mark.parametrize("since", ["hold", "silence"])
async def test_a_reply_does_not_wait_behind_templates_that_have_to(pool: Pool, since: str) -> None:
    """After a hold one message a second was looked at, for which all of them were due again before the reply's turn."""
    who = await made(pool)
    restriction = {"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": BEGAN + 86_400}
    restricted = {"event": "ACCOUNT_RESTRICTION", "restriction_info": [restriction]}
    await say(Meta(pool), who, "account_update", restricted)
    for n in range(30):
        await outbound(pool, who, to=f"+2588411111{n:02}")
    answered = await conversation(pool, who)
    replies = [await outbound(pool, who, type="text", conversation_id=answered) for _ in range(4)]
    if since == "hold":
        await pool.execute("UPDATE whatsapp_accounts SET held_until = now(), held_reason = 'policy'")
    else:
        await pool.execute("UPDATE whatsapp_numbers SET last_sent_at = NULL")
    bench = await Bench(pool).start()
    bench.only.room = 2
    await bench.round()
    allowed = 1 if since == "hold" else 2
    assert [one.message_id for one in bench.only.submitted] == replies[:allowed]


async def restricted_with_replies(pool: Pool, replies: int) -> Made:
    """An organization that may only answer, with so many answers waiting."""
    who = await made(pool)
    restriction = {"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": BEGAN + 86_400}
    restricted = {"event": "ACCOUNT_RESTRICTION", "restriction_info": [restriction]}
    await say(Meta(pool), who, "account_update", restricted)
    answered = await conversation(pool, who)
    for _ in range(replies):
        await outbound(pool, who, type="text", conversation_id=answered)
    return who


async def test_where_only_replies_wait_no_more_are_taken_than_can_leave(pool: Pool) -> None:
    """Each round took five hundred, and put back, for a moment in which nothing was sent, all but a few."""
    await restricted_with_replies(pool, 30)
    bench = await Bench(pool).start()
    bench.only.room = 5
    await bench.round()
    await bench.later(seconds=1)
    for sent in range(10, 31, 5):
        await bench.round()
        assert len(bench.only.submitted) == sent
        assert (
            await pool.fetchval("SELECT count(*) FROM queue WHERE due_at <= now() AND lease_until IS NULL") == 30 - sent
        )


async def test_replies_found_among_messages_that_have_to_wait_follow_one_another(pool: Pool) -> None:
    """Those that the number had no room for were put back, and waited until the worker next looked at its queue."""
    who = await restricted_with_replies(pool, 4)
    for n in range(30):
        await outbound(pool, who, to=f"+2588411111{n:02}")
    bench = await Bench(pool, claim_limit=1_000).start()
    bench.only.room = 2
    bench.channel.wake.clear()
    await bench.round()
    assert len(bench.only.submitted) == 2
    assert not bench.channel.is_full
    async with asyncio.timeout(20):
        await bench.channel.wake.wait()


async def test_a_restriction_ends_at_its_time(pool: Pool) -> None:
    who, meta = await made(pool), Meta(pool)

    async def restricted(hours: int, seconds: float) -> str | None:
        """The open warnings as operators read them, after a restriction until `hours` from BEGAN."""
        until = {"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": BEGAN + hours * 3600}
        await say(meta, who, "account_update", {"event": "ACCOUNT_RESTRICTION", "restriction_info": [until]}, seconds)
        async with pool.acquire() as conn:
            (found,) = await onboarding.standing(conn)
        told: str | None = found["warnings"]
        return told

    assert await restricted(0, 0) is None
    told = await restricted(24, 10)
    assert told is not None
    assert told.count("RESTRICTED_BIZ_INITIATED_MESSAGING") == 1
    async with pool.acquire() as conn:
        assert len(await warnings.acknowledge(conn, who.organization_id, who.account_id)) == 1
    assert await restricted(24, 10) is None
