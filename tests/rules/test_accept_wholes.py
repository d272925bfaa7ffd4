"""A batch of one organization that is stored as a whole is decided by look-ups alone (accept.sql). Its results and rows
are those of the same sends in a batch with another organization, whose items are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import requests, spending
from heliograph.accounts.quota import QuotaExceeded
from heliograph.accounts.requests import Answer, OverLimit, RateUnit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.sms.accepting.accept import Acceptor, Send
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from tests.rules.factories import check_books, organization, send
from tests.rules.test_accept import OPTED_OUT, PAST, STORED, attempt, opt_out, without_ids

#: Items of a batch, its organization's quota and limit, and the result of each item. The keys `k` and `past` were used
#: before; `past` has expired.
CASES: dict[str, tuple[list[dict[str, Any]], int, int, list[object]]] = {
    "all of it": ([{"key_name": "a"}, {"key_name": "b", "client_reference": "r"}, {}], 9, 9, [6, 5, 4]),
    "the last of the quota": ([{}, {"key_name": "a"}, {}], 5, 9, [2, 1, 0]),
    "past the quota": ([{}, {"key_name": "a"}, {}], 4, 9, [1, 0, QuotaExceeded]),
    "the last of the limit": ([{}, {"key_name": "a"}, {}], 9, 3, [6, 5, 4]),
    "past the limit": ([{}, {"key_name": "a"}, {}], 9, 2, [6, 5, OverLimit]),
    "a replay": ([{}, {"key_name": "k"}, {}], 9, 9, [6, "replayed", 5]),
    "a conflict": ([{}, {"key_name": "k", "text": "x"}, {}], 9, 9, [6, requests.IdempotencyConflict, 5]),
    "an expired key": ([{}, {"key_name": "past", "text": "x"}, {}], 9, 9, [6, 5, 4]),
    "an opt-out": ([{}, {"to": OPTED_OUT}, {}], 9, 9, [6, RecipientOptedOut, 5]),
    "another's sender": ([{}, {"sender_name": "NOBODY"}, {}], 9, 9, [6, SenderIdNotApproved, 5]),
    "a test": ([{}, {"mode": "test"}, {}], 9, 9, [6, 6, 5]),
    "tests": ([{"mode": "test"}, {"mode": "test"}], 9, 9, [7, 7]),
    "past a daily limit": ([{}, {"spent": True}, {}, {}], 9, 9, [6, 5, 4, spending.SpendLimitReached]),
}


async def together(acceptor: Acceptor, sends: Sequence[Send]) -> list[Answer | BaseException]:
    """The results of sends that are certainly in one batch."""
    return await acceptor._store([await acceptor._prepare(one) for one in sends])


def outcome_of(said: Answer | BaseException) -> object:
    """The remaining quota if the message was stored, "replayed", or the type of the refusal."""
    if not isinstance(said, Answer):
        return type(said)
    return "replayed" if said.replayed else msgspec.json.decode(said.body)["remainingQuota"]


@pytest.mark.parametrize("kept", [72, 1])
@pytest.mark.parametrize("case", CASES)
async def test_a_whole_batch_is_decided_like_its_items_among_others(pool: Pool, case: str, kept: int) -> None:
    varieties, quota, limit, outcomes = CASES[case]
    acceptor = Acceptor(pool, keys_kept=timedelta(hours=kept))
    alone, among, others = [await organization(pool, quota=quota) for _ in range(3)]
    told: dict[UUID, list[object]] = {}
    key = uuid7()
    for actor in (alone, among):
        await attempt(acceptor, send(actor, key_name="past"))
        await pool.execute(PAST, timedelta(hours=kept + 1), kept >= 24, actor.organization_id)
        await attempt(acceptor, send(actor, key_name="k"))
        await opt_out(pool, actor.organization_id, OPTED_OUT)
        if any("spent" in variety for variety in varieties):
            await _allow(pool, actor, 3)
        units = [RateUnit(key, limit) for _ in varieties]
        sends = [_send(actor, variety, unit) for variety, unit in zip(varieties, units, strict=True)]
        if actor is among:
            sends.append(send(others))
        said = (await together(acceptor, sends))[: len(varieties)]
        told[actor.organization_id] = [(without_ids(one), unit.used) for one, unit in zip(said, units, strict=True)]
        assert [outcome_of(one) for one in said] == outcomes
    assert told[alone.organization_id] == told[among.organization_id]
    for rows in STORED:
        one, many = [await pool.fetch(rows, actor.organization_id) for actor in (alone, among)]
        assert one == many, rows
    await check_books(pool, [alone.organization_id, among.organization_id])


def _send(actor: Actor, variety: dict[str, Any], unit: RateUnit) -> Send:
    values = {name: value for name, value in variety.items() if name not in ("mode", "spent")}
    who = msgspec.structs.replace(actor, mode=variety.get("mode", "live"))
    return send(who, rate_unit=unit, **values)


async def _allow(pool: Pool, actor: Actor, segments: int) -> None:
    """Limit how much an organization may send today."""
    await pool.execute(
        "INSERT INTO spend_limits (organization_id, key_id, segments, day)"
        " VALUES ($1, '00000000-0000-0000-0000-000000000000', $2, (now() AT TIME ZONE 'UTC')::date)",
        actor.organization_id,
        segments,
    )
    await pool.execute("UPDATE quotas SET is_limited = true WHERE organization_id = $1", actor.organization_id)
