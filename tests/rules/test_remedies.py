"""Doctor's findings about suppliers whose reports do not match or do not arrive: the setting that fixes it, by kind."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.sms import checks
from heliograph.sms.dispatch import suppliers
from heliograph.sms.reports import receipts, words
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import NO_WORD, Receipt, ReceiptState
from heliograph.traffic import reconciliation
from tests.rules.factories import TO, organization, receipt, sent

SETTINGS = Settings(database_url="", secret_key="a secret key of a test installation", public_url="https://us.example")
KEY = derive_key(SETTINGS.secret_key, "suppliers")
GATEWAY = {"base_url": "https://gateway.example", "receipt_state_at": "/status"}
SMPP = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}


async def added(pool: Pool, kind: str, **settings: Any) -> UUID:
    secret = msgspec.json.encode({"secret": "s"}).decode()
    async with pool.acquire() as conn:
        return await suppliers.add(conn, KEY, name="main", kind=kind, settings=settings, secret=secret)


async def findings(pool: Pool, what: str, settings: Settings = SETTINGS) -> list[Check]:
    async with pool.acquire() as conn:
        return [one for one in await checks.run(conn, settings) if one.check == f"{what} of main"]


async def counted(pool: Pool, id: UUID, ago: timedelta, **counts: int) -> None:
    async with pool.acquire() as conn:
        events = [(id, "MZ", what, number) for what, number in counts.items()]
        await reconciliation.count(conn, events, clock.now() - ago)


@pytest.mark.parametrize(
    ("kind", "settings", "cure"),
    [
        ("http", GATEWAY, "`heliograph supplier set main receipt_recipient_at=`"),
        ("clickatell", {}, "ask it to report the number"),
        ("smpp", SMPP, "ask it to report the number"),
    ],
)
async def test_ids_that_fit_with_another_recipient(pool: Pool, kind: str, settings: dict[str, Any], cure: str) -> None:
    id, actor = await added(pool, kind, **settings), await organization(pool)
    for n in range(3):
        await sent(pool, actor, id, f"id-{n}", to=TO)
    async with pool.acquire() as conn, conn.transaction():
        some = [ReceivedReceipt(id, receipt(f"id-{n}", to="+25884000000X")) for n in range(3)]
        assert (await receipts.store(conn, some, policies={})).matched == 0
    await pool.execute("UPDATE receipts SET received_at = now() - interval '10 seconds'")
    (one,) = await findings(pool, "receipts")
    assert one.state == "failed"
    assert cure in one.remedy


@pytest.mark.parametrize(
    ("kind", "settings", "public_url", "cure"),
    [
        ("smpp", SMPP | {"registered_delivery": 0}, "", "registered_delivery=1"),
        ("smpp", SMPP, "", "bind=pair"),
        ("clickatell", {}, "", "HELIOGRAPH_PUBLIC_URL"),
        ("clickatell", {}, "https://us.example", "`heliograph supplier show main`"),
        ("http", {"base_url": "https://gateway.example"}, "https://us.example", "receipt_state_at="),
    ],
)
async def test_a_supplier_that_reports_nothing(
    pool: Pool, kind: str, settings: dict[str, Any], public_url: str, cure: str
) -> None:
    id = await added(pool, kind, **settings)
    ours = msgspec.structs.replace(SETTINGS, public_url=public_url)
    await counted(pool, id, timedelta(0), accepted=100)  # theirs may come
    await counted(pool, id, timedelta(hours=5), accepted=19)  # too few to tell
    assert await findings(pool, "receipts", ours) == []
    await counted(pool, id, timedelta(hours=5), accepted=1)
    (one,) = await findings(pool, "receipts", ours)
    assert one.state == "warning"
    assert cure in one.remedy
    await counted(pool, id, timedelta(hours=6), delivered=1)
    assert await findings(pool, "receipts", ours) == []


@pytest.mark.parametrize(
    ("kind", "settings", "cure"), [("http", GATEWAY, "code_at"), ("clickatell", {}, "response_seconds")]
)
async def test_answers_that_nobody_can_read(pool: Pool, kind: str, settings: dict[str, Any], cure: str) -> None:
    id = await added(pool, kind, **settings)
    await counted(pool, id, timedelta(0), unknown=20, accepted=30)
    assert await findings(pool, "answers") == []
    await counted(pool, id, timedelta(0), unknown=20)
    (one,) = await findings(pool, "answers")
    assert cure in one.remedy


@pytest.mark.parametrize(
    ("kind", "settings", "word", "cure"),
    [
        ("smpp", SMPP, "Buffered", "final_states.WORD=undelivered"),
        ("http", GATEWAY, "Buffered", "receipt_states.WORD=undelivered"),
        ("http", GATEWAY, NO_WORD, "receipt_state_at=PLACE"),
        ("clickatell", {}, "Buffered", "has to be extended"),
    ],
)
async def test_states_that_nobody_knows(pool: Pool, kind: str, settings: dict[str, Any], word: str, cure: str) -> None:
    id, counter = await added(pool, kind, **settings), words.Words()
    counter.add(id, Receipt(("1",), ReceiptState.UNKNOWN, "", "", b"", unknown_word=word))
    async with pool.acquire() as conn:
        await counter.store(conn)
    (one,) = await findings(pool, "receipts")
    assert (one.state, cure in one.remedy) == ("warning", True)
    if kind == "http":
        known = json.dumps({"receipt_states": {word.lower(): "pending"}})
        await pool.execute("UPDATE suppliers SET settings = settings || $1::text::jsonb", known)
        assert await findings(pool, "receipts") == []
