"""HTTP suppliers end to end: web process, worker, a simulated supplier of each kind, and what customers see."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.accepting import sender_ids
from heliograph.sms.callbacks import addresses
from heliograph.sms.callbacks.intake import NotTheSupplier, SupplierCallbacks
from heliograph.sms.dispatch import suppliers
from heliograph.suppliers.http.kind import Callback, basic
from tests.processes import Installation, installation, until_true

SECRET = "a secret of the account"
#: The number that handsets write to.
NUMBER = "258840000001"

#: Settings of an account of each kind, and its secrets besides the first.
ACCOUNTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "africastalking": ("africastalking", {"username": "acme"}, {}),
    "africastalking in lists": ("africastalking", {"username": "acme", "batch": 10}, {}),
    "clickatell": ("clickatell", {}, {}),
    "infobip": ("infobip", {}, {}),
    "infobip in lists": ("infobip", {"batch": 10}, {}),
    "twilio": ("twilio", {"account_sid": "AC1"}, {}),
    "vonage": ("vonage", {"api_key": "k", "signature_method": "sha256"}, {"signature_secret": SECRET}),
    "plain": (
        "http",
        {
            "method": "GET",
            "path": ("/send?user=acme&pass={{secret}}&to={{to_plus}}&from={{from}}&text={{text}}&dlr-url={{callback}}"),
            "code_at": "regex:^([0-9]+):",
            "codes": {"0": "accepted", "3": "accepted", "5": "refused", "4": "later"},
            "receipt_id_at": "query:ref",
            "receipt_state_at": "query:status",
            "receipt_states": {"1": "delivered", "2": "undelivered", "16": "rejected", "4": "pending", "8": "pending"},
            "inbound_from_at": "query:from",
            "inbound_to_at": "query:to",
            "inbound_text_at": "query:text",
            "inbound_id_at": "query:id",
            "token_header": "Token",
        },
        {"callback_token": SECRET},
    ),
}


class Supply:
    """An installation whose only supplier is a simulated one over HTTP."""

    def __init__(self, made: Installation, supplier: Aggregator, id: UUID, pool: Pool) -> None:
        self.made, self.supplier, self.id, self.pool = made, supplier, id, pool

    async def send(self, http: aiohttp.ClientSession, to: str, **more: Any) -> str:
        body = {"to": to, "message": "Olá, “preço” & mais: 5 < 6 %", **more}
        headers = {"authorization": f"Bearer {self.made.key}", "idempotency-key": to}
        async with http.post(f"{self.made.base_url}/v1/sms/send", json=body, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
            id: str = (await answer.json())["message"]["id"]
            return id

    async def status(self, http: aiohttp.ClientSession, id: str) -> str:
        headers = {"authorization": f"Bearer {self.made.key}"}
        async with http.get(f"{self.made.base_url}/v1/sms/messages/{id}", headers=headers) as answer:
            status: str = (await answer.json())["message"]["status"]
            return status


@contextlib.asynccontextmanager
async def supply(
    profile: str, url: str, place: Path, pool: Pool, *, secret: str = SECRET, **options: Any
) -> AsyncIterator[Supply]:
    """`secret`: that which we use from the beginning; the supplier's is always the same."""
    kind, values, secrets = ACCOUNTS[profile]
    async with installation(url, place, HELIOGRAPH_UNCERTAIN_GRACE_SECONDS="5") as made:
        base = made.base_url
        made.environment["HELIOGRAPH_PUBLIC_URL"] = base
        made.settings = msgspec.structs.replace(made.settings, public_url=base)
        async with pool.acquire() as conn:
            await suppliers.set_state(conn, supplier="main", state="removed")
            number = await sender_ids.request(conn, made.actor, value=NUMBER)
            await sender_ids.review(conn, made.actor, id=number.id, status="approved")
            sealed = msgspec.json.encode({"secret": secret} | secrets).decode()
            key = suppliers.seal_key(made.settings)
            id = await suppliers.add(
                conn, key, name="http", kind=kind, settings={"base_url": "http://127.0.0.1:1", **values}, secret=sealed
            )
        callback = addresses.address(made.settings, id)
        supplier = Aggregator(Options(profile=profile.partition(" ")[0], secret=SECRET, callback=callback, **options))
        await supplier.start()
        try:
            async with pool.acquire() as conn:
                settings = {"base_url": supplier.base_url, **values}
                await suppliers.reconfigure(conn, key, id=id, settings=settings, secret=sealed)
            async with made.serving(), made.working():
                yield Supply(made, supplier, id, pool)
        finally:
            await supplier.stop()


@pytest.mark.parametrize("profile", ACCOUNTS)
async def test_messages_go_out_are_told_of_and_answered(
    profile: str, database_url: str, pool: Pool, tmp_path: Path
) -> None:
    fates = {
        "+258841230000": "delivered",
        "+258841230001": "undelivered",
        "+258841230100": "rejected",
        "+258841230101": "delivered",  # throttled first
        "+258841230102": "delivered",  # deferred first
        "+258841230103": "delivered",  # its response was lost, and its receipt was matched
        "+258841230104": "delivered",  # its receipt came before the response
        "+258841230105": "delivered",  # its receipt came twice
        "+258841230107": "delivered",  # its response could not be parsed
    }
    async with supply(profile, database_url, tmp_path, pool) as one, aiohttp.ClientSession() as http:
        ids = dict(zip(fates, await asyncio.gather(*(one.send(http, to) for to in fates)), strict=True))
        for to, wanted in fates.items():
            await until_true(lambda to=to, wanted=wanted: _is(one, http, ids[to], wanted))
        taken = [sent.submitted for sent in one.supplier.taken]
        assert {asked.text for asked in taken} == {"Olá, “preço” & mais: 5 < 6 %"}
        # Nobody gets a message twice, unless the supplier's response could not be parsed and no receipt came.
        assert sorted(asked.to for asked in taken) == sorted(to[1:] for to in fates if to != "+258841230100")
        # Texts for customers name no supplier.
        assert await one.supplier.write(sender="258841230000", recipient=NUMBER, text="Olá 😀", id="a") == 200
        assert await one.supplier.write(sender="258841230000", recipient=NUMBER, text="Olá 😀", id="a") == 200
        assert await one.supplier.write(sender="258841230000", recipient=NUMBER, text="STOP", id="b") == 200
        await until_true(lambda: _stored(one, 2))
        assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1
        assert await one.supplier.write(sender="258841230000", recipient=NUMBER, text="x", id="c", secret="w") == (
            403 if profile in ("twilio", "vonage", "plain") else 200
        )
        # Without the secret part of the address a callback is refused, whatever its signature.
        good = one.supplier.options.callback
        forged = good[:-1] + ("A" if good[-1] != "A" else "B")
        one.supplier.options = msgspec.structs.replace(one.supplier.options, callback=forged)
        assert await one.supplier.write(sender="258841230000", recipient=NUMBER, text="x", id="d") == 404


async def _is(one: Supply, http: aiohttp.ClientSession, id: str, wanted: str) -> bool:
    return await one.status(http, id) == wanted


async def _stored(one: Supply, count: int) -> bool:
    found = await one.pool.fetch("SELECT body FROM received_messages ORDER BY id")
    return [row["body"] for row in found] == ["Olá 😀", "STOP"][:count]


async def _found(pool: Pool, query: str) -> bool:
    return await pool.fetchval(query) == 1


async def test_messages_wait_while_the_suppliers_password_is_wrong(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """They used to be rejected for good, like those that no supplier wants."""
    # Wrong from the beginning: a worker follows a change within a second, in which it would use the right one.
    async with (
        supply("twilio", database_url, tmp_path, pool, secret="a typing error") as one,
        aiohttp.ClientSession() as http,
    ):
        ids = [await one.send(http, f"+25884123{n:04}") for n in range(0, 50, 10)]

        async def refused() -> bool:
            return (
                await pool.fetchval(
                    "SELECT count(*) FROM attempts WHERE state = 'unreachable' AND code IN ('20003', 'HTTP 401')"
                )
                >= 5
            )

        await until_true(refused)
        assert one.supplier.taken == []
        assert {await one.status(http, id) for id in ids} <= {"accepted", "sending"}
        async with pool.acquire() as conn:
            right = msgspec.json.encode({"secret": SECRET}).decode()
            before = await suppliers.lock(conn, supplier="http")
            await suppliers.change(conn, suppliers.seal_key(one.made.settings), before, secret=right)
        for id in ids:
            await until_true(lambda id=id: _is(one, http, id, "delivered"))
        assert len(one.supplier.taken) == len(ids)


async def test_an_address_that_nobody_was_given_is_nowhere(database_url: str, pool: Pool, tmp_path: Path) -> None:
    async with supply("africastalking", database_url, tmp_path, pool) as one, aiohttp.ClientSession() as http:
        good = addresses.address(one.made.settings, one.id)
        for path, status in (
            (f"{good}/receipts", 200),
            (f"{good}/other", 404),
            (f"{good[:-1]}{'A' if good[-1] != 'A' else 'B'}/receipts", 404),
            (good.replace(str(one.id), str(UUID(int=5))) + "/receipts", 404),
            (f"{one.made.base_url}/in/sms/", 404),
        ):
            async with http.post(path, data=b"id=1&status=Success") as answer:
                assert answer.status == status, path
        async with http.delete(f"{good}/receipts") as answer:
            assert answer.status == 405
        async with http.post(f"{good}/receipts", data=b"x" * 1_100_000) as answer:
            assert answer.status == 413
        # A body may be compressed: it is decompressed up to the same limit, or refused, and never stored compressed.
        for coding, body, status in (
            ("gzip", gzip.compress(b"x" * 1_100_000), 413),
            ("gzip", gzip.compress(b"id=1&status=Success")[:-9], 415),
            ("br", b"\x0b\x02\x80", 415),
            ("gzip", gzip.compress(b"id=77&status=Success&phoneNumber=%2B258841230000"), 200),
        ):
            async with http.post(f"{good}/receipts", data=body, headers={"content-encoding": coding}) as answer:
                assert answer.status == status
        query = "SELECT count(*) FROM receipts WHERE keys[1] = '77' AND state = 'delivered'"
        await until_true(lambda: _found(pool, query))
        # Nothing of it is stored as it came.
        rows: list[asyncpg.Record] = await pool.fetch("SELECT body FROM supplier_callbacks")
        assert all(b"Success" not in row["body"] for row in rows)


async def test_the_log_says_why_callbacks_of_an_account_are_refused(pool: Pool) -> None:
    made = Settings(secret_key="a secret key for tests, long enough", public_url="https://us.example")
    values = {"api_key": "k", "signature_method": "sha256", "callback_networks": "192.0.2.0/24"}
    sealed = msgspec.json.encode({"secret": SECRET, "signature_secret": SECRET}).decode()
    async with pool.acquire() as conn:
        key = suppliers.seal_key(made)
        id = await suppliers.add(conn, key, name="http", kind="vonage", settings=values, secret=sealed)
    taking = SupplierCallbacks(pool, made)
    known = await taking.account(id, addresses.token(addresses.token_key(made), id))
    unsigned = Callback("POST", "https://us.example/receipts", {}, b"{}")
    with capture_logs() as logged:
        for address in ("192.0.2.1", "192.0.2.2", "198.51.100.1"):
            with pytest.raises(NotTheSupplier):
                await taking.take(known, addresses.RECEIPTS, unsigned, address=address)
    assert [(one["event"], one["supplier_id"], one["reason"], one["address"]) for one in logged] == [
        ("supplier's callback refused", str(id), "signature", "192.0.2.1"),
        ("supplier's callback refused", str(id), "address", "198.51.100.1"),
    ]


async def test_callbacks_may_still_be_signed_with_a_replaced_secret(pool: Pool) -> None:
    """A secret is never changed here and at the supplier at the same moment; the second one corrects a typing error."""
    made = Settings(secret_key="a secret key for tests, long enough", public_url="https://us.example")
    kind, values, _ = ACCOUNTS["plain"]
    secrets = [msgspec.json.encode({"secret": SECRET, "callback_token": f"token {n}"}).decode() for n in range(3)]
    key = suppliers.seal_key(made)
    async with pool.acquire() as conn:
        settings = {"base_url": "https://x.example", **values}
        id = await suppliers.add(conn, key, name="http", kind=kind, settings=settings, secret=secrets[0])
        for secret in secrets[1:]:
            await suppliers.change(conn, key, await suppliers.lock(conn, supplier="http"), secret=secret)

    async def accepted() -> list[int]:
        taking = SupplierCallbacks(pool, made)
        known = await taking.account(id, addresses.token(addresses.token_key(made), id))
        found = []
        for n in range(4):
            told = Callback("GET", "https://us.example/receipts", {"token": f"token {n}"}, b"")
            with contextlib.suppress(NotTheSupplier):
                await taking.take(known, addresses.RECEIPTS, told, address="192.0.2.1")
                found.append(n)
        await taking.drain()
        return found

    assert await accepted() == [0, 1, 2]
    await pool.execute("UPDATE suppliers SET old_secrets_until[2] = now()")
    assert await accepted() == [1, 2]
    # One that no secret key opens any more does not keep the others from being accepted.
    await pool.execute("UPDATE suppliers SET old_secrets[1] = old_secrets[2] || '\\x00'::bytea")
    assert await accepted() == [2]
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier="http", state="removed")
    assert await pool.fetchval("SELECT cardinality(old_secrets) FROM suppliers") == 0


async def test_callbacks_need_a_new_password_at_once_if_there_was_none(pool: Pool) -> None:
    made = Settings(secret_key="a secret key for tests, long enough", public_url="https://us.example")
    key, settings = suppliers.seal_key(made), {"base_url": "https://x.example", **ACCOUNTS["infobip"][1]}
    async with pool.acquire() as conn:
        first = msgspec.json.encode({"secret": SECRET}).decode()
        id = await suppliers.add(conn, key, name="http", kind="infobip", settings=settings, secret=first)
        before = await suppliers.lock(conn, supplier="http")
        after = msgspec.structs.replace(before, settings={**settings, "callback_user": "acme"})
        guarded = msgspec.json.encode({"secret": SECRET, "callback_password": "a password"}).decode()
        await suppliers.change(conn, key, after, before=before, secret=guarded)
    taking = SupplierCallbacks(pool, made)
    known = await taking.account(id, addresses.token(addresses.token_key(made), id))
    url = "https://us.example/receipts"
    with pytest.raises(NotTheSupplier):
        told = Callback("POST", url, {"authorization": basic("acme", "")}, b"{}")
        await taking.take(known, addresses.RECEIPTS, told, address="192.0.2.1")
    told = Callback("POST", url, {"authorization": basic("acme", "a password")}, b"{}")
    await taking.take(known, addresses.RECEIPTS, told, address="192.0.2.1")
    await taking.drain()


async def test_no_replaced_password_of_an_smpp_supplier_is_kept(pool: Pool) -> None:
    made = Settings(secret_key="a secret key for tests, long enough")
    key = suppliers.seal_key(made)
    async with pool.acquire() as conn:
        await suppliers.add(conn, key, name="main", kind="smpp", settings={}, secret="one")
        await suppliers.change(conn, key, await suppliers.lock(conn, supplier="main"), secret="two")
        after = await suppliers.lock(conn, supplier="main")
        assert suppliers.open_secret(key, after) == "two"
        assert await conn.fetchval("SELECT cardinality(old_secrets) FROM suppliers") == 0
