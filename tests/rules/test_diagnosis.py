"""Receipts that nobody understands are counted and reported with the setting that fixes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.received import inbound
from heliograph.sms.reports import diagnosis, receipts, remedies, waiting
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Inbound, Receipt, ReceiptState
from heliograph.suppliers.message_ids import id_key
from tests.rules.factories import SENDER, TO, organization, sent, status_of

KEY = derive_key("a secret key of a test installation", "suppliers")
#: One supplier's ids: in hex in the response, in padded decimal in the receipt.
PAIRS = [("33E95179", "0870928761"), ("39f99dd5", "0972660181"), ("00B8BE19", "0012107289"), ("1A", "26")]


async def added(pool: Pool, **settings: Any) -> UUID:
    values = {"host": "127.0.0.1", "port": 2775, "system_id": "a"} | settings
    async with pool.acquire() as conn:
        return await suppliers.add(conn, KEY, name="main", kind="smpp", settings=values, secret="s")


async def unmatched(pool: Pool, supplier_id: UUID, *keys: str, to: str = TO, age: float = 10.0) -> None:
    one = Receipt(keys, ReceiptState.DELIVERED, to[1:], SENDER, " ".join(keys).encode())
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(supplier_id, one)], policies={})
    await pool.execute("UPDATE receipts SET received_at = now() - $1::interval", timedelta(seconds=age))


async def advised(pool: Pool) -> list[dict[str, str]]:
    async with pool.acquire() as conn:
        return [dict(one.settings) for one in await diagnosis.advise(conn)]


@pytest.mark.parametrize(
    ("now", "in_answers", "cure"),
    [
        ({}, "hex", {"resp_id_base": "hex"}),
        ({}, "dec", {"dlr_id_base": "hex"}),
        ({"resp_id_base": "dec"}, "hex", {"resp_id_base": "hex"}),
        ({"dlr_id_base": "hex"}, "hex", {"resp_id_base": "hex", "dlr_id_base": "dec"}),
        ({"resp_id_base": "hex", "dlr_id_base": "dec"}, "dec", {"resp_id_base": "dec", "dlr_id_base": "hex"}),
    ],
)
async def test_the_base_in_which_receipts_would_fit_is_named(
    pool: Pool, now: dict[str, Any], in_answers: str, cure: dict[str, str]
) -> None:
    id, actor = await added(pool, **now), await organization(pool)
    for pair in PAIRS:
        answer, told = pair if in_answers == "hex" else pair[::-1]
        await sent(pool, actor, id, id_key(answer, now.get("resp_id_base", "text")))
        await unmatched(pool, id, id_key(told, now.get("dlr_id_base", "text")))
    (found,) = await advised(pool)
    # Other settings may work as well; the suggested ones contain no unnecessary change, and all ids match with them.
    assert len(found) <= len(cure)
    way = {"resp_id_base": "text", "dlr_id_base": "text"} | now | found
    for pair in PAIRS:
        answer, told = pair if in_answers == "hex" else pair[::-1]
        assert id_key(answer, way["resp_id_base"]) == id_key(told, way["dlr_id_base"])


async def test_nothing_is_advised_without_the_same_recipient_or_for_most_of_them(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    await sent(pool, actor, id, "33e95179")
    await unmatched(pool, id, "870928761", to="+258829999999")
    assert await advised(pool) == []
    await unmatched(pool, id, "870928761")
    assert await advised(pool) == [{"resp_id_base": "hex"}]
    # Most receipts belong to somebody else's messages on this account: no setting would fix them.
    await unmatched(pool, id, "777", to="+258829999998")
    await unmatched(pool, id, "778", to="+258829999997")
    assert await advised(pool) == []


async def test_nothing_is_advised_about_receipts_that_only_wait_for_their_next_check(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    await unmatched(pool, id, "870928761")
    await sent(pool, actor, id, "870928761")
    assert await advised(pool) == []


# What a session has read is known at once only within its transaction.
READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables
 WHERE relname LIKE 'attempts\\_%'
"""


@pytest.mark.fresh_database
async def test_messages_that_all_have_one_id_are_not_all_read_for_each_receipt(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers used to look every few seconds, and to read millions."""
    monkeypatch.setattr(diagnosis, "KNOWN", diagnosis.KNOWN.replace(f"LIMIT {diagnosis.MOST_ALIKE}", "LIMIT 5"))
    id, actor = await added(pool), await organization(pool)
    for n in range(60):
        await sent(pool, actor, id, "33e95179", to=f"+25884{n:07d}")
    for n in range(20):
        await unmatched(pool, id, "870928761", to=f"+25885{n:07d}")
    async with pool.acquire() as conn, conn.transaction():
        assert await diagnosis.advise(conn) == []
        read = await conn.fetchval(READ)
    assert read < 600


async def test_old_receipts_and_those_of_this_moment_are_not_looked_at(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    await sent(pool, actor, id, "33e95179")
    await unmatched(pool, id, "870928761", age=0.0)
    assert await advised(pool) == []
    await pool.execute("UPDATE receipts SET received_at = now() - interval '1 hour'")
    assert await advised(pool) == []


async def test_the_log_says_it_once_with_the_command(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    await sent(pool, actor, id, "33e95179")
    await unmatched(pool, id, "870928761")
    adviser = diagnosis.Adviser()
    with capture_logs() as logged:
        async with pool.acquire() as conn:
            await adviser.look(conn)
            await adviser.look(conn)
    (line,) = logged
    assert line["cure"] == "heliograph supplier set main resp_id_base=hex"
    assert (line["supplier"], line["receipts"], line["fitting"]) == ("main", 1, 1)


@pytest.mark.parametrize(
    ("answer", "told", "cure"),
    [("33E95179", "0870928761", {"resp_id_base": "hex"}), ("870928761", "33E95179", {"dlr_id_base": "hex"})],
)
async def test_receipts_that_came_before_the_cure_find_their_messages_after_it(
    pool: Pool, answer: str, told: str, cure: dict[str, str]
) -> None:
    id, actor = await added(pool), await organization(pool)
    message = await sent(pool, actor, id, id_key(answer))
    await unmatched(pool, id, id_key(told))
    async with pool.acquire() as conn, conn.transaction():
        before = await suppliers.lock(conn, supplier="main")
        after = msgspec.structs.replace(before, settings=before.settings | cure)
        await suppliers.change(conn, KEY, after)
        assert await diagnosis.reread(conn, before, after) == 1
        assert await diagnosis.reread(conn, after, after) == 0
        applied, _ = await waiting.sweep(conn, policies={})
    assert applied.matched == 1
    assert await status_of(pool, message) == "delivered"


#: As written by a supplier that leaves esm_class at 0: formally a message from a handset.
UNMARKED = "id:{} sub:001 dlvrd:001 submit date:2611281200 done date:2611281201 stat:DELIVRD err:000 text:Hello"


@pytest.mark.parametrize(
    ("text", "settings", "is_named"),
    [
        (UNMARKED.format("0012107289"), {}, True),
        (UNMARKED.format("B8BE19"), {"resp_id_base": "hex", "dlr_id_base": "hex"}, True),
        (UNMARKED.format("B8BE19"), {}, True),  # it accepts another base as well
        (UNMARKED.format("0012107289"), {"dlr_sniff": True}, False),
        (UNMARKED.format("777"), {}, False),
        ("id:0012107289 has arrived, thanks", {}, False),
    ],
)
async def test_receipts_that_are_not_marked_as_such_are_named(
    pool: Pool, text: str, settings: dict[str, Any], is_named: bool
) -> None:
    id, actor = await added(pool, **settings), await organization(pool)
    await sent(pool, actor, id, id_key("0012107289"))
    async with pool.acquire() as conn:
        await inbound.store(conn, id, [Inbound(TO[1:], SENDER, text, b"raw")])
        found = await remedies.check(conn, Settings(), await routing.load(conn))
    assert [str(one.remedy) for one in found] == (
        ["Have them recognized by their text: `heliograph supplier set main dlr_sniff=true`."] if is_named else []
    )
