"""Stored callbacks of HTTP suppliers: processed together as they came, or singly if one cannot be read."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import crypto
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Pool
from heliograph.queue.backlog import Backlog
from heliograph.sms.callbacks import addresses, intake, processing
from heliograph.sms.callbacks.intake import MOST, OCTETS, Content, ReceivedCallback
from heliograph.sms.callbacks.processing import CallbackProcessing
from heliograph.sms.dispatch import suppliers
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Inbound, Receipt
from heliograph.suppliers.http import templates
from heliograph.suppliers.http.kind import Callback
from tests.processes import until_true
from tests.rules.test_inbound import handset_message

ONE, OTHER = UUID(int=1), UUID(int=2)


def callback(body: bytes, what: str = "receipts") -> Content:
    return Content(what, Callback("POST", "https://us.example/in", {}, body))


def said(number: int) -> Content:
    return callback(json.dumps({"results": [{"messageId": f"m-{number}", "status": {"id": 5}}]}).encode())


@given(st.lists(st.tuples(st.sampled_from([ONE, OTHER]), st.integers(0, OCTETS)), max_size=200))
def test_rows_hold_each_callback_once_in_order_and_are_bounded(drawn: list[tuple[UUID, int]]) -> None:
    items = [ReceivedCallback(id, callback(b"x" * (size % 7) + b"%d" % n)) for n, (id, size) in enumerate(drawn)]
    rows = intake.rows_of(items)
    for id in (ONE, OTHER):
        kept = [one for owner, row in rows if owner == id for one in row]
        assert kept == [one.content for one in items if one.supplier_id == id]
    assert all(0 < len(row) <= MOST for _, row in rows)


def test_large_callbacks_stand_alone() -> None:
    large = ReceivedCallback(ONE, callback(b"x" * (OCTETS + 1)))
    small = ReceivedCallback(ONE, callback(b"x"))
    assert [len(row) for _, row in intake.rows_of([small, large, small, small])] == [1, 1, 2]


class Reader:
    """A worker that processes the callbacks of one account of a kind."""

    def __init__(self, pool: Pool, key: Key, kind: str = "infobip", *, is_known: bool = True) -> None:
        self.heard: list[Receipt] = []
        #: How many came at once.
        self.sizes: list[int] = []
        #: Receipts of messages that somebody keeps locked.
        self.locked: set[tuple[str, ...]] = set()
        settings = {"base_url": "https://x.example"}
        account: Any = SimpleNamespace(supplier=SimpleNamespace(kind=kind, settings=settings))
        self.processing = CallbackProcessing(
            pool,
            key,
            lambda id: cast(Any, account) if is_known else None,
            on_receipts=self._take,
            on_inbound=lambda: None,
            backlog=Backlog(),
        )

    async def _take(self, supplier_id: UUID, receipts: Sequence[Receipt]) -> None:
        if any(one.keys in self.locked for one in receipts):
            raise asyncpg.LockNotAvailableError
        self.heard += receipts
        self.sizes.append(len(receipts))


async def test_one_that_cannot_be_read_waits_alone_and_the_others_are_done_with(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = crypto.derive_key("a secret key of tests, long enough", "tests")
    strange = callback(b"over this a supplier's file stumbles")
    kind = kinds.HTTP["infobip"]

    def receipts(settings: Any, callback: Callback) -> list[Receipt]:
        if callback.body == strange.callback.body:
            raise KeyError("stumbles")
        return kind.receipts(settings, callback)

    monkeypatch.setattr(kinds, "HTTP", {**kinds.HTTP, "infobip": msgspec.structs.replace(kind, receipts=receipts)})
    async with pool.acquire() as conn:
        await intake.store(conn, key, [(ONE, [said(1), strange, said(2)]), (OTHER, [said(3)])])
    assert await pool.fetchval("SELECT count(*) FROM supplier_callbacks") == 2
    reader = Reader(pool, key)

    async def is_read() -> bool:
        await reader.processing.round()
        return {one.keys for one in reader.heard} == {("m-1",), ("m-2",), ("m-3",)}

    await until_true(is_read)
    ((id, body),) = [tuple(row) for row in await pool.fetch("SELECT id, body FROM supplier_callbacks")]
    assert intake.opened(key, id, body) == [strange]
    assert await pool.fetchval("SELECT due_at > now() + interval '30 seconds' FROM queue WHERE id = $1", id)
    # Read again later, it stays as and where it is.
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 second'")

    async def is_put_off() -> bool:
        await reader.processing.round()
        return bool(await pool.fetchval("SELECT due_at > now() + interval '30 seconds' FROM queue WHERE id = $1", id))

    await until_true(is_put_off)
    assert await pool.fetchval("SELECT count(*) FROM supplier_callbacks") == 1
    assert len(reader.heard) == 3


async def test_one_that_waits_for_a_locked_row_waits_alone_and_messages_from_handsets_are_stored(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as an open session kept one message locked, the supplier's callbacks were taken again and again: what
    handsets had sent in the same batch was not stored, and nothing that came later was read."""
    monkeypatch.setattr(processing, "ROWS", 1)
    key = crypto.derive_key("a secret key of tests, long enough", "tests")
    heard = callback(b"STOP", addresses.INBOUND)

    def inbound(settings: Any, callback: Callback) -> list[Inbound]:
        return [handset_message(callback.body.decode())]

    kind = msgspec.structs.replace(kinds.HTTP["infobip"], inbound=inbound)
    monkeypatch.setattr(kinds, "HTTP", {**kinds.HTTP, "infobip": kind})
    async with pool.acquire() as conn:
        await intake.store(conn, key, [(ONE, [said(1), said(2), said(3), heard])])
        await intake.store(conn, key, [(ONE, [said(4)])])
        await intake.store(conn, key, [(ONE, [said(5)])])
    reader = Reader(pool, key)
    reader.locked = {("m-2",), ("m-4",)}

    async def is_read() -> bool:
        await reader.processing.round()
        return {one.keys for one in reader.heard} == {("m-1",), ("m-3",), ("m-5",)}

    await until_true(is_read)
    assert await pool.fetchval("SELECT count(*) FROM inbound_messages") == 1
    rows = [tuple(row) for row in await pool.fetch("SELECT id, body FROM supplier_callbacks")]
    kept = sorted((intake.opened(key, *row) for row in rows), key=str)
    assert kept == [[said(2)], [said(4)]]
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE due_at > now() + interval '5 seconds'") == 2
    reader.locked = set()
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 second'")

    async def is_done() -> bool:
        await reader.processing.round()
        return not await pool.fetchval("SELECT EXISTS (SELECT FROM supplier_callbacks)")

    await until_true(is_done)
    assert sorted(one.keys for one in reader.heard) == [(f"m-{n}",) for n in range(1, 6)]
    assert await pool.fetchval("SELECT count(*) FROM inbound_messages") == 1


@pytest.mark.parametrize("state", ["active", "removed"])
async def test_what_a_supplier_posted_is_read_although_this_worker_does_not_know_it(pool: Pool, state: str) -> None:
    """One that has just been added, or was removed before this was read: the callback had been answered, and it was
    reported as an error, each minute, until it was deleted unread."""
    key = crypto.derive_key("a secret key of tests, long enough", "tests")
    async with pool.acquire() as conn:
        settings = {"base_url": "https://x.example"}
        id = await suppliers.add(conn, key, name="here", kind="infobip", settings=settings, secret="{}")
        await intake.store(conn, key, [(id, [said(1)])])
        await suppliers.set_state(conn, supplier="here", state=state)
    reader = Reader(pool, key, is_known=False)

    async def is_done() -> bool:
        await reader.processing.round()
        return not await pool.fetchval("SELECT EXISTS (SELECT FROM supplier_callbacks)")

    await until_true(is_done)
    assert [one.keys for one in reader.heard] == [("m-1",)]


async def test_a_supplier_that_posts_very_many_receipts_holds_up_nobody(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of rows with a megabyte each used to be read in the event loop, for a minute, and stored as a whole."""
    monkeypatch.setattr(processing, "ENOUGH", 10)
    monkeypatch.setattr(processing, "AT_ONCE", 4)
    key = crypto.derive_key("a secret key of tests, long enough", "tests")
    kind, threads = kinds.HTTP["infobip"], set[int]()

    def receipts(settings: Any, callback: Callback) -> list[Receipt]:
        threads.add(threading.get_ident())
        return kind.receipts(settings, callback)

    monkeypatch.setattr(kinds, "HTTP", {**kinds.HTTP, "infobip": msgspec.structs.replace(kind, receipts=receipts)})
    async with pool.acquire() as conn:
        await intake.store(conn, key, [(ONE, [said(n) for n in range(start, start + 6)]) for start in (0, 6, 12)])
    reader = Reader(pool, key)
    done: list[int] = []

    async def is_read() -> bool:
        done.append(await reader.processing.round())
        return len(reader.heard) == 18

    await until_true(is_read)
    assert [rows for rows in done if rows] == [2, 1]
    assert reader.sizes == [4, 4, 4, 4, 2]
    assert [one.keys for one in reader.heard] == [(f"m-{n}",) for n in range(18)]
    assert threading.get_ident() not in threads
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


def test_the_address_of_a_list_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be read for each item: a megabyte of them took a hundred seconds."""
    read: list[str] = []

    def query_of(url: str) -> dict[str, str]:
        read.append(url)
        return {"ref": "r-1"}

    monkeypatch.setattr(templates, "query_of", query_of)
    found = templates.Found(b"[1, 2, 3]", url="https://us.example/in?ref=r-1&once=1")
    assert [one.text("query:ref") for one in found.items("/")] == ["r-1"] * 3
    assert read == ["https://us.example/in?ref=r-1&once=1"]
