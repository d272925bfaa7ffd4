"""A batch of one organization's live messages that is stored as a whole is decided by look-ups alone (accept.sql). Its
results and rows are those of the same sends in a batch with another organization, whose items are ranked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts.requests import Answer, IdempotencyConflict, OverLimit, RateUnit
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.consent import people
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TextReply, WindowClosed
from heliograph.whatsapp.mirror.templates import TemplateNotFound
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds
from tests.rate_windows import hold_windows
from tests.rules import whatsapp_factories
from tests.rules.test_accept import PAST, attempt, without_ids
from tests.rules.test_whatsapp_accept import CODE, FREE, OPEN, OPTED_OUT, SHIPPED, STORED, send
from tests.rules.whatsapp_factories import check_wallets, made

OTHER, THIRD, ENDING, HIDDEN = "+258843330001", "+258843330002", "+258843330003", "MZ.77"
OK, NO_MONEY = 202, WalletInsufficientFunds

#: Items of a batch, its organization's balance (each costs 10,000, a code 30,000, a reply 20,000) and limit, and the
#: result of each item. The keys `k` and `past` were used before; `past` has expired. OPEN has an open window, FREE has
#: free hours, and HIDDEN is the user id of OPEN.
CASES: dict[str, tuple[list[dict[str, Any]], int, int, list[object]]] = {
    "strangers": ([{"to": OTHER, "key_name": "a"}, {"to": THIRD, "client_reference": "r"}], 90_000, 9, [OK, OK]),
    "a stranger twice": ([{"to": OTHER}, {"to": THIRD}, {"to": OTHER}], 90_000, 9, [OK, OK, OK]),
    "strangers and others": ([{"to": OTHER}, {"to": OPEN}, {"to": HIDDEN}, {"to": THIRD}], 90_000, 9, [OK] * 4),
    "no strangers": ([{"to": OPEN, "key_name": "a"}, {"to": FREE}, {"to": OPEN}], 90_000, 9, [OK, OK, OK]),
    "all of the money": ([{"to": OTHER}, {"to": THIRD, "content": CODE}, {"to": OPEN}], 50_000, 9, [OK, OK, OK]),
    "more than the money": ([{"to": OTHER, "content": CODE}, {"to": THIRD}], 39_999, 9, [OK, NO_MONEY]),
    "money in another currency": ([{"to": OTHER, "foreign": True}, {"to": FREE}], 90_000, 9, [NO_MONEY, OK]),
    "what is free": ([{"to": FREE}, {"to": FREE, "content": CODE}], 0, 9, [OK, OK]),
    "what is free no longer": ([{"to": FREE, "later": 3}, {"to": FREE}], 0, 9, [NO_MONEY, OK]),
    "later": ([{"to": OTHER, "later": 3}, {"to": OPEN, "later": 3}], 90_000, 9, [OK, OK]),
    "replies": ([{"to": OPEN, "content": TextReply("yes")}, {"to": OPEN}], 90_000, 9, [OK, OK]),
    "a closed window": ([{"to": OPEN}, {"to": OTHER, "content": TextReply("no")}], 90_000, 9, [OK, WindowClosed]),
    "the last of the limit": ([{"to": OTHER}, {"to": THIRD}, {"to": OPEN}], 90_000, 5, [OK, OK, OK]),
    "past the limit": ([{"to": OTHER}, {"to": THIRD}, {"to": OPEN}], 90_000, 4, [OK, OK, OverLimit]),
    "a replay": ([{"to": OTHER}, {"key_name": "k"}], 90_000, 9, [OK, "replayed"]),
    "a conflict": ([{"to": OTHER}, {"key_name": "k", "content": CODE}], 90_000, 9, [OK, IdempotencyConflict]),
    "an expired key": ([{"to": OTHER}, {"key_name": "past", "content": CODE}], 90_000, 9, [OK, OK]),
    "an opt-out": ([{"to": OTHER}, {"to": OPTED_OUT}], 90_000, 9, [OK, RecipientOptedOut]),
    "an opt-out by another name": ([{"to": "MZ.99"}, {"to": OTHER}], 90_000, 9, [RecipientOptedOut, OK]),
    "an unknown template": (
        [{"to": OTHER}, {"to": THIRD, "content": msgspec.structs.replace(SHIPPED, name="nothing_like_it")}],
        90_000,
        9,
        [OK, TemplateNotFound],
    ),
    "a test": ([{"to": OTHER}, {"to": OTHER, "mode": "test"}], 90_000, 9, [OK, OK]),
    "tests": ([{"to": OTHER, "mode": "test"}, {"to": OPEN, "mode": "test"}], 90_000, 9, [OK, OK]),
}


async def together(acceptor: Acceptor, sends: Sequence[Send]) -> list[Answer | BaseException]:
    """The results of sends that are certainly in one batch."""
    return await acceptor._store([await acceptor.prepare(one) for one in sends])


def outcome_of(said: Answer | BaseException) -> object:
    """202 if the message was stored, "replayed", or the type of the refusal."""
    if not isinstance(said, Answer):
        return type(said)
    return "replayed" if said.replayed else said.status


@pytest.mark.parametrize(
    ("case", "opted_out"),
    [
        (case, opted_out)
        for case, (*_, outcomes) in CASES.items()
        for opted_out in {True, RecipientOptedOut in outcomes}
    ],
)
async def test_a_whole_batch_is_decided_like_its_items_among_others(pool: Pool, case: str, opted_out: bool) -> None:
    """`opted_out`: whether anybody in the organization is."""
    while not await is_decided_alike(pool, case, opted_out=opted_out):
        pass  # a minute ended: other requests are counted in the next one


async def is_decided_alike(pool: Pool, case: str, *, opted_out: bool) -> bool:
    """Check a case; False: it has to be checked again, because a minute ended meanwhile."""
    varieties, balance, limit, outcomes = CASES[case]
    acceptor = Acceptor(pool, settings=Settings())
    # The messages under the keys `past` and `k` have cost 10,000 each.
    alone, among, others = [await made(pool, balance=balance + 20_000) for _ in range(3)]
    told: dict[UUID, list[object]] = {}
    key = uuid7()
    later = clock.now() + timedelta(hours=3)
    for one in (alone, among):
        await attempt(acceptor, send(one, key_name="past"))
        await pool.execute(PAST, timedelta(hours=73), True, one.organization_id)
        await attempt(acceptor, send(one, key_name="k"))
        await whatsapp_factories.conversation(pool, one, to=OPEN)
        await whatsapp_factories.conversation(pool, one, to=FREE, free=timedelta(hours=1))
        async with pool.acquire() as conn, conn.transaction():
            links = [(one.organization_id, OPEN, HIDDEN), (one.organization_id, OPTED_OUT, "MZ.99")]
            await people.link(conn, links)
        if any(variety.get("foreign") for variety in varieties):
            await pool.execute("UPDATE wallets SET currency = 'USD' WHERE organization_id = $1", one.organization_id)
        if opted_out:
            said_stop = "INSERT INTO opt_outs VALUES ($1, $2, '2026-01-02T03:04:05Z', 'test')"
            await pool.execute(said_stop, one.organization_id, OPTED_OUT)
        units = [RateUnit(key, limit) for _ in varieties]
        # The window's row is there already, as for most batches; two requests were counted.
        minute = await pool.fetchval(MINUTE)
        await attempt(acceptor, send(one, key_name="k", rate_unit=RateUnit(key, 9)))
        await attempt(acceptor, send(one, key_name="k", rate_unit=RateUnit(key, 9)))
        sends = []
        for variety, unit in zip(map(dict, varieties), units, strict=True):
            who = msgspec.structs.replace(one.actor, mode=variety.pop("mode", "live"))
            variety.pop("foreign", None)
            if variety.pop("later", None):
                variety["send_at"] = later
            sends.append(send(one, actor=who, rate_unit=unit, **variety))
        if one is among:
            sends.append(send(others))
        said = (await together(acceptor, sends))[: len(varieties)]
        if minute != await pool.fetchval(MINUTE):
            return False
        told[one.organization_id] = [(without_ids(each), unit.used) for each, unit in zip(said, units, strict=True)]
        assert [outcome_of(each) for each in said] == outcomes
    assert told[alone.organization_id] == told[among.organization_id]
    for rows in (*STORED, OPENED):
        whole, ranked = [await pool.fetch(rows, one.organization_id) for one in (alone, among)]
        assert whole == ranked, rows
    await check_wallets(pool, [alone.organization_id, among.organization_id])
    return True


MINUTE = "SELECT date_trunc('minute', clock_timestamp())"
#: The conversations, and which messages are in which.
OPENED = """
SELECT c.recipient, c.mode, array_agg(m.recipient ORDER BY m.id) AS messages, array_agg(DISTINCT a.alias) AS aliases
  FROM whatsapp_conversations c
  JOIN whatsapp_aliases a ON a.organization_id = c.organization_id AND a.conversation_id = c.id
  LEFT JOIN whatsapp_messages m ON m.organization_id = c.organization_id AND m.conversation_id = c.id
 WHERE c.organization_id = $1 GROUP BY c.organization_id, c.id ORDER BY c.recipient, c.mode
"""


#: Who is written to in batches by chance: strangers, and people with a window, free hours, a hidden number, an opt-out.
SOMEBODY = [OTHER, THIRD, OPEN, OPEN, FREE, FREE, HIDDEN, ENDING, *(f"+25884355{n:04}" for n in range(40))]
#: A refusal tells when a window ended.
AT_ONCE = """
UPDATE whatsapp_conversations SET expires_at = now() + interval '1 day', free_until = now() + (free_until - created_at)
 WHERE organization_id = ANY ($1)
"""
#: What becomes of both organizations' wallets before a batch. Mostly there is enough money.
RICH = "UPDATE wallets SET currency = 'EUR', available = 500000, total = 500000 + reserved + consumed"
WALLETS = (
    *[RICH] * 16,
    *(
        f"UPDATE wallets SET available = {one}, total = {one} + reserved + consumed"
        for one in (*range(0, 80_000, 10_000), -1)
    ),
    *["UPDATE wallets SET currency = 'USD'", "DELETE FROM wallets"] * 2,
)
#: What else is changed in them.
CHANGES = (
    "INSERT INTO opt_outs SELECT one, '{to}', '2026-01-02T03:04:05Z', 'test' FROM unnest($1::uuid[]) AS one"
    " ON CONFLICT DO NOTHING",
    *["DELETE FROM opt_outs WHERE organization_id = ANY ($1)"] * 2,
    "UPDATE whatsapp_conversations SET free_until = now() + interval '1 hour' WHERE organization_id = ANY ($1)",
    "UPDATE whatsapp_conversations SET free_until = now() - interval '1 second' WHERE organization_id = ANY ($1)",
    # It counts as closed a minute before its end.
    "UPDATE whatsapp_conversations SET expires_at = now() + interval '30 seconds' WHERE organization_id = ANY ($1)",
    *["UPDATE whatsapp_conversations SET expires_at = now() + interval '1 hour' WHERE organization_id = ANY ($1)"] * 2,
)


@pytest.mark.parametrize("seed", range(6))
async def test_batches_by_chance_are_decided_like_their_items_among_others(pool: Pool, seed: int) -> None:
    chance = random.Random(seed)
    acceptor = Acceptor(pool, settings=Settings())
    alone, among, others = [await made(pool, balance=balance) for balance in (500_000, 500_000, 10_000_000)]
    key, later = uuid7(), clock.now()
    for one in (alone, among):
        for to, free in ((OPEN, None), (FREE, timedelta(hours=1)), (ENDING, None)):
            await whatsapp_factories.conversation(pool, one, to=to, free=free)
        async with pool.acquire() as conn, conn.transaction():
            await people.link(conn, [(one.organization_id, OPEN, HIDDEN)])
    both, counted = [alone.organization_id, among.organization_id], 0
    await pool.execute(AT_ONCE, both)
    for batch in range(30):
        await pool.execute(f"{chance.choice(WALLETS)} WHERE organization_id = ANY ($1)", both)
        for change in chance.sample(CHANGES, chance.choice((0, 0, 1, 2))):
            await pool.execute(change.format(to=chance.choice((OTHER, OPEN, FREE))), both)
        wrong = chance.choice((0.0, 0.1, 0.3))
        varieties: list[dict[str, Any]] = []
        for n in range(chance.randint(2, 5)):
            to = chance.choice(SOMEBODY)
            variety: dict[str, Any] = {"to": to, "content": chance.choice((SHIPPED, CODE))}
            if to in (OPEN, FREE, HIDDEN, ENDING) and chance.random() < 0.4:
                variety["content"] = TextReply("yes")
            if chance.random() < 0.3:
                variety["send_at"] = later + timedelta(minutes=chance.choice((30, 180)))
            if chance.random() < 0.5:
                variety["key_name"] = f"{batch} {n}"
            if chance.random() < wrong:
                variety |= chance.choice((
                    {"key_name": f"{batch - 1} {n}"}, {"mode": "test"}, {"content": TextReply("no")},
                    {"content": msgspec.structs.replace(SHIPPED, name="nothing_like_it")},
                ))  # fmt: skip
            varieties.append(variety)
        limit = counted + len(varieties) - (chance.random() < 0.2)
        counted += len(varieties)
        told = []
        for one in (alone, among):
            units = [RateUnit(key, limit) for _ in varieties]
            sends = []
            for variety, unit in zip(map(dict, varieties), units, strict=True):
                who = msgspec.structs.replace(one.actor, mode=variety.pop("mode", "live"))
                sends.append(send(one, actor=who, rate_unit=unit, **variety))
            if one is among:
                sends.append(send(others))
            said = (await together(acceptor, sends))[: len(varieties)]
            told.append([(without_ids(each), unit.used) for each, unit in zip(said, units, strict=True)])
            await hold_windows(pool)
        assert told[0] == told[1], (batch, varieties)
        for rows in (*STORED, OPENED):
            whole, ranked = [await pool.fetch(rows, one.organization_id) for one in (alone, among)]
            assert whole == ranked, (batch, rows)
