"""Operators' decisions, and what becomes due over time, from outside: a worker acts, and a receiver is notified."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import asyncpg
import msgspec

from heliograph.accounts import organizations, plans, quota
from heliograph.base.database.clock import now
from heliograph.sms.accepting import sender_ids
from heliograph.webhooks import endpoints
from tests.processes import installation, until, until_true


async def test_a_decision_on_a_sender_id_reaches_the_subscriber_and_a_period_begins(
    database_url: str, tmp_path: Path
) -> None:
    async with installation(database_url, tmp_path) as made:
        conn = await asyncpg.connect(database_url)
        try:
            await endpoints.create(
                conn,
                made.actor,
                url=made.receiver.url,
                subscribed_events=["sender_id.approved", "sender_id.rejected"],
                rules=endpoints.rules(made.settings),
            )
            asked = await sender_ids.request(conn, made.actor, value="ACME")
            await sender_ids.review(conn, made.actor, id=asked.id, status="rejected", reason="whose name is it")
            await sender_ids.request(conn, made.actor, value="ACME")
            await sender_ids.review(conn, made.actor, id=asked.id, status="approved")
            # As if its first period had begun 40 days ago and no worker had been running since.
            begun = now() - timedelta(days=40)
            await plans.subscribe(conn, made.actor.organization_id, plans.Terms("business", 700), now=begun)
            await quota.grant(conn, made.actor.organization_id, amount=5, reason="more")

            async def renewed() -> bool:
                return (await organizations.get(conn, id=made.actor.organization_id)).period_start != begun

            async with made.working():
                await until(lambda: len(made.receiver.events) >= 2)
                await until_true(renewed)
            assert (await quota.get(conn, made.actor.organization_id)).remaining == 700
        finally:
            await conn.close()
    told = {event.type: msgspec.json.decode(event.body)["data"]["senderId"] for event in made.receiver.events}
    assert told.keys() == {"sender_id.rejected", "sender_id.approved"}
    assert told["sender_id.rejected"] == sender_ids.shown(asked) | {
        "status": "rejected",
        "rejection_reason": "whose name is it",
        "reviewed_at": told["sender_id.rejected"]["reviewed_at"],
    }
    assert (told["sender_id.approved"]["id"], told["sender_id.approved"]["status"]) == (str(asked.id), "approved")
    assert {event.problem for event in made.receiver.events} == {None}
    assert not made.complaints
